// Writes docs/carry_over.md from the reference data: how well costs carry to a GPU that was left out of every fit.
// With a folder, also the profiles of products of the GPUs that have no measurements of our own.
// usage: precog_carry_over REFERENCE_DATA OUT.md [PROFILES [rows [trees]]]
#include <algorithm>
#include <cstdlib>
#include <iostream>

#include "calibrate/carry_over.h"
#include "calibrate/reference_profile.h"
#include "cost/cost.h"

int main(int argc, char** argv) {
  using namespace precog;
  namespace fs = std::filesystem;
  const auto stop = [](const std::string& message) {
    std::cerr << message << "\n";
    return 2;
  };
  if (argc < 3) return stop("usage: precog_carry_over REFERENCE_DATA OUT.md [PROFILES [rows [trees]]]");
  CarryOverOptions options;
  if (argc > 4) options.rows = static_cast<std::size_t>(std::max(100, std::atoi(argv[4])));
  if (argc > 5) options.trees = std::max(1, std::atoi(argv[5]));
  std::vector<GpuSpec> gpus;
  for (const fs::directory_entry& file : fs::directory_iterator(PRECOG_SOURCE_DATA_DIR "/gpus")) {
    auto json = read_json_file(file.path());
    auto gpu = json ? parse_gpu(*json, file.path().string()) : Result<GpuSpec>(tl::unexpected(json.error()));
    if (!gpu) return stop(gpu.error().text());
    gpus.push_back(std::move(*gpu));
  }
  auto json = read_json_file(PRECOG_SOURCE_DATA_DIR "/profiles/datasheet.json");
  auto profile = json ? CostProfile::parse(*json, "data/profiles/datasheet.json") : Result<CostProfile>(tl::unexpected(json.error()));
  if (!profile) return stop(profile.error().text());
  if (argc > 3 && *argv[3]) {
    for (const auto& [name, file] : {std::pair{"a100-sxm-80gb", "a100_sxm"}, std::pair{"l40s", "l40s"}, std::pair{"b200-sxm", "b200_sxm"}}) {
      const auto gpu = std::find_if(gpus.begin(), gpus.end(), [&, wanted = std::string(name)](const GpuSpec& one) { return one.name == wanted; });
      auto fitted = reference_profile(fs::path(argv[1]) / "measured_ops" / (std::string("gemm_") + file + ".csv.gz"), *gpu, *profile->find(gpu->architecture), 2500);
      if (!fitted) return stop(fitted.error().text());
      if (auto written = write_text_file(fs::path(argv[3]) / (std::string(name) + ".json"), to_json_text(*fitted)); !written) return stop(written.error().text());
    }
  }
  auto groups = carry_over(fs::path(argv[1]) / "measured_ops", gpus, *profile, options);
  if (!groups) return stop(groups.error().text());
  if (auto written = write_text_file(argv[2], carry_over_page(*groups, options)); !written) return stop(written.error().text());
  return 0;
}
