// GPTNeoXForCausalLM: one projection for q, k and v, rotary embeddings on a part of each head, attention and MLP side by
// side on the same residual, an untied head.
#include "frontend/text_blocks.h"

namespace precog::zoo {
namespace gpt_neox {
namespace {

struct NeoX {
  std::int64_t hidden, layers, heads, intermediate, vocab, rotary, classes;
  double attention_dropout, dropout;
  std::string act;
  bool parallel, attention_bias, tied, dynamic_rotary;
};

NeoX read(JsonReader& r) {
  NeoX a;
  a.hidden = r.required_integer("hidden", 1, kMaxWidth);
  a.layers = r.required_integer("layers", 1, kMaxLayers);
  a.heads = r.required_integer("heads", 1, kMaxHeads);
  a.intermediate = r.required_integer("intermediate", 1, kMaxWidth);
  a.vocab = r.required_integer("vocab", 2, kMaxWidth);
  r.required_integer("max_positions", 1, std::int64_t{1} << 30);
  a.rotary = r.required_integer("rotary_dim", 2, kMaxWidth);
  a.attention_dropout = read_probability(r, "attention_dropout");
  a.dropout = read_probability(r, "dropout");
  a.act = read_activation(r, "gelu");
  a.parallel = r.boolean("parallel_residual").value_or(true);
  a.attention_bias = r.boolean("attention_bias").value_or(true);
  a.tied = r.boolean("tie_embeddings").value_or(false);
  a.dynamic_rotary = r.boolean("dynamic_rotary").value_or(false);
  a.classes = read_classes(r);
  if (a.heads > 0 && a.hidden % a.heads != 0) r.problem("heads", "must divide hidden");
  if (a.rotary % 2 != 0 || (a.heads > 0 && a.rotary > a.hidden / a.heads))
    r.problem("rotary_dim", "must be even and at most hidden / heads");
  return a;
}

TensorId attention(GraphBuilder& b, const NeoX& a, TensorId x, TensorId cos, TensorId sin) {
  auto scope = b.module("attention");
  const std::int64_t width = a.hidden / a.heads;
  TensorId fused = to_heads(b, b.linear_layer("query_key_value", x, 3 * a.hidden, a.attention_bias), a.heads, 3 * width,
                            GradientCopy::always);
  auto parts = b.split(fused, -1, {width, width, width});
  const Shape flat = b.shape(cos);
  const Shape spread{1, 1, flat[1], flat[2]};
  cos = b.view(cos, spread);
  sin = b.view(sin, spread);
  auto [q, k] = rotate_partly(b, parts[0], parts[1], cos, sin);
  TensorId mixed = b.attention(q, k, parts[2], b.shape(q)[2] > 1, {}, a.attention_dropout);
  // The joined query is in the order [b, h, s, d], flash attention answers in its query's order: here the copy is real.
  TensorId turned = b.contiguous(b.transpose(mixed, 1, 2), OnlyFor::half);
  const Shape s = b.shape(turned);
  return b.linear_layer("dense", b.view(turned, {s[0], s[1], a.hidden}), a.hidden, a.attention_bias);
}

TensorId feed_forward(GraphBuilder& b, const NeoX& a, TensorId x) {
  auto scope = b.module("mlp");
  return b.linear_layer("dense_4h_to_h", activation(b, a.act, b.linear_layer("dense_h_to_4h", x, a.intermediate)), a.hidden);
}

void build(GraphBuilder& b, JsonReader& reader, const Sizes& sizes) {
  const NeoX a = read(reader);
  auto [ids, labels] = token_inputs(b, sizes, a.classes);
  TensorId table, x;
  {
    auto model = b.module("gpt_neox");
    {
      auto scope = b.module("embed_in");
      table = b.parameter("weight", {a.vocab, a.hidden});
      x = b.embedding(table, ids);
    }
    TensorId positions = position_ids(b, sizes.seq);
    packed_sequence_check(b, positions, sizes.batch);
    auto [cos, sin] = rotary_embedding(b, positions, a.rotary, x, a.dynamic_rotary);
    x = b.dropout(x, a.dropout);
    for (std::int64_t layer = 0; layer < a.layers; ++layer) {
      if (!b.begin_layer(layer)) continue;
      auto scope = b.module("layers." + std::to_string(layer));
      TensorId mixed = attention(b, a, b.layer_norm_layer("input_layernorm", x), cos, sin);
      mixed = b.dropout(mixed, a.dropout);
      if (!a.parallel) mixed = b.add(mixed, x);
      TensorId fed = feed_forward(b, a, b.layer_norm_layer("post_attention_layernorm", a.parallel ? x : mixed));
      fed = b.dropout(fed, a.dropout);
      x = a.parallel ? b.add(b.add(fed, mixed), x) : b.add(fed, mixed);
    }
    b.set_block(-1);
    x = b.layer_norm_layer("final_layer_norm", x);
  }
  if (a.classes > 0) return sequence_classification(b, x, ids, labels, a.classes);
  x = b.view(x, b.shape(x));  // [:, 0:, :], all logits are kept
  TensorId logits;
  {
    auto head = b.module("lm_head");  // "embed_out" in older checkpoints
    logits = b.linear(x, a.tied ? table : b.parameter("weight", {a.vocab, a.hidden}));
  }
  causal_loss(b, logits, labels);
}

}  // namespace
}  // namespace gpt_neox

ModelFamily gpt_neox_family() {
  return {.name = "gpt_neox", .language = true, .check = [](JsonReader& r) { gpt_neox::read(r); }, .build = gpt_neox::build, .layer_kinds = equal_layers};
}

}  // namespace precog::zoo
