// Timings of collectives that others published: measured_ops/nccl.csv.gz and published/published_nccl.csv.gz of the reference
// data. Takes that folder and the clusters they ran on, returns timings for collective_fit.h; and the fits and tables that are
// made of them: data/collectives/nccl.json, docs/collectives.md.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "calibrate/collective_fit.h"

namespace precog {

struct ReferenceCluster {
  ClusterSpec spec;
  const GpuSpec* chip = nullptr;
};
// By the name of the reference data: "h100_sxm".
using ReferenceClusters = std::map<std::string, ReferenceCluster>;

// What each GPU of the reference data stands in here: {its name there, GPU, cluster}.
struct ReferencePlace {
  const char *name, *gpu, *cluster;
};
std::vector<ReferencePlace> reference_places();

ReferenceCluster reference_cluster(const GpuSpec& gpu, const SystemSpec& system, const NetworkSpec& network);

struct ReferenceCollectives {
  std::vector<MeasuredCollective> measured;   // one node each; fitted to, but for what is held out
  std::vector<MeasuredCollective> published;  // group: "H100-SXM" or the like, with its nodes
  std::vector<std::string> left_out;          // published rows that cannot be used, and why
};
Result<ReferenceCollectives> read_reference_collectives(const std::filesystem::path& folder, const ReferenceClusters& clusters);

struct CollectiveFits {
  CollectiveCatalog all;                                    // what is shipped
  std::map<std::string, CollectiveCatalog> held_out;        // "4 GPUs": fitted without them; "sizes": without every other size
};
CollectiveFits fit_reference(const ReferenceCollectives& rows, const CollectiveCatalog& start);

std::string to_json_text(const CollectiveCatalog& catalog);
// The page, with the coefficients given: those shipped, and beside them fits without what is judged.
std::string collectives_page(const ReferenceCollectives& rows, const CollectiveCatalog& shipped, const std::map<std::string, CollectiveCatalog>& held_out);

// Held-out sizes: every other power of two; a GPU count: four of them, between the two and the eight that are fitted to.
bool is_held_out_size(std::int64_t bytes);
constexpr int kHeldOutRanks = 4;

}  // namespace precog
