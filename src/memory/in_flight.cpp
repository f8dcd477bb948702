#include "memory/in_flight.h"

#include <numeric>
#include <vector>

#include "graph/weights_alone.h"

namespace precog {

Bytes saved_for_backward(const StepGraph& step, const KernelProgram& program) {
  const BytesByType types = saved_by_type(step, program);
  return std::accumulate(types.begin(), types.end(), Bytes{});
}

BytesByType saved_by_type(const StepGraph& step, const KernelProgram& program) {
  const Graph& graph = step.graph;
  constexpr std::int64_t kAllocationUnit = 512;  // the caching allocator's rounding
  std::vector<char> read_later(graph.tensors.size(), 0);
  for (const Op& op : graph.ops)
    if (op.phase != Phase::forward)
      for (TensorId id : graph.inputs(op)) read_later[graph.tensors[id].storage.index()] = 1;
  const bool compiled = !program.last_use.empty();
  const std::vector<char> of_weights = weights_alone(graph);  // one copy serves all micro-batches
  BytesByType out{};
  for (const Op& op : graph.ops) {
    if (op.phase != Phase::forward) continue;
    for (TensorId id : graph.outputs(op)) {
      const Tensor& tensor = graph.tensors[id];
      if (tensor.storage != id || tensor.role != Role::activation || !read_later[id.index()] || of_weights[id.index()]) continue;
      if (compiled && program.last_use[id.index()] < 0) continue;  // never reaches memory
      out[static_cast<std::size_t>(tensor.dtype)] += Bytes{(graph.bytes(id).value + kAllocationUnit - 1) / kAllocationUnit * kAllocationUnit};
    }
  }
  return out;
}

}  // namespace precog
