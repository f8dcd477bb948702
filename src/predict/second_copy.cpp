#include "predict/second_copy.h"

namespace precog {

void gather_from_second_copy(const Graph& graph, const KernelProgram& program, int sharing, std::int64_t micro_batches, const ClusterSpec& cluster, const GpuSpec& gpu,
                             std::vector<KernelCost>& costs) {
  const double first = 1.0 / static_cast<double>(micro_batches), others = 1 - first;
  for (const Call& call : program.calls) {
    const Op& op = graph.ops[call.op];
    if (op.kind != OpKind::all_gather || call.phase != Phase::forward || op.label.valid() || call.kernel_count == 0) continue;  // a label: of a layer
    const auto* gather = std::get_if<CollectiveShape>(&program.kernels[call.first_kernel].shape);
    if (!gather) continue;
    CollectiveShape near = *gather;
    near.participants = std::min(sharing, gather->participants);
    KernelCost& cost = costs[call.first_kernel];
    const KernelCost inside = collective_cost(near, cluster, gpu);
    const auto mean = [&](Seconds across, Seconds near_by) { return across * first + near_by * others; };
    cost.compute = mean(cost.compute, inside.compute), cost.memory = mean(cost.memory, inside.memory), cost.launch = mean(cost.launch, inside.launch), cost.total = mean(cost.total, inside.total);
  }
}

}  // namespace precog
