// Llama and the models that are Llama with a switch turned: Mistral (sliding window), Qwen2 (biases on q, k, v; tied
// embeddings), Qwen3 (norms on q and k), Gemma 1 to 3 (another norm, a scaled embedding, more norms, capped logits), Phi-3
// (fused projections), Nemotron (layer norm, an MLP without a gate). Their ...ForCausalLM and ...ForSequenceClassification classes.
#include "frontend/llama.h"

#include <tuple>

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
  a.rotary_dim = r.integer("rotary_dim", 2, kMaxWidth).value_or(0);
  if (const Json* layers = r.raw("sliding_layers"); layers && layers->is_array())
    for (const Json& slides : *layers) a.sliding_layers.push_back(slides.is_boolean() && slides.get<bool>());
  const std::string masks = r.text("masks").value_or("one");
  a.masks = masks == "both" ? Masks::both : masks == "by_layer" ? Masks::by_layer : Masks::one;
  a.out_bias = r.boolean("out_bias").value_or(false);
  a.mlp_bias = r.boolean("mlp_bias").value_or(false);
  a.qk_norm = r.boolean("qk_norm").value_or(false);
  a.plus_one_norm = r.boolean("plus_one_norm").value_or(false);
  a.sandwich_norms = r.boolean("sandwich_norms").value_or(false);
  a.scale_embedding = r.boolean("scale_embedding").value_or(false);
  a.cap_logits = r.boolean("cap_logits").value_or(false);
  a.gated = r.boolean("gated").value_or(true);
  a.layer_norm = r.boolean("layer_norm").value_or(false);
  a.fused_projections = r.boolean("fused_projections").value_or(false);
  a.dynamic_rotary = r.boolean("dynamic_rotary").value_or(false);
  a.rotary_by_layer = r.boolean("rotary_by_layer").value_or(false);
  a.attention_dropout = read_probability(r, "attention_dropout");
  a.dropout = read_probability(r, "dropout");
  a.act = read_activation(r, "silu");
  a.classes = read_classes(r);
  if (masks != "one" && masks != "both" && masks != "by_layer") r.problem("masks", "known: one, by_layer, both");
  if (a.rotary_dim % 2 != 0 || a.rotary_dim > a.head_dim) r.problem("rotary_dim", "must be even and at most head_dim");
  if (a.kv_heads > 0 && a.heads % a.kv_heads != 0) r.problem("kv_heads", "must divide heads");
  if (a.head_dim % 2 != 0) r.problem("head_dim", "must be even: rotary embeddings turn pairs");
  return a;
}

TensorId sliding_window_mask(GraphBuilder& b, const DecoderArchitecture& a, const Sizes& sizes) {
  // A window that the sequence outgrows needs a mask of its own; below it `is_causal` suffices.
  // Qwen2-MoE without a window asks for one of 0, which every sequence outgrows, and uses it nowhere.
  if (a.sliding_window == 0 ? a.masks != Masks::both : sizes.seq < a.sliding_window) return {};
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

TensorId feed_forward(GraphBuilder& b, const DecoderArchitecture& a, TensorId x) {
  if (a.gated && !a.fused_projections) return gated_mlp(b, "mlp", x, a.intermediate, a.act, a.mlp_bias);
  auto scope = b.module("mlp");
  if (!a.gated) return b.linear_layer("down_proj", activation(b, a.act, b.linear_layer("up_proj", x, a.intermediate, a.mlp_bias)), a.hidden, a.mlp_bias);
  auto halves = b.split(b.linear_layer("gate_up_proj", x, 2 * a.intermediate, a.mlp_bias), -1, {a.intermediate, a.intermediate});
  return b.linear_layer("down_proj", b.mul(halves[1], activation(b, a.act, halves[0])), a.hidden, a.mlp_bias);
}

TensorId norm(GraphBuilder& b, const DecoderArchitecture& a, std::string_view name, TensorId x) {
  if (a.layer_norm) return b.layer_norm_layer(name, x);
  return a.plus_one_norm ? rms_norm_plus_one(b, name, x) : rms_norm(b, name, x);
}

struct Heads {
  TensorId q, k, v;  // [b, h, s, d]
};

Heads project(GraphBuilder& b, const DecoderArchitecture& a, TensorId x) {
  const std::int64_t q_width = a.heads * a.head_dim, kv_width = a.kv_heads * a.head_dim;
  Heads out;
  if (a.fused_projections) {
    TensorId fused = b.linear_layer("qkv_proj", x, q_width + 2 * kv_width, a.qkv_bias);
    TensorId q = b.slice(fused, -1, q_width), k = b.slice(fused, -1, kv_width), v = b.slice(fused, -1, kv_width);
    out = {to_heads(b, q, a.heads, a.head_dim, GradientCopy::always), to_heads(b, k, a.kv_heads, a.head_dim, GradientCopy::always),
           to_heads(b, v, a.kv_heads, a.head_dim)};
  } else {
    // Norms over a head's width run before or behind the transposition: the same kernels over the same elements.
    auto heads = [&](const char* name, const char* scale, std::int64_t width, std::int64_t count) {
      TensorId y = b.linear_layer(name, x, width, a.qkv_bias);
      if (!*scale) return to_heads(b, y, count, a.head_dim);
      if (!a.qk_norm) return to_heads(b, y, count, a.head_dim, GradientCopy::always);
      const Shape s = b.shape(y);
      return b.transpose(norm(b, a, scale, b.view(y, {s[0], s[1], count, a.head_dim}, ViewKind::reshape, GradientCopy::always)), 1, 2);
    };
    out.q = heads("q_proj", "q_norm", q_width, a.heads);
    out.k = heads("k_proj", "k_norm", kv_width, a.kv_heads);
    out.v = heads("v_proj", "", kv_width, a.kv_heads);
  }
  return out;
}

void build_llama(GraphBuilder& b, JsonReader& reader, const Sizes& sizes) {
  const DecoderArchitecture a = read_decoder(reader);
  build_decoder(b, a, sizes, [&](TensorId x, std::int64_t) { return feed_forward(b, a, x); });
}

}  // namespace

TensorId decoder_attention(GraphBuilder& b, const DecoderArchitecture& a, TensorId x, TensorId cos, TensorId sin, TensorId mask) {
  auto scope = b.module("self_attn");
  auto [q, k, v] = project(b, a, x);
  const Shape flat = b.shape(cos);
  const Shape spread{1, 1, flat[1], flat[2]};
  cos = b.view(cos, spread);
  sin = b.view(sin, spread);
  if (a.rotary_dim > 0) {
    std::tie(q, k) = rotate_partly(b, q, k, cos, sin);
  } else {
    q = rotate(b, q, cos, sin);
    k = rotate(b, k, cos, sin);
  }
  if (mask.valid() || a.head_dim > 256) {  // use_gqa_in_sdpa
    k = repeat_heads(b, k, a.heads / a.kv_heads);
    v = repeat_heads(b, v, a.heads / a.kv_heads);
  }
  const bool causal = !mask.valid() && b.shape(q)[2] > 1;
  TensorId mixed = b.attention(q, k, v, causal, mask, a.attention_dropout);
  if (a.rotary_dim > 0) {
    // A joined query is in the order [b, h, s, d], flash attention answers in its query's order: here the copy is real.
    mixed = b.contiguous(b.transpose(mixed, 1, 2), OnlyFor::half);
    mixed = b.view(mixed, {b.shape(mixed)[0], b.shape(mixed)[1], a.heads * a.head_dim});
  } else {
    mixed = from_heads(b, mixed);
  }
  return b.linear_layer("o_proj", mixed, a.hidden, a.out_bias);
}

void build_decoder(GraphBuilder& b, const DecoderArchitecture& a, const Sizes& sizes,
                   const std::function<TensorId(TensorId, std::int64_t)>& feed_forward) {
  auto [ids, labels] = token_inputs(b, sizes, a.classes);
  TensorId table, x;
  {
    auto model = b.module("model");
    {
      auto scope = b.module("embed_tokens");
      table = b.parameter("weight", {a.vocab, a.hidden});
      x = b.embedding(table, ids);
      if (a.scale_embedding) x = b.mul(x, b.cast_like(b.buffer("embed_scale", {}), table));
    }
    TensorId positions = position_ids(b, sizes.seq);
    packed_sequence_check(b, positions, sizes.batch);
    bool any_slides = false;
    for (std::int64_t layer = 0; layer < a.layers; ++layer) any_slides = any_slides || a.slides(layer);
    if (a.masks == Masks::both || (a.masks == Masks::by_layer && any_slides)) packed_sequence_check(b, positions, sizes.batch);
    TensorId window;
    if (any_slides || a.masks == Masks::both) window = sliding_window_mask(b, a, sizes);
    const std::int64_t turned = a.rotary_dim > 0 ? a.rotary_dim : a.head_dim;
    std::pair<TensorId, TensorId> global, local;
    global = rotary_embedding(b, positions, turned, x, a.dynamic_rotary, a.rotary_by_layer ? "full_attention_inv_freq" : "inv_freq");
    if (a.rotary_by_layer && any_slides) local = rotary_embedding(b, positions, turned, x, false, "sliding_attention_inv_freq");
    for (std::int64_t layer = 0; layer < a.layers; ++layer) {
      if (!b.begin_layer(layer)) continue;
      auto scope = b.module("layers." + std::to_string(layer));
      const bool slides = a.slides(layer);
      const auto& [cos, sin] = a.rotary_by_layer && slides ? local : global;
      TensorId mixed = decoder_attention(b, a, norm(b, a, "input_layernorm", x), cos, sin, slides ? window : TensorId{});
      if (a.sandwich_norms) mixed = norm(b, a, "post_attention_layernorm", mixed);
      x = b.add(x, b.dropout(mixed, a.dropout));
      TensorId fed = feed_forward(norm(b, a, a.sandwich_norms ? "pre_feedforward_layernorm" : "post_attention_layernorm", x), layer);
      if (a.sandwich_norms) fed = norm(b, a, "post_feedforward_layernorm", fed);
      x = b.add(x, b.dropout(fed, a.dropout));
    }
    b.set_block(-1);
    x = norm(b, a, "norm", x);
  }
  if (a.classes > 0) return sequence_classification(b, x, ids, labels, a.classes);
  x = b.view(x, b.shape(x));  // [:, 0:, :], all logits are kept
  TensorId logits;
  {
    auto head = b.module("lm_head");
    logits = b.linear(x, a.tie_embeddings ? table : b.parameter("weight", {a.vocab, a.hidden}));
  }
  if (a.cap_logits) logits = b.unary(OpKind::mul_scalar, b.unary(OpKind::tanh, b.unary(OpKind::mul_scalar, logits)));
  causal_loss(b, logits, labels);
}

std::vector<int> decoder_kinds(const DecoderArchitecture& a) {
  std::vector<int> out;
  for (std::int64_t layer = 0; layer < a.layers; ++layer) out.push_back(a.slides(layer) ? 1 : 0);
  return out;
}

ModelFamily llama_family() {
  return {.name = "llama", .language = true, .check = [](JsonReader& r) { read_decoder(r); }, .build = build_llama,
          .layer_kinds = [](JsonReader& r) { return decoder_kinds(read_decoder(r)); }};
}

}  // namespace precog::zoo
