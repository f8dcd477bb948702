#include "predict/host_copies.h"

namespace precog {
namespace {

// Of the link's datasheet rate, what copies from and to pinned memory reach: 0.8 to 0.9 is what public bandwidth tests of PCIe 3 to
// 5 cards show. An estimate; lower where a switch is shared between GPUs. Too high: offloaded steps come out too fast.
constexpr double kReached = 0.85;
constexpr Seconds kLatency{10e-6};

}  // namespace

void price_host_copies(const Graph& graph, const KernelProgram& program, const GpuSpec& gpu, std::vector<KernelCost>& costs) {
  for (const Call& call : program.calls) {
    const Op& op = graph.ops[call.op];
    if (op.kind != OpKind::shard_copy || call.kernel_count == 0 || !op.label.valid()) continue;
    const std::string_view label = graph.name(op.label);
    if (label != "to_host" && label != "from_host" && label != "cpu_adam") continue;
    const Bytes bytes = std::get<ShardCopyAttributes>(op.attributes).written;
    KernelCost& cost = costs[call.first_kernel];
    cost = {};
    cost.memory = bytes / (gpu.pcie_bandwidth * kReached);
    cost.launch = kLatency;
    cost.total = cost.memory + cost.launch;
    cost.bound = Bound::memory;
    cost.source = CostSource::estimate;
  }
}

}  // namespace precog
