#include "cli.h"

#include <fmt/format.h>

#include "calibrate/calibrate.h"
#include "calibrate/cluster_calibration.h"

namespace precog::cli {
namespace {

constexpr std::size_t kMostLog = 64u << 20;

Result<Output> calibrate_own_cluster(const Arguments& arguments, const Context& context) {
  if (arguments.cluster.empty()) return fail("--cluster", "is missing: the cluster that nccl-tests ran on, as precog clusters names it, or the nearest to it");
  if (!arguments.measurements.empty()) return fail("MEASUREMENTS", "of operators and --nccl are two calibrations: one at a time");
  PRECOG_TRY(system, context.catalog.system(arguments.cluster));
  const std::string named = arguments.gpu.empty() ? system->gpu : arguments.gpu;
  if (named.empty()) return fail("--gpu", fmt::format("is missing: {} takes any GPU", system->name));
  PRECOG_TRY(gpu, context.catalog.gpu(named));
  if (!system->gpu.empty() && gpu->name != system->gpu) return fail("--gpu", fmt::format("is {}; {} has {}", gpu->name, system->name, system->gpu));
  PRECOG_TRY(network, context.catalog.network(system->network));
  const std::filesystem::path file = context.data_dir / "clusters" / (system->name + ".json");
  PRECOG_TRY(written, read_json_file(file));
  std::vector<NcclTest> tests;
  for (const std::string& path : arguments.nccl) {
    PRECOG_TRY(text, read_text_file(path, kMostLog));
    PRECOG_TRY(parsed, parse_nccl_tests(text, path));
    tests.insert(tests.end(), parsed.begin(), parsed.end());
  }
  const std::string name = arguments.out.empty() ? system->name : std::filesystem::path(arguments.out).stem().string();
  PRECOG_TRY(calibration, calibrate_cluster(tests, {*system, *gpu, *network, context.catalog.collectives.find(system->intra_kind, gpu->architecture), written}, name));
  Output out;
  if (!arguments.out.empty()) out.files.push_back({arguments.out, calibration.cluster.dump(2) + "\n"});
  out.text = arguments.json ? json_document(to_json(calibration)) : to_text(calibration, system->name);
  return out;
}

}  // namespace

Result<Output> run_calibrate(const Arguments& arguments, const Context& context) {
  if (!arguments.nccl.empty()) return calibrate_own_cluster(arguments, context);
  if (arguments.measurements.empty()) return fail("MEASUREMENTS", "are missing: files of measured operators, or --nccl with what nccl-tests printed");
  if (arguments.gpu.empty()) return fail("--gpu", "is missing: the GPU that the operators were measured on, as precog gpus names it");
  PRECOG_TRY(gpu, context.catalog.gpu(arguments.gpu));
  const ArchitectureProfile* physics = context.catalog.profile.find(gpu->architecture);
  PRECOG_TRY(measurements, read_measurements(arguments.measurements, *gpu, *physics));
  FittedProfile base;
  CalibrateOptions options;
  if (arguments.base.empty() && is_short(measurements)) {
    PRECOG_TRY(carried, context.catalog.fitted_for(*gpu));
    options.base = carried;
  } else if (!arguments.base.empty() && arguments.base != "none") {
    PRECOG_TRY(json, read_json_file(arguments.base));
    PRECOG_TRY(parsed, parse_fitted_profile(json, arguments.base));
    if (parsed.architecture != gpu->architecture)
      return fail("--base", fmt::format("was fitted on {} ({}); {} is {}", parsed.gpu, parsed.architecture, gpu->name, gpu->architecture));
    base = std::move(parsed);
    options.base = &base;
  }
  if (options.base && !options.base->method.empty())
    return fail("--base", fmt::format("is itself of a short measurement ({}): give its measurements together with these, or another base, or none", options.base->gpu));
  if (context.progress) options.progress = [](std::size_t done, std::size_t all) { fmt::print(stderr, "\r{} of {} families fitted", done, all); };
  const Calibration calibration = calibrate(measurements, *gpu, *physics, options);
  if (context.progress) fmt::print(stderr, "\r\x1b[K");
  Output out;
  if (!arguments.out.empty()) out.files.push_back({arguments.out, to_json_text(calibration.profile)});
  if (!arguments.report.empty()) out.files.push_back({arguments.report, to_markdown(calibration, measurements, *gpu)});
  out.text = arguments.json ? json_document(to_json(calibration, measurements)) : to_text(calibration, measurements);
  return out;
}

}  // namespace precog::cli
