// Normalisation, softmax and losses: kernels that read a row, reduce it and write it back.
#include "graph/operator.h"

namespace precog {
namespace {

// layer_norm(x, weight?, bias?) -> y, mean, rstd. Backward reads the input and both statistics.
void layer_norm_gradient(GradientContext& c) {
  c.emit_for_inputs(OpKind::layer_norm_backward, {c.gradient(), c.saved_input(0), c.saved_output(1), c.saved_output(2)}, {0, 1, 2},
                    c.op().attributes);
}

// batch_norm(x, weight, bias, running_mean, running_var) -> y, mean, invstd.
void batch_norm_gradient(GradientContext& c) {
  c.emit_for_inputs(OpKind::batch_norm_backward, {c.gradient(), c.saved_input(0), c.saved_output(1), c.saved_output(2)}, {0, 1, 2},
                    c.op().attributes);
}

// rms_norm(x, weight?) -> y, rstd: one fused kernel each way (PyTorch 2.9 and later).
void rms_norm_gradient(GradientContext& c) {
  const bool weighted = c.input_count() > 1;
  const TensorId weight = weighted ? c.saved_input(1) : c.saved_input(0);
  c.emit_for_inputs(OpKind::rms_norm_backward, {c.gradient(), c.saved_input(0), c.saved_output(1), weight}, {0, 1}, c.op().attributes);
}

// group_norm(x, weight?, bias?) -> y, mean, rstd
void group_norm_gradient(GradientContext& c) {
  c.emit_for_inputs(OpKind::group_norm_backward, {c.gradient(), c.saved_input(0), c.saved_output(1), c.saved_output(2)}, {0, 1, 2},
                    c.op().attributes);
}
// Moments of each group first, then the result: the input is read twice; its gradient likewise.
Work group_norm_work(const Graph& graph, const Op& op) {
  Work work;
  for (TensorId id : graph.inputs(op)) work.read += graph.bytes(id) * 2.0;
  for (TensorId id : graph.outputs(op)) work.written += graph.bytes(id);
  work.flops = {4.0 * static_cast<double>(graph.tensors[graph.output(op)].shape.elements())};
  return work;
}

// Statistics need the whole input before the first result: it is read twice, each way.
Work batch_norm_work(const Graph& graph, const Op& op) {
  Work work;
  for (TensorId id : graph.inputs(op)) {
    const double passes = graph.tensors[id].shape.rank() > 1 ? 2.0 : 1.0;
    work.read += graph.bytes(id) * passes;
  }
  for (TensorId id : graph.outputs(op)) work.written += graph.bytes(id);
  work.flops = {4.0 * static_cast<double>(graph.tensors[graph.output(op)].shape.elements())};
  return work;
}

void softmax_gradient(GradientContext& c) {
  // Under autocast the fp16 input is read by an fp32 kernel (fp32_result): backward returns the input's type at once.
  c.give(0, c.emit(OpKind::softmax_backward, {c.gradient(), c.saved_output()}, c.tensor(c.input(0)).shape, c.tensor(c.input(0)).dtype));
}

void log_softmax_gradient(GradientContext& c) {
  c.give(0, c.emit(OpKind::log_softmax_backward, {c.gradient(), c.saved_output()}, c.tensor(c.input(0)).shape,
                   c.tensor(c.input(0)).dtype));
}

// nll_loss(log_probabilities, target) -> loss, total_weight. Backward fills a zeroed tensor of the input's size.
Work nll_loss_work(const Graph& graph, const Op& op) {
  const Tensor& x = graph.tensors[graph.input(op, 0)];
  const std::int64_t classes = x.shape.rank() == 0 ? 1 : x.shape.rank() > 2 ? x.shape[1] : x.shape[-1];  // images: [n, classes, h, w]
  const std::int64_t rows = x.shape.elements() / std::max<std::int64_t>(1, classes);
  Work work;
  work.read = {rows * (8 + 32)};  // one target and one 32-byte sector of the row each
  work.written = {8};
  work.flops = {static_cast<double>(rows)};
  return work;
}

void nll_loss_gradient(GradientContext& c) {
  c.give(0, c.emit(OpKind::nll_loss_backward, {c.gradient(), c.saved_input(1)}, c.tensor(c.input(0)).shape,
                   c.tensor(c.input(0)).dtype));
}

}  // namespace

OperatorDefinition define_layer_norm() { return {Family::normalization, Autocast::fp32, nullptr, layer_norm_gradient}; }
OperatorDefinition define_layer_norm_backward() { return {Family::normalization}; }
OperatorDefinition define_batch_norm() { return {Family::normalization, Autocast::none, batch_norm_work, batch_norm_gradient}; }
OperatorDefinition define_batch_norm_backward() { return {Family::normalization, Autocast::none, batch_norm_work}; }
// On no autocast list: runs in its input's type. Weights of another type: the formula instead, see the precision pass.
OperatorDefinition define_rms_norm() { return {Family::normalization, Autocast::none, nullptr, rms_norm_gradient}; }
OperatorDefinition define_rms_norm_backward() { return {Family::normalization}; }
OperatorDefinition define_group_norm() { return {Family::normalization, Autocast::fp32, group_norm_work, group_norm_gradient}; }
OperatorDefinition define_group_norm_backward() { return {Family::normalization, Autocast::none, group_norm_work}; }
OperatorDefinition define_softmax() { return {Family::softmax, Autocast::fp32_result, nullptr, softmax_gradient}; }
OperatorDefinition define_softmax_backward() { return {Family::softmax}; }
// cross_entropy hands log_softmax its input's own type, which autocast respects: it stays in 16 bits, and the cast comes
// in front of nll_loss.
OperatorDefinition define_log_softmax() { return {Family::softmax, Autocast::none, nullptr, log_softmax_gradient}; }
OperatorDefinition define_log_softmax_backward() { return {Family::softmax}; }
OperatorDefinition define_nll_loss() { return {Family::loss, Autocast::fp32, nll_loss_work, nll_loss_gradient}; }
OperatorDefinition define_nll_loss_backward() { return {Family::loss}; }

}  // namespace precog
