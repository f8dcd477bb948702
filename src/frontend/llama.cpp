// Llama and the models that are Llama with a switch turned: Mistral (sliding window) and Qwen2 (biases on q, k, v; tied
// embeddings). LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM.
#include "frontend/llama.h"

#include "frontend/text_blocks.h"

namespace precog::zoo {

DecoderArchitecture read_decoder(JsonReader& r) {
  DecoderArchitecture a;
  a.hidden = r.required_integer("hidden", 1, kMaxWidth);
  a.layers = r.required_integer("layers", 1, kMaxLayers);
  a.heads = r.required_integer("heads", 1, kMaxHeads);
  a.kv_heads = r.integer("kv_heads", 1, kMaxHeads).value_or(a.heads);
  a.head_dim = r.integer("head_dim", 2, kMaxWidth).value_or(a.heads > 0 ? a.hidden / a.heads : 0);
  a.intermediate = r.required_integer("intermediate", 1, kMaxWidth);
  a.vocab = r.required_integer("vocab", 2, kMaxWidth);
  r.required_integer("max_positions", 1, std::int64_t{1} << 30);  // rotary positions: the training length, no table
  a.tie_embeddings = r.boolean("tie_embeddings").value_or(false);
  a.qkv_bias = r.boolean("qkv_bias").value_or(false);
  a.sliding_window = r.integer("sliding_window", 1, std::int64_t{1} << 30).value_or(0);
  if (a.kv_heads > 0 && a.heads % a.kv_heads != 0) r.problem("kv_heads", "must divide heads");
  if (a.head_dim % 2 != 0) r.problem("head_dim", "must be even: rotary embeddings turn pairs");
  return a;
}

TensorId sliding_window_mask(GraphBuilder& b, const DecoderArchitecture& a, const Sizes& sizes) {
  // A window that the sequence outgrows needs a mask of its own; below it `is_causal` suffices.
  if (a.sliding_window == 0 || sizes.seq < a.sliding_window) return {};
  const std::int64_t s = sizes.seq;
  b.view(b.integer_op({}, {sizes.batch}), {sizes.batch, 1, 1, 1});
  b.view(b.integer_op({}, {1}), {1, 1, 1, 1});
  TensorId queries = b.integer_op({b.integer_op({}, {s})}, {s});
  TensorId keys = b.integer_op({b.integer_op({}, {s})}, {s});
  queries = b.view(queries, {1, 1, s, 1});
  keys = b.view(keys, {1, 1, 1, s});
  TensorId all = b.integer_op({}, {}, DType::boolean);
  TensorId near = b.integer_op({keys, b.integer_op({queries}, {1, 1, s, 1})}, {1, 1, s, s}, DType::boolean);
  near = b.integer_op({all, near}, {1, 1, s, s}, DType::boolean);
  TensorId past = b.integer_op({keys, queries}, {1, 1, s, s}, DType::boolean);
  TensorId mask = b.integer_op({near, past}, {1, 1, s, s}, DType::boolean);
  return b.expand(mask, {sizes.batch, 1, s, s});
}

namespace {

// With a mask SDPA's grouped-query form would fall to the math path, so transformers copies keys and values instead.
TensorId repeat_heads(GraphBuilder& b, TensorId x, std::int64_t repeats) {
  if (repeats == 1) return x;
  const Shape s = b.shape(x);
  TensorId wide = b.expand(b.view(x, {s[0], s[1], 1, s[2], s[3]}), {s[0], s[1], repeats, s[2], s[3]});
  return b.view(b.contiguous(wide), {s[0], s[1] * repeats, s[2], s[3]});
}

void build_llama(GraphBuilder& b, JsonReader& reader, const Sizes& sizes) {
  const DecoderArchitecture a = read_decoder(reader);
  build_decoder(b, a, sizes, [&](TensorId x) { return gated_mlp(b, "mlp", x, a.intermediate); });
}

}  // namespace

TensorId decoder_attention(GraphBuilder& b, const DecoderArchitecture& a, TensorId x, TensorId cos, TensorId sin, TensorId mask) {
  auto scope = b.module("self_attn");
  TensorId q = to_heads(b, b.linear_layer("q_proj", x, a.heads * a.head_dim, a.qkv_bias), a.heads, a.head_dim);
  TensorId k = to_heads(b, b.linear_layer("k_proj", x, a.kv_heads * a.head_dim, a.qkv_bias), a.kv_heads, a.head_dim);
  TensorId v = to_heads(b, b.linear_layer("v_proj", x, a.kv_heads * a.head_dim, a.qkv_bias), a.kv_heads, a.head_dim);
  const Shape flat = b.shape(cos);
  const Shape spread{1, 1, flat[1], flat[2]};
  cos = b.view(cos, spread);
  sin = b.view(sin, spread);
  q = rotate(b, q, cos, sin);
  k = rotate(b, k, cos, sin);
  if (mask.valid()) {
    k = repeat_heads(b, k, a.heads / a.kv_heads);
    v = repeat_heads(b, v, a.heads / a.kv_heads);
  }
  const bool causal = !mask.valid() && b.shape(q)[2] > 1;
  TensorId mixed = from_heads(b, b.attention(q, k, v, causal, mask));
  return b.linear_layer("o_proj", mixed, a.hidden, false);
}

void build_decoder(GraphBuilder& b, const DecoderArchitecture& a, const Sizes& sizes,
                   const std::function<TensorId(TensorId)>& feed_forward) {
  auto [ids, labels] = token_inputs(b, sizes);
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
    TensorId mask = sliding_window_mask(b, a, sizes);
    auto [cos, sin] = rotary_embedding(b, positions, a.head_dim, x);
    for (std::int64_t layer = 0; layer < a.layers; ++layer) {
      b.set_block(static_cast<int>(layer));
      auto scope = b.module("layers." + std::to_string(layer));
      x = b.add(x, decoder_attention(b, a, rms_norm(b, "input_layernorm", x), cos, sin, mask));
      x = b.add(x, feed_forward(rms_norm(b, "post_attention_layernorm", x)));
    }
    b.set_block(-1);
    x = rms_norm(b, "norm", x);
  }
  x = b.view(x, b.shape(x));  // [:, 0:, :], all logits are kept
  TensorId logits;
  {
    auto head = b.module("lm_head");
    logits = b.linear(x, a.tie_embeddings ? table : b.parameter("weight", {a.vocab, a.hidden}));
  }
  causal_loss(b, logits, labels);
}

ModelFamily llama_family() {
  return {.name = "llama", .language = true, .check = [](JsonReader& r) { read_decoder(r); }, .build = build_llama};
}

}  // namespace precog::zoo
