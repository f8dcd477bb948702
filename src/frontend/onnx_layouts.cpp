#include "frontend/onnx_layouts.h"

#include <vector>

namespace precog::onnx {
namespace {

// Whether a reshape cuts or joins axes; one that only adds or drops axes of length 1 can be undone in any order of memory.
bool cuts_or_joins(const Shape& a, const Shape& b) {
  auto lengths = [](const Shape& shape) {
    std::vector<std::int64_t> out;
    for (int i = 0; i < shape.rank(); ++i)
      if (shape[i] != 1) out.push_back(shape[i]);
    return out;
  };
  return lengths(a) != lengths(b);
}

}  // namespace

// A reshape, then a turn: what comes back is turned back and must then be joined as the reshape's operand was. Fused attention
// answers in the order of its operands, so there the turn undoes itself; whatever else reads the turned tensor does not. The fp32
// kernel answers as [b, s, h, d] whatever it was given: where heads were cut only after the turn, that is another order.
void mark_copied_gradients(Graph& graph) {
  std::vector<std::vector<OpId>> readers(graph.tensors.size());
  for (std::size_t i = 0; i < graph.ops.size(); ++i)
    for (TensorId id : graph.inputs(graph.ops[graph.ops.id_at(i)])) readers[id.index()].push_back(graph.ops.id_at(i));

  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    Op& op = graph.ops[graph.ops.id_at(i)];
    auto* view = std::get_if<ViewAttributes>(&op.attributes);
    if (op.kind != OpKind::view || !view || view->kind != ViewKind::reshape) continue;
    if (!graph.tensors[graph.output(op)].requires_grad) continue;
    if (!cuts_or_joins(graph.tensors[graph.input(op, 0)].shape, graph.tensors[graph.output(op)].shape)) continue;
    bool turned = false, read = false, fused = true;
    OpId cut_later;
    std::vector<TensorId> open = {graph.output(op)};
    for (std::size_t next = 0; next < open.size() && next < 64; ++next)
      for (OpId id : readers[open[next].index()]) {
        const Op& reader = graph.ops[id];
        const auto* kind = std::get_if<ViewAttributes>(&reader.attributes);
        if (reader.kind == OpKind::view && kind) {
          if (turned && kind->kind == ViewKind::reshape &&
              cuts_or_joins(graph.tensors[graph.input(reader, 0)].shape, graph.tensors[graph.output(reader)].shape))
            cut_later = id;
          turned = turned || kind->kind == ViewKind::transpose;
          open.push_back(graph.output(reader));
        } else {
          read = true;
          fused = fused && reader.kind == OpKind::scaled_dot_product_attention;
        }
      }
    if (turned && read && !fused) view->gradient = GradientCopy::always;
    if (turned && read && fused && cut_later.valid()) {
      view->gradient = GradientCopy::fp32;
      std::get<ViewAttributes>(graph.ops[cut_later].attributes).gradient = GradientCopy::fp32;
    }
  }
}

}  // namespace precog::onnx
