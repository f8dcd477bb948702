// Where the elements of a step's tensors lie, as strides, and how a pointwise kernel or a reduction walks through them.
// Strides follow the views of a graph from shapes alone: which axes a transposition exchanged is told by the extents that moved
// (those of one extent keep their order). A tensor about which nothing is known is contiguous. No bytes, no costs.
// Takes views in the order of the graph, or strides that somebody measured; returns what PyTorch's TensorIterator makes of them.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>

#include "graph/graph.h"

namespace precog {

Shape contiguous_strides(const Shape& shape);
// Without gaps, in the order of axes that these strides have.
Shape dense_like(const Shape& shape, const Shape& strides);

// Strides of tensors that are not contiguous.
using KnownStrides = std::unordered_map<std::int32_t, Shape>;

class Layouts {
 public:
  explicit Layouts(const Graph& graph, const KnownStrides* known = nullptr) : graph_(graph) {
    if (known) strides_ = *known;
  }
  void follow(const Op& view);
  void set(TensorId id, const Shape& strides) { strides_[static_cast<std::int32_t>(id.index())] = strides; }
  bool is_plain(TensorId id) const { return !strides_.contains(static_cast<std::int32_t>(id.index())); }
  Shape strides(TensorId id) const;
  // Over the axes of a result that it is broadcast to; 0 along the others.
  Shape strides_over(TensorId id, const Shape& result) const;

 private:
  const Graph& graph_;
  KnownStrides strides_;
};

// A kernel over one index space.
struct Walk {
  int axes = 0;             // that are left when neighbours are joined: each costs a division per element; 0: all is contiguous
  std::int64_t inner = 1;   // extent of the innermost of them
  bool keeps = true;        // of a reduction: whether the innermost is kept
  std::int64_t run = 0;     // where an operand is read across memory: how many of its elements lie side by side
  std::uint32_t across = 0; // operands, by bit, that are read so
};

// `operands`: strides over `shape`, the result's first where it exists before the call (its order then rules).
Walk walk(const Shape& shape, std::span<const Shape> operands);
// Of x with these strides; `kept`: one for each axis that stays, else 0.
Walk walk_reduction(const Shape& shape, const Shape& strides, const Shape& kept);

}  // namespace precog
