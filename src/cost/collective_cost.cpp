// All-reduce, all-gather and reduce-scatter over the ranks of one node, or of several, by what joins them.
// A ring passes (n-1)/n of the message over each rank's link, an all-reduce twice: a reduce-scatter, then an all-gather. A
// switch that reduces (NVLS: Hopper and Blackwell behind NVSwitch, five ranks and more) has each rank send the message once
// and its share of the result once, 1 + 1/n; NCCL takes it for an all-reduce where it is faster, for long messages. The two
// halves alone show no gain by it in any measurement, and stay with the ring. All pay ring steps at link latency and the fill
// of a pipeline, which grows with the square root of the time on the wire (the best chunk size balances the two).
// Between nodes a flat ring carries its share out of every node, spread over the node's ports; with a reducing switch
// only the nodes' sums travel, up and down a tree. Both legs run at once: the slower one sets the pace.
// A group's ranks may lie apart (a stride): then fewer of them share a node, and as many groups cross the node's ports at once.
// In an all-to-all each rank sends every other its part directly; a send_recv is one message from each rank to the next.
// The coefficients are an all-reduce's for all of them; docs/model_notes/sharded_data_parallel.md says how well that holds.
#include <algorithm>
#include <cmath>

#include "cost/cost.h"
#include "cost/profile.h"

namespace precog {
namespace {

constexpr double kInSwitchRanks = 5;  // fewer: NCCL stays with the ring, which is as fast (published H200 and B200 runs)

// Which of a group's ranks share a node, and who else uses its ports at the same time.
struct Layout {
  double local = 1, nodes = 1;  // ranks of the group on a node; nodes it spans
  double groups = 1;            // that cross the same node's ports at once
};

Layout lay_out(const CollectiveShape& collective, const ClusterSpec& cluster) {
  const double ranks = collective.participants, node = std::max(1, cluster.gpus_per_node);
  Layout out;
  out.local = std::clamp(std::floor(node / std::max(1, collective.stride)), 1.0, ranks);
  out.nodes = std::ceil(ranks / out.local);
  if (out.nodes > 1) out.groups = std::max(1.0, std::floor(node / out.local));
  return out;
}

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
  const auto [local, nodes, groups] = lay_out(collective, cluster);
  double link = cluster.intra_bandwidth.value > 0 ? cluster.intra_bandwidth.value : gpu.link_bandwidth.value;
  if (pcie && gpu.pcie_bandwidth.value > 0) link = std::min(link, gpu.pcie_bandwidth.value);  // an SXM card's NVLink lies idle here
  link *= c.efficiency;
  // A bus is shared by the ranks between a group's ranks, too.
  const double busy = pcie ? std::min<double>(cluster.gpus_per_node, local * std::max(1, collective.stride)) : local;
  const double shared = std::pow(std::max(1.0, busy / 2), c.contention);
  const double port = cluster.network.port_bandwidth.value * cluster.network.efficiency;
  const double ports = std::max(1, cluster.nics_per_node) * port / groups;

  double wire = 0, local_steps = 0, steps_between = 0;
  if (collective.kind == Collective::send_recv) {
    // One rank's message takes its own ports only, however many its node has.
    const double own = std::max(port, ports * groups / std::max(1, cluster.gpus_per_node));
    wire = filled(nodes > 1 ? bytes / std::min(own, ports) : bytes / link * shared, c.pipeline_fill);
    (nodes > 1 ? steps_between : local_steps) = 1;
  } else if (collective.kind == Collective::all_to_all) {
    double direct = local > 1 ? (ranks - 1) / ranks * bytes / link * shared : 0;
    if (nodes > 1) direct = std::max(direct, local * (ranks - local) / ranks * bytes / ports);
    wire = filled(direct, c.pipeline_fill);
    local_steps = local > 1 ? 1 : 0;  // all peers at once
    steps_between = nodes > 1 ? 1 : 0;
  } else {
    double ring = 0;
    if (local > 1) ring = ring_share(ranks) * bytes / link * shared;
    if (nodes > 1) ring = std::max(ring, ring_share(ranks) * bytes / ports);
    wire = filled(ring, c.pipeline_fill);
    if (reduces_all && c.in_switch_efficiency > 0 && cluster.intra_kind == "nvswitch" && local >= kInSwitchRanks) {
      double reduced = (1 + 1 / local) * bytes / (link / c.efficiency * c.in_switch_efficiency);
      if (nodes > 1) reduced = std::max(reduced, ring_share(nodes) * bytes / ports);
      wire = std::min(wire, filled(reduced, c.in_switch_fill));
    }
    // An all-reduce goes up and down a tree of nodes; its halves have no tree and step around the whole ring.
    local_steps = reduces_all ? 2 * (local - 1) : nodes * (local - 1);
    steps_between = reduces_all ? 2 * std::ceil(std::log2(nodes)) : nodes - 1;
  }

  const double latency = local_steps * cluster.intra_latency.value + steps_between * cluster.network.latency.value;
  cost.memory = {wire};
  cost.launch = {c.launch_floor.value + latency};
  cost.total = cost.memory + cost.launch;
  if (nodes > 1 || collective.kind > Collective::reduce_scatter) cost.source = CostSource::estimate;  // networks' latency and efficiency; no such exchange was fitted
  else if (pcie && local > 2) cost.source = CostSource::scaled;  // the contention was read off another machine
  return cost;
}

}  // namespace precog
