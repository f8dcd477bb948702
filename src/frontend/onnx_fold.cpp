#include "frontend/onnx_fold.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>
#include <unordered_map>

#include <fmt/format.h>

#include "frontend/onnx_wire.h"

namespace precog::onnx {
namespace {

using Operands = std::span<const Constant* const>;
using Folded = std::optional<std::vector<Constant>>;
using Extents = std::vector<std::int64_t>;

Constant constant(Shape shape, DType type, std::vector<double> values) {
  return {shape, type, std::make_shared<const std::vector<double>>(std::move(values))};
}
Extents extents(const Shape& shape) { return {shape.extents().begin(), shape.extents().end()}; }

Extents strides(const Shape& shape) {
  Extents out(static_cast<std::size_t>(shape.rank()), 1);
  for (int i = shape.rank() - 2; i >= 0; --i)
    out[static_cast<std::size_t>(i)] = out[static_cast<std::size_t>(i) + 1] * shape[i + 1];
  return out;
}

// Calls visit(coordinates) for every element of `shape`, in order.
template <class F>
void for_each(const Shape& shape, F&& visit) {
  Extents at(static_cast<std::size_t>(shape.rank()), 0);
  for (std::int64_t i = 0, all = shape.elements(); i < all; ++i) {
    visit(at);
    for (int axis = shape.rank() - 1; axis >= 0; --axis) {
      auto& place = at[static_cast<std::size_t>(axis)];
      if (++place < shape[axis]) break;
      place = 0;
    }
  }
}

// The element of a broadcast operand at the result's coordinates.
struct Broadcast {
  Broadcast(const Constant& of, int rank) : values(*of.values), steps(static_cast<std::size_t>(rank), 0) {
    const Extents own = strides(of.shape);
    for (int i = 0; i < of.shape.rank(); ++i)
      if (of.shape[i] != 1) steps[static_cast<std::size_t>(i + rank - of.shape.rank())] = own[static_cast<std::size_t>(i)];
  }
  double at(const Extents& place) const {
    return values[static_cast<std::size_t>(std::inner_product(place.begin(), place.end(), steps.begin(), std::int64_t{0}))];
  }
  const std::vector<double>& values;
  Extents steps;
};

using Binary = double (*)(double, double, bool integer);
const std::unordered_map<std::string_view, Binary>& binaries() {
  static const std::unordered_map<std::string_view, Binary> kAll = {
      {"Add", [](double a, double b, bool) { return a + b; }},
      {"Sub", [](double a, double b, bool) { return a - b; }},
      {"Mul", [](double a, double b, bool) { return a * b; }},
      {"Div", [](double a, double b, bool integer) { return integer ? (b == 0 ? 0 : std::trunc(a / b)) : a / b; }},
      {"Mod", [](double a, double b, bool) { return b == 0 ? 0 : a - b * std::floor(a / b); }},
      {"Pow", [](double a, double b, bool) { return std::pow(a, b); }},
      {"Min", [](double a, double b, bool) { return std::min(a, b); }},
      {"Max", [](double a, double b, bool) { return std::max(a, b); }},
      {"Equal", [](double a, double b, bool) { return a == b ? 1.0 : 0.0; }},
      {"Less", [](double a, double b, bool) { return a < b ? 1.0 : 0.0; }},
      {"LessOrEqual", [](double a, double b, bool) { return a <= b ? 1.0 : 0.0; }},
      {"Greater", [](double a, double b, bool) { return a > b ? 1.0 : 0.0; }},
      {"GreaterOrEqual", [](double a, double b, bool) { return a >= b ? 1.0 : 0.0; }},
      {"And", [](double a, double b, bool) { return a != 0 && b != 0 ? 1.0 : 0.0; }},
      {"Or", [](double a, double b, bool) { return a != 0 || b != 0 ? 1.0 : 0.0; }},
      {"Xor", [](double a, double b, bool) { return (a != 0) != (b != 0) ? 1.0 : 0.0; }}};
  return kAll;
}
bool is_comparison(std::string_view op) {
  static constexpr std::array<std::string_view, 8> kAll = {"Equal",          "Less", "LessOrEqual", "Greater",
                                                           "GreaterOrEqual", "And",  "Or",          "Xor"};
  return std::find(kAll.begin(), kAll.end(), op) != kAll.end();
}

using Unary = double (*)(double);
const std::unordered_map<std::string_view, Unary>& unaries() {
  static const std::unordered_map<std::string_view, Unary> kAll = {{"Identity", [](double x) { return x; }},
                                                                   {"Neg", [](double x) { return -x; }},
                                                                   {"Abs", [](double x) { return std::fabs(x); }},
                                                                   {"Sqrt", [](double x) { return std::sqrt(x); }},
                                                                   {"Reciprocal", [](double x) { return 1 / x; }},
                                                                   {"Exp", [](double x) { return std::exp(x); }},
                                                                   {"Log", [](double x) { return std::log(x); }},
                                                                   {"Floor", [](double x) { return std::floor(x); }},
                                                                   {"Ceil", [](double x) { return std::ceil(x); }},
                                                                   {"Round", [](double x) { return std::nearbyint(x); }},
                                                                   {"Not", [](double x) { return x == 0 ? 1.0 : 0.0; }},
                                                                   {"IsNaN", [](double x) { return std::isnan(x) ? 1.0 : 0.0; }},
                                                                   {"Sign", [](double x) {
                                                                      return x > 0 ? 1.0 : x < 0 ? -1.0 : 0.0;
                                                                    }}};
  return kAll;
}

Folded elementwise(const Node& node, Operands in, Binary apply) {
  Constant total = *in[0];
  for (std::size_t i = 1; i < in.size(); ++i) {
    if (!in[i]) return std::nullopt;
    const Shape shape = broadcast_shapes(node, total.shape, in[i]->shape);
    if (shape.elements() > kMaxFolded) return std::nullopt;
    const Broadcast a(total, shape.rank()), b(*in[i], shape.rank());
    std::vector<double> out;
    out.reserve(static_cast<std::size_t>(shape.elements()));
    const bool integer = !is_floating(total.type);
    for_each(shape, [&](const Extents& at) { out.push_back(apply(a.at(at), b.at(at), integer)); });
    total = constant(shape, is_comparison(node.op) ? DType::boolean : total.type, std::move(out));
  }
  return std::vector{total};
}

Folded where(const Node& node, Operands in) {
  const Shape shape = broadcast_shapes(node, broadcast_shapes(node, in[0]->shape, in[1]->shape), in[2]->shape);
  if (shape.elements() > kMaxFolded) return std::nullopt;
  const Broadcast c(*in[0], shape.rank()), a(*in[1], shape.rank()), b(*in[2], shape.rank());
  std::vector<double> out;
  for_each(shape, [&](const Extents& at) { out.push_back(c.at(at) != 0 ? a.at(at) : b.at(at)); });
  return std::vector{constant(shape, in[1]->type, std::move(out))};
}

Folded expand(const Node& node, const Constant& x, const Shape& shape) {
  if (shape.elements() > kMaxFolded) return std::nullopt;
  if (broadcast_shapes(node, x.shape, shape) != shape) return std::nullopt;
  const Broadcast from(x, shape.rank());
  std::vector<double> out;
  for_each(shape, [&](const Extents& at) { out.push_back(from.at(at)); });
  return std::vector{constant(shape, x.type, std::move(out))};
}

Folded gather(const Node& node, const Constant& x, const Constant& index) {
  const int axis = axis_of(node, node.integer("axis", 0), x.shape.rank());
  Extents out_shape;
  for (int i = 0; i < axis; ++i) out_shape.push_back(x.shape[i]);
  for (std::int64_t extent : index.shape.extents()) out_shape.push_back(extent);
  for (int i = axis + 1; i < x.shape.rank(); ++i) out_shape.push_back(x.shape[i]);
  const Shape shape = checked_shape(node, out_shape);
  if (shape.elements() > kMaxFolded) return std::nullopt;
  const Extents step = strides(x.shape);
  std::int64_t inner = axis + 1 <= x.shape.rank() ? step[static_cast<std::size_t>(axis)] : 1;
  std::int64_t outer = 1;
  for (int i = 0; i < axis; ++i) outer *= x.shape[i];
  std::vector<double> out;
  for (std::int64_t o = 0; o < outer; ++o)
    for (double raw : *index.values) {
      std::int64_t at = to_integer(raw);
      if (at < 0) at += x.shape[axis];
      if (at < 0 || at >= x.shape[axis])
        throw OnnxError(fmt::format("{}: index {} of an extent of {}", node.label(), to_integer(raw), x.shape[axis]));
      for (std::int64_t i = 0; i < inner; ++i)
        out.push_back((*x.values)[static_cast<std::size_t>((o * x.shape[axis] + at) * inner + i)]);
    }
  return std::vector{constant(shape, x.type, std::move(out))};
}

// Rows of `index` name elements of x (all its axes: the form that indexing with several tensors takes).
Folded gather_nd(const Node& node, const Constant& x, const Constant& index) {
  if (node.integer("batch_dims", 0) != 0 || index.shape.rank() < 1 || index.shape[-1] != x.shape.rank()) return std::nullopt;
  const Extents step = strides(x.shape);
  Shape shape;
  for (int i = 0; i + 1 < index.shape.rank(); ++i) shape.push_back(index.shape[i]);
  std::vector<double> out;
  const auto width = static_cast<std::size_t>(x.shape.rank());
  if (width == 0) return std::nullopt;
  for (std::size_t row = 0; row + width <= index.values->size(); row += width) {
    std::int64_t at = 0;
    for (std::size_t i = 0; i < width; ++i) {
      std::int64_t place = to_integer((*index.values)[row + i]);
      const std::int64_t extent = x.shape[static_cast<int>(i)];
      if (place < 0) place += extent;
      if (place < 0 || place >= extent)
        throw OnnxError(fmt::format("{}: index {} of an extent of {}", node.label(), place, extent));
      at += place * step[i];
    }
    out.push_back((*x.values)[static_cast<std::size_t>(at)]);
  }
  return std::vector{constant(shape, x.type, std::move(out))};
}

Folded concat(const Node& node, Operands in) {
  const int axis = axis_of(node, node.integer("axis", 0), in[0]->shape.rank());
  Extents out_shape = extents(in[0]->shape);
  for (std::size_t i = 1; i < in.size(); ++i) {
    if (in[i]->shape.rank() != in[0]->shape.rank()) throw OnnxError(fmt::format("{}: operands of different rank", node.label()));
    for (int d = 0; d < in[0]->shape.rank(); ++d)
      if (d != axis && in[i]->shape[d] != in[0]->shape[d])
        throw OnnxError(fmt::format("{}: operands of different shape", node.label()));
    out_shape[static_cast<std::size_t>(axis)] += in[i]->shape[axis];
  }
  const Shape shape = checked_shape(node, out_shape);
  if (shape.elements() > kMaxFolded) return std::nullopt;
  std::int64_t outer = 1, inner = 1;
  for (int i = 0; i < axis; ++i) outer *= shape[i];
  for (int i = axis + 1; i < shape.rank(); ++i) inner *= shape[i];
  std::vector<double> out;
  for (std::int64_t o = 0; o < outer; ++o)
    for (const Constant* part : in) {
      const std::int64_t run = part->shape[axis] * inner;
      out.insert(out.end(), part->values->begin() + o * run, part->values->begin() + (o + 1) * run);
    }
  return std::vector{constant(shape, in[0]->type, std::move(out))};
}

Folded slice(const Node& node, Operands in) {
  const auto ranges = slice_ranges(node, in[0]->shape, in);
  if (!ranges) return std::nullopt;
  Constant out = *in[0];
  for (const SliceRange& range : *ranges) {
    Extents shape = extents(out.shape);
    shape[static_cast<std::size_t>(range.axis)] = range.length;
    const Shape result(shape);
    const Extents step = strides(out.shape);
    std::vector<double> values;
    for_each(result, [&](const Extents& at) {
      std::int64_t from = 0;
      for (int i = 0; i < result.rank(); ++i)
        from += (i == range.axis ? range.start + at[static_cast<std::size_t>(i)] * range.step : at[static_cast<std::size_t>(i)]) *
                step[static_cast<std::size_t>(i)];
      values.push_back((*out.values)[static_cast<std::size_t>(from)]);
    });
    out = constant(result, out.type, std::move(values));
  }
  return std::vector{out};
}

Folded transpose(const Node& node, const Constant& x) {
  Extents order = node.integers("perm");
  if (order.empty())
    for (int i = x.shape.rank() - 1; i >= 0; --i) order.push_back(i);
  if (order.size() != static_cast<std::size_t>(x.shape.rank()))
    throw OnnxError(fmt::format("{}: perm of another rank", node.label()));
  const Extents step = strides(x.shape);
  Extents shape, from;
  for (std::int64_t axis : order) {
    const int i = axis_of(node, axis, x.shape.rank());
    shape.push_back(x.shape[i]);
    from.push_back(step[static_cast<std::size_t>(i)]);
  }
  const Shape result = checked_shape(node, shape);
  if (result.elements() != x.shape.elements()) throw OnnxError(fmt::format("{}: perm names an axis twice", node.label()));
  std::vector<double> out;
  for_each(result, [&](const Extents& at) {
    out.push_back((*x.values)[static_cast<std::size_t>(std::inner_product(at.begin(), at.end(), from.begin(), std::int64_t{0}))]);
  });
  return std::vector{constant(result, x.type, std::move(out))};
}

Folded squeeze(const Node& node, Operands in, bool add) {
  const Constant& x = *in[0];
  const bool named = node.find("axes") || (in.size() > 1 && in[1]);
  const auto count = named ? axes_of(node, in, Shape::kMaxRank) : std::vector<int>{};  // how many, to know the rank
  if (!count) return std::nullopt;
  const auto axes = axes_of(node, in, add ? x.shape.rank() + static_cast<int>(count->size()) : x.shape.rank());
  if (!axes) return std::nullopt;
  auto is_named = [&](int axis) { return std::find(axes->begin(), axes->end(), axis) != axes->end(); };
  Extents shape;
  if (add) {
    for (int i = 0, from = 0; i < x.shape.rank() + static_cast<int>(axes->size()); ++i)
      shape.push_back(is_named(i) ? 1 : x.shape[from++]);
  } else {
    for (int i = 0; i < x.shape.rank(); ++i)
      if (named ? !is_named(i) : x.shape[i] != 1) shape.push_back(x.shape[i]);
  }
  const Shape result = checked_shape(node, shape);
  if (result.elements() != x.shape.elements()) throw OnnxError(fmt::format("{}: an axis that is not 1 cannot go", node.label()));
  return std::vector{Constant{result, x.type, x.values}};
}

Folded range(const Node& node, Operands in) {
  const double start = in[0]->values->at(0), end = in[1]->values->at(0), step = in[2]->values->at(0);
  const double steps = step == 0 ? -1 : std::ceil((end - start) / step);
  if (std::isnan(steps) || step == 0 || steps > 1e12)
    throw OnnxError(fmt::format("{}: from {} to {} by {}", node.label(), start, end, step));
  const auto count = static_cast<std::int64_t>(std::max(steps, 0.0));
  if (count > kMaxFolded) return std::vector{Constant{Shape{count}, in[0]->type, nullptr}};
  std::vector<double> out;
  for (std::int64_t i = 0; i < count; ++i) out.push_back(start + static_cast<double>(i) * step);
  return std::vector{constant(Shape{count}, in[0]->type, std::move(out))};
}

Folded reduce(const Node& node, Operands in) {
  const Constant& x = *in[0];
  auto axes = axes_of(node, in, x.shape.rank());
  if (!axes) return std::nullopt;
  if (axes->empty()) {
    axes->resize(static_cast<std::size_t>(x.shape.rank()));
    std::iota(axes->begin(), axes->end(), 0);
  }
  const bool keep = node.integer("keepdims", 1) != 0;
  Extents shape, from, kept;
  const Extents step = strides(x.shape);
  Shape inner;
  Extents inner_step;
  for (int i = 0; i < x.shape.rank(); ++i) {
    if (std::find(axes->begin(), axes->end(), i) != axes->end()) {
      inner.push_back(x.shape[i]);
      inner_step.push_back(step[static_cast<std::size_t>(i)]);
      if (!keep) continue;
      shape.push_back(1);
      from.push_back(0);
    } else {
      shape.push_back(x.shape[i]);
      from.push_back(step[static_cast<std::size_t>(i)]);
    }
  }
  if (inner.elements() == 0) return std::nullopt;
  std::vector<double> out;
  for_each(Shape(shape), [&](const Extents& at) {
    const std::int64_t base = std::inner_product(at.begin(), at.end(), from.begin(), std::int64_t{0});
    double total = node.op == "ReduceProd" ? 1 : node.op == "ReduceMax" ? -HUGE_VAL : node.op == "ReduceMin" ? HUGE_VAL : 0;
    for_each(inner, [&](const Extents& place) {
      const double value = (*x.values)[static_cast<std::size_t>(
          base + std::inner_product(place.begin(), place.end(), inner_step.begin(), std::int64_t{0}))];
      if (node.op == "ReduceProd") total *= value;
      else if (node.op == "ReduceMax") total = std::max(total, value);
      else if (node.op == "ReduceMin") total = std::min(total, value);
      else total += value;
    });
    out.push_back(node.op == "ReduceMean" ? total / static_cast<double>(inner.elements()) : total);
  });
  return std::vector{constant(Shape(shape), x.type, std::move(out))};
}

Folded cumsum(const Node& node, Operands in) {
  const Constant& x = *in[0];
  if (node.integer("reverse", 0) != 0 || node.integer("exclusive", 0) != 0 || in[1]->values->empty()) return std::nullopt;
  const int axis = axis_of(node, to_integer(in[1]->values->at(0)), x.shape.rank());
  const std::int64_t step = strides(x.shape)[static_cast<std::size_t>(axis)];
  std::vector<double> out = *x.values;
  for (std::size_t i = 0; i < out.size(); ++i)
    if (static_cast<std::int64_t>(i) / step % x.shape[axis] > 0) out[i] += out[i - static_cast<std::size_t>(step)];
  return std::vector{constant(x.shape, x.type, std::move(out))};
}

Folded trilu(const Node& node, Operands in) {
  const Constant& x = *in[0];
  if (x.shape.rank() < 2) return std::nullopt;
  const double shift = in.size() > 1 && in[1] && !in[1]->values->empty() ? in[1]->values->at(0) : 0;
  const bool upper = node.integer("upper", 1) != 0;
  std::vector<double> out = *x.values;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto column = static_cast<double>(static_cast<std::int64_t>(i) % x.shape[-1]);
    const auto row = static_cast<double>(static_cast<std::int64_t>(i) / x.shape[-1] % x.shape[-2]);
    if (upper ? column - row < shift : column - row > shift) out[i] = 0;
  }
  return std::vector{constant(x.shape, x.type, std::move(out))};
}

Folded shape_of(const Node& node, const Constant& x) {
  const auto rank = static_cast<std::int64_t>(x.shape.rank());
  auto clamp = [&](std::int64_t at) { return std::clamp<std::int64_t>(at < 0 ? at + rank : at, 0, rank); };
  const std::int64_t start = clamp(node.integer("start", 0)), end = clamp(node.integer("end", rank));
  std::vector<double> out;
  for (std::int64_t i = start; i < end; ++i) out.push_back(static_cast<double>(x.shape[static_cast<int>(i)]));
  const Shape shape{static_cast<std::int64_t>(out.size())};
  return std::vector{constant(shape, DType::int64, std::move(out))};
}

Shape shape_from(const Node& node, const Constant& given) {
  Extents wanted;
  for (double value : *given.values) wanted.push_back(to_integer(value));
  return checked_shape(node, wanted);
}

}  // namespace

std::optional<std::vector<Constant>> fold(const Node& node, std::span<const Constant* const> in) {
  if (!node.domain.empty()) return std::nullopt;
  const std::string_view op = node.op;
  if (op == "Constant") return std::nullopt;  // import reads these: they may be masks or weights
  if (in.empty() || !in[0]) return std::nullopt;
  if (op == "Shape") return shape_of(node, *in[0]);
  if (op == "Size") return std::vector{constant({}, DType::int64, {static_cast<double>(in[0]->shape.elements())})};
  for (const Constant* operand : in)
    if (operand && !operand->values) return std::nullopt;
  auto has = [&](std::size_t count) {
    return in.size() >= count &&
           std::all_of(in.begin(), in.begin() + static_cast<std::ptrdiff_t>(count), [](auto* x) { return x != nullptr; });
  };

  if (const auto found = binaries().find(op); found != binaries().end()) return elementwise(node, in, found->second);
  if (const auto found = unaries().find(op); found != unaries().end()) {
    std::vector<double> out = *in[0]->values;
    for (double& value : out) value = found->second(value);
    return std::vector{constant(in[0]->shape, op == "Not" || op == "IsNaN" ? DType::boolean : in[0]->type, std::move(out))};
  }
  if (op == "Cast") {
    const DType to = dtype_of(static_cast<ElementType>(node.integer("to", 1)));
    std::vector<double> out = *in[0]->values;
    for (double& value : out) value = to == DType::boolean ? (value != 0 ? 1 : 0) : is_floating(to) ? value : std::trunc(value);
    return std::vector{constant(in[0]->shape, to, std::move(out))};
  }
  if (op == "Where" && has(3)) return where(node, in);
  if (op == "Expand" && has(2)) return expand(node, *in[0], broadcast_shapes(node, in[0]->shape, shape_from(node, *in[1])));
  if (op == "ConstantOfShape") {
    const Shape shape = shape_from(node, *in[0]);
    if (shape.elements() > kMaxFolded) return std::nullopt;
    const Attribute* value = node.find("value");
    const bool given = value && value->tensor && value->tensor->has_values && !value->tensor->values.empty();
    return std::vector{
        constant(shape, value && value->tensor ? dtype_of(value->tensor->type) : DType::model,
                 std::vector<double>(static_cast<std::size_t>(shape.elements()), given ? value->tensor->values[0] : 0))};
  }
  if (op == "Gather" && has(2)) return gather(node, *in[0], *in[1]);
  if (op == "GatherND" && has(2)) return gather_nd(node, *in[0], *in[1]);
  if (op == "Concat" && has(in.size())) return concat(node, in);
  if (op == "Slice") return slice(node, in);
  if (op == "Transpose") return transpose(node, *in[0]);
  if (op == "Unsqueeze") return squeeze(node, in, true);
  if (op == "Squeeze") return squeeze(node, in, false);
  if (op == "Reshape" && has(2))
    return std::vector{Constant{reshaped(node, in[0]->shape, *in[1]->values), in[0]->type, in[0]->values}};
  if (op == "Range" && has(3) && !in[0]->values->empty() && !in[1]->values->empty() && !in[2]->values->empty())
    return range(node, in);
  if (op == "CumSum" && has(2)) return cumsum(node, in);
  if (op == "Trilu") return trilu(node, in);
  if (op == "ReduceProd" || op == "ReduceSum" || op == "ReduceMax" || op == "ReduceMin" || op == "ReduceMean")
    return reduce(node, in);
  return std::nullopt;
}

}  // namespace precog::onnx
