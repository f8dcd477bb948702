// The time of a collective by the algorithm and protocol that NCCL takes (collective_choice.h), with what was fitted of each
// (spec/collective_spec.h). On the wire: a ring passes (n-1)/n of the message over each rank's link, an all-reduce twice, and
// each rank's own part is copied on the spot. A switch that reduces has each rank send the message once and its share of the
// result once, 1 + 1/n. In an all-to-all each rank sends every other its part directly; a send_recv is one message.
// An all-to-all of copies (tokens for several experts, by DeepEP's or HybridEP's kernels) sends each row once to every node that has any
// of its destinations, and inside it once to every rank. Across, those kernels reach what the port gives: 43 to 58 GB/s of 50 on 16 to
// 64 H800 (DeepEP's README), where NCCL's all_to_all was measured at about half.
// Between nodes a flat ring carries its share out of every node, spread over the node's ports; up and down a tree of nodes,
// and with a reducing switch, only the nodes' sums travel. Both legs run at once: the slower one sets the pace.
// A group's ranks may lie apart (a stride): then fewer of them share a node, and as many groups cross the node's ports at once.
#include <algorithm>
#include <array>
#include <cmath>

#include "cost/collective_choice.h"
#include "cost/cost.h"

namespace precog {
namespace {

double joined(double latency, double wire, double exponent) {
  if (exponent == 1 || latency <= 0 || wire <= 0) return latency + wire;
  return std::pow(std::pow(latency, exponent) + std::pow(wire, exponent), 1 / exponent);
}

// What leaves the first switches shares their uplinks. A ring or a tree laid out along the nodes leaves them with one node in so
// many; in an all-to-all almost every message does.
double uplink_share(const NetworkSpec& network, double nodes, bool everyone_leaves) {
  if (network.oversubscription <= 1) return 1;
  const double below = std::max(1, network.nodes_per_switch);
  if (network.nodes_per_switch > 0 && nodes <= below) return 1;
  return std::max(1.0, network.oversubscription / (everyone_leaves ? 1 : below));
}

// Of so many places, how many different ones `copies` meet that each go anywhere: where a place needs one of them only.
double distinct(double places, int copies) { return places * (1 - std::pow(1 - 1 / places, copies)); }

// What travels beside the data: LL sends a flag with every 4 bytes, LL128 8 bytes of flags in every 128 (NCCL, src/device/prims_ll.h,
// prims_ll128.h). Inside a node the fitted efficiencies have it in them.
constexpr std::array<double, kProtocols> kWireBytes = {2, 128.0 / 120, 1};
constexpr double kFittedRanks = 8;          // of a node, at most
constexpr double kMemoryPassesPerByte = 2;  // of what a rank sends: read here, written there

}  // namespace

KernelCost collective_cost(const CollectiveShape& collective, const ClusterSpec& cluster, const GpuSpec& gpu) {
  const LinkCoefficients& c = cluster.collectives.link;
  const NetworkCoefficients& between = cluster.collectives.network;
  KernelCost cost;
  cost.bound = Bound::network;
  cost.source = c.fitted ? CostSource::fitted : CostSource::scaled;
  if (collective.participants <= 1) return cost;

  const double ranks = collective.participants, bytes = static_cast<double>(collective.bytes.value);
  const CollectiveSetting setting = collective_setting(collective, cluster, gpu);
  const double local = setting.local, nodes = setting.nodes, groups = setting.groups;
  const CollectiveChoice choice = nccl_choice(collective, setting, c.choice);
  // A bus is shared by the ranks between a group's ranks, too.
  const double busy = setting.pcie ? std::min<double>(cluster.gpus_per_node, local * std::max(1, collective.stride)) : local;
  const double link = setting.link.value / std::pow(std::max(1.0, busy / 2), c.contention);

  const bool reduces_all = collective.kind == Collective::all_reduce, across = nodes > 1, all_to_all = collective.kind == Collective::all_to_all;
  const double rounds = reduces_all ? 2 : 1;  // around the ring
  const bool direct = choice.algorithm == CollectiveAlgorithm::direct && cluster.network.direct_efficiency > 0;
  const double of_port = direct ? cluster.network.direct_efficiency : cluster.network.efficiency;
  const double port = cluster.network.port_bandwidth.value * of_port;
  const double ports = setting.ports.value * of_port / uplink_share(cluster.network, nodes, all_to_all);
  const std::size_t protocol = static_cast<std::size_t>(choice.protocol);
  const auto ring_share = [&](double members) { return rounds * (members - 1) / members; };
  double inside = 0, outside = 0;     // seconds on the links of a node; on its ports
  double steps = 0, hops = 0;         // one after another
  const double hops_of_two = rounds;  // between two nodes, by any algorithm
  double sent = 0;                    // bytes that a GPU sends
  const TransferCoefficients* transfer = &c.ring[protocol];
  double hop = between.hop[protocol], port_share = between.ring, join = between.ring_join;
  switch (choice.algorithm) {
    case CollectiveAlgorithm::direct:
      transfer = &c.direct[choice.protocol == Protocol::ll ? 0 : 1];
      hop = between.direct_hop, port_share = between.direct, join = between.direct_join;
      sent = all_to_all ? (ranks - 1) / ranks * bytes : bytes;
      if (all_to_all && collective.copies > 0) {
        const double row = bytes / collective.copies;
        sent = row * distinct(ranks, collective.copies) * (ranks - 1) / ranks;
        if (local > 1) inside = sent / link;
        if (across) outside = local * row * distinct(nodes, collective.copies) * (nodes - 1) / nodes / ports;
      } else if (all_to_all) {
        if (local > 1) inside = ((ranks - 1) + c.direct_own_share) / ranks * bytes / link;
        if (across) outside = local * (ranks - local) / ranks * bytes / (ports * port_share);
      } else {  // one rank's message takes its own ports only, however many its node has; to its neighbour, as a ring's steps are
        hop = between.hop[protocol], port_share = between.ring, join = between.ring_join;
        const double own = std::max(port, ports * groups / std::max(1, cluster.gpus_per_node));
        (across ? outside : inside) = across ? bytes / (std::min(own, ports) * port_share) : bytes / link;
      }
      steps = all_to_all ? local - 1 : across ? 0 : 1;
      hops = across ? 1 : 0;
      break;
    case CollectiveAlgorithm::ring:
      sent = ring_share(ranks) * bytes;
      if (local > 1) inside = (rounds * (ranks - 1) + c.ring_own_share) / ranks * bytes / link;
      if (across) outside = ring_share(ranks) * bytes * kWireBytes[protocol] / (ports * port_share);
      hops = rounds * (nodes - 1);
      steps = rounds * (ranks - 1) - hops;
      break;
    case CollectiveAlgorithm::tree:
      port_share = between.tree, join = between.tree_join;
      sent = 2 * bytes;
      if (local > 1) inside = 2 * bytes / link;
      if (across) outside = ring_share(nodes) * bytes * kWireBytes[protocol] / (ports * port_share);
      hops = 2 * std::ceil(std::log2(nodes));
      steps = 2 * (local - 1);
      break;
    case CollectiveAlgorithm::in_switch:
    case CollectiveAlgorithm::in_switch_tree:
      transfer = &c.in_switch;
      port_share = between.tree, join = between.tree_join;
      sent = (1 + 1 / local) * bytes;
      inside = sent / link;
      if (across) outside = ring_share(nodes) * bytes / (ports * port_share);
      hops = 2 * std::ceil(std::log2(nodes));
      steps = 2 * (local - 1);
      break;
  }
  // Latency joins with the wire as it was fitted, on up to eight ranks of a node and two nodes. Further steps only add: the pipeline
  // is filled once.
  const double near = std::min(1.0, kFittedRanks / local) * std::min(1.0, 2 / nodes);
  const double step = transfer->step * cluster.intra_latency.value, far_hop = hop * cluster.network.latency.value;
  const double near_hops = std::min(hops, hops_of_two), filling = transfer->base.value + steps * near * step + near_hops * far_hop;
  const double latency = transfer->base.value + steps * step + hops * far_hop;
  const double wire = std::max(inside / transfer->efficiency, outside);
  const double total = joined(filling, wire, across ? join : transfer->join) + (latency - filling);
  cost.launch = {std::min(latency, total)};
  cost.memory = {total - cost.launch.value};
  cost.total = {total};
  // While it runs it holds an SM per channel (fewer where there is little to send), and the memory carries what it moves.
  const double channels = std::min<double>(c.choice.channels, std::max(1.0, bytes / 65536));
  if (gpu.sms > 0) cost.sm_share = std::min(1.0, channels / gpu.sms);
  if (gpu.memory_bandwidth.value > 0 && total > 0) cost.bandwidth_share = std::min(1.0, kMemoryPassesPerByte * sent / total / gpu.memory_bandwidth.value);
  if (across) cost.source = cluster.collectives.calibrated ? CostSource::fitted : CostSource::estimate;  // few points across nodes were ever fitted to
  else if (setting.pcie && local > 2 && !cluster.collectives.calibrated) cost.source = CostSource::scaled;  // the contention was read off another machine
  return cost;
}

}  // namespace precog
