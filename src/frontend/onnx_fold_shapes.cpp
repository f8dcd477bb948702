// The shape rules that folding and importing share.
#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "frontend/onnx_fold.h"
#include "frontend/onnx_wire.h"

namespace precog::onnx {

std::int64_t to_integer(double value) {
  if (std::isnan(value)) return 0;
  if (value >= 9.2e18) return std::numeric_limits<std::int64_t>::max();
  if (value <= -9.2e18) return std::numeric_limits<std::int64_t>::min();
  return static_cast<std::int64_t>(value);
}

int axis_of(const Node& node, std::int64_t axis, int rank) {
  if (axis < -rank || axis >= rank) throw OnnxError(fmt::format("{}: axis {} of a tensor of rank {}", node.label(), axis, rank));
  return static_cast<int>(axis < 0 ? axis + rank : axis);
}

Shape checked_shape(const Node& node, std::span<const std::int64_t> extents) {
  if (extents.size() > Shape::kMaxRank)
    throw OnnxError(fmt::format("{}: a result of rank {}; at most 8 is read", node.label(), extents.size()));
  std::int64_t elements = 1;
  for (std::int64_t extent : extents) {
    if (extent < 0 || (extent > 0 && elements > (std::int64_t{1} << 42) / extent))
      throw OnnxError(fmt::format("{}: a result with an extent of {} (too large, or negative)", node.label(), extent));
    elements *= std::max<std::int64_t>(extent, 1);
  }
  return Shape(extents);
}

Shape broadcast_shapes(const Node& node, const Shape& a, const Shape& b) {
  const int rank = std::max(a.rank(), b.rank());
  std::vector<std::int64_t> out;
  for (int i = 0; i < rank; ++i) {
    const int from_a = i - (rank - a.rank()), from_b = i - (rank - b.rank());
    const std::int64_t x = from_a < 0 ? 1 : a[from_a], y = from_b < 0 ? 1 : b[from_b];
    if (x != y && x != 1 && y != 1)
      throw OnnxError(fmt::format("{}: operands of shapes {} and {} do not broadcast", node.label(), to_text(a), to_text(b)));
    out.push_back(x == 1 ? y : x);
  }
  return checked_shape(node, out);
}

Shape reshaped(const Node& node, const Shape& from, std::span<const double> wanted) {
  const bool zero_is_zero = node.integer("allowzero", 0) != 0;
  std::vector<std::int64_t> out;
  std::int64_t known = 1;
  int open = -1;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    std::int64_t extent = to_integer(wanted[i]);
    if (extent == 0 && !zero_is_zero) extent = static_cast<int>(i) < from.rank() ? from[static_cast<int>(i)] : 0;
    if (extent == -1) {
      if (open >= 0) throw OnnxError(fmt::format("{}: two extents are left open (-1)", node.label()));
      open = static_cast<int>(i);
      extent = 1;
    }
    out.push_back(extent);
    known = extent > 0 && known < (std::int64_t{1} << 50) / extent ? known * extent : extent > 0 ? known : 0;
  }
  if (open >= 0) out[static_cast<std::size_t>(open)] = known > 0 ? from.elements() / known : 0;
  const Shape shape = checked_shape(node, out);
  if (shape.elements() != from.elements())
    throw OnnxError(fmt::format("{}: {} does not fit into {}", node.label(), to_text(from), to_text(shape)));
  return shape;
}

std::optional<std::vector<SliceRange>> slice_ranges(const Node& node, const Shape& of, std::span<const Constant* const> operands) {
  std::vector<std::int64_t> starts = node.integers("starts"), ends = node.integers("ends"), axes = node.integers("axes"), steps;
  if (!node.find("starts")) {  // operands since version 10
    for (std::size_t i = 1; i < 5; ++i) {
      const Constant* given = i < operands.size() ? operands[i] : nullptr;
      if (!given) {
        if (i < 3) return std::nullopt;
        continue;
      }
      if (!given->values) return std::nullopt;
      auto& into = i == 1 ? starts : i == 2 ? ends : i == 3 ? axes : steps;
      for (double value : *given->values) into.push_back(to_integer(value));
    }
  }
  std::vector<SliceRange> out;
  if (starts.size() != ends.size()) throw OnnxError(fmt::format("{}: starts and ends differ in number", node.label()));
  for (std::size_t i = 0; i < starts.size(); ++i) {
    const int axis = axis_of(node, i < axes.size() ? axes[i] : static_cast<std::int64_t>(i), of.rank());
    const std::int64_t step = i < steps.size() ? steps[i] : 1, extent = of[axis];
    if (step == 0) throw OnnxError(fmt::format("{}: a step of 0", node.label()));
    auto clamp = [&](std::int64_t at, std::int64_t low, std::int64_t high) {
      if (at < 0) at = at < -extent ? -1 - extent : at + extent;
      return std::clamp(at, low, high);
    };
    SliceRange range{axis, 0, step, 0};
    if (step > 0) {
      range.start = clamp(starts[i], 0, extent);
      const std::int64_t end = clamp(ends[i], 0, extent);
      range.length = end > range.start ? (end - range.start - 1) / step + 1 : 0;
    } else {
      range.start = clamp(starts[i], 0, extent - 1);
      const std::int64_t end = ends[i] < -extent ? -1 : clamp(ends[i], -1, extent - 1);
      const std::int64_t stride =
          step == std::numeric_limits<std::int64_t>::min() ? std::numeric_limits<std::int64_t>::max() : -step;
      range.length = range.start > end ? (range.start - end - 1) / stride + 1 : 0;
    }
    out.push_back(range);
  }
  return out;
}

std::optional<std::vector<int>> axes_of(const Node& node, std::span<const Constant* const> operands, int rank) {
  std::vector<std::int64_t> raw = node.integers("axes");
  if (raw.empty() && operands.size() > 1 && operands[1]) {
    if (!operands[1]->values) return std::nullopt;
    for (double value : *operands[1]->values) raw.push_back(to_integer(value));
  }
  std::vector<int> out;
  for (std::int64_t axis : raw) out.push_back(axis_of(node, axis, rank));
  std::sort(out.begin(), out.end());
  if (std::adjacent_find(out.begin(), out.end()) != out.end())
    throw OnnxError(fmt::format("{}: an axis is named twice", node.label()));
  return out;
}

}  // namespace precog::onnx
