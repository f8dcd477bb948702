#include "frontend/experts.h"

#include <algorithm>

#include "frontend/text_blocks.h"

namespace precog::zoo {

TensorId grouped_experts(GraphBuilder& b, TensorId x, TensorId weights, TensorId indices, std::int64_t experts, std::int64_t intermediate,
                         std::string_view act, bool weigh_inside) {
  auto scope = b.module("experts");
  TensorId gate_up_weight = b.parameter("gate_up_proj", {experts, 2 * intermediate, b.shape(x)[1]});
  TensorId down_weight = b.parameter("down_proj", {experts, b.shape(x)[1], intermediate});
  const std::int64_t tokens = b.shape(x)[0], hidden = b.shape(x)[1], top_k = b.shape(weights)[1], rows = tokens * top_k;
  const std::int64_t hit = std::min(experts, rows);

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

  auto grouped = [&](TensorId in, TensorId weight) {
    const Shape w = b.shape(weight);
    b.view(weight, {w[0], w[2], w[1]}, ViewKind::transpose);
    TensorId out = b.grouped_linear(b.cast_like(in, weight), weight, hit);
    return b.masked_fill(out, unused);
  };
  auto halves = b.split(grouped(taken, gate_up_weight), -1, {intermediate, intermediate});
  TensorId gate = activation(b, act, halves[0]);
  b.mark_strided();  // half of each row
  TensorId inner = b.mul(gate, halves[1]);
  b.mark_strided();
  if (weigh_inside) inner = b.mul(inner, b.cast_like(b.view(shares, {rows, 1}), inner));
  TensorId out = grouped(inner, down_weight);
  if (!weigh_inside) out = b.mul(out, b.view(shares, {rows, 1}));
  TensorId back = b.integer_op({order, b.integer_op({}, {rows})}, {rows});  // inverse[order] = arange
  // The sum hands the same gradient to every expert of a token: spread out by a copy, since rows are looked up in it.
  out = b.view(b.index_select(out, back, {rows, hidden}), {tokens, top_k, hidden}, ViewKind::reshape, GradientCopy::always);
  return b.cast_like(b.sum(out, 1, false), x);
}

}  // namespace precog::zoo
