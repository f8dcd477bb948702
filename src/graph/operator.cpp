#include "graph/operator.h"

#include <algorithm>
#include <array>
#include <unordered_map>

namespace precog {

const OperatorDefinition& definition(OpKind kind) {
  static const std::array<OperatorDefinition, static_cast<std::size_t>(OpKind::kCount)> kTable = {
#define PRECOG_OPERATOR(name) define_##name(),
#include "graph/operators.def"
#undef PRECOG_OPERATOR
  };
  return kTable[static_cast<std::size_t>(kind)];
}

OpKind arithmetic_of(const Graph& graph, const Op& op) {
  if (op.kind != OpKind::pointwise_backward || !op.label.valid()) return op.kind;
  static const std::unordered_map<std::string_view, OpKind> kByName = [] {
    std::unordered_map<std::string_view, OpKind> out;
    for (std::size_t i = 0; i < static_cast<std::size_t>(OpKind::kCount); ++i)
      out.emplace(to_text(static_cast<OpKind>(i)), static_cast<OpKind>(i));
    return out;
  }();
  const auto forward = kByName.find(graph.name(op.label));
  return forward == kByName.end() ? op.kind : forward->second;
}

std::string_view to_text(Family family) {
  static constexpr std::array<std::string_view, 21> kNames = {
      "gemm",      "convolution", "attention", "normalization", "softmax",      "loss",       "pointwise",
      "cast",      "copy",        "reduction", "pooling",       "embedding",    "index",      "optimizer",
      "loss_scaling", "collective", "fill",    "view",          "recurrent",  "unknown",
      "host"};
  return kNames[static_cast<std::size_t>(family)];
}

bool is_matrix_work(OpKind kind) {
  const Family family = definition(kind).family;
  return family == Family::gemm || family == Family::convolution || family == Family::attention;
}

Flops training_flops(const Graph& forward) {
  Flops total;
  for (const Op& op : forward.ops) {
    if (!is_matrix_work(op.kind)) continue;
    int products = 1;
    for (std::size_t i = 0; i < 2 && i < op.input_count; ++i) products += forward.tensors[forward.input(op, i)].requires_grad ? 1 : 0;
    total += work_of(forward, op).flops * products;
  }
  return total;
}

Work work_of(const Graph& graph, const Op& op) {
  const OperatorDefinition& known = definition(op.kind);
  if (known.work) return known.work(graph, op);
  Work work;
  // An expanded view is larger than what it stores: only what is stored is read.
  for (TensorId id : graph.inputs(op)) work.read += std::min(graph.bytes(id), graph.bytes(graph.tensors[id].storage));
  std::int64_t elements = 0;
  for (TensorId id : graph.outputs(op)) {
    work.written += graph.bytes(id);
    elements += graph.tensors[id].shape.elements();
  }
  work.flops = {static_cast<double>(elements)};
  return work;
}

TensorId GradientContext::emit(OpKind kind, std::span<const TensorId> inputs, const Shape& shape, DType dtype,
                               Attributes attributes, std::string_view label) {
  Op backward;
  backward.kind = kind;
  backward.attributes = std::move(attributes);
  // fp32 over 16-bit tensors: attention's math path as a compiler traces it, whose backward products run in their operands' type.
  backward.math = op().math == DType::fp32 && is_16bit(dtype) && (kind == OpKind::mm || kind == OpKind::bmm) ? dtype : op().math;
  if (!label.empty()) backward.label = graph_.intern(label);
  backward.strided = op().strided && kind == OpKind::pointwise_backward;
  return sink_.emit(backward, inputs, Tensor{.shape = shape, .dtype = dtype});
}

TensorId GradientContext::emit_view(TensorId of, const Shape& shape, ViewKind kind) {
  Op backward;
  backward.kind = OpKind::view;
  backward.attributes = ViewAttributes{kind};
  Tensor view{.shape = shape, .dtype = tensor(of).dtype};
  view.storage = tensor(of).storage;
  TensorId inputs[] = {of};
  return sink_.emit(backward, inputs, view);
}

void GradientContext::emit_for_inputs(OpKind kind, std::span<const TensorId> inputs, std::span<const std::size_t> needed,
                                      Attributes attributes) {
  Op backward;
  backward.kind = kind;
  backward.attributes = std::move(attributes);
  backward.math = op().math;
  backward.strided = op().strided && op().kind == OpKind::layer_norm;  // it saves what it was given, not its copy
  std::vector<TensorId> made;
  std::vector<std::size_t> which;
  for (std::size_t i : needed) {
    if (!needs(i)) continue;
    made.push_back(sink_.make(Tensor{.shape = tensor(input(i)).shape, .dtype = tensor(input(i)).dtype}));
    which.push_back(i);
  }
  if (made.empty()) return;
  sink_.emit_to(backward, inputs, made);
  for (std::size_t j = 0; j < made.size(); ++j) sink_.receive(input(which[j]), made[j]);
}

void GradientContext::give(std::size_t i, TensorId gradient) {
  const Shape wanted = tensor(input(i)).shape;
  if (!(tensor(gradient).shape == wanted)) {
    ensure(tensor(gradient).shape.elements() >= wanted.elements(), "a gradient is summed to a smaller shape, never grown");
    if (tensor(gradient).shape.elements() == wanted.elements())
      gradient = emit_view(gradient, wanted);
    else
      gradient = emit(OpKind::sum, {gradient}, wanted, tensor(gradient).dtype);
  }
  sink_.receive(input(i), gradient);
}

}  // namespace precog
