#include "kernel/fuse_flow.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "graph/framework_names.h"
#include "graph/operator.h"

namespace precog {
namespace {

Flow::Where where_of(Phase phase) {
  if (phase == Phase::forward) return Flow::forward;
  return phase == Phase::backward || phase == Phase::recompute ? Flow::backward : Flow::outside;
}

const Shape& shape_in(const Graph& graph, const Op& op) { return graph.tensors[graph.input(op, 0)].shape; }

// Sums over leading axes leave the last one as it is; sums along a row do not.
bool reduces_columns(const Graph& graph, const Op& op) {
  if (op.input_count == 0 || op.output_count == 0) return false;
  const Shape &in = shape_in(graph, op), &out = graph.tensors[graph.output(op)].shape;
  if (out.elements() <= 1) return true;
  return in.rank() > 0 && out.rank() > 0 && out[-1] == in[-1] && out[-1] > 1 && out.elements() < in.elements();
}

// A sum of so few that it is written out (torch/_inductor/config.py, unroll_reductions_threshold).
bool is_unrolled(const Graph& graph, const Op& op) {
  constexpr std::int64_t kUnrolled = 8;
  if (op.input_count == 0 || op.output_count == 0) return false;
  const std::int64_t results = graph.tensors[graph.output(op)].shape.elements();
  return results > 1 && shape_in(graph, op).elements() < kUnrolled * results;
}

// Written where an index says, by a kernel that Inductor generates (lowering.py: index_put, scatter and what is made of them).
bool is_scatter(const Graph& graph, const Op& op) {
  if (op.kind != OpKind::scatter || op.output_count == 0 || op.input_count == 0) return false;
  const std::string_view name = graph.name(op.label);
  return name == "index_put" || name == "_unsafe_index_put" || name == "index_add" || name == "index_copy" || name == "scatter" || name == "scatter_add";
}

// In bf16 the framework's own is called (torch/_inductor/decomposition.py, index_add).
bool calls_index_add(const Graph& graph, const Op& op) {
  const bool adds = op.kind == OpKind::index_add || (op.kind == OpKind::scatter && graph.name(op.label) == "index_add");
  return adds && op.output_count > 0 && graph.tensors[graph.output(op)].dtype == DType::bf16;
}

bool is_beyond_fused_softmax(const Graph& graph, const Op& op, FusedSoftmaxRule rule) {
  if (op.kind != OpKind::mul_scalar && op.kind != OpKind::masked_fill && definition(op.kind).family != Family::softmax) return false;
  if (op.input_count == 0 || op.output_count == 0) return false;
  const Shape& shape = graph.tensors[graph.output(op)].shape;
  return are_scores(shape) && !rule.takes(shape);
}

// Its loss is operators of PyTorch's on scores converted to fp32 (megatron/mpu/cross_entropy.py); kernels for it came with Megatron-Core.
bool is_loss(const Op& op) {
  return op.kind == OpKind::log_softmax || op.kind == OpKind::log_softmax_backward || op.kind == OpKind::nll_loss || op.kind == OpKind::nll_loss_backward;
}

// Dropout of attention's probabilities is a module of PyTorch's behind that kernel (megatron/model/transformer.py, attention_dropout).
bool is_dropout_of_scores(const Graph& graph, const Op& op) {
  if (arithmetic_of(graph, op) != OpKind::dropout || op.output_count == 0) return false;
  return are_scores(graph.tensors[graph.output(op)].shape);
}

Part part_of(const Graph& graph, const Op& op) {
  if (where_of(op.phase) == Flow::outside) return definition(op.kind).family == Family::view ? Part::view : Part::library;
  // Copies around collectives, and Transformer Engine's own conversion kernels, are calls that no compiler looks into.
  if (op.kind == OpKind::shard_copy || op.kind == OpKind::bucket_copy || op.kind == OpKind::quantize) return Part::library;
  switch (definition(op.kind).family) {
    case Family::view: return op.input_count > 0 ? Part::view : Part::pointwise;  // memory nobody has written is a constant
    case Family::pointwise: {
      if (op.kind == OpKind::accumulate_gradient) return Part::library;  // autograd's, or the optimizer's: behind the graph, whoever made it
      const FrameworkName* known = is_generic(op.kind) ? framework_name(graph.name(op.label)) : nullptr;
      return known && known->reduces_after && reduces_columns(graph, op) ? Part::columns : Part::pointwise;
    }
    case Family::cast:
    case Family::fill:
    case Family::copy: return op.output_count > 0 ? Part::pointwise : Part::library;
    case Family::softmax: return Part::rows;
    case Family::loss: return op.kind == OpKind::nll_loss ? Part::columns : Part::pointwise;
    case Family::normalization: {
      const auto* norm = std::get_if<NormAttributes>(&op.attributes);
      const bool running = norm && !norm->training;
      if (op.kind == OpKind::batch_norm) return running ? Part::pointwise : Part::batch_norm;
      if (op.kind == OpKind::batch_norm_backward) return Part::batch_norm_backward;
      return op.kind == OpKind::layer_norm || op.kind == OpKind::rms_norm || op.kind == OpKind::group_norm ? Part::rows : Part::norm_backward;
    }
    case Family::reduction:
      if (op.kind == OpKind::scan) return Part::library;
      if (is_unrolled(graph, op)) return Part::pointwise;
      return reduces_columns(graph, op) || keeps_middle(graph, op) ? Part::columns : Part::rows;
    case Family::pooling:
      if (op.kind == OpKind::adaptive_avg_pool2d && graph.tensors[graph.output(op)].shape[-1] == 1) return Part::rows;
      return op.kind == OpKind::adaptive_avg_pool2d_backward ? Part::pointwise : Part::window;
    case Family::embedding: return op.kind == OpKind::embedding ? Part::pointwise : Part::scatter;
    case Family::index:
      if (op.kind == OpKind::index_select || op.kind == OpKind::gather) return Part::pointwise;
      if (calls_index_add(graph, op)) return Part::library;
      return op.kind == OpKind::index_add || is_scatter(graph, op) ? Part::scatter : Part::library;
    default: return Part::library;
  }
}

// Norms are kernels of their own (Megatron-LM's MixedFusedLayerNorm, Transformer Engine's layernorm and rmsnorm), behind the one that adds bias,
// dropout and residual (bias_dropout_add_fused_train).
bool is_own_kernel(const Graph& graph, const Op& op, OwnKernels own) {
  if (where_of(op.phase) == Flow::outside) return false;
  if (own.norms && definition(op.kind).family == Family::normalization) return true;
  return own.softmax_and_loss && (is_loss(op) || is_beyond_fused_softmax(graph, op, own.softmax) || is_dropout_of_scores(graph, op));
}

}  // namespace

Flow follow_values(const Graph& graph, OwnKernels own) {
  Flow flow;
  const std::size_t ops = graph.ops.size(), tensors = graph.tensors.size();
  flow.value.resize(tensors);
  for (std::size_t i = 0; i < tensors; ++i) flow.value[i] = graph.tensors.id_at(i);
  flow.maker.assign(tensors, -1);
  flow.readers.resize(tensors);
  std::map<std::pair<TensorId, std::pair<DType, Flow::Where>>, TensorId> casts;
  for (std::size_t i = 0; i < ops; ++i) {
    const Op& op = graph.ops[graph.ops.id_at(i)];
    const auto inputs = graph.inputs(op), outputs = graph.outputs(op);
    Part part = is_own_kernel(graph, op, own) ? Part::library : part_of(graph, op);
    const Flow::Where where = where_of(op.phase);
    const auto here = static_cast<std::int32_t>(i);
    if (part == Part::view) {
      for (TensorId output : outputs) flow.value[output.index()] = inputs.empty() ? output : flow.value[inputs[0].index()];
    } else if (op.kind == OpKind::cast && where != Flow::outside && !outputs.empty()) {
      const TensorId of = flow.value[inputs[0].index()];
      const Tensor& to = graph.tensors[outputs[0]];
      const bool whole = graph.tensors[of].shape == to.shape;
      const auto [known, first] = casts.try_emplace({of, {to.dtype, where}}, outputs[0]);
      if (!first && whole && graph.tensors[known->second].shape == to.shape && to.role == Role::activation) {
        flow.value[outputs[0].index()] = known->second;
        part = Part::view;
      }
    }
    flow.part.push_back(part);
    flow.where.push_back(where);
    if (part == Part::view) continue;
    for (TensorId output : outputs) flow.maker[output.index()] = here;
    for (TensorId input : inputs) {
      auto& readers = flow.readers[flow.value[input.index()].index()];
      if (readers.empty() || readers.back() != here) readers.push_back(here);
    }
  }
  return flow;
}

bool keeps_middle(const Graph& graph, const Op& op) {
  if (op.input_count == 0 || op.output_count == 0) return false;
  const Shape &in = shape_in(graph, op), &out = graph.tensors[graph.output(op)].shape;
  if (in.rank() < 3 || in[0] == 1 || in[1] == 1 || out.elements() != in[1] || out.elements() == in.elements() || out[-1] == in[-1]) return false;
  const int axis = out.rank() + 1 - in.rank();  // in the result, where extents are aligned from the last
  return out.rank() == 1 || (axis >= 0 && axis < out.rank() && out[axis] == in[1]);
}

std::int64_t row_length(const Graph& graph, const Op& op) {
  const Shape& shape = shape_in(graph, op);
  const std::int64_t all = std::max<std::int64_t>(1, shape.elements());
  if (op.kind == OpKind::group_norm || op.kind == OpKind::group_norm_backward) {
    const auto* norm = std::get_if<NormAttributes>(&op.attributes);
    return std::max<std::int64_t>(1, all / std::max<std::int64_t>(1, (shape.rank() > 0 ? shape[0] : 1) * std::max<std::int64_t>(1, norm ? norm->groups : 1)));
  }
  if (definition(op.kind).family == Family::reduction || definition(op.kind).family == Family::pooling)
    return std::max<std::int64_t>(1, all / std::max<std::int64_t>(1, graph.tensors[graph.output(op)].shape.elements()));
  const auto* norm = std::get_if<NormAttributes>(&op.attributes);
  if (norm && norm->width > 0) return norm->width;
  return shape.rank() > 0 ? std::max<std::int64_t>(1, shape[-1]) : 1;
}

}  // namespace precog
