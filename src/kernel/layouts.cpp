#include "kernel/layouts.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <vector>

namespace precog {
namespace {

// Which axis of `from` each axis of `to` is, those of one extent in the order that they had: the two sides of a square image stay what
// they are when its channels move. Nothing where no order of axes explains it.
std::optional<std::array<int, Shape::kMaxRank>> order_of(const Shape& from, const Shape& to) {
  const int rank = from.rank();
  if (rank != to.rank()) return std::nullopt;
  std::array<int, Shape::kMaxRank> order{};
  std::array<bool, Shape::kMaxRank> used{};
  for (int axis = 0; axis < rank; ++axis) {
    int found = 0;
    while (found < rank && (used[static_cast<std::size_t>(found)] || from[found] != to[axis])) ++found;
    if (found == rank) return std::nullopt;
    order[static_cast<std::size_t>(axis)] = found;
    used[static_cast<std::size_t>(found)] = true;
  }
  if (std::is_sorted(order.begin(), order.begin() + rank)) {  // extents alike hide it: the last two that are
    for (int b = rank - 1; b > 0; --b)
      for (int a = b - 1; a >= 0; --a)
        if (from[a] == from[b] && from[a] > 1) return std::swap(order[static_cast<std::size_t>(a)], order[static_cast<std::size_t>(b)]), order;
  }
  return order;
}

// A view of other extents over the same elements: axes are cut or joined where the strides allow it (as Tensor.view does).
std::optional<Shape> reshaped(const Shape& from, const Shape& strides, const Shape& to) {
  Shape out;
  for (int axis = 0; axis < to.rank(); ++axis) out.push_back(1);
  int at = to.rank() - 1;
  std::int64_t chunk = 1, taken = 1;
  int inner = from.rank() - 1;
  for (int axis = from.rank() - 1; axis >= 0; --axis) {
    chunk *= from[axis];
    const bool joined = axis > 0 && (from[axis - 1] == 1 || strides[axis - 1] == from[axis] * strides[axis]);
    if (joined) continue;
    std::int64_t step = strides[inner];
    taken = 1;
    while (at >= 0 && (taken < chunk || to[at] == 1)) {
      out.set(at, step);
      step *= to[at], taken *= to[at];
      --at;
    }
    if (taken != chunk) return std::nullopt;
    chunk = 1;
    inner = axis - 1;
  }
  return at < 0 ? std::optional(out) : std::nullopt;
}

// Part of a tensor: the extents of `to` in their order among those of `from`, others taken at one place.
std::optional<Shape> part_of(const Shape& from, const Shape& strides, const Shape& to) {
  if (from.rank() == to.rank()) return strides;
  Shape out;
  int axis = 0, left = from.rank() - to.rank();
  for (int wanted = 0; wanted < to.rank(); ++wanted) {
    while (left > 0 && from[axis] != to[wanted]) ++axis, --left;
    if (axis >= from.rank() || from[axis] < to[wanted]) return std::nullopt;
    out.push_back(strides[axis++]);
  }
  return out;
}

Shape expanded(const Shape& from, const Shape& strides, const Shape& to) {
  Shape out;
  const int front = to.rank() - from.rank();
  for (int axis = 0; axis < to.rank(); ++axis) {
    const int own = axis - front;
    out.push_back(own < 0 || from[own] == 1 ? 0 : strides[own]);
  }
  return out;
}

}  // namespace

Shape contiguous_strides(const Shape& shape) {
  Shape out = shape;
  std::int64_t step = 1;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) out.set(axis, step), step *= shape[axis];
  return out;
}

Shape Layouts::strides_over(TensorId id, const Shape& result) const {
  const Shape& shape = graph_.tensors[id].shape;
  if (shape.rank() > result.rank() || shape.elements() > result.elements()) return contiguous_strides(result);
  const Shape own = strides(id);
  // A gradient's recorded operators leave out reshapes: another shape of as many elements.
  for (int axis = 1; axis <= shape.rank(); ++axis)
    if (shape[-axis] != 1 && shape[-axis] != result[-axis]) {
      if (shape.elements() == result.elements()) return reshaped(shape, own, result).value_or(contiguous_strides(result));
      return contiguous_strides(result);
    }
  return expanded(shape, own, result);
}

void Layouts::follow(const Op& op) {
  const auto* view = std::get_if<ViewAttributes>(&op.attributes);
  if (op.input_count == 0 || !view) return;
  const TensorId source = graph_.input(op, 0);
  const Shape &from = graph_.tensors[source].shape, before = strides(source);
  for (TensorId id : graph_.outputs(op)) {
    const Shape& to = graph_.tensors[id].shape;
    std::optional<Shape> after;
    const ViewKind kind = view->kind;
    // What is called a reshape is contiguous: a capture calls other views of as many elements transpositions. Where axes were exchanged so that it
    // became contiguous, its gradient's are exchanged back.
    const bool back = op.phase == Phase::backward && !(from == to) && order_of(from, to);
    if (kind == ViewKind::reshape && !back) continue;
    if (kind == ViewKind::transpose || kind == ViewKind::reshape) {
      if (const auto order = order_of(from, to)) {
        after.emplace();
        for (int axis = 0; axis < to.rank(); ++axis) after->push_back(before[(*order)[static_cast<std::size_t>(axis)]]);
      } else {
        after = reshaped(from, before, to);
      }
    } else if (kind == ViewKind::slice) {
      after = part_of(from, before, to);
    } else if (kind == ViewKind::expand && from.rank() <= to.rank()) {
      after = expanded(from, before, to);
    }
    if (after && !(*after == contiguous_strides(to))) set(id, *after);
  }
}

namespace {

// Most kernels meet nothing but contiguous operands, whose axes all join.
bool all_contiguous(const Shape& shape, std::span<const Shape> operands) {
  std::int64_t step = 1;
  for (int axis = shape.rank() - 1; axis >= 0; step *= shape[axis--]) {
    if (shape[axis] == 1) continue;
    for (const Shape& one : operands)
      if (one[axis] != step) return false;
  }
  return step > 0;
}

// Axes from the innermost outwards, as TensorIterator's reorder_dimensions has them: by the strides of the first operand that
// tells two axes apart.
struct AxisOrder {
  std::array<int, Shape::kMaxRank> axes{};
  std::size_t count = 0;
  std::span<const int> all() const { return {axes.data(), count}; }
};

AxisOrder inner_first(const Shape& shape, std::span<const Shape> operands) {
  AxisOrder order;
  for (int axis = shape.rank() - 1; axis >= 0; --axis)
    if (shape[axis] != 1) order.axes[order.count++] = axis;
  const auto outside = [&](int a, int b) {  // whether a belongs outside b
    for (const Shape& one : operands) {
      if (one[a] == 0 || one[b] == 0) continue;
      if (one[a] != one[b]) return one[a] > one[b] ? 1 : -1;
    }
    return 0;
  };
  for (std::size_t i = 1; i < order.count; ++i) {
    std::size_t at = i;
    for (std::size_t j = i; j-- > 0;) {
      const int found = outside(order.axes[j], order.axes[at]);
      if (found > 0) std::swap(order.axes[j], order.axes[at]), at = j;
      else if (found < 0) break;
    }
  }
  return order;
}

}  // namespace

Shape dense_like(const Shape& shape, const Shape& strides) {
  const Shape operands[] = {strides};
  Shape out = contiguous_strides(shape);
  if (all_contiguous(shape, operands)) return out;
  std::int64_t step = 1;
  const AxisOrder order = inner_first(shape, operands);
  for (int axis : order.all()) out.set(axis, step), step *= shape[axis];
  for (int axis = 0; axis < shape.rank(); ++axis)
    if (shape[axis] == 1) out.set(axis, contiguous_strides(shape)[axis]);
  return out;
}

namespace {

// Axes from the innermost outwards, neighbours joined: each one's extent, and the innermost of those that it was joined from, whose strides are its own.
struct JoinedAxes {
  std::array<std::int64_t, Shape::kMaxRank> extent{};
  std::array<int, Shape::kMaxRank> axis{};
  std::size_t count = 0;
};

JoinedAxes joined(std::span<const Shape> operands, const Shape& shape, std::span<const int> order) {
  JoinedAxes out;
  for (int axis : order) {
    bool joins = out.count > 0;
    for (std::size_t i = 0; joins && i < operands.size(); ++i) joins = operands[i][out.axis[out.count - 1]] * out.extent[out.count - 1] == operands[i][axis];
    if (joins) {
      out.extent[out.count - 1] *= shape[axis];
      continue;
    }
    out.extent[out.count] = shape[axis];
    out.axis[out.count++] = axis;
  }
  return out;
}

}  // namespace

Walk walk(const Shape& shape, std::span<const Shape> operands) {
  if (all_contiguous(shape, operands)) return {.inner = shape.elements()};
  const JoinedAxes axes = joined(operands, shape, inner_first(shape, operands).all());
  Walk out;
  if (axes.count == 0) return out;
  out.inner = axes.extent[0];
  bool plain = axes.count == 1;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const std::int64_t innermost = operands[i][axes.axis[0]];
    plain = plain && innermost == 1;
    if (innermost <= 1) continue;
    out.across |= 1u << std::min<std::size_t>(i, 31);
    for (std::size_t k = 0; k < axes.count; ++k)
      if (operands[i][axes.axis[k]] == 1) out.run = std::max(out.run, axes.extent[k]);
    out.run = std::max<std::int64_t>(1, out.run);
  }
  out.axes = plain ? 0 : static_cast<int>(axes.count);
  return out;
}

Walk walk_reduction(const Shape& shape, const Shape& strides, const Shape& kept) {
  // The result's strides tell kept axes from others; a reduction's axes are not joined with those that stay.
  Shape result = kept;
  std::int64_t step = 1;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    result.set(axis, kept[axis] ? step : 0);
    if (kept[axis]) step *= shape[axis];
  }
  const Shape input[] = {strides};
  const Shape operands[] = {result, strides};
  const JoinedAxes axes = joined(operands, shape, inner_first(shape, input).all());
  Walk out;
  if (axes.count == 0) return out;
  out.inner = axes.extent[0];
  out.keeps = result[axes.axis[0]] != 0;
  out.axes = static_cast<int>(axes.count);
  if (strides[axes.axis[0]] > 1) out.across = 1, out.run = 1;
  return out;
}

}  // namespace precog
