// Elementwise operators: those of our own list, the others by PyTorch's name, and integers as one kind.
#include <fmt/format.h>

#include "frontend/onnx_import.h"
#include "frontend/onnx_wire.h"

namespace precog::onnx {
namespace {

bool floating(const Value& value) { return precog::is_floating(value.type); }

void integers(Importer& im, const Node& node, Shape shape, DType type) {
  std::vector<TensorId> inputs;
  for (std::size_t i = 0; i < node.inputs.size(); ++i)
    if (im.has(node, i) && !scalar(im.in(node, i))) inputs.push_back(im.tensor(im.in(node, i)));
  im.out(node, 0, im.emit(OpKind::integer_pointwise, inputs, shape, type));
}

const std::unordered_map<std::string_view, OpKind>& own_kinds() {
  static const std::unordered_map<std::string_view, OpKind> kAll = {{"Relu", OpKind::relu},
                                                                    {"Gelu", OpKind::gelu},
                                                                    {"precog.Gelu", OpKind::gelu},
                                                                    {"com.microsoft.Gelu", OpKind::gelu},
                                                                    {"com.microsoft.FastGelu", OpKind::gelu},
                                                                    {"precog.Silu", OpKind::silu},
                                                                    {"Swish", OpKind::silu},
                                                                    {"Tanh", OpKind::tanh},
                                                                    {"Sigmoid", OpKind::sigmoid},
                                                                    {"Neg", OpKind::neg},
                                                                    {"Exp", OpKind::exp},
                                                                    {"precog.Rsqrt", OpKind::rsqrt},
                                                                    {"Cos", OpKind::cos},
                                                                    {"Sin", OpKind::sin},
                                                                    {"Clip", OpKind::hardtanh}};
  return kAll;
}
const std::unordered_map<std::string_view, std::string_view>& named() {
  static const std::unordered_map<std::string_view, std::string_view> kAll = {{"Abs", "abs"},
                                                                              {"Sqrt", "sqrt"},
                                                                              {"Reciprocal", "reciprocal"},
                                                                              {"Log", "log"},
                                                                              {"Erf", "erf"},
                                                                              {"Floor", "floor"},
                                                                              {"Ceil", "ceil"},
                                                                              {"Round", "round"},
                                                                              {"Sign", "sign"},
                                                                              {"LeakyRelu", "leaky_relu"},
                                                                              {"Elu", "elu"},
                                                                              {"Selu", "selu"},
                                                                              {"Celu", "celu"},
                                                                              {"HardSwish", "hardswish"},
                                                                              {"HardSigmoid", "hardsigmoid"},
                                                                              {"Softplus", "softplus"},
                                                                              {"Softsign", "abs"},
                                                                              {"Mish", "mish"},
                                                                              {"ThresholdedRelu", "threshold"},
                                                                              {"Tan", "tan"},
                                                                              {"Asin", "asin"},
                                                                              {"Acos", "acos"},
                                                                              {"Atan", "atan"},
                                                                              {"Sinh", "sinh"},
                                                                              {"Cosh", "cosh"},
                                                                              {"PRelu", "prelu"},
                                                                              {"Trilu", "tril"}};
  return kAll;
}

void unary(Importer& im, const Node& node) {
  const Value& x = im.in(node, 0);
  if (!floating(x)) return integers(im, node, x.shape, x.type);
  const std::string key = node.domain.empty() ? node.op : node.domain + "." + node.op;
  Value y;
  if (const auto own = own_kinds().find(key); own != own_kinds().end()) {
    y = im.emit(own->second, {im.tensor(x)}, x.shape);
    if (x.positional && (node.op == "Cos" || node.op == "Sin")) y = im.cast_like_parameters(y);
  } else {
    std::vector<TensorId> inputs = {im.tensor(x)};
    if (node.op == "PRelu" && im.has(node, 1)) inputs.push_back(im.tensor(im.in(node, 1)));
    y = im.generic(named().at(node.op), inputs, x.shape);
  }
  im.out(node, 0, im.pointwise_like(y, x));
}

const std::unordered_map<std::string_view, OpKind>& binary_kinds() {
  static const std::unordered_map<std::string_view, OpKind> kAll = {
      {"Add", OpKind::add}, {"Sub", OpKind::sub}, {"Mul", OpKind::mul}, {"Div", OpKind::div}, {"Pow", OpKind::pow}};
  return kAll;
}

// Add, Sub, Mul, Div, Pow. A single known number is an argument of the kernel, not an operand.
void binary(Importer& im, const Node& node) {
  Value a = im.in(node, 0), b = im.in(node, 1);
  const Shape shape = broadcast_shapes(node, a.shape, b.shape);
  if (!floating(a) && !floating(b)) return integers(im, node, shape, a.type);
  const bool left = scalar(a).has_value() && !a.id.valid(), right = scalar(b).has_value() && !b.id.valid();
  const OpKind kind = binary_kinds().at(node.op);
  if (left != right) {
    const Value& x = left ? b : a;
    Value y;
    if (kind == OpKind::pow && right) y = im.emit(OpKind::pow, {im.tensor(x)}, shape);
    else if (kind == OpKind::pow) y = im.emit(OpKind::exp, {im.tensor(x)}, shape);
    else if (kind == OpKind::div && left) y = im.generic("reciprocal", {im.tensor(x)}, shape);
    else if (kind == OpKind::sub && left) y = im.emit(OpKind::neg, {im.tensor(x)}, shape);  // rsub: one kernel, gradient -g
    else y = im.emit(kind == OpKind::add || kind == OpKind::sub ? OpKind::add_scalar : OpKind::mul_scalar, {im.tensor(x)}, shape);
    return im.out(node, 0, im.pointwise_like(y, x));
  }
  if (a.positional && !b.id.valid() && b.initializer) b.positional = true;
  if (b.positional && !a.id.valid() && a.initializer) a.positional = true;
  if (a.positional != b.positional && floating(a) && floating(b))
    (a.positional ? a : b) = im.cast_like_parameters(a.positional ? a : b);
  const TensorId first = im.tensor(a), second = im.tensor(b);
  Value y = kind == OpKind::pow ? im.generic("pow", {first, second}, shape) : im.emit(kind, {first, second}, shape);
  if (kind != OpKind::pow && a.shape == b.shape && a.strides != b.strides) im.mark_strided();
  im.out(node, 0, im.pointwise_like(im.pointwise_like(y, b), a));
}

// Min, Max, Mean, Sum and Mod over any number of operands.
void several(Importer& im, const Node& node) {
  Value total = im.in(node, 0);
  for (std::size_t i = 1; i < node.inputs.size(); ++i) {
    const Value& next = im.in(node, i);
    const Shape shape = broadcast_shapes(node, total.shape, next.shape);
    if (!floating(total)) {
      std::vector<TensorId> inputs = {im.tensor(total)};
      if (!scalar(next)) inputs.push_back(im.tensor(next));
      total = im.emit(OpKind::integer_pointwise, inputs, shape, total.type);
    } else if (scalar(next) && !next.id.valid()) {
      total = im.generic(node.op == "Max" ? "clamp_min" : "clamp_max", {im.tensor(total)}, shape);
    } else if (node.op == "Sum" || node.op == "Mean") {
      total = im.emit(OpKind::add, {im.tensor(total), im.tensor(next)}, shape);
    } else {
      total = im.generic(node.op == "Max"   ? "maximum"
                         : node.op == "Min" ? "minimum"
                                            : "remainder",
                         {im.tensor(total), im.tensor(next)}, shape);
    }
  }
  im.out(node, 0, total);
}

void comparison(Importer& im, const Node& node) {
  Shape shape = im.in(node, 0).shape;
  for (std::size_t i = 1; i < node.inputs.size(); ++i) shape = broadcast_shapes(node, shape, im.in(node, i).shape);
  const DType type = node.op.starts_with("Bit") ? im.in(node, 0).type : DType::boolean;
  integers(im, node, shape, type);
}

void where(Importer& im, const Node& node) {
  const Value &condition = im.in(node, 0), &a = im.in(node, 1), &b = im.in(node, 2);
  const Shape shape = broadcast_shapes(node, broadcast_shapes(node, condition.shape, a.shape), b.shape);
  if (!floating(a)) return integers(im, node, shape, a.type);
  const bool left = scalar(a).has_value() && !a.id.valid(), right = scalar(b).has_value() && !b.id.valid();
  if (left && right) return im.out(node, 0, im.emit(OpKind::integer_pointwise, {im.tensor(condition)}, shape, DType::fp32));
  if (left || right) {
    const Value& x = left ? b : a;
    if (x.shape == shape)
      return im.out(node, 0, im.pointwise_like(im.emit(OpKind::masked_fill, {im.tensor(x), im.tensor(condition)}, shape), x));
    return im.out(node, 0, im.generic("where", {im.tensor(condition), im.tensor(x)}, shape));
  }
  im.out(node, 0, im.generic("where", {im.tensor(condition), im.tensor(a), im.tensor(b)}, shape));
}

// A cast between floating types is left out: which type a step computes in is the recipe's business. Those that matter are put
// back where they belong (norms, rotary angles, the loss).
void cast(Importer& im, const Node& node) {
  const Value x = im.in(node, 0);
  const auto wanted = node.op == "CastLike" ? ElementType::float32 : static_cast<ElementType>(node.integer("to", 1));
  const DType to = node.op == "CastLike" ? im.in(node, 1).type : dtype_of(wanted);
  if (floating(x) && precog::is_floating(to)) return im.out(node, 0, x);
  if (floating(x) || !precog::is_floating(to)) {
    if (x.type == to) return im.out(node, 0, x);
    return im.out(node, 0, im.pointwise_like(im.emit(OpKind::integer_pointwise, {im.tensor(x)}, x.shape, to), x));
  }
  Value y = im.emit(OpKind::cast, {im.tensor(x)}, x.shape, DType::fp32, CastAttributes{.to = DType::fp32});
  y.positional = true;
  im.out(node, 0, im.pointwise_like(y, x));
}

void identity(Importer& im, const Node& node) { im.out(node, 0, im.in(node, 0)); }

void isnan(Importer& im, const Node& node) {
  im.out(node, 0, im.emit(OpKind::integer_pointwise, {im.tensor(im.in(node, 0))}, im.in(node, 0).shape, DType::boolean));
}

}  // namespace

const Handlers& pointwise_handlers() {
  static const Handlers kAll = [] {
    Handlers all = {{"Where", where}, {"Cast", cast},   {"CastLike", cast}, {"Identity", identity},
                    {"IsNaN", isnan}, {"IsInf", isnan}, {"Not", isnan}};
    for (const auto& [name, kind] : own_kinds()) all.emplace(name, unary);
    for (const auto& [name, label] : named()) all.emplace(name, unary);
    for (const auto& [name, kind] : binary_kinds()) all.emplace(name, binary);
    for (std::string_view name : {"Min", "Max", "Mean", "Sum", "Mod"}) all.emplace(name, several);
    for (std::string_view name : {"Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "And", "Or", "Xor", "BitwiseAnd",
                                  "BitwiseOr", "BitwiseNot", "BitwiseXor", "BitShift"})
      all.emplace(name, comparison);
    return all;
  }();
  return kAll;
}

}  // namespace precog::onnx
