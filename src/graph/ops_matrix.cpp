// Matrix products, convolution and fused attention: the operators tensor cores run.
#include "graph/operator.h"

namespace precog {
namespace {

Work gemm_work(const Graph& graph, const Op& op) {
  Work work;
  for (TensorId id : graph.inputs(op)) work.read += graph.bytes(id);
  for (TensorId id : graph.outputs(op)) work.written += graph.bytes(id);
  const auto& a = std::get<GemmAttributes>(op.attributes);
  if (a.accumulates) work.read += work.written;
  work.flops = {2.0 * static_cast<double>(a.batch) * static_cast<double>(a.m) * static_cast<double>(a.n) * static_cast<double>(a.k)};
  return work;
}

Work scaled_mm_work(const Graph& graph, const Op& op) {
  Work work;
  for (std::size_t i = 0; i < 4 && i < op.input_count; ++i) work.read += graph.bytes(graph.input(op, i));
  work.written = graph.bytes(graph.output(op));
  const auto& a = std::get<GemmAttributes>(op.attributes);
  if (a.accumulates) work.read += work.written;
  work.flops = {2.0 * static_cast<double>(a.batch) * static_cast<double>(a.m) * static_cast<double>(a.n) * static_cast<double>(a.k)};
  return work;
}

// linear(x, weight[n,k], bias?): two products and, for the bias, a sum over rows.
void linear_gradient(GradientContext& c) {
  const GemmAttributes a = std::get<GemmAttributes>(c.op().attributes);
  const TensorId grad = c.gradient();
  const DType dtype = c.tensor(grad).dtype;
  const TensorId rows = c.emit_view(grad, Shape{a.m, a.n});
  if (c.needs(0)) {
    TensorId weight = c.saved_input(1);
    c.give(0, c.emit(OpKind::mm, {rows, weight}, Shape{a.m, a.k}, dtype, GemmAttributes{1, a.m, a.k, a.n}));
  }
  if (c.needs(1)) {
    TensorId x = c.saved_input(0);
    TensorId transposed = c.emit_view(rows, Shape{a.n, a.m}, ViewKind::transpose);
    c.give(1, c.emit(OpKind::mm, {transposed, x}, c.tensor(c.input(1)).shape, dtype,
                     GemmAttributes{.m = a.n, .n = a.k, .k = a.m, .transposed_a = true}));
  }
  if (c.needs(2)) c.give(2, c.emit(OpKind::sum, {rows}, c.tensor(c.input(2)).shape, dtype));
}

// matmul(a[..,m,k], b[..,k,n]) over batches.
void matmul_gradient(GradientContext& c) {
  const GemmAttributes a = std::get<GemmAttributes>(c.op().attributes);
  const TensorId grad = c.gradient();
  const DType dtype = c.tensor(grad).dtype;
  const OpKind kind = a.batch == 1 ? OpKind::mm : OpKind::bmm;
  if (c.needs(0))
    c.give(0, c.emit(kind, {grad, c.saved_input(1)}, c.tensor(c.input(0)).shape, dtype, GemmAttributes{a.batch, a.m, a.k, a.n}));
  if (c.needs(1))
    c.give(1, c.emit(kind, {c.saved_input(0), grad}, c.tensor(c.input(1)).shape, dtype, GemmAttributes{a.batch, a.k, a.n, a.m}));
}

// grouped_linear(x[tokens,k], weight[experts,n,k]): each token meets its own expert only; m counts tokens per expert.
void grouped_linear_gradient(GradientContext& c) {
  const GemmAttributes a = std::get<GemmAttributes>(c.op().attributes);
  const TensorId grad = c.gradient();
  const DType dtype = c.tensor(grad).dtype;
  if (c.needs(0))
    c.give(0, c.emit(OpKind::grouped_mm, {grad, c.saved_input(1)}, c.tensor(c.input(0)).shape, dtype,
                     GemmAttributes{a.batch, a.m, a.k, a.n}));
  if (c.needs(1))
    c.give(1, c.emit(OpKind::grouped_mm, {grad, c.saved_input(0)}, c.tensor(c.input(1)).shape, dtype,
                     GemmAttributes{.batch = a.batch, .m = a.n, .n = a.k, .k = a.m, .transposed_a = true}));
}

Work conv_work(const Graph& graph, const Op& op) {
  const auto& a = std::get<ConvAttributes>(op.attributes);
  Work work;
  for (TensorId id : graph.inputs(op)) work.read += graph.bytes(id);
  for (TensorId id : graph.outputs(op)) work.written += graph.bytes(id);
  work.flops = convolution_flops(graph.tensors[graph.input(op, 0)].shape, graph.tensors[graph.output(op)].shape, a);
  return work;
}

void conv_gradient(GradientContext& c) {
  const ConvAttributes a = std::get<ConvAttributes>(c.op().attributes);
  c.emit_for_inputs(OpKind::conv2d_backward, {c.gradient(), c.saved_input(0), c.saved_input(1)}, {0, 1, 2}, a);
}

// One convolution's worth of arithmetic for each of the input's and the weight's gradient that is asked for.
Work conv_backward_work(const Graph& graph, const Op& op) {
  const auto& a = std::get<ConvAttributes>(op.attributes);
  const Flops once = convolution_flops(graph.tensors[graph.input(op, 1)].shape, graph.tensors[graph.input(op, 0)].shape, a);
  Work work;
  int products = 0;
  for (TensorId id : graph.outputs(op)) {
    work.written += graph.bytes(id);
    if (graph.tensors[id].shape.rank() > 1) ++products;
  }
  for (TensorId id : graph.inputs(op)) work.read += graph.bytes(id);
  work.flops = once * products;
  return work;
}

double attention_flops(const AttentionAttributes& a) {
  const double pairs = static_cast<double>(a.q_len) * static_cast<double>(a.kv_len) * (a.causal && a.q_len == a.kv_len ? 0.5 : 1.0);
  return 2.0 * static_cast<double>(a.batch * a.heads) * pairs * static_cast<double>(a.head_dim + a.value_dim);
}

Work attention_work(const Graph& graph, const Op& op) {
  Work work;
  for (TensorId id : graph.inputs(op)) work.read += graph.bytes(id);
  for (TensorId id : graph.outputs(op)) work.written += graph.bytes(id);
  work.flops = {attention_flops(std::get<AttentionAttributes>(op.attributes))};
  return work;
}

// Backward makes the scores again and has four products more: 2.5 times the forward's arithmetic.
Work attention_backward_work(const Graph& graph, const Op& op) {
  Work work = attention_work(graph, op);
  work.flops = work.flops * 2.5;
  return work;
}

void attention_gradient(GradientContext& c) {
  const AttentionAttributes a = std::get<AttentionAttributes>(c.op().attributes);
  c.emit_for_inputs(OpKind::attention_backward,
                    {c.gradient(), c.saved_input(0), c.saved_input(1), c.saved_input(2), c.saved_output(0), c.saved_output(1)},
                    {0, 1, 2, 3}, a);  // the mask's too where it is learned (T5's position bias)
}

}  // namespace

Flops convolution_flops(const Shape& x, const Shape& y, const ConvAttributes& conv) {
  // Transposed, each value of the small image x meets a filter per output channel.
  const Shape &from = conv.transposed ? y : x, &to = conv.transposed ? x : y;
  return {2.0 * static_cast<double>(to.elements()) * static_cast<double>(from[1] / conv.groups) * static_cast<double>(conv.volume())};
}

OperatorDefinition define_linear() { return {Family::gemm, Autocast::lower, gemm_work, linear_gradient}; }
OperatorDefinition define_matmul() { return {Family::gemm, Autocast::lower, gemm_work, matmul_gradient}; }
// torch._grouped_mm is on no autocast list: it runs in the type it is given.
OperatorDefinition define_grouped_linear() { return {Family::gemm, Autocast::none, gemm_work, grouped_linear_gradient}; }
// Its operands are the first four; the rest are kept for backward only.
OperatorDefinition define_scaled_mm() { return {Family::gemm, Autocast::none, scaled_mm_work}; }
OperatorDefinition define_mm() { return {Family::gemm, Autocast::none, gemm_work}; }
OperatorDefinition define_bmm() { return {Family::gemm, Autocast::none, gemm_work}; }
OperatorDefinition define_grouped_mm() { return {Family::gemm, Autocast::none, gemm_work}; }
OperatorDefinition define_conv2d() { return {Family::convolution, Autocast::lower, conv_work, conv_gradient}; }
OperatorDefinition define_conv2d_backward() { return {Family::convolution, Autocast::none, conv_backward_work}; }
OperatorDefinition define_scaled_dot_product_attention() {
  return {Family::attention, Autocast::lower, attention_work, attention_gradient};
}
OperatorDefinition define_attention_backward() { return {Family::attention, Autocast::none, attention_backward_work}; }

}  // namespace precog
