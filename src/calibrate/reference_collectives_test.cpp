// The shipped coefficients of collectives against the reference data: what docs/collectives.md says must not get worse.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>

#include <doctest/doctest.h>

#include "calibrate/reference_collectives.h"

using namespace precog;

namespace {

const std::filesystem::path kData = PRECOG_DATA_DIR;

template <class T, class Parse>
T read(const std::filesystem::path& file, Parse parse) {
  return parse(read_json_file(file).value(), file.string()).value();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

struct Committed {  // medians in per cent, below 1 MB and above
  const char* what;
  double below, above;
};
constexpr Committed kCommitted[] = {{"all_reduce", 4.4, 2.8}, {"all_gather", 5.6, 2.9}, {"reduce_scatter", 4.7, 4.1}, {"all_to_all", 5.8, 4.3},
                                    {"a100_sxm", 4.9, 3.2},   {"h100_sxm", 5.5, 3.5},   {"h200_sxm", 7.2, 3.4},       {"b200_sxm", 4.9, 4.0},
                                    {"gb200", 3.6, 3.1},      {"l40s", 7.5, 6.8}};
constexpr double kSlack = 0.5, kAskedBelow = 20, kAskedAbove = 10;

}  // namespace

TEST_CASE("CollectivesAreAsNearToTheReferenceAsThePageSays") {
  const char* folder = std::getenv("PRECOG_REFERENCE_DATA");
  if (!folder || !std::filesystem::is_regular_file(std::filesystem::path(folder) / "measured_ops" / "nccl.csv.gz")) {
    MESSAGE("skipped: PRECOG_REFERENCE_DATA is not set, or holds no measured_ops/nccl.csv.gz");
    return;
  }
  std::map<std::string, GpuSpec> gpus;
  ReferenceClusters clusters;
  for (const ReferencePlace& place : reference_places()) {
    gpus.try_emplace(place.gpu, read<GpuSpec>(kData / "gpus" / (std::string(place.gpu) + ".json"), parse_gpu));
    const SystemSpec system = read<SystemSpec>(kData / "clusters" / (std::string(place.cluster) + ".json"), parse_system);
    clusters[place.name] = reference_cluster(gpus.at(place.gpu), system, read<NetworkSpec>(kData / "networks" / (system.network + ".json"), parse_network));
  }
  auto rows = read_reference_collectives(folder, clusters);
  REQUIRE(rows);
  CHECK(rows->measured.size() > 9000);
  CHECK(rows->published.size() > 100);
  const CollectiveCatalog shipped = read<CollectiveCatalog>(kData / "collectives" / "nccl.json", CollectiveCatalog::parse);
  std::map<std::string, std::vector<double>> below, above;
  const auto add = [&](const MeasuredCollective& one, const std::vector<std::string>& groups) {
    const double error = 100 * std::abs(predicted(one, shipped.find(one.cluster.intra_kind, one.gpu->architecture)) / one.seconds - 1);
    for (const std::string& group : groups) (one.shape.bytes.value < 1'000'000 ? below : above)[group].push_back(error);
  };
  for (const MeasuredCollective& one : rows->measured) add(one, {one.group, std::string(to_text(one.shape.kind))});
  for (const MeasuredCollective& one : rows->published)
    if (one.cluster.gpus > one.cluster.gpus_per_node) add(one, {"several nodes"});
  for (const Committed& committed : kCommitted) {
    CAPTURE(committed.what);
    CHECK(median(below.at(committed.what)) <= std::min(kAskedBelow, committed.below + kSlack));
    CHECK(median(above.at(committed.what)) <= std::min(kAskedAbove, committed.above + kSlack));
  }
  CHECK(median(below.at("several nodes")) <= kAskedBelow);
  CHECK(median(above.at("several nodes")) <= kAskedAbove);
}
