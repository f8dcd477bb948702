#include "frontend/text_blocks.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/ensure.h"
#include "base/text.h"

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

TensorId rms_norm_plus_one(GraphBuilder& b, std::string_view name, TensorId x) {
  auto scope = b.module(name);
  TensorId weight = b.parameter("weight", {b.shape(x)[-1]});
  TensorId wide = b.cast_to(x, DType::fp32);
  TensorId variance = b.mean(b.unary(OpKind::pow, wide), -1);
  TensorId normal = b.mul(wide, b.unary(OpKind::rsqrt, b.unary(OpKind::add_scalar, variance)));
  TensorId scale = b.unary(OpKind::add_scalar, b.cast_to(weight, DType::fp32));
  return b.cast_like(b.mul(normal, scale), x);
}

namespace {

// 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
TensorId gelu_new(GraphBuilder& b, TensorId x) {
  TensorId half = b.unary(OpKind::mul_scalar, x);
  TensorId inner = b.add(x, b.unary(OpKind::mul_scalar, b.unary(OpKind::pow, x)));
  TensorId bend = b.unary(OpKind::tanh, b.unary(OpKind::mul_scalar, inner));
  return b.mul(half, b.unary(OpKind::add_scalar, bend));
}

// 0.5 x (1 + tanh(0.7978845608 x (1 + 0.044715 x x))).
TensorId gelu_fast(GraphBuilder& b, TensorId x) {
  TensorId half = b.unary(OpKind::mul_scalar, x);
  TensorId scaled = b.unary(OpKind::mul_scalar, x);
  TensorId square = b.unary(OpKind::add_scalar, b.mul(b.unary(OpKind::mul_scalar, x), x));
  TensorId bend = b.unary(OpKind::tanh, b.mul(scaled, square));
  return b.mul(half, b.unary(OpKind::add_scalar, bend));
}

}  // namespace

const std::vector<std::string>& activation_names() {
  static const std::vector<std::string> kNames = {"silu", "swish", "gelu", "gelu_pytorch_tanh", "gelu_new", "gelu_accurate",
                                                  "gelu_fast", "quick_gelu", "relu", "relu2", "tanh", "sigmoid"};
  return kNames;
}

TensorId activation(GraphBuilder& b, std::string_view name, TensorId x) {
  if (name == "silu" || name == "swish") return b.silu(x);
  if (name == "gelu" || name == "gelu_pytorch_tanh") return b.gelu(x);
  if (name == "gelu_new" || name == "gelu_accurate") return gelu_new(b, x);
  if (name == "gelu_fast") return gelu_fast(b, x);
  if (name == "quick_gelu") return b.mul(x, b.unary(OpKind::sigmoid, b.unary(OpKind::mul_scalar, x)));
  if (name == "relu") return b.relu(x);
  if (name == "relu2") return b.unary(OpKind::pow, b.relu(x));
  if (name == "tanh") return b.unary(OpKind::tanh, x);
  ensure(name == "sigmoid", "read_activation accepts known activations only");
  return b.unary(OpKind::sigmoid, x);
}

std::string read_activation(JsonReader& r, const char* fallback) {
  std::string name = r.text("activation").value_or(fallback);
  const auto& known = activation_names();
  if (std::find(known.begin(), known.end(), name) == known.end()) {
    r.problem("activation", fmt::format("is '{}'; known: {}", name.substr(0, 80), join(known, ", ")));
    name = fallback;
  }
  return name;
}

double read_probability(JsonReader& r, const char* key, double fallback) { return r.number(key, 0, 0.99).value_or(fallback); }

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

std::pair<TensorId, TensorId> rotary_embedding(GraphBuilder& b, TensorId positions, std::int64_t width, TensorId like, bool dynamic,
                                               std::string_view name) {
  auto scope = b.module("rotary_emb");
  const std::int64_t seq = b.shape(positions)[1];
  if (dynamic) {
    TensorId longest = b.integer_op({b.integer_op({positions}, {})}, {});
    b.read_back(b.integer_op({longest}, {}, DType::boolean));
  }
  TensorId frequencies = b.view(b.view(b.buffer(name, {width / 2}), {1, width / 2, 1}), {1, width / 2, 1}, ViewKind::expand);
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

std::pair<TensorId, TensorId> rotate_partly(GraphBuilder& b, TensorId q, TensorId k, TensorId cos, TensorId sin) {
  const std::int64_t width = b.shape(q)[-1], turned = b.shape(cos)[-1];
  // Where all of it turns, the code still joins it with an empty rest: a copy.
  auto rest = [&](TensorId x) { return width > turned ? b.slice(x, -1, width - turned) : TensorId{}; };
  auto joined = [&](TensorId part, TensorId still) { return still.valid() ? b.cat({part, still}, -1) : b.cat({part}, -1); };
  TensorId q_turning = b.slice(q, -1, turned), q_still = rest(q);
  TensorId k_turning = b.slice(k, -1, turned), k_still = rest(k);
  q_turning = rotate(b, q_turning, cos, sin);
  k_turning = rotate(b, k_turning, cos, sin);
  TensorId whole_q = joined(q_turning, q_still);
  return {whole_q, joined(k_turning, k_still)};
}

TensorId to_heads(GraphBuilder& b, TensorId x, std::int64_t heads, std::int64_t head_dim, GradientCopy gradient) {
  const Shape s = b.shape(x);
  return b.transpose(b.view(x, {s[0], s[1], heads, head_dim}, ViewKind::reshape, gradient), 1, 2);
}

TensorId from_heads(GraphBuilder& b, TensorId x) {
  const Shape s = b.shape(x);
  return b.view(b.transpose(x, 1, 2), {s[0], s[2], s[1] * s[3]});
}

TensorId gated_mlp(GraphBuilder& b, std::string_view name, TensorId x, std::int64_t intermediate, std::string_view act, bool bias) {
  auto scope = b.module(name);
  const std::int64_t hidden = b.shape(x)[-1];
  TensorId gate = activation(b, act, b.linear_layer("gate_proj", x, intermediate, bias));
  TensorId up = b.linear_layer("up_proj", x, intermediate, bias);
  return b.linear_layer("down_proj", b.mul(gate, up), hidden, bias);
}

void sequence_classification(GraphBuilder& b, TensorId x, TensorId ids, TensorId labels, std::int64_t classes) {
  const std::int64_t batch = b.shape(ids)[0], seq = b.shape(ids)[1];
  TensorId logits = b.linear_layer("score", x, classes, false);
  TensorId real = b.integer_op({b.integer_op({ids}, {batch, seq}, DType::boolean)}, {batch, seq}, DType::int32);
  TensorId places = b.integer_op({}, {seq}, DType::int32);
  TensorId last = b.integer_op({b.integer_op({places, real}, {batch, seq}, DType::int32)}, {batch});  // argmax
  TensorId rows = b.integer_op({}, {batch});
  TensorId pooled = b.index_select(logits, b.integer_op({rows, last}, {batch}), {batch, classes});
  b.cross_entropy(b.view(pooled, {batch, classes}), b.view(labels, {batch}));
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

std::int64_t read_classes(JsonReader& r) { return r.integer("classes", 2, kMaxWidth).value_or(0); }

TokenInputs token_inputs(GraphBuilder& b, const Sizes& sizes, std::int64_t classes) {
  if (classes == 0) return token_inputs(b, sizes);
  return {b.input("input_ids", {sizes.batch, sizes.seq}, DType::int64), b.input("labels", {sizes.batch}, DType::int64)};
}

}  // namespace precog::zoo
