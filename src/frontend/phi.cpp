// PhiForCausalLM (Phi-1, 1.5 and 2): layer norms, attention and MLP side by side on one norm's output, rotary embeddings on
// a part of each head, biases everywhere, the head's too.
#include <tuple>

#include "frontend/text_blocks.h"

namespace precog::zoo {
namespace phi {
namespace {

struct Phi {
  std::int64_t hidden, layers, heads, kv_heads, head_dim, intermediate, vocab, rotary, classes;
  double attention_dropout, dropout, embedding_dropout;
  std::string act;
  bool qk_norm, tied, dynamic_rotary;
};

Phi read(JsonReader& r) {
  Phi a;
  a.hidden = r.required_integer("hidden", 1, kMaxWidth);
  a.layers = r.required_integer("layers", 1, kMaxLayers);
  a.heads = r.required_integer("heads", 1, kMaxHeads);
  a.kv_heads = r.integer("kv_heads", 1, kMaxHeads).value_or(a.heads);
  a.head_dim = r.integer("head_dim", 2, kMaxWidth).value_or(a.heads > 0 ? a.hidden / a.heads : 0);
  a.intermediate = r.required_integer("intermediate", 1, kMaxWidth);
  a.vocab = r.required_integer("vocab", 2, kMaxWidth);
  r.required_integer("max_positions", 1, std::int64_t{1} << 30);
  a.rotary = r.required_integer("rotary_dim", 2, kMaxWidth);
  a.attention_dropout = read_probability(r, "attention_dropout");
  a.dropout = read_probability(r, "dropout");
  a.embedding_dropout = read_probability(r, "embedding_dropout");
  a.act = read_activation(r, "gelu_new");
  a.qk_norm = r.boolean("qk_norm").value_or(false);
  a.tied = r.boolean("tie_embeddings").value_or(false);
  a.dynamic_rotary = r.boolean("dynamic_rotary").value_or(false);
  a.classes = read_classes(r);
  if (a.kv_heads > 0 && a.heads % a.kv_heads != 0) r.problem("kv_heads", "must divide heads");
  if (a.rotary % 2 != 0 || a.rotary > a.head_dim) r.problem("rotary_dim", "must be even and at most head_dim");
  return a;
}

TensorId attention(GraphBuilder& b, const Phi& a, TensorId x, TensorId cos, TensorId sin) {
  auto scope = b.module("self_attn");
  TensorId q = to_heads(b, b.linear_layer("q_proj", x, a.heads * a.head_dim), a.heads, a.head_dim, GradientCopy::always);
  TensorId k = to_heads(b, b.linear_layer("k_proj", x, a.kv_heads * a.head_dim), a.kv_heads, a.head_dim, GradientCopy::always);
  TensorId v = to_heads(b, b.linear_layer("v_proj", x, a.kv_heads * a.head_dim), a.kv_heads, a.head_dim);
  if (a.qk_norm) {
    q = b.layer_norm_layer("q_layernorm", q);
    k = b.layer_norm_layer("k_layernorm", k);
  }
  const Shape flat = b.shape(cos);
  const Shape spread{1, 1, flat[1], flat[2]};
  cos = b.view(cos, spread);
  sin = b.view(sin, spread);
  std::tie(q, k) = rotate_partly(b, q, k, cos, sin);
  TensorId mixed = b.attention(q, k, v, b.shape(q)[2] > 1, {}, a.attention_dropout);
  // The joined query is in the order [b, h, s, d], flash attention answers in its query's order: here the copy is real.
  TensorId turned = b.contiguous(b.transpose(mixed, 1, 2), OnlyFor::half);
  const Shape s = b.shape(turned);
  return b.linear_layer("dense", b.view(turned, {s[0], s[1], a.heads * a.head_dim}), a.hidden);
}

TensorId feed_forward(GraphBuilder& b, const Phi& a, TensorId x) {
  auto scope = b.module("mlp");
  return b.linear_layer("fc2", activation(b, a.act, b.linear_layer("fc1", x, a.intermediate)), a.hidden);
}

void build(GraphBuilder& b, JsonReader& reader, const Sizes& sizes) {
  const Phi a = read(reader);
  auto [ids, labels] = token_inputs(b, sizes, a.classes);
  TensorId table, x;
  {
    auto model = b.module("model");
    {
      auto scope = b.module("embed_tokens");
      table = b.parameter("weight", {a.vocab, a.hidden});
      x = b.embedding(table, ids);
    }
    TensorId positions = position_ids(b, sizes.seq);
    packed_sequence_check(b, positions, sizes.batch);
    x = b.dropout(x, a.embedding_dropout);
    auto [cos, sin] = rotary_embedding(b, positions, a.rotary, x, a.dynamic_rotary);
    for (std::int64_t layer = 0; layer < a.layers; ++layer) {
      if (!b.begin_layer(layer)) continue;
      auto scope = b.module("layers." + std::to_string(layer));
      TensorId normal = b.layer_norm_layer("input_layernorm", x);
      TensorId mixed = b.dropout(attention(b, a, normal, cos, sin), a.dropout);
      TensorId fed = b.dropout(feed_forward(b, a, normal), a.dropout);
      x = b.add(b.add(mixed, fed), x);
    }
    b.set_block(-1);
    x = b.layer_norm_layer("final_layernorm", x);
  }
  if (a.classes > 0) return sequence_classification(b, x, ids, labels, a.classes);
  x = b.view(x, b.shape(x));  // [:, 0:, :], all logits are kept
  TensorId logits;
  {
    auto head = b.module("lm_head");
    TensorId weight = a.tied ? table : b.parameter("weight", {a.vocab, a.hidden});
    logits = b.linear(x, weight, b.parameter("bias", {a.vocab}));
  }
  causal_loss(b, logits, labels);
}

}  // namespace
}  // namespace phi

ModelFamily phi_family() {
  return {.name = "phi", .language = true, .check = [](JsonReader& r) { phi::read(r); }, .build = phi::build, .layer_kinds = equal_layers};
}

}  // namespace precog::zoo
