#include "frontend/attention_rows.h"

#include <algorithm>
#include <optional>
#include <vector>

namespace precog {
namespace {

bool same_extents(const Shape& a, const Shape& b) {
  if (a.rank() != b.rank()) return false;
  std::vector<std::int64_t> left, right;
  for (int axis = 0; axis < a.rank(); ++axis) left.push_back(a[axis]), right.push_back(b[axis]);
  return std::is_permutation(left.begin(), left.end(), right.begin());
}

// Which axis of `from` an axis of `to` is; nothing where a view says no more about it.
std::optional<int> axis_before(ViewKind kind, const Shape& from, const Shape& to, int axis) {
  if (kind == ViewKind::slice) {
    if (from.rank() == to.rank()) return axis;
    const bool last = axis == to.rank() - 1 && from.rank() > 0 && from[-1] == to[-1];
    return last ? std::optional(from.rank() - 1) : std::nullopt;
  }
  if (kind != ViewKind::transpose || !same_extents(from, to)) return std::nullopt;
  if (from[axis] == to[axis]) return axis;
  for (int other = 0; other < from.rank(); ++other)
    if (from[other] == to[axis]) return other;
  return std::nullopt;
}

bool lies_across(const Graph& graph, const std::vector<const Op*>& makers, TensorId id) {
  int axis = graph.tensors[id].shape.rank() - 1;
  for (const Op* maker = makers[id.index()]; maker && axis >= 0; maker = makers[id.index()]) {
    const auto* view = std::get_if<ViewAttributes>(&maker->attributes);
    if (!view || maker->input_count == 0) break;
    const TensorId source = graph.input(*maker, 0);
    const auto before = axis_before(view->kind, graph.tensors[source].shape, graph.tensors[id].shape, axis);
    if (!before) break;
    axis = *before, id = source;
  }
  const Shape& shape = graph.tensors[id].shape;
  return axis >= 0 && axis != shape.rank() - 1 && shape[axis] > 1;
}

}  // namespace

void note_rows_across(Graph& forward) {
  std::vector<const Op*> makers(forward.tensors.size(), nullptr);
  for (const Op& op : forward.ops)
    for (TensorId id : forward.outputs(op)) makers[id.index()] = &op;
  for (Op& op : forward.ops)
    if (auto* attention = std::get_if<AttentionAttributes>(&op.attributes))
      for (std::size_t i = 0; i < std::min<std::size_t>(3, op.input_count); ++i) attention->across = attention->across || lies_across(forward, makers, forward.input(op, i));
}

}  // namespace precog
