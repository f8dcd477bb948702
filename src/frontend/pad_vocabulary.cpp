#include "frontend/pad_vocabulary.h"

#include <algorithm>

namespace precog {
namespace {

constexpr std::int64_t kSmallest = 4096;  // below it an extent may well be something else's too: a hidden size, a sequence

struct Rename {
  std::int64_t from, to;

  void operator()(std::int64_t& extent) const {
    if (extent == from) extent = to;
  }
  void operator()(Shape& shape) const {
    for (int axis = 0; axis < shape.rank(); ++axis)
      if (shape[axis] == from) shape.set(axis, to);
  }
  void operator()(Attributes& attributes) const {
    if (auto* gemm = std::get_if<GemmAttributes>(&attributes)) {
      (*this)(gemm->n);
      (*this)(gemm->k);
      (*this)(gemm->m);  // of a recorded weight's gradient; forward products have tokens there
    }
    if (auto* norm = std::get_if<NormAttributes>(&attributes)) (*this)(norm->width);
  }
};

// A reshape keeps its elements: where the vocabulary hides in a product of extents, renaming would break it.
bool reshapes_hold(const Graph& graph, const Rename& rename) {
  const auto elements = [&](TensorId id) {
    Shape shape = graph.tensors[id].shape;
    rename(shape);
    return shape.elements();
  };
  for (const Op& op : graph.ops) {
    const auto* view = std::get_if<ViewAttributes>(&op.attributes);
    if (op.kind != OpKind::view || !view || (view->kind != ViewKind::reshape && view->kind != ViewKind::transpose)) continue;
    if (op.input_count > 0 && op.output_count > 0 && elements(graph.input(op, 0)) != elements(graph.output(op))) return false;
  }
  return true;
}

}  // namespace

std::int64_t vocabulary_of(const Graph& forward) {
  std::int64_t found = 0;
  for (const Op& op : forward.ops) {
    if (op.kind != OpKind::embedding) continue;
    for (TensorId id : forward.inputs(op)) {
      const Tensor& table = forward.tensors[id];
      if (table.role == Role::parameter && table.shape.rank() == 2) found = std::max(found, table.shape[0]);
    }
  }
  for (const Op& op : forward.ops) {
    const auto* gemm = std::get_if<GemmAttributes>(&op.attributes);
    if (found >= kSmallest && gemm && gemm->n == found) return found;
  }
  return 0;
}

Graph pad_vocabulary(Graph forward, std::int64_t multiple) {
  const std::int64_t size = vocabulary_of(forward);
  if (size == 0 || multiple < 2 || size % multiple == 0) return forward;
  for (const Op& op : forward.ops)
    if (const auto* gemm = std::get_if<GemmAttributes>(&op.attributes); gemm && gemm->m == size) return forward;
  const Rename rename{size, (size + multiple - 1) / multiple * multiple};
  if (!reshapes_hold(forward, rename) && reshapes_hold(forward, {size, size})) return forward;
  for (Tensor& tensor : forward.tensors) rename(tensor.shape);
  for (Op& op : forward.ops) rename(op.attributes);
  for (Recipe& recipe : forward.recipes)
    for (RecipeOp& op : recipe.ops) {
      rename(op.attributes);
      for (RecipeTensor& tensor : op.outputs) rename(tensor.shape);
    }
  return forward;
}

}  // namespace precog
