#include "graph/weights_alone.h"

#include <algorithm>

namespace precog {

std::vector<char> weights_alone(const Graph& graph) {
  std::vector<char> out(graph.tensors.size(), 0);
  const auto is_weight = [&](TensorId id) {
    const Role role = graph.tensors[graph.tensors[id].storage].role;
    return role == Role::parameter || role == Role::gathered || role == Role::buffer || out[id.index()];
  };
  for (const Op& op : graph.ops) {
    if (op.phase != Phase::forward || op.input_count == 0) continue;
    const auto inputs = graph.inputs(op);
    if (std::all_of(inputs.begin(), inputs.end(), is_weight))
      for (TensorId id : graph.outputs(op)) out[id.index()] = 1;
  }
  return out;
}

}  // namespace precog
