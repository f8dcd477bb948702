// Where the ranks of a tensor-parallel group keep a tensor: each all of it, or each its part along one axis. And how a split
// goes through operators that rename axes: shapes in, the axis of the result out. Knows no operators and no graph.
#pragma once

#include <optional>

#include "graph/shape.h"

namespace precog {

struct Placement {
  int axis = -1;            // split along this axis; -1: every rank has all of it
  std::int64_t extent = 0;  // of what is really split (heads, tokens), where the axis is that times something
  bool sequence = false;    // tokens are shared out (sequence parallelism), not features
  bool partial = false;     // every rank has a summand

  bool split() const { return axis >= 0; }
  bool whole() const { return axis < 0 && !partial; }
  friend bool operator==(const Placement&, const Placement&) = default;
};

// The shape on one rank.
Shape local_shape(const Shape& whole, const Placement& placement, std::int64_t ranks);

// Axes of `to`, the same elements in the same order as `from`, that the split axis of `from` becomes: the one of the split's own
// extent, or else the first that the ranks divide (fused projections are stored so that every rank has its part of each).
std::optional<Placement> through_reshape(const Shape& from, const Shape& to, Placement placement, std::int64_t ranks);

// The graph says that axes change places, not which: told from the extents. Where several are alike the second and third are
// taken, which is how heads and tokens change places.
std::optional<Placement> through_transpose(const Shape& from, const Shape& to, Placement placement);

// An axis gone (a sum, one element of an axis): the first that fits and is not the split one.
std::optional<Placement> through_removal(const Shape& from, const Shape& to, Placement placement);

// The same extents in another order.
bool is_permutation(const Shape& a, const Shape& b);

// The one axis in which two shapes of the same rank differ; none where there are several or none.
std::optional<int> differing_axis(const Shape& a, const Shape& b);

}  // namespace precog
