#include "frontend/traced.h"

#include <map>
#include <tuple>
#include <vector>

namespace precog {
namespace {

AttentionAttributes* attention_of(Op& op) {
  return op.kind == OpKind::scaled_dot_product_attention ? std::get_if<AttentionAttributes>(&op.attributes) : nullptr;
}

// Keys or values repeated for every query head, in memory (`repeat_kv`).
TensorId repeated(Graph& graph, const Op& attention, TensorId x, std::int64_t heads) {
  const Shape s = graph.tensors[x].shape;
  const std::int64_t groups = heads / s[1];
  auto add = [&](OpKind kind, Attributes attributes, TensorId from, Shape shape) {
    Op op;
    op.kind = kind;
    op.module = attention.module;
    op.block = attention.block;
    op.attributes = std::move(attributes);
    const Tensor& of = graph.tensors[from];
    Tensor made{.shape = shape, .dtype = of.dtype, .requires_grad = of.requires_grad};
    if (kind == OpKind::view) made.storage = of.storage;
    const TensorId inputs[] = {from}, outputs[] = {graph.add_tensor(made)};
    graph.add_op(op, inputs, outputs);
    return outputs[0];
  };
  TensorId out = add(OpKind::view, ViewAttributes{}, x, {s[0], s[1], 1, s[2], s[3]});
  out = add(OpKind::view, ViewAttributes{ViewKind::expand}, out, {s[0], s[1], groups, s[2], s[3]});
  out = add(OpKind::contiguous, {}, out, graph.tensors[out].shape);
  return add(OpKind::view, ViewAttributes{}, out, {s[0], heads, s[2], s[3]});
}

bool leaves_masks_out(const Graph& forward) {
  for (const Op& op : forward.ops)
    if (op.kind == OpKind::scaled_dot_product_attention && (forward.name(op.label) == kDenseMask || forward.name(op.label) == kExpandedMask)) return true;
  return false;
}

// Whether a mask is needed is not looked at while being traced; a number that the code makes a tensor of is a constant of the compiled graph,
// so that nobody waits for it to be sent up.
bool is_not_read_when_traced(const Graph& forward, const Op& op, bool looks_away) {
  if (op.kind != OpKind::read_back || op.input_count == 0) return false;
  const Tensor& looked_at = forward.tensors[forward.input(op, 0)];
  const Tensor& memory = forward.tensors[looked_at.storage.valid() ? looked_at.storage : forward.input(op, 0)];
  const bool number = memory.shape.rank() == 0 && memory.role == Role::buffer && memory.name.valid() && forward.name(memory.name) == "constant";
  return number || (looks_away && looked_at.dtype == DType::boolean && looked_at.shape.elements() <= 1);
}

}  // namespace

Graph mark_left_out_masks(const Graph& forward, bool encoder_decoder) {
  Graph out = forward;
  for (Op& op : out.ops)
    if (AttentionAttributes* a = attention_of(op); a && !a->mask) {
      if (a->causal) op.label = out.intern(kDenseMask);
      else if (!encoder_decoder && a->q_len == a->kv_len) op.label = out.intern(kExpandedMask);
    }
  return out;
}

Graph with_traced_masks(const Graph& forward) {
  Graph out = forward.empty_with_names();
  out.tensors = forward.tensors;
  std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t>, TensorId> masks;  // one per size, shared by all layers
  const bool looks_away = leaves_masks_out(forward);
  for (const Op& op : forward.ops) {
    if (is_not_read_when_traced(forward, op, looks_away)) continue;
    Op traced = op;
    std::vector<TensorId> inputs(forward.inputs(op).begin(), forward.inputs(op).end());
    if (AttentionAttributes* a = attention_of(traced)) {
      const std::string_view left_out = a->mask ? std::string_view() : forward.name(op.label);
      if (a->mask && a->mask_scattered && inputs.size() > 3 && out.tensors[inputs[3]].requires_grad) {
        // A learned mask in an order of axes that no fused kernel reads leaves the math path only, as without a compiler;
        // decided here, it counts as traced.
        a->backend = AttentionBackend::math;
      } else if (left_out == kExpandedMask) {
        a->backend = AttentionBackend::math;
      } else if (left_out == kDenseMask) {
        TensorId& mask = masks[{a->causal ? 1 : a->batch, a->q_len, a->kv_len}];  // padding differs from sample to sample
        if (!mask.valid())
          mask = out.add_tensor({.shape = {a->causal ? 1 : a->batch, 1, a->q_len, a->kv_len}, .role = Role::buffer,
                                 .name = out.intern(a->causal ? "causal_mask" : "padding_mask")});
        inputs.push_back(mask);
        for (std::size_t i : {1u, 2u})
          if (const Shape& shape = out.tensors[inputs[i]].shape; shape.rank() == 4 && shape[1] == a->kv_heads && a->heads > a->kv_heads)
            inputs[i] = repeated(out, op, inputs[i], a->heads);
        a->causal = false;
        a->mask = true;
        a->kv_heads = a->heads;
      }
    }
    if (traced.kind == OpKind::scaled_dot_product_attention) traced.label = {};
    out.add_op(traced, inputs, forward.outputs(op));
  }
  return out;
}

Graph with_traced_masks(const ModelSource& model, const Graph& forward) {
  const bool file = model.request.is_object() && (model.request.contains("graph") || model.request.contains("onnx"));
  if (model.language && !file) return with_traced_masks(mark_left_out_masks(forward, model.encoder_decoder));
  return with_traced_masks(forward);
}

}  // namespace precog
