// Sittings that timed the same calls: what each adds to a launch.
#include <filesystem>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "calibrate/sittings.h"
#include "cost/profile.h"

namespace precog {
namespace {

// Products of a few microseconds, `later` microseconds longer each; those from `first` on.
Measurements& add_sitting(Measurements& all, const char* name, int first, int count, double later) {
  static const std::filesystem::path data = PRECOG_DATA_DIR;
  static const CostProfile profile = CostProfile::parse(read_json_file(data / "profiles" / "datasheet.json").value(), "datasheet.json").value();
  static const GpuSpec gpu = parse_gpu(read_json_file(data / "gpus" / "h200-sxm.json").value(), "h200-sxm").value();
  std::string text;
  for (int i = first; i < first + count; ++i)
    text += fmt::format("{{\"family\":\"gemm\",\"op\":\"nt\",\"dtype\":\"bf16\",\"m\":{},\"n\":128,\"k\":64,\"cold\":true,\"rotated\":3,\"calls\":{},\"s\":{:.9g}}}\n", 8 * i + 8, later > 0 ? 3 : 6,
                        (4 + 0.01 * i + later) * 1e-6);
  REQUIRE(add_measurements(text, name, gpu, *profile.find("hopper"), all));
  return all;
}

TEST_CASE("SittingsThatTimedTheSameCallsAreTold") {
  Measurements all;
  add_sitting(add_sitting(add_sitting(all, "one", 0, 400, 0), "later", 0, 400, 0.2), "others", 400, 50, 0.3);
  const std::vector<double> offsets = sitting_offsets(all);
  REQUIRE(offsets.size() == 3);
  CHECK(offsets[2] == 0);
  CHECK(offsets[1] - offsets[0] == doctest::Approx(0.2e-6).epsilon(0.15));
  CHECK(offsets[0] + offsets[1] == doctest::Approx(0).epsilon(1e-12));  // as many rows each
}

TEST_CASE("SittingOfOtherCallsHasNothingTakenOff") {
  Measurements all;
  add_sitting(add_sitting(all, "one", 0, 100, 0), "others", 100, 100, 0.3);
  for (double offset : sitting_offsets(all)) CHECK(offset == 0);
}

TEST_CASE("FewSharedCallsSayLittle") {
  Measurements all;
  add_sitting(add_sitting(all, "one", 0, 100, 0), "later", 97, 100, 0.3);
  const std::vector<double> offsets = sitting_offsets(all);
  CHECK(offsets[1] - offsets[0] < 0.2e-6);
}

TEST_CASE("LaunchesOfACall") {
  Measurements all;
  CHECK(launches_of(add_sitting(all, "one", 0, 1, 0).rows.front()) == 1);
}

}  // namespace
}  // namespace precog
