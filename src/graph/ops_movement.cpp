// Operators that move or rename data: views, copies, gathers, reductions and pooling.
#include <algorithm>

#include "graph/operator.h"

namespace precog {
namespace {

Work nothing(const Graph&, const Op&) { return {}; }

// A view's backward is a view, but for slices (one call that zeroes a tensor and copies into it) and expansions (a sum).
void view_gradient(GradientContext& c) {
  TensorId grad = c.gradient();
  const GradientCopy copied = std::get<ViewAttributes>(c.op().attributes).gradient;
  if (copied == GradientCopy::always || (copied == GradientCopy::fp32 && c.tensor(grad).dtype == DType::fp32))
    grad = c.emit(OpKind::contiguous, {grad}, Shape(c.tensor(grad).shape), c.tensor(grad).dtype);
  const Tensor& from = c.tensor(c.input(0));
  const Shape shape = from.shape;
  const DType dtype = c.tensor(grad).dtype;
  switch (std::get<ViewAttributes>(c.op().attributes).kind) {
    case ViewKind::reshape: c.give(0, c.emit_view(grad, shape)); break;
    case ViewKind::transpose: c.give(0, c.emit_view(grad, shape, ViewKind::transpose)); break;
    case ViewKind::expand: c.give(0, grad); break;
    case ViewKind::slice: c.give(0, c.emit(OpKind::copy, {grad}, shape, dtype, {}, "slice_backward")); break;
  }
}

// split(x) -> views; backward joins the pieces, zeros standing in where nothing came back.
void split_gradient(GradientContext& c) {
  Shape shape = c.tensor(c.input(0)).shape;
  std::vector<TensorId> pieces;
  for (std::size_t i = 0; i < c.op().output_count; ++i)
    if (c.gradient(i).valid()) pieces.push_back(c.gradient(i));
  const DType dtype = c.tensor(pieces.front()).dtype;
  for (std::size_t i = 0; i < c.op().output_count; ++i)
    if (!c.gradient(i).valid()) pieces.push_back(c.emit(OpKind::fill, {}, c.tensor(c.output(i)).shape, dtype));
  c.give(0, c.emit(OpKind::cat, pieces, shape, dtype));
}

void contiguous_gradient(GradientContext& c) {
  const auto* copy = std::get_if<CopyAttributes>(&c.op().attributes);
  const TensorId grad = c.gradient();
  const Shape shape = c.tensor(grad).shape;
  const DType dtype = c.tensor(grad).dtype;
  c.give(0, copy && copy->copies_gradient ? c.emit(OpKind::contiguous, {grad}, shape, dtype) : grad);
}

void cat_gradient(GradientContext& c) {
  for (std::size_t i = 0; i < c.input_count(); ++i)
    if (c.needs(i)) c.give(i, c.emit_view(c.gradient(), c.tensor(c.input(i)).shape, ViewKind::slice));
}

// embedding(weight, indices): reads the gathered rows, not the table.
Work index_work(const Graph& graph, const Op& op) {
  Work work;
  work.written = graph.bytes(graph.output(op));
  work.read = work.written + graph.bytes(graph.inputs(op).back());
  work.flops = {static_cast<double>(graph.tensors[graph.output(op)].shape.elements())};
  return work;
}
void embedding_gradient(GradientContext& c) {
  if (!c.needs(0)) return;
  TensorId grad = c.gradient();
  c.give(0, c.emit(OpKind::embedding_backward, {grad, c.saved_input(1)}, c.tensor(c.input(0)).shape, c.tensor(grad).dtype));
}
// Zeroes the whole table, then adds the rows that came back.
Work embedding_backward_work(const Graph& graph, const Op& op) {
  Work work;
  const Bytes rows = graph.bytes(graph.input(op, 0));
  work.read = rows * 2.0 + graph.bytes(graph.input(op, 1)) * 4.0;  // the indices are sorted first
  work.written = graph.bytes(graph.output(op)) + rows;
  work.flops = {static_cast<double>(graph.tensors[graph.input(op, 0)].shape.elements())};
  return work;
}
// index_select(x, index)
void index_select_gradient(GradientContext& c) {
  TensorId grad = c.gradient();
  const Shape shape = c.tensor(c.input(0)).shape;
  const DType dtype = c.tensor(grad).dtype;
  TensorId zeros = c.emit(OpKind::fill, {}, shape, dtype);
  c.give(0, c.emit(OpKind::index_add, {zeros, c.saved_input(1), grad}, shape, dtype));
}
// index_add(base, index, source) -> base with the source's rows added.
void index_add_gradient(GradientContext& c) {
  TensorId grad = c.gradient();
  if (c.needs(0)) c.give(0, grad);
  if (c.needs(2))
    c.give(2, c.emit(OpKind::index_select, {grad, c.saved_input(1)}, c.tensor(c.input(2)).shape, c.tensor(grad).dtype));
}
Work index_add_work(const Graph& graph, const Op& op) {
  const Bytes source = graph.bytes(graph.inputs(op).back());
  return {{static_cast<double>(graph.tensors[graph.inputs(op).back()].shape.elements())}, source * 2.0, source};
}
// topk(x) -> values, indices
void topk_gradient(GradientContext& c) {
  TensorId grad = c.gradient();
  if (!grad.valid()) return;
  const Shape shape = c.tensor(c.input(0)).shape;
  const DType dtype = c.tensor(grad).dtype;
  TensorId zeros = c.emit(OpKind::fill, {}, shape, dtype);
  c.give(0, c.emit(OpKind::copy_into, {zeros, grad}, shape, dtype));
}
Work copy_into_work(const Graph& graph, const Op& op) {
  const Bytes moved = graph.bytes(graph.inputs(op).back());
  return {{0}, moved, moved};
}

void mean_gradient(GradientContext& c) {
  TensorId grad = c.gradient();
  const Shape shape = c.tensor(c.input(0)).shape;
  c.give(0, c.emit(OpKind::mul_scalar, {c.emit_view(grad, shape, ViewKind::expand)}, shape, c.tensor(grad).dtype));
}
void sum_gradient(GradientContext& c) {
  c.give(0, c.emit_view(c.gradient(), c.tensor(c.input(0)).shape, ViewKind::expand));
}

// max_pool2d(x) -> y, indices
void max_pool_gradient(GradientContext& c) {
  TensorId grad = c.gradient();
  c.give(0, c.emit(OpKind::max_pool2d_backward, {grad, c.saved_input(0), c.saved_output(1)}, c.tensor(c.input(0)).shape,
                   c.tensor(grad).dtype, c.op().attributes));
}
void avg_pool_gradient(GradientContext& c) {
  TensorId grad = c.gradient();
  c.give(0, c.emit(OpKind::adaptive_avg_pool2d_backward, {grad}, c.tensor(c.input(0)).shape, c.tensor(grad).dtype));
}

}  // namespace

OperatorDefinition define_view() { return {Family::view, Autocast::none, nothing, view_gradient}; }
OperatorDefinition define_split() { return {Family::view, Autocast::none, nothing, split_gradient}; }
OperatorDefinition define_allocate() { return {Family::view, Autocast::none, nothing}; }
OperatorDefinition define_contiguous() { return {Family::copy, Autocast::none, nullptr, contiguous_gradient}; }
OperatorDefinition define_cat() { return {Family::copy, Autocast::none, nullptr, cat_gradient}; }
OperatorDefinition define_embedding() { return {Family::embedding, Autocast::none, index_work, embedding_gradient}; }
OperatorDefinition define_embedding_backward() { return {Family::embedding, Autocast::none, embedding_backward_work}; }
OperatorDefinition define_index_select() { return {Family::index, Autocast::none, index_work, index_select_gradient}; }
OperatorDefinition define_index_add() { return {Family::index, Autocast::none, index_add_work, index_add_gradient}; }
OperatorDefinition define_topk() { return {Family::index, Autocast::none, nullptr, topk_gradient}; }
OperatorDefinition define_mean() { return {Family::reduction, Autocast::none, nullptr, mean_gradient}; }
OperatorDefinition define_sum() { return {Family::reduction, Autocast::fp32_result, nullptr, sum_gradient}; }
OperatorDefinition define_max_pool2d() { return {Family::pooling, Autocast::none, nullptr, max_pool_gradient}; }
OperatorDefinition define_max_pool2d_backward() { return {Family::pooling}; }
OperatorDefinition define_adaptive_avg_pool2d() { return {Family::pooling, Autocast::none, nullptr, avg_pool_gradient}; }
OperatorDefinition define_adaptive_avg_pool2d_backward() { return {Family::pooling}; }
OperatorDefinition define_fill() { return {Family::fill}; }
OperatorDefinition define_copy_into() { return {Family::copy, Autocast::none, copy_into_work}; }

}  // namespace precog
