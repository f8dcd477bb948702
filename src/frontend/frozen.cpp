#include "frontend/frozen.h"

#include <fmt/format.h>

#include "base/text.h"

namespace precog {

Result<Graph> freeze(Graph graph, const std::vector<std::string>& patterns) {
  if (patterns.empty()) return graph;
  std::vector<bool> used(patterns.size(), false);
  std::vector<std::string> names;
  for (Tensor& tensor : graph.tensors) {
    if (tensor.role != Role::parameter) continue;
    const std::string_view name = graph.name(tensor.name);
    names.emplace_back(name);
    for (std::size_t i = 0; i < patterns.size(); ++i)
      if (matches_pattern(name, patterns[i])) {
        used[i] = true;
        tensor.requires_grad = false;
      }
  }
  std::vector<Problem> problems;
  for (std::size_t i = 0; i < patterns.size(); ++i)
    if (!used[i])
      problems.push_back({"frozen", fmt::format("'{}' matches no parameter of the model; nearest: {}", patterns[i].substr(0, 80),
                                                join(nearest_names(patterns[i].substr(0, 80), names), ", "))});
  if (!problems.empty()) return fail(std::move(problems));
  // Operators stand in execution order. Statistics and masks never needed a gradient and stay so.
  bool trains = false;
  for (const Op& op : graph.ops) {
    bool wanted = false;
    for (TensorId id : graph.inputs(op)) wanted = wanted || graph.tensors[id].requires_grad;
    for (TensorId id : graph.outputs(op)) {
      Tensor& out = graph.tensors[id];
      out.requires_grad = out.requires_grad && wanted;
    }
  }
  if (!graph.ops.empty()) {
    const Op& last = graph.ops.back();
    trains = graph.tensors[graph.output(last)].requires_grad;
  }
  if (!trains) return fail("frozen", "freezes every parameter that the loss depends on: nothing is left to train");
  return graph;
}

}  // namespace precog
