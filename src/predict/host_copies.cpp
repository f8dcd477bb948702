#include "predict/host_copies.h"

#include <algorithm>

namespace precog {
namespace {

// Of the link's datasheet rate, what copies from and to pinned memory reach: 0.8 to 0.9 is what public bandwidth tests of PCIe 3 to
// 5 cards show. An estimate; lower where a switch is shared between GPUs. Too high: offloaded steps come out too fast.
constexpr double kReached = 0.85;
constexpr Seconds kLatency{10e-6};
// Faster than any PCIe: NVLink-C2C, whose CPU has memory for its own one or two GPUs that keeps up with it (Grace: 0.5 TB/s).
constexpr BytesPerSecond kChipToChip{100e9};

}  // namespace

BytesPerSecond host_link(const GpuSpec& gpu, const HostSpec& host, int sharing) {
  const BytesPerSecond link = gpu.pcie_bandwidth * kReached;
  if (host.memory_bandwidth.value <= 0 || gpu.pcie_bandwidth > kChipToChip) return link;
  return {std::min(link.value, host.memory_bandwidth.value / std::max(1, sharing))};
}

void price_host_copies(const Graph& graph, const KernelProgram& program, BytesPerSecond link, std::vector<KernelCost>& costs) {
  for (const Call& call : program.calls) {
    const Op& op = graph.ops[call.op];
    if (op.kind != OpKind::shard_copy || call.kernel_count == 0 || !op.label.valid()) continue;
    const std::string_view label = graph.name(op.label);
    if (label != "to_host" && label != "from_host" && label != "cpu_adam") continue;
    const Bytes bytes = std::get<ShardCopyAttributes>(op.attributes).written;
    KernelCost& cost = costs[call.first_kernel];
    cost = {};
    cost.memory = bytes / link;
    cost.launch = kLatency;
    cost.total = cost.memory + cost.launch;
    cost.bound = Bound::memory;
    cost.source = CostSource::estimate;
  }
}

}  // namespace precog
