// Where the elements of a step's tensors lie, as strides, and how a pointwise kernel or a reduction walks through them.
// Strides follow the views of a graph from shapes alone: which axes a transposition exchanged is told by the extents that moved
// (those of one extent keep their order). A tensor about which nothing is known is contiguous. No bytes, no costs.
// Takes views in the order of the graph, or strides that somebody measured; returns what PyTorch's TensorIterator makes of them.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "graph/graph.h"

namespace precog {

Shape contiguous_strides(const Shape& shape);
// Without gaps, in the order of axes that these strides have.
Shape dense_like(const Shape& shape, const Shape& strides);

// Strides of tensors that are not contiguous.
using KnownStrides = std::unordered_map<std::int32_t, Shape>;

class Layouts {
 public:
  explicit Layouts(const Graph& graph, const KnownStrides* known = nullptr) : graph_(graph), place_(graph.tensors.size(), -1) {
    if (known)
      for (const auto& [tensor, strides] : *known)
        if (graph.tensors.contains(TensorId{tensor})) set(TensorId{tensor}, strides);
  }
  void follow(const Op& view);
  void set(TensorId id, const Shape& strides) {
    std::int32_t& place = place_[id.index()];
    if (place >= 0) {
      strides_[static_cast<std::size_t>(place)] = strides;
      return;
    }
    place = static_cast<std::int32_t>(strides_.size());
    strides_.push_back(strides);
  }
  bool is_plain(TensorId id) const { return place_[id.index()] < 0; }
  Shape strides(TensorId id) const { return is_plain(id) ? contiguous_strides(graph_.tensors[id].shape) : strides_[static_cast<std::size_t>(place_[id.index()])]; }
  // Over the axes of a result that it is broadcast to; 0 along the others.
  Shape strides_over(TensorId id, const Shape& result) const;

 private:
  const Graph& graph_;
  std::vector<std::int32_t> place_;  // by tensor: of its strides, where it is not contiguous
  std::vector<Shape> strides_;
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
