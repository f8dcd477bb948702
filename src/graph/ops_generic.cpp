// Operators that have no line of their own: a kind says how the kernel moves memory, the label which one it is. None has
// a gradient here; where one flows back it was recorded (Recipe). Recurrent layers are at the end.
#include "graph/operator.h"

namespace precog {
namespace {

double elements(const Graph& graph, TensorId id) { return static_cast<double>(graph.tensors[id].shape.elements()); }

// Reads what it writes, not the table it picks from; and its indices.
Work gather_work(const Graph& graph, const Op& op) {
  Work work;
  for (TensorId id : graph.outputs(op)) {
    work.written += graph.bytes(id);
    work.flops = work.flops + Flops{elements(graph, id)};
  }
  const auto inputs = graph.inputs(op);
  work.read = inputs.empty() ? work.written : std::min(graph.bytes(inputs[0]), work.written);
  for (std::size_t i = 1; i < inputs.size(); ++i) work.read += graph.bytes(inputs[i]);
  return work;
}

// Reads what it puts down and the places where; the rest of its base stays as it is (copying it is a kernel of its own).
Work scatter_work(const Graph& graph, const Op& op) {
  Work work;
  const auto inputs = graph.inputs(op);
  for (std::size_t i = 1; i < inputs.size(); ++i) work.read += graph.bytes(inputs[i]);
  const Bytes source = inputs.empty() ? Bytes{} : graph.bytes(inputs.back());
  work.read += source;
  work.written = source;
  work.flops = {inputs.empty() ? 0 : elements(graph, inputs.back())};
  return work;
}

double gate_products(const RnnAttributes& a) {  // multiply-adds of one layer stack, forward
  double total = 0;
  for (std::int64_t layer = 0; layer < a.layers; ++layer) {
    const double in = static_cast<double>(layer == 0 ? a.input : a.hidden * a.directions);
    total += static_cast<double>(a.directions) * static_cast<double>(a.gates) * static_cast<double>(a.hidden) * (in + static_cast<double>(a.hidden));
  }
  return total * static_cast<double>(a.batch) * static_cast<double>(a.steps);
}

Work rnn_work(const Graph& graph, const Op& op) {
  Work work;
  for (TensorId id : graph.inputs(op)) work.read += graph.bytes(id);
  for (TensorId id : graph.outputs(op)) work.written += graph.bytes(id);
  work.flops = {2.0 * gate_products(std::get<RnnAttributes>(op.attributes))};
  return work;
}
// The gradients of the data and of the weights: a forward's worth each.
Work rnn_backward_work(const Graph& graph, const Op& op) {
  Work work = rnn_work(graph, op);
  work.flops = work.flops * 2.0;
  return work;
}

// rnn(x, weights...) -> y, last states..., reserve. Gates are kept in the reserve, the last result.
void rnn_gradient(GradientContext& c) {
  TensorId grad = c.gradient();
  if (!grad.valid()) grad = c.emit(OpKind::fill, {}, c.tensor(c.output(0)).shape, c.tensor(c.output(0)).dtype);
  std::vector<TensorId> reads = {grad, c.saved_output(0), c.saved_output(c.op().output_count - 1u)};
  std::vector<std::size_t> all;
  for (std::size_t i = 0; i < c.input_count(); ++i) {
    reads.push_back(c.saved_input(i));
    all.push_back(i);
  }
  c.emit_for_inputs(OpKind::rnn_backward, reads, all, c.op().attributes);
}

}  // namespace

OperatorDefinition define_pointwise() { return {Family::pointwise}; }
OperatorDefinition define_reduction() { return {Family::reduction}; }
OperatorDefinition define_copy() { return {Family::copy}; }
OperatorDefinition define_gather() { return {Family::index, Autocast::none, gather_work}; }
OperatorDefinition define_scatter() { return {Family::index, Autocast::none, scatter_work}; }
OperatorDefinition define_sort() { return {Family::index}; }
OperatorDefinition define_scan() { return {Family::reduction}; }
OperatorDefinition define_random() { return {Family::fill}; }
OperatorDefinition define_pool() { return {Family::pooling}; }
OperatorDefinition define_pool_backward() { return {Family::pooling}; }
OperatorDefinition define_unknown() { return {Family::unknown}; }
// _cudnn_rnn is on the lower-precision list, with a wrapper that casts all weights into one buffer.
OperatorDefinition define_rnn() { return {Family::recurrent, Autocast::lower, rnn_work, rnn_gradient}; }
OperatorDefinition define_rnn_backward() { return {Family::recurrent, Autocast::none, rnn_backward_work}; }

}  // namespace precog
