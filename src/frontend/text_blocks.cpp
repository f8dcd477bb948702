#include "frontend/text_blocks.h"

namespace precog::zoo {

TensorId rms_norm(GraphBuilder& b, std::string_view name, TensorId x) {
  auto scope = b.module(name);
  TensorId weight = b.parameter("weight", {b.shape(x)[-1]});
  TensorId wide = b.cast_to(x, DType::fp32);
  TensorId variance = b.mean(b.unary(OpKind::pow, wide), -1);
  TensorId scale = b.unary(OpKind::rsqrt, b.unary(OpKind::add_scalar, variance));
  TensorId normal = b.cast_like(b.mul(wide, scale), x);
  return b.mul(weight, normal);
}

TensorId position_ids(GraphBuilder& b, std::int64_t seq) {
  TensorId range = b.integer_op({}, {seq});
  return b.view(b.integer_op({range}, {seq}), {1, seq});
}

void packed_sequence_check(GraphBuilder& b, TensorId positions, std::int64_t batch) {
  const std::int64_t seq = b.shape(positions)[1];
  if (batch != 1) positions = b.expand(positions, {batch, seq});
  TensorId before = b.integer_op({b.slice(positions, 1, 1)}, {batch, 1});
  // torch.diff(positions, prepend=before)
  TensorId joined = b.cat({before, positions}, 1);
  TensorId later = b.slice(joined, 1, seq), earlier = b.slice(joined, 1, seq);
  TensorId steps = b.integer_op({later, earlier}, {batch, seq});
  TensorId breaks = b.integer_op({steps}, {batch, seq}, DType::boolean);
  TensorId counts = b.integer_op({breaks}, {batch, seq});  // cumsum
  TensorId last = b.view(counts, {batch}, ViewKind::slice);
  TensorId none = b.integer_op({last}, {batch}, DType::boolean);
  b.read_back(b.integer_op({none}, {}, DType::boolean));  // .all(), then `if`
}

std::pair<TensorId, TensorId> rotary_embedding(GraphBuilder& b, TensorId positions, std::int64_t width, TensorId like) {
  auto scope = b.module("rotary_emb");
  const std::int64_t seq = b.shape(positions)[1];
  TensorId frequencies = b.view(b.view(b.buffer("inv_freq", {width / 2}), {1, width / 2, 1}), {1, width / 2, 1}, ViewKind::expand);
  frequencies = b.cast_to(frequencies, DType::fp32);
  TensorId places = b.cast_to(b.view(positions, {1, 1, seq}), DType::fp32);
  TensorId angles = b.transpose(b.matmul(frequencies, places, /*autocast=*/false), 1, 2);
  TensorId both = b.cat({angles, angles}, -1);
  TensorId cos = b.unary(OpKind::mul_scalar, b.unary(OpKind::cos, both));
  TensorId sin = b.unary(OpKind::mul_scalar, b.unary(OpKind::sin, both));
  return {b.cast_like(cos, like), b.cast_like(sin, like)};
}

TensorId rotate(GraphBuilder& b, TensorId x, TensorId cos, TensorId sin) {
  const std::int64_t half = b.shape(x)[-1] / 2;
  TensorId straight = b.mul(x, cos);
  TensorId first = b.slice(x, -1, half);
  TensorId second = b.unary(OpKind::neg, b.slice(x, -1, half));
  return b.add(straight, b.mul(b.cat({second, first}, -1), sin));
}

TensorId to_heads(GraphBuilder& b, TensorId x, std::int64_t heads, std::int64_t head_dim) {
  const Shape s = b.shape(x);
  return b.transpose(b.view(x, {s[0], s[1], heads, head_dim}), 1, 2);
}

TensorId from_heads(GraphBuilder& b, TensorId x) {
  const Shape s = b.shape(x);
  return b.view(b.transpose(x, 1, 2), {s[0], s[2], s[1] * s[3]});
}

TensorId gated_mlp(GraphBuilder& b, std::string_view name, TensorId x, std::int64_t intermediate) {
  auto scope = b.module(name);
  const std::int64_t hidden = b.shape(x)[-1];
  TensorId gate = b.silu(b.linear_layer("gate_proj", x, intermediate, false));
  TensorId up = b.linear_layer("up_proj", x, intermediate, false);
  return b.linear_layer("down_proj", b.mul(gate, up), hidden, false);
}

void causal_loss(GraphBuilder& b, TensorId logits, TensorId labels) {
  const std::int64_t batch = b.shape(labels)[0], seq = b.shape(labels)[1], vocab = b.shape(logits)[-1];
  TensorId wide = b.cast_to(logits, DType::fp32);
  // pad(labels, (0, 1), -100): a fill and a copy; then [..., 1:].contiguous()
  TensorId padded = b.integer_op({b.integer_op({}, {batch, seq + 1}), labels}, {batch, seq + 1});
  TensorId shifted = b.contiguous(b.slice(padded, 1, seq));
  TensorId rows = b.view(wide, {batch * seq, vocab});
  b.cross_entropy(rows, b.view(shifted, {batch * seq}));
}

TokenInputs token_inputs(GraphBuilder& b, const Sizes& sizes) {
  return {b.input("input_ids", {sizes.batch, sizes.seq}, DType::int64), b.input("labels", {sizes.batch, sizes.seq}, DType::int64)};
}

}  // namespace precog::zoo
