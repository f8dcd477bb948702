// Pointwise operators. Work is the default (read inputs, write outputs); what differs is the gradient: which
// tensors it keeps, and how many kernels autograd's formula launches.
#include "graph/operator.h"

namespace precog {
namespace {

OperatorDefinition pointwise(void (*gradient)(GradientContext&), Autocast autocast = Autocast::none) {
  return {Family::pointwise, autocast, nullptr, gradient};
}
OperatorDefinition transcendental(void (*gradient)(GradientContext&)) {
  return {Family::pointwise, Autocast::none, nullptr, gradient, true};
}

Shape shape_of(GradientContext& c, TensorId id) { return c.tensor(id).shape; }
DType dtype_of(GradientContext& c, TensorId id) { return c.tensor(id).dtype; }

// One fused kernel from the gradient and one saved tensor.
void from_input(GradientContext& c) {
  TensorId grad = c.gradient();
  c.give(0, c.emit(OpKind::pointwise_backward, {grad, c.saved_input(0)}, shape_of(c, grad), dtype_of(c, grad), {}, to_text(c.op().kind)));
}
void from_output(GradientContext& c) {
  TensorId grad = c.gradient();
  c.give(0, c.emit(OpKind::pointwise_backward, {grad, c.saved_output(0)}, shape_of(c, grad), dtype_of(c, grad), {}, to_text(c.op().kind)));
}
// dropout(x) -> y, mask.
void dropout_gradient(GradientContext& c) {
  TensorId grad = c.gradient();
  c.give(0, c.emit(OpKind::pointwise_backward, {grad, c.saved_output(1)}, shape_of(c, grad), dtype_of(c, grad), {}, "dropout"));
}
void neg_gradient(GradientContext& c) {
  TensorId grad = c.gradient();
  c.give(0, c.emit(OpKind::neg, {grad}, shape_of(c, grad), dtype_of(c, grad)));
}
void exp_gradient(GradientContext& c) {
  TensorId grad = c.gradient();
  c.give(0, c.emit(OpKind::mul, {grad, c.saved_output(0)}, shape_of(c, grad), dtype_of(c, grad)));
}
// -0.5 * grad * result^3
void rsqrt_gradient(GradientContext& c) {
  TensorId grad = c.gradient();
  const Shape shape = shape_of(c, grad);
  const DType dtype = dtype_of(c, grad);
  TensorId scaled = c.emit(OpKind::mul_scalar, {grad}, shape, dtype);
  TensorId cubed = c.emit(OpKind::pow, {c.saved_output(0)}, shape, dtype);
  c.give(0, c.emit(OpKind::mul, {scaled, cubed}, shape, dtype));
}
// grad * (exponent * x^(exponent-1))
void pow_gradient(GradientContext& c) {
  TensorId grad = c.gradient();
  const Shape shape = shape_of(c, grad);
  const DType dtype = dtype_of(c, grad);
  TensorId powered = c.emit(OpKind::pow, {c.saved_input(0)}, shape, dtype);
  TensorId scaled = c.emit(OpKind::mul_scalar, {powered}, shape, dtype);
  c.give(0, c.emit(OpKind::mul, {grad, scaled}, shape, dtype));
}
void add_gradient(GradientContext& c) {
  if (c.needs(0)) c.give(0, c.gradient());
  if (c.needs(1)) c.give(1, c.gradient());
}
void sub_gradient(GradientContext& c) {
  TensorId grad = c.gradient();
  if (c.needs(0)) c.give(0, grad);
  if (c.needs(1)) c.give(1, c.emit(OpKind::neg, {grad}, shape_of(c, grad), dtype_of(c, grad)));
}
void mul_gradient(GradientContext& c) {
  TensorId grad = c.gradient();
  for (std::size_t i : {std::size_t{0}, std::size_t{1}})
    if (c.needs(i)) c.give(i, c.emit(OpKind::mul, {grad, c.saved_input(1 - i)}, shape_of(c, grad), dtype_of(c, grad)));
}
// d/dx = grad / y;  d/dy = -grad * (x / y) / y
void div_gradient(GradientContext& c) {
  TensorId grad = c.gradient();
  const Shape shape = shape_of(c, grad);
  const DType dtype = dtype_of(c, grad);
  if (c.needs(0)) c.give(0, c.emit(OpKind::div, {grad, c.saved_input(1)}, shape, dtype));
  if (c.needs(1)) {
    TensorId negated = c.emit(OpKind::neg, {grad}, shape, dtype);
    TensorId ratio = c.emit(OpKind::div, {c.saved_input(0), c.saved_input(1)}, shape, dtype);
    TensorId again = c.emit(OpKind::div, {ratio, c.saved_input(1)}, shape, dtype);
    c.give(1, c.emit(OpKind::mul, {negated, again}, shape, dtype));
  }
}
void identity_gradient(GradientContext& c) { c.give(0, c.gradient()); }
void mul_scalar_gradient(GradientContext& c) {
  TensorId grad = c.gradient();
  c.give(0, c.emit(OpKind::mul_scalar, {grad}, shape_of(c, grad), dtype_of(c, grad)));
}
void masked_fill_gradient(GradientContext& c) {
  TensorId grad = c.gradient();
  c.give(0, c.emit(OpKind::masked_fill, {grad, c.saved_input(1)}, shape_of(c, grad), dtype_of(c, grad)));
}
void cast_gradient(GradientContext& c) {
  TensorId grad = c.gradient();
  const DType to = c.tensor(c.input(0)).dtype;
  const auto& forward = std::get<CastAttributes>(c.op().attributes);
  CastAttributes back{.to = to, .by_autocast = forward.by_autocast};
  c.give(0, c.emit(OpKind::cast, {grad}, shape_of(c, grad), to, back));
}

}  // namespace

OperatorDefinition define_relu() { return pointwise(from_output); }
OperatorDefinition define_hardtanh() { return pointwise(from_input); }
OperatorDefinition define_gelu() { return transcendental(from_input); }
OperatorDefinition define_silu() { return transcendental(from_input); }
OperatorDefinition define_tanh() { return transcendental(from_output); }
OperatorDefinition define_sigmoid() { return transcendental(from_output); }
OperatorDefinition define_neg() { return pointwise(neg_gradient); }
OperatorDefinition define_exp() { return pointwise(exp_gradient, Autocast::fp32); }
OperatorDefinition define_rsqrt() { return pointwise(rsqrt_gradient, Autocast::fp32); }
OperatorDefinition define_pow() { return pointwise(pow_gradient, Autocast::fp32); }
OperatorDefinition define_cos() { return pointwise(nullptr); }
OperatorDefinition define_sin() { return pointwise(nullptr); }
OperatorDefinition define_add() { return pointwise(add_gradient); }
OperatorDefinition define_sub() { return pointwise(sub_gradient); }
OperatorDefinition define_mul() { return pointwise(mul_gradient); }
OperatorDefinition define_div() { return pointwise(div_gradient); }
OperatorDefinition define_add_scalar() { return pointwise(identity_gradient); }
OperatorDefinition define_mul_scalar() { return pointwise(mul_scalar_gradient); }
OperatorDefinition define_masked_fill() { return pointwise(masked_fill_gradient); }
OperatorDefinition define_dropout() { return pointwise(dropout_gradient); }
OperatorDefinition define_integer_pointwise() { return pointwise(nullptr); }
OperatorDefinition define_pointwise_backward() { return pointwise(nullptr); }
OperatorDefinition define_quantize() { return {Family::cast}; }
OperatorDefinition define_cast() { return {Family::cast, Autocast::none, nullptr, cast_gradient}; }

}  // namespace precog
