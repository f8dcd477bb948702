// What ranks exchange. Data parallelism puts collectives around a step, where nothing flows back through them; tensor, context
// and expert parallelism put them into the forward graph, where each has the gradient that the framework's autograd function
// has (Shoeybi et al. 2019, figure 3; Korthikanti et al. 2022, figure 5; Megatron-LM core, tensor_parallel/mappings.py).
#include <algorithm>

#include "graph/operator.h"

namespace precog {
namespace {

Work work_of_view(const Graph&, const Op&) { return {}; }

Work collective_work(const Graph& graph, const Op& op) {
  const Bytes bytes = message_bytes(graph, op);
  return {{0}, bytes, bytes};
}

// The message back: the same group, bytes of its own.
TensorId back(GradientContext& c, OpKind kind, std::size_t i = 0) {
  CollectiveAttributes message = std::get<CollectiveAttributes>(c.op().attributes);
  message.bytes = {};
  const TensorId grad = c.gradient(i);
  return c.emit(kind, {grad}, c.tensor(c.input(i)).shape, c.tensor(grad).dtype, message, c.graph().name(c.op().label));
}

// Partial sums become a sum that all have: each part's gradient is the sum's.
void all_reduce_gradient(GradientContext& c) { c.give(0, c.gradient()); }
void all_gather_gradient(GradientContext& c) {
  if (std::get<CollectiveAttributes>(c.op().attributes).gradient_is_whole)
    c.give(0, c.emit_view(c.gradient(), c.tensor(c.input(0)).shape, ViewKind::slice));
  else
    c.give(0, back(c, OpKind::reduce_scatter));
}
void reduce_scatter_gradient(GradientContext& c) { c.give(0, back(c, OpKind::all_gather)); }
void all_to_all_gradient(GradientContext& c) { c.give(0, back(c, OpKind::all_to_all)); }
void send_recv_gradient(GradientContext& c) {
  for (std::size_t i = 0; i < c.input_count() && i < c.op().output_count; ++i)
    if (c.needs(i) && c.gradient(i).valid()) c.give(i, back(c, OpKind::send_recv, i));
}
void enter_region_gradient(GradientContext& c) { c.give(0, back(c, OpKind::all_reduce)); }
void scatter_region_gradient(GradientContext& c) { c.give(0, back(c, OpKind::all_gather)); }

}  // namespace

Bytes message_bytes(const Graph& graph, const Op& op) {
  const Bytes given = std::get<CollectiveAttributes>(op.attributes).bytes;
  if (given.value > 0) return given;
  Bytes in, out;
  for (TensorId id : graph.outputs(op)) out += graph.bytes(id);
  if (op.kind == OpKind::all_gather || op.kind == OpKind::send_recv) return out;
  if (op.input_count > 0) in = graph.bytes(graph.input(op, 0));
  return op.kind == OpKind::all_to_all ? std::max(in, out) : in;  // the busiest rank's, where ranks send different amounts
}

OperatorDefinition define_all_reduce() { return {Family::collective, Autocast::none, collective_work, all_reduce_gradient}; }
OperatorDefinition define_all_gather() { return {Family::collective, Autocast::none, collective_work, all_gather_gradient}; }
OperatorDefinition define_reduce_scatter() { return {Family::collective, Autocast::none, collective_work, reduce_scatter_gradient}; }
OperatorDefinition define_all_to_all() { return {Family::collective, Autocast::none, collective_work, all_to_all_gradient}; }
OperatorDefinition define_send_recv() { return {Family::collective, Autocast::none, collective_work, send_recv_gradient}; }
OperatorDefinition define_enter_region() { return {Family::view, Autocast::none, work_of_view, enter_region_gradient}; }
OperatorDefinition define_scatter_region() { return {Family::view, Autocast::none, work_of_view, scatter_region_gradient}; }

}  // namespace precog
