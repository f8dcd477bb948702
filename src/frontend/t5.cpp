// T5ForConditionalGeneration (version 1.1 and FLAN too: a gated MLP, unscaled logits): encoder and decoder with relative position biases, which reach attention as an additive
// mask that needs a gradient; decoder inputs are the labels shifted right.
#include "frontend/text_blocks.h"

namespace precog::zoo {
namespace t5 {
namespace {

struct T5 {
  std::int64_t hidden, layers, decoder_layers, heads, head_dim, intermediate, vocab, buckets;
  double dropout;
  std::string act;
  bool gated, scale_outputs;
};

T5 read(JsonReader& r) {
  T5 a;
  a.hidden = r.required_integer("hidden", 1, kMaxWidth);
  a.layers = r.required_integer("layers", 1, kMaxLayers);
  a.decoder_layers = r.required_integer("decoder_layers", 1, kMaxLayers);
  a.heads = r.required_integer("heads", 1, kMaxHeads);
  a.head_dim = r.required_integer("head_dim", 1, kMaxWidth);
  a.intermediate = r.required_integer("intermediate", 1, kMaxWidth);
  a.vocab = r.required_integer("vocab", 2, kMaxWidth);
  a.buckets = r.required_integer("relative_buckets", 1, kMaxWidth);
  a.dropout = read_probability(r, "dropout");
  a.act = read_activation(r, "relu");
  a.gated = r.boolean("gated").value_or(false);
  a.scale_outputs = r.boolean("scale_outputs").value_or(true);
  return a;
}

// Like Llama's but for the product: the input in its own type times the fp32 scale, cast only where the weight is 16-bit.
TensorId norm(GraphBuilder& b, std::string_view name, TensorId x) {
  auto scope = b.module(name);
  TensorId weight = b.parameter("weight", {b.shape(x)[-1]});
  TensorId variance = b.mean(b.unary(OpKind::pow, b.cast_to(x, DType::fp32)), -1);
  TensorId scale = b.unary(OpKind::rsqrt, b.unary(OpKind::add_scalar, variance));
  return b.mul(weight, b.cast_like(b.mul(x, scale), weight));
}

// Buckets of relative distances, [1, heads, queries, keys]. Integer and fp32 kernels over [queries, keys].
TensorId position_bias(GraphBuilder& b, const T5& a, std::int64_t queries, std::int64_t keys, bool bidirectional) {
  const Shape grid{queries, keys};
  TensorId rows = b.view(b.integer_op({}, {queries}), {queries, 1});
  rows = b.integer_op({rows}, {queries, 1});
  TensorId columns = b.view(b.integer_op({}, {keys}), {1, keys});
  TensorId distance = b.integer_op({columns, rows}, grid);
  TensorId side;
  if (bidirectional) {
    side = b.integer_op({b.integer_op({distance}, grid, DType::boolean)}, grid);
    side = b.integer_op({b.integer_op({side}, grid)}, grid);
    distance = b.integer_op({distance}, grid);
  } else {
    distance = b.integer_op({b.integer_op({distance, b.integer_op({}, grid)}, grid)}, grid);
  }
  TensorId small = b.integer_op({distance}, grid, DType::boolean);
  TensorId far = b.cast_to(distance, DType::fp32);
  for (int step = 0; step < 4; ++step) far = b.integer_op({far}, grid, DType::fp32);  // / exact, log, / log ratio, * span
  far = b.integer_op({b.integer_op({far}, grid)}, grid);                              // to integers, + exact
  far = b.integer_op({far, b.integer_op({}, grid)}, grid);                            // min with a filled tensor
  TensorId bucket = b.integer_op({small, distance, far}, grid);
  bucket = side.valid() ? b.integer_op({side, bucket}, grid) : b.integer_op({bucket}, grid);
  TensorId values = b.embedding_layer("relative_attention_bias", bucket, a.buckets, a.heads);
  return b.view(b.view(values, {a.heads, queries, keys}, ViewKind::transpose), {1, a.heads, queries, keys});
}

// The causal form of a position bias, made anew in every layer.
TensorId causal(GraphBuilder& b, TensorId bias) {
  const std::int64_t queries = b.shape(bias)[2], keys = b.shape(bias)[3];
  TensorId rows = b.view(b.integer_op({}, {queries}), {queries, 1});
  TensorId columns = b.view(b.integer_op({}, {keys}), {1, keys});
  TensorId allowed = b.integer_op({rows, columns}, {queries, keys}, DType::boolean);
  allowed = b.view(allowed, {1, 1, queries, keys});
  b.integer_op({}, {}, DType::fp32);  // the scalar that `where` puts elsewhere
  return b.masked_fill(bias, allowed);
}

struct Stack {
  const T5& a;
  bool decoder;
  TensorId self_bias, cross_bias;  // made by the first layer, used by all
};

TensorId attention(GraphBuilder& b, Stack& stack, std::string_view name, TensorId x, TensorId memory) {
  const T5& a = stack.a;
  const bool cross = memory.valid();
  auto scope = b.module(name);
  TensorId source = cross ? memory : x;
  TensorId q = to_heads(b, b.linear_layer("q", x, a.heads * a.head_dim, false), a.heads, a.head_dim);
  TensorId k = to_heads(b, b.linear_layer("k", source, a.heads * a.head_dim, false), a.heads, a.head_dim);
  TensorId v = to_heads(b, b.linear_layer("v", source, a.heads * a.head_dim, false), a.heads, a.head_dim);
  const std::int64_t queries = b.shape(q)[2], keys = b.shape(k)[2];
  TensorId& bias = cross ? stack.cross_bias : stack.self_bias;
  if (!bias.valid())
    // Cross attention has no bias, but a zero one is made and passed (in the scores' type).
    bias = cross ? b.integer_op({}, {1, a.heads, queries, keys}, DType::model) : position_bias(b, a, queries, keys, !stack.decoder);
  TensorId mask = !cross && stack.decoder && queries > 1 ? causal(b, bias) : bias;
  TensorId mixed = from_heads(b, b.attention(q, k, v, false, mask, a.dropout));
  return b.linear_layer("o", mixed, a.hidden, false);
}

TensorId feed_forward(GraphBuilder& b, const T5& a, TensorId x) {
  auto scope = b.module("DenseReluDense");
  TensorId wide;
  if (a.gated) {
    TensorId gate = activation(b, a.act, b.linear_layer("wi_0", x, a.intermediate, false));
    wide = b.mul(gate, b.linear_layer("wi_1", x, a.intermediate, false));
  } else {
    wide = activation(b, a.act, b.linear_layer("wi", x, a.intermediate, false));
  }
  wide = b.dropout(wide, a.dropout);
  auto inner = b.module("wo");
  TensorId weight = b.parameter("weight", {a.hidden, a.intermediate});
  return b.linear(b.cast_like(wide, weight), weight);  // `.to(wo.weight.dtype)`: under autocast a cast there and back
}

TensorId run_stack(GraphBuilder& b, Stack stack, TensorId x, TensorId memory, std::int64_t layers, int first_block) {
  const T5& a = stack.a;
  x = b.dropout(x, a.dropout);
  for (std::int64_t i = 0; i < layers; ++i) {
    b.set_block(first_block + static_cast<int>(i));
    auto scope = b.module("block." + std::to_string(i));
    int sublayer = 0;
    auto within = [&](auto&& body) {
      auto inner = b.module("layer." + std::to_string(sublayer++));
      x = b.add(x, b.dropout(body(norm(b, "layer_norm", x)), a.dropout));
    };
    within([&](TensorId y) { return attention(b, stack, "SelfAttention", y, {}); });
    if (stack.decoder) within([&](TensorId y) { return attention(b, stack, "EncDecAttention", y, memory); });
    within([&](TensorId y) { return feed_forward(b, a, y); });
  }
  b.set_block(-1);
  return b.dropout(norm(b, "final_layer_norm", x), a.dropout);
}

// zeros, a clone, two writes into slices, and the ignored labels replaced.
TensorId shift_right(GraphBuilder& b, TensorId labels) {
  const std::int64_t batch = b.shape(labels)[0], seq = b.shape(labels)[1];
  TensorId shifted = b.integer_op({}, {batch, seq});
  if (seq > 1) shifted = b.integer_op({shifted, b.contiguous(b.slice(labels, 1, seq - 1))}, {batch, seq});
  shifted = b.integer_op({shifted}, {batch, seq});
  TensorId ignored = b.integer_op({shifted}, {batch, seq}, DType::boolean);
  return b.integer_op({shifted, ignored}, {batch, seq});
}

void build(GraphBuilder& b, JsonReader& reader, const Sizes& sizes) {
  const T5 a = read(reader);
  TensorId ids = b.input("input_ids", {sizes.batch, sizes.src_seq}, DType::int64);
  TensorId labels = b.input("labels", {sizes.batch, sizes.seq}, DType::int64);
  TensorId table, memory, x;
  {
    auto shared = b.module("shared");
    table = b.parameter("weight", {a.vocab, a.hidden});
  }
  {
    auto encoder = b.module("encoder");
    x = b.embedding(table, ids);
    memory = run_stack(b, {a, false, {}, {}}, x, {}, a.layers, 0);
  }
  TensorId shifted = shift_right(b, labels);
  {
    auto decoder = b.module("decoder");
    x = b.embedding(table, shifted);
    x = run_stack(b, {a, true, {}, {}}, x, memory, a.decoder_layers, static_cast<int>(a.layers));
  }
  if (a.scale_outputs) x = b.unary(OpKind::mul_scalar, x);  // the tied head's scale
  TensorId logits;
  {
    auto head = b.module("lm_head");
    logits = b.linear(x, table);
  }
  TensorId rows = b.view(logits, {sizes.tokens(), a.vocab});
  b.cross_entropy(rows, b.view(labels, {sizes.tokens()}));
}

}  // namespace
}  // namespace t5

ModelFamily t5_family() {
  return {.name = "t5", .language = true, .encoder_decoder = true, .check = [](JsonReader& r) { t5::read(r); }, .build = t5::build};
}

}  // namespace precog::zoo
