#include "frontend/experts.h"

#include <algorithm>

#include "frontend/text_blocks.h"

namespace precog::zoo {

namespace {

struct ExpertWeights {
  TensorId gate_up, down;
  std::int64_t intermediate, hit;  // of so many experts some token is
  std::string_view act;
};

// What an expert does with its rows; `weights`, where they are given, multiply between its two products.
template <class Product>
TensorId gated_expert(GraphBuilder& b, TensorId rows, const ExpertWeights& w, TensorId weights, Product product) {
  auto halves = b.split(product(rows, w.gate_up), -1, {w.intermediate, w.intermediate});
  TensorId gate = activation(b, w.act, halves[0]);
  b.mark_strided();  // half of each row
  TensorId inner = b.mul(gate, halves[1]);
  b.mark_strided();
  if (weights.valid()) inner = b.mul(inner, b.cast_like(weights, inner));
  return product(inner, w.down);
}

TensorId as_transformers(GraphBuilder& b, TensorId x, TensorId weights, TensorId indices, std::int64_t experts, const ExpertWeights& w) {
  const std::int64_t tokens = b.shape(x)[0], hidden = b.shape(x)[1], top_k = b.shape(weights)[1], rows = tokens * top_k;
  TensorId flat_weights = b.view(weights, {rows});
  TensorId flat_experts = b.view(indices, {rows});
  // torch.sort gives values and order together; counted as two integer kernels, a radix sort is a few more.
  TensorId sorted = b.integer_op({flat_experts}, {rows});
  TensorId order = b.integer_op({sorted}, {rows});
  TensorId taken = b.index_select(x, b.integer_op({order}, {rows}), {rows, hidden});
  TensorId shares = b.index_select(flat_weights, order, {rows});
  TensorId counts = b.integer_op({b.integer_op({sorted}, {rows}, DType::int32)}, {experts}, DType::int32);  // .int(), histc
  b.integer_op({counts}, {experts}, DType::int32);                                                          // cumsum: offsets
  TensorId unused = b.view(b.integer_op({sorted}, {rows}, DType::boolean), {rows, 1});
  b.integer_op({sorted}, {rows});  // clamp_
  taken = b.masked_fill(taken, unused);
  TensorId out = gated_expert(b, taken, w, {}, [&](TensorId in, TensorId weight) {
    const Shape s = b.shape(weight);
    b.view(weight, {s[0], s[2], s[1]}, ViewKind::transpose);
    return b.masked_fill(b.grouped_linear(b.cast_like(in, weight), weight, w.hit), unused);
  });
  out = b.mul(out, b.view(shares, {rows, 1}));
  TensorId back = b.integer_op({order, b.integer_op({}, {rows})}, {rows});  // inverse[order] = arange
  // The sum hands the same gradient to every expert of a token: spread out by a copy, since rows are looked up in it.
  out = b.view(b.index_select(out, back, {rows, hidden}), {tokens, top_k, hidden}, ViewKind::reshape, GradientCopy::always);
  return b.cast_like(b.sum(out, 1, false), x);
}

// Megatron-Core with fused permutation: a map of rows is made once, and rows follow it there and back.
TensorId as_megatron(GraphBuilder& b, TensorId x, TensorId weights, TensorId indices, std::int64_t experts, const ExpertWeights& w) {
  const std::int64_t tokens = b.shape(x)[0], hidden = b.shape(x)[1], top_k = b.shape(weights)[1], rows = tokens * top_k;
  TensorId chosen = b.integer_op({indices}, {tokens, experts}, DType::boolean);  // the routing map
  b.integer_op({chosen}, {experts}, DType::int64);                               // tokens per expert
  TensorId order = b.integer_op({b.integer_op({chosen}, {tokens, experts}, DType::int32)}, {rows});  // row_id_map, in two passes
  TensorId back = b.integer_op({order}, {rows});
  TensorId taken = b.permute_rows(x, order, back, {rows, hidden});
  TensorId shares = b.index_select(b.view(weights, {rows}), order, {rows});
  TensorId out = gated_expert(b, taken, w, b.view(shares, {rows, 1}),
                              [&](TensorId in, TensorId weight) { return b.grouped_linear(b.cast_like(in, weight), weight, w.hit); });
  out = b.view(b.permute_rows(out, back, order, {rows, hidden}), {tokens, top_k, hidden});
  return b.cast_like(b.sum(out, 1, false), x);
}

}  // namespace

TensorId grouped_experts(GraphBuilder& b, TensorId x, TensorId weights, TensorId indices, std::int64_t experts, std::int64_t intermediate,
                         std::string_view act, bool weigh_inside) {
  auto scope = b.module("experts");
  const std::int64_t hidden = b.shape(x)[1];
  ExpertWeights w{.intermediate = intermediate, .hit = std::min(experts, b.shape(x)[0] * b.shape(weights)[1]), .act = act};
  w.gate_up = b.parameter("gate_up_proj", {experts, 2 * intermediate, hidden});
  w.down = b.parameter("down_proj", {experts, hidden, intermediate});
  return weigh_inside ? as_megatron(b, x, weights, indices, experts, w) : as_transformers(b, x, weights, indices, experts, w);
}

}  // namespace precog::zoo
