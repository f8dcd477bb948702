// All-reduce, all-gather and reduce-scatter over the ranks of one node, or of several, by what joins them.
// A ring passes (n-1)/n of the message over each rank's link, an all-reduce twice: a reduce-scatter, then an all-gather. A
// switch that reduces (NVLS: Hopper and Blackwell behind NVSwitch, five ranks and more) has each rank send the message once
// and its share of the result once, 1 + 1/n; NCCL takes it for an all-reduce where it is faster, for long messages. The two
// halves alone show no gain by it in any measurement, and stay with the ring. All pay ring steps at link latency and the fill
// of a pipeline, which grows with the square root of the time on the wire (the best chunk size balances the two).
// Between nodes a flat ring carries its share out of every node, spread over the node's ports; with a reducing switch
// only the nodes' sums travel, up and down a tree. Both legs run at once: the slower one sets the pace.
// The coefficients are an all-reduce's for all three; docs/model_notes/sharded_data_parallel.md says how well that holds.
#include <algorithm>
#include <cmath>

#include "cost/cost.h"
#include "cost/profile.h"

namespace precog {
namespace {

constexpr double kInSwitchRanks = 5;  // fewer: NCCL stays with the ring, which is as fast (published H200 and B200 runs)

double filled(double wire, Seconds fill) { return wire + std::sqrt(wire * fill.value); }

}  // namespace

KernelCost collective_cost(const CollectiveShape& collective, const ClusterSpec& cluster, const GpuSpec& gpu,
                           const ArchitectureProfile& profile) {
  const bool pcie = cluster.intra_kind == "pcie";
  const CollectiveCoefficients& c = pcie ? profile.pcie_all_reduce : profile.all_reduce;
  KernelCost cost;
  cost.bound = Bound::network;
  cost.source = c.source;
  if (collective.participants <= 1) return cost;

  const bool reduces_all = collective.kind == Collective::all_reduce;
  const double rounds = reduces_all ? 2 : 1;  // around the ring
  const auto ring_share = [&](double members) { return rounds * (members - 1) / members; };
  const double ranks = collective.participants, bytes = static_cast<double>(collective.bytes.value);
  const double local = std::min(ranks, static_cast<double>(std::max(1, cluster.gpus_per_node)));
  const double nodes = std::ceil(ranks / local);
  double link = cluster.intra_bandwidth.value > 0 ? cluster.intra_bandwidth.value : gpu.link_bandwidth.value;
  if (pcie && gpu.pcie_bandwidth.value > 0) link = std::min(link, gpu.pcie_bandwidth.value);  // an SXM card's NVLink lies idle here
  const double ports = std::max(1, cluster.nics_per_node) * cluster.network.port_bandwidth.value * cluster.network.efficiency;

  double ring = 0;
  if (local > 1) ring = ring_share(ranks) * bytes / (link * c.efficiency) * std::pow(local / 2, c.contention);
  if (nodes > 1) ring = std::max(ring, ring_share(ranks) * bytes / ports);
  double wire = filled(ring, c.pipeline_fill);
  if (reduces_all && c.in_switch_efficiency > 0 && cluster.intra_kind == "nvswitch" && local >= kInSwitchRanks) {
    double reduced = (1 + 1 / local) * bytes / (link * c.in_switch_efficiency);
    if (nodes > 1) reduced = std::max(reduced, ring_share(nodes) * bytes / ports);
    wire = std::min(wire, filled(reduced, c.in_switch_fill));
  }

  // An all-reduce goes up and down a tree of nodes; its halves have no tree and step around the whole ring.
  const double local_steps = reduces_all ? 2 * (local - 1) : nodes * (local - 1);
  const double steps_between = reduces_all ? 2 * std::ceil(std::log2(nodes)) : nodes - 1;
  const double latency = local_steps * cluster.intra_latency.value + steps_between * cluster.network.latency.value;
  cost.memory = {wire};
  cost.launch = {c.launch_floor.value + latency};
  cost.total = cost.memory + cost.launch;
  if (nodes > 1) cost.source = CostSource::estimate;  // the networks' latency and efficiency are estimates
  else if (pcie && local > 2) cost.source = CostSource::scaled;  // the contention was read off another machine
  return cost;
}

}  // namespace precog
