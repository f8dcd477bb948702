// GPTNeoXForCausalLM: one projection for q, k and v, rotary embeddings on a part of each head, attention and MLP side by
// side on the same residual, an untied head.
#include "frontend/text_blocks.h"

namespace precog::zoo {
namespace {

struct NeoX {
  std::int64_t hidden, layers, heads, intermediate, vocab, rotary;
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
  if (a.heads > 0 && a.hidden % a.heads != 0) r.problem("heads", "must divide hidden");
  if (a.rotary % 2 != 0 || (a.heads > 0 && a.rotary >= a.hidden / a.heads))
    r.problem("rotary_dim", "must be even and less than hidden / heads");
  return a;
}

TensorId attention(GraphBuilder& b, const NeoX& a, TensorId x, TensorId cos, TensorId sin) {
  auto scope = b.module("attention");
  const std::int64_t width = a.hidden / a.heads;
  TensorId fused = to_heads(b, b.linear_layer("query_key_value", x, 3 * a.hidden), a.heads, 3 * width);
  auto parts = b.split(fused, -1, {width, width, width});
  const Shape flat = b.shape(cos);
  const Shape spread{1, 1, flat[1], flat[2]};
  cos = b.view(cos, spread);
  sin = b.view(sin, spread);
  TensorId q_turning = b.slice(parts[0], -1, a.rotary), q_still = b.slice(parts[0], -1, width - a.rotary);
  TensorId k_turning = b.slice(parts[1], -1, a.rotary), k_still = b.slice(parts[1], -1, width - a.rotary);
  q_turning = rotate(b, q_turning, cos, sin);
  k_turning = rotate(b, k_turning, cos, sin);
  TensorId q = b.cat({q_turning, q_still}, -1);
  TensorId k = b.cat({k_turning, k_still}, -1);
  TensorId mixed = b.attention(q, k, parts[2], b.shape(q)[2] > 1);
  // The joined query is in the order [b, h, s, d], flash attention answers in its query's order: here the copy is real.
  TensorId turned = b.contiguous(b.transpose(mixed, 1, 2));
  const Shape s = b.shape(turned);
  return b.linear_layer("dense", b.view(turned, {s[0], s[1], a.hidden}), a.hidden);
}

TensorId feed_forward(GraphBuilder& b, const NeoX& a, TensorId x) {
  auto scope = b.module("mlp");
  return b.linear_layer("dense_4h_to_h", b.gelu(b.linear_layer("dense_h_to_4h", x, a.intermediate)), a.hidden);
}

void build(GraphBuilder& b, JsonReader& reader, const Sizes& sizes) {
  const NeoX a = read(reader);
  auto [ids, labels] = token_inputs(b, sizes);
  TensorId x;
  {
    auto model = b.module("gpt_neox");
    x = b.embedding_layer("embed_in", ids, a.vocab, a.hidden);
    TensorId positions = position_ids(b, sizes.seq);
    packed_sequence_check(b, positions, sizes.batch);
    auto [cos, sin] = rotary_embedding(b, positions, a.rotary, x);
    for (std::int64_t layer = 0; layer < a.layers; ++layer) {
      b.set_block(static_cast<int>(layer));
      auto scope = b.module("layers." + std::to_string(layer));
      TensorId mixed = attention(b, a, b.layer_norm_layer("input_layernorm", x), cos, sin);
      TensorId fed = feed_forward(b, a, b.layer_norm_layer("post_attention_layernorm", x));
      x = b.add(b.add(fed, mixed), x);
    }
    b.set_block(-1);
    x = b.layer_norm_layer("final_layer_norm", x);
  }
  x = b.view(x, b.shape(x));  // [:, 0:, :], all logits are kept
  causal_loss(b, b.linear_layer("lm_head", x, a.vocab, false), labels);  // "embed_out" in older checkpoints
}

}  // namespace

ModelFamily gpt_neox_family() {
  return {.name = "gpt_neox", .language = true, .check = [](JsonReader& r) { read(r); }, .build = build};
}

}  // namespace precog::zoo
