// All-reduce over the ranks of one node, or of several.
// Inside a node: a ring's steps at link latency, its bytes at link speed, and the fill of its pipeline, which grows with
// the square root of the message (the best chunk size balances the two). Between nodes the rings leave each node once,
// spread over its ports, and NCCL pipelines both legs: the slower one sets the pace.
#include <algorithm>
#include <cmath>

#include "cost/cost.h"
#include "cost/profile.h"

namespace precog {

KernelCost collective_cost(const CollectiveShape& collective, const ClusterSpec& cluster, const GpuSpec& gpu,
                           const ArchitectureProfile& profile) {
  const CollectiveCoefficients& c = profile.all_reduce;
  KernelCost cost;
  cost.bound = Bound::network;
  cost.source = c.source;
  if (collective.participants <= 1) return cost;

  const double ranks = collective.participants, bytes = static_cast<double>(collective.bytes.value);
  const double local = std::min(ranks, static_cast<double>(std::max(1, cluster.gpus_per_node)));
  const double nodes = std::ceil(ranks / local);
  const double link = cluster.intra_bandwidth.value > 0 ? cluster.intra_bandwidth.value : gpu.link_bandwidth.value;

  double latency = 2 * (local - 1) * cluster.intra_latency.value;
  double wire = 0;
  if (local > 1) wire = 2 * (local - 1) / local * bytes / (link * c.efficiency) * std::pow(local / 2, c.contention);
  if (nodes > 1) {
    const double ports = std::max(1, cluster.nics_per_node) * cluster.network.port_bandwidth.value * cluster.network.efficiency;
    wire = std::max(wire, 2 * (nodes - 1) / nodes * bytes / ports);
    latency += 2 * std::ceil(std::log2(nodes)) * cluster.network.latency.value;  // a tree up and down
  }
  const double fill = std::sqrt(wire * c.pipeline_fill.value);
  cost.memory = {wire + fill};
  cost.launch = {c.launch_floor.value + latency};
  cost.total = cost.memory + cost.launch;
  return cost;
}

}  // namespace precog
