#include "frontend/traced.h"

#include <map>
#include <utility>
#include <vector>

namespace precog {

bool builds_masks_when_traced(const ModelSource& model) {
  const bool file = model.request.is_object() && (model.request.contains("graph") || model.request.contains("onnx"));
  return model.language && !file;
}

Graph with_traced_masks(const Graph& forward, bool encoder_decoder) {
  Graph out = forward.empty_with_names();
  out.tensors = forward.tensors;
  std::map<std::pair<std::int64_t, std::int64_t>, TensorId> masks;  // one per size, shared by all layers
  for (const Op& op : forward.ops) {
    Op traced = op;
    std::vector<TensorId> inputs(forward.inputs(op).begin(), forward.inputs(op).end());
    if (auto* a = std::get_if<AttentionAttributes>(&traced.attributes); a && op.kind == OpKind::scaled_dot_product_attention && !a->mask) {
      if (a->causal) {
        TensorId& mask = masks[{a->q_len, a->kv_len}];
        if (!mask.valid())
          mask = out.add_tensor({.shape = {1, 1, a->q_len, a->kv_len}, .role = Role::buffer, .name = out.intern("causal_mask")});
        inputs.push_back(mask);
        a->causal = false;
        a->mask = true;
        a->kv_heads = a->heads;
      } else if (!encoder_decoder && a->q_len == a->kv_len) {
        a->backend = AttentionBackend::math;
      }
    }
    // A learned mask in an order of axes that no fused kernel reads leaves the math path only, as without a compiler; decided
    // here, it counts as traced.
    if (auto* a = std::get_if<AttentionAttributes>(&traced.attributes); a && op.kind == OpKind::scaled_dot_product_attention && inputs.size() > 3)
      if (a->mask && a->mask_scattered && out.tensors[inputs[3]].requires_grad) a->backend = AttentionBackend::math;
    out.add_op(traced, inputs, forward.outputs(op));
  }
  return out;
}

}  // namespace precog
