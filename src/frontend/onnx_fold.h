// Arithmetic on tensors whose elements are known when the graph is built: shapes, indices, positions, masks. A frontend
// needs it to know what Reshape, Slice and Expand do, and to see what a mask hides.
// Not here: anything that becomes an operator of the step (onnx_import.h).
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "frontend/onnx_graph.h"
#include "graph/shape.h"

namespace precog::onnx {

inline constexpr std::int64_t kMaxFolded = std::int64_t{1} << 21;  // elements; a larger result is left unknown

using Elements = std::shared_ptr<const std::vector<double>>;
struct Constant {
  Shape shape;
  DType type = DType::int64;
  Elements values;  // none: only the shape is known
};

// The node's results where its operands are known well enough (Shape wants their shapes only); nothing otherwise. Operands
// that are left out are null. Throws OnnxError where the operands contradict each other.
std::optional<std::vector<Constant>> fold(const Node& node, std::span<const Constant* const> operands);

// Helpers that import needs too.
int axis_of(const Node& node, std::int64_t axis, int rank);                    // a negative one counts from the end
Shape checked_shape(const Node& node, std::span<const std::int64_t> extents);  // ranks and sizes within our limits
Shape broadcast_shapes(const Node& node, const Shape& a, const Shape& b);
Shape reshaped(const Node& node, const Shape& from, std::span<const double> wanted);
std::int64_t to_integer(double value);  // clamped to what an int64 holds
struct SliceRange {
  int axis;
  std::int64_t start, step, length;
};
// Slice's operands (or, before version 10, attributes); empty when they are unknown.
std::optional<std::vector<SliceRange>> slice_ranges(const Node& node, const Shape& of, std::span<const Constant* const> operands);
// Axes of Squeeze, Unsqueeze and the reductions: an operand since version 13 or 18, an attribute before. Sorted.
std::optional<std::vector<int>> axes_of(const Node& node, std::span<const Constant* const> operands, int rank);

}  // namespace precog::onnx
