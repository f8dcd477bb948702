#include "parallel/placement.h"

#include <algorithm>
#include <vector>

namespace precog {
namespace {

bool swapped(const Shape& from, const Shape& to, int a, int b) {
  for (int axis = 0; axis < from.rank(); ++axis)
    if (to[axis] != from[axis == a ? b : axis == b ? a : axis]) return false;
  return true;
}

}  // namespace

Shape local_shape(const Shape& whole, const Placement& placement, std::int64_t ranks) {
  Shape out = whole;
  if (placement.split()) out.set(placement.axis, whole[placement.axis] / ranks);
  return out;
}

std::optional<Placement> through_reshape(const Shape& from, const Shape& to, Placement placement, std::int64_t ranks) {
  // Axes of both sides in groups of equal products; the one that holds the split axis counts.
  int i = 0, j = 0;
  while (i < from.rank() && j < to.rank()) {
    const int first_in = i, first_out = j;
    std::int64_t in = from[i++], out = to[j++];
    while (in != out) {
      if (in < out && i < from.rank()) in *= from[i++];
      else if (out < in && j < to.rank()) out *= to[j++];
      else return std::nullopt;
    }
    if (placement.axis < first_in || placement.axis >= i) continue;
    while (j < to.rank() && to[j] == 1 && j + 1 < to.rank() && i < from.rank() && from[i] != 1) ++j;  // an axis of one put in between
    int chosen = -1;
    for (int axis = first_out; axis < j; ++axis)
      if (to[axis] == placement.extent) chosen = axis;
    for (int axis = first_out; axis < j && chosen < 0; ++axis)
      if (to[axis] > 1 && to[axis] % ranks == 0) chosen = axis;
    if (chosen < 0) return std::nullopt;
    if (j - first_out > 1) {  // the split axis has come apart; what stood before it may have joined its first part
      std::int64_t before = 1;
      for (int axis = first_in; axis < placement.axis; ++axis) before *= from[axis];
      placement.extent = chosen == first_out && to[chosen] % before == 0 ? to[chosen] / before : to[chosen];
    }
    placement.axis = chosen;
    return placement;
  }
  return std::nullopt;
}

std::optional<Placement> through_transpose(const Shape& from, const Shape& to, Placement placement) {
  if (from.rank() != to.rank()) return std::nullopt;
  const int rank = from.rank();
  const auto exchanges = [&](int a, int b) {
    if (a < 0 || !swapped(from, to, a, b)) return false;
    placement.axis = placement.axis == a ? b : placement.axis == b ? a : placement.axis;
    return true;
  };
  if (rank >= 4 && exchanges(rank - 3, rank - 2)) return placement;
  if (exchanges(rank - 2, rank - 1)) return placement;
  for (int a = 0; a < rank; ++a)
    for (int b = a + 1; b < rank; ++b)
      if (exchanges(a, b)) return placement;
  // Some other permutation: the k-th axis of this extent becomes the k-th of that extent.
  int before = 0;
  for (int axis = 0; axis < placement.axis; ++axis) before += from[axis] == from[placement.axis] ? 1 : 0;
  for (int axis = 0; axis < rank; ++axis)
    if (to[axis] == from[placement.axis] && before-- == 0) {
      placement.axis = axis;
      return placement;
    }
  return std::nullopt;
}

std::optional<Placement> through_removal(const Shape& from, const Shape& to, Placement placement) {
  if (to.rank() + 1 != from.rank()) return std::nullopt;
  for (int gone = 0; gone < from.rank(); ++gone) {
    bool fits = gone != placement.axis;
    for (int i = 0; i < to.rank() && fits; ++i) fits = to[i] == from[i < gone ? i : i + 1];
    if (!fits) continue;
    placement.axis -= placement.axis > gone ? 1 : 0;
    return placement;
  }
  return std::nullopt;
}

bool is_permutation(const Shape& a, const Shape& b) {
  return a.rank() == b.rank() && std::is_permutation(a.extents().begin(), a.extents().end(), b.extents().begin());
}

std::optional<int> differing_axis(const Shape& a, const Shape& b) {
  if (a.rank() != b.rank()) return std::nullopt;
  std::optional<int> found;
  for (int axis = 0; axis < a.rank(); ++axis)
    if (a[axis] != b[axis]) {
      if (found) return std::nullopt;
      found = axis;
    }
  return found;
}

}  // namespace precog
