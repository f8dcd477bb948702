#include "cost/collective_choice.h"

#include <algorithm>
#include <cmath>

namespace precog {
namespace {

using ByProtocol = std::array<double, kProtocols>;

// Microseconds of NCCL's model.
constexpr ByProtocol kRingBase = {6.6, 14.0, 8.4}, kTreeBase = {6.8, 14.0, 8.4};
constexpr ByProtocol kRingNvlink = {0.6, 1.9, 3.4}, kTreeNvlink = {0.6, 1.25, 4.0};
constexpr ByProtocol kRingPcie = {1.0, 2.5, 5.7}, kTreePcie = {1.0, 1.9, 4.0};
constexpr ByProtocol kRingNetwork = {2.7, 4.0, 14.0}, kTreeNetwork = {5.0, 8.5, 14.0};
constexpr double kInSwitch = 25.0, kInSwitchTreeNetwork = 20.9;
constexpr double kNetworkOverhead = 1.5;  // of a step beside the network: 1 on Intel's hosts, 2 on AMD's
// What its search for rings counts of the datasheet: 20 of 25 GB/s per NVLink, 12 of 16 per PCIe 3.
constexpr double kNvlinkShare = 0.8, kPcieShare = 0.75;
constexpr double kInSwitchRanks = 5;           // fewer: the ring is as fast
constexpr double kInSwitchRatio = 0.8;         // of the switch's bandwidth, as message bytes
constexpr double kDirectShort = 16384;         // bytes to one peer up to which all_to_all and send_recv use LL, inside a node
// Trees fall short of their model at medium sizes; by powers of two of the message from 64 B on.
constexpr std::array<ByProtocol, 22> kTreeCorrection = {{
    {1, 1, .9}, {1, 1, .9}, {1, 1, .9}, {1, 1, .9}, {.9, 1, .9}, {.8, .9, .9}, {.7, .8, .9}, {.7, .8, .8}, {.7, .8, .7}, {.7, .7, .6}, {.6, .6, .6},
    {.5, .6, .5}, {.4, .6, .5}, {.4, .5, .5}, {.5, .6, .5}, {.6, .6, .6}, {.7, .7, .7}, {.8, .7, .8}, {.9, .8, .7}, {1, .9, .7}, {1, .9, .8}, {1, 1, .9}}};

double corrected(double bandwidth, std::size_t protocol, double bytes) {
  const double power = std::floor(std::log2(std::max(64.0, bytes) / 64));
  return power < static_cast<double>(kTreeCorrection.size()) ? bandwidth * kTreeCorrection[static_cast<std::size_t>(power)][protocol] : bandwidth;
}

}  // namespace

CollectiveSetting collective_setting(const CollectiveShape& collective, const ClusterSpec& cluster, const GpuSpec& gpu) {
  const double ranks = collective.participants, node = std::max(1, cluster.gpus_per_node);
  CollectiveSetting out;
  out.local = std::clamp(std::floor(node / std::max(1, collective.stride)), 1.0, ranks);
  out.nodes = std::ceil(ranks / out.local);
  if (out.nodes > 1) out.groups = std::max(1.0, std::floor(node / out.local));
  out.pcie = cluster.intra_kind == "pcie";
  out.switched = cluster.intra_kind == "nvswitch";
  out.link = cluster.intra_bandwidth.value > 0 ? cluster.intra_bandwidth : gpu.link_bandwidth;
  // GPUs that are wired to each other have, among a few of them, the links between these only.
  for (const auto& [count, bandwidth] : cluster.intra_among)
    if (out.local <= count) {
      out.link = {std::min(out.link.value, bandwidth.value)};
      break;
    }
  if (out.pcie && gpu.pcie_bandwidth.value > 0) out.link = {std::min(out.link.value, gpu.pcie_bandwidth.value)};  // an SXM card's NVLink lies idle here
  out.ports = {std::max(1, cluster.nics_per_node) * cluster.network.port_bandwidth.value / out.groups};
  return out;
}

CollectiveChoice nccl_choice(const CollectiveShape& collective, const CollectiveSetting& setting, const ChoiceFigures& figures) {
  const double bytes = static_cast<double>(collective.bytes.value), ranks = collective.participants, nodes = setting.nodes, local = setting.local;
  const bool across = nodes > 1, reduces_all = collective.kind == Collective::all_reduce;
  if (collective.kind >= Collective::all_to_all) {
    const double part = collective.kind == Collective::all_to_all ? bytes / ranks : bytes;
    return {CollectiveAlgorithm::direct, !across && part <= kDirectShort ? Protocol::ll : Protocol::simple};
  }
  const double intra = setting.link.value * (setting.pcie ? kPcieShare : kNvlinkShare);
  const double bus = across ? (local > 1 ? std::min(intra, setting.ports.value) : setting.ports.value) : intra;
  const std::size_t scale = nodes <= 1 ? 0 : nodes <= 2 ? 1 : 2;
  const double steps = (reduces_all ? 2 : 1) * (ranks - 1), between = (reduces_all ? 2 : 1) * (nodes - 1);
  double least = 0;
  CollectiveChoice choice;
  const auto consider = [&](CollectiveAlgorithm algorithm, Protocol protocol, double microseconds, double bandwidth) {
    const double time = microseconds * 1e-6 + bytes / bandwidth;
    if (least > 0 && time >= least) return;
    least = time;
    choice = {algorithm, protocol};
  };
  for (std::size_t p = 0; p < kProtocols; ++p) {
    const Protocol protocol = static_cast<Protocol>(p);
    if (protocol == Protocol::ll128 && !figures.has_ll128) continue;
    const auto step_of = [&](const ByProtocol& nvlink, const ByProtocol& pcie) {
      double step = setting.pcie ? pcie[p] : nvlink[p];
      if (across && protocol == Protocol::ll) step *= 1.8;
      return across ? std::max(step, kNetworkOverhead * (protocol == Protocol::simple ? 3 : 1)) : step;
    };
    double ring = bus;
    if (protocol == Protocol::ll) ring = std::min(figures.ll_bandwidth[scale], bus * 0.5);
    if (protocol == Protocol::ll128) ring = bus * (local < 2 && across ? 0.7 : 0.92);
    double latency = kRingBase[p] + (steps - between) * step_of(kRingNvlink, kRingPcie) + between * kRingNetwork[p];
    if (protocol == Protocol::simple && across && reduces_all && bytes / (figures.channels * ranks) >= 64) latency *= 1.4;
    consider(CollectiveAlgorithm::ring, protocol, latency, ring * ranks / steps);
    if (!reduces_all) continue;
    double tree = std::min(bus * 0.92, figures.tree_bandwidth[scale]);
    if (protocol == Protocol::ll) tree = std::min(tree / 3.8, figures.ll_bandwidth[scale]);
    if (protocol == Protocol::ll128) tree = std::min(tree * (across ? 120.0 / 128 : 7.0 / 9), figures.tree_ll128_bandwidth[scale]);
    consider(CollectiveAlgorithm::tree, protocol, kTreeBase[p] + 2 * ((local - 1) * step_of(kTreeNvlink, kTreePcie) + std::floor(std::log2(nodes)) * kTreeNetwork[p]),
             corrected(tree, p, bytes) * 0.5);
  }
  if (reduces_all && setting.switched && figures.in_switch_efficiency > 0 && local >= kInSwitchRanks) {
    const double within = intra * figures.in_switch_efficiency * kInSwitchRatio;
    if (!across) consider(CollectiveAlgorithm::in_switch, Protocol::simple, kInSwitch, within);
    else consider(CollectiveAlgorithm::in_switch_tree, Protocol::simple, kInSwitch + 2 * std::floor(std::log2(nodes)) * kInSwitchTreeNetwork,
                  std::min(within, setting.ports.value * nodes / (2 * (nodes - 1))));
  }
  return choice;
}

std::string_view to_text(CollectiveAlgorithm algorithm) {
  constexpr std::array<std::string_view, 5> kNames = {"ring", "tree", "NVLS", "NVLS tree", "direct"};
  return kNames[static_cast<std::size_t>(algorithm)];
}

std::string_view to_text(Protocol protocol) {
  constexpr std::array<std::string_view, kProtocols> kNames = {"LL", "LL128", "Simple"};
  return kNames[static_cast<std::size_t>(protocol)];
}

}  // namespace precog
