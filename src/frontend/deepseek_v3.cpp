// DeepseekV3ForCausalLM: multi-head latent attention (low-rank q and kv, a shared rotary key), a few dense layers, then
// routed experts chosen within the best groups plus a shared expert. The multi-token-prediction module is not part of
// this class and is not built; the routers' correction biases are buffers, not parameters.
#include "frontend/experts.h"
#include "frontend/text_blocks.h"

namespace precog::zoo {
namespace deepseek_v3 {
namespace {

struct DeepseekV3 {
  std::int64_t hidden, layers, dense_layers, heads, vocab, intermediate;
  std::int64_t q_rank, kv_rank, nope_dim, rope_dim, value_dim;
  std::int64_t experts, shared_experts, top_k, groups, top_groups, expert_intermediate, classes;
  bool attention_bias, normalize, weigh_inside, interleaved, tied, dynamic_rotary;
  double attention_dropout;
  std::string act;
};

DeepseekV3 read(JsonReader& r) {
  DeepseekV3 a;
  a.hidden = r.required_integer("hidden", 1, kMaxWidth);
  a.layers = r.required_integer("layers", 1, kMaxLayers);
  a.dense_layers = r.required_integer("dense_layers", 0, kMaxLayers);
  a.heads = r.required_integer("heads", 1, kMaxHeads);
  a.vocab = r.required_integer("vocab", 2, kMaxWidth);
  a.intermediate = r.required_integer("intermediate", 1, kMaxWidth);
  r.required_integer("max_positions", 1, std::int64_t{1} << 30);
  a.q_rank = r.integer("q_lora_rank", 1, kMaxWidth).value_or(0);  // 0: one full projection
  a.kv_rank = r.required_integer("kv_lora_rank", 1, kMaxWidth);
  a.nope_dim = r.required_integer("qk_nope_head_dim", 1, kMaxWidth);
  a.rope_dim = r.required_integer("qk_rope_head_dim", 2, kMaxWidth);
  a.value_dim = r.required_integer("v_head_dim", 1, kMaxWidth);
  a.experts = r.required_integer("experts", 1, 1 << 14);
  a.shared_experts = r.required_integer("shared_experts", 1, 1 << 10);
  a.top_k = r.required_integer("experts_per_token", 1, 256);
  a.groups = r.required_integer("expert_groups", 1, 1 << 10);
  a.top_groups = r.required_integer("groups_per_token", 1, 1 << 10);
  a.expert_intermediate = r.required_integer("expert_intermediate", 1, kMaxWidth);
  a.attention_bias = r.boolean("attention_bias").value_or(false);
  a.normalize = r.boolean("normalize_weights").value_or(true);
  a.weigh_inside = r.boolean("weigh_inside").value_or(false);
  a.interleaved = r.boolean("interleaved_rotary").value_or(true);
  a.tied = r.boolean("tie_embeddings").value_or(false);
  a.dynamic_rotary = r.boolean("dynamic_rotary").value_or(false);
  a.attention_dropout = read_probability(r, "attention_dropout");
  a.act = read_activation(r, "silu");
  a.classes = read_classes(r);
  if (a.groups > 0 && (a.experts % a.groups != 0 || a.experts / a.groups < 2))
    r.problem("expert_groups", "must divide experts into groups of at least two");
  if (a.top_groups > a.groups) r.problem("groups_per_token", "must not be more than expert_groups");
  if (a.groups > 0 && a.top_k > a.experts / a.groups * a.top_groups)
    r.problem("experts_per_token", "must not be more than the chosen groups hold");
  if (a.rope_dim % 2 != 0) r.problem("qk_rope_head_dim", "must be even: rotary embeddings turn pairs");
  return a;
}

// Rotary embedding on interleaved pairs: even and odd elements are strided slices.
TensorId rotate_pairs(GraphBuilder& b, TensorId even, TensorId odd, TensorId cos, TensorId sin) {
  TensorId first = b.binary(OpKind::sub, b.mul(even, cos), b.mul(odd, sin));
  TensorId second = b.add(b.mul(odd, cos), b.mul(even, sin));
  return b.cat({first, second}, -1);
}

TensorId attention(GraphBuilder& b, const DeepseekV3& a, TensorId x, TensorId cos, TensorId sin) {
  auto scope = b.module("self_attn");
  const std::int64_t batch = b.shape(x)[0], seq = b.shape(x)[1], qk = a.nope_dim + a.rope_dim, half = a.rope_dim / 2;
  TensorId q;
  if (a.q_rank > 0) {
    q = rms_norm(b, "q_a_layernorm", b.linear_layer("q_a_proj", x, a.q_rank, a.attention_bias));
    q = b.linear_layer("q_b_proj", q, a.heads * qk, false);
  } else {
    q = b.linear_layer("q_proj", x, a.heads * qk, false);
  }
  q = to_heads(b, q, a.heads, qk, GradientCopy::always);
  auto q_parts = b.split(q, -1, {a.nope_dim, a.rope_dim});
  auto compressed = b.split(b.linear_layer("kv_a_proj_with_mqa", x, a.kv_rank + a.rope_dim, a.attention_bias), -1, {a.kv_rank, a.rope_dim});
  TensorId latent = b.view(rms_norm(b, "kv_a_layernorm", compressed[0]), {batch, 1, seq, a.kv_rank});
  TensorId k_rope = b.view(compressed[1], {batch, 1, seq, a.rope_dim});

  TensorId q_turned, k_turned;
  if (a.interleaved) {
    cos = b.view(b.slice(cos, -1, half), {1, 1, seq, half});
    sin = b.view(b.slice(sin, -1, half), {1, 1, seq, half});
    TensorId q_even = b.slice(q_parts[1], -1, half), q_odd = b.slice(q_parts[1], -1, half);
    TensorId k_even = b.slice(k_rope, -1, half), k_odd = b.slice(k_rope, -1, half);
    q_turned = rotate_pairs(b, q_even, q_odd, cos, sin);
    k_turned = rotate_pairs(b, k_even, k_odd, cos, sin);
  } else {
    cos = b.view(cos, {1, 1, seq, a.rope_dim});
    sin = b.view(sin, {1, 1, seq, a.rope_dim});
    q_turned = rotate(b, q_parts[1], cos, sin);
    k_turned = rotate(b, k_rope, cos, sin);
  }
  q = b.cat({q_parts[0], q_turned}, -1);

  TensorId kv = b.linear_layer("kv_b_proj", latent, a.heads * (a.nope_dim + a.value_dim), false);
  kv = b.transpose(b.view(kv, {batch, seq, a.heads, a.nope_dim + a.value_dim}, ViewKind::reshape, GradientCopy::always), 1, 2);
  auto kv_parts = b.split(kv, -1, {a.nope_dim, a.value_dim});
  k_turned = b.expand(k_turned, {batch, a.heads, seq, a.rope_dim});
  // The code copies both parts into an empty tensor, two kernels; joining them moves the same bytes in one. On the way back
  // each of these writes into a slice copies the whole gradient, and then its own part of it.
  auto part = [&](TensorId y) { return b.view(y, b.shape(y), ViewKind::reshape, GradientCopy::always); };
  TensorId k = part(part(b.cat({part(kv_parts[0]), part(k_turned)}, -1)));
  TensorId mixed = b.attention(q, k, kv_parts[1], seq > 1, {}, a.attention_dropout);
  // The joined query is in the order [b, h, s, d], flash attention answers in its query's order: here the copy is real.
  mixed = b.contiguous(b.transpose(mixed, 1, 2), OnlyFor::half);
  mixed = b.view(mixed, {batch, seq, a.heads * a.value_dim});
  return b.linear_layer("o_proj", mixed, a.hidden, a.attention_bias);
}

struct Route {
  TensorId weights, indices;
};

Route route(GraphBuilder& b, const DeepseekV3& a, TensorId x) {
  auto scope = b.module("gate");
  const std::int64_t tokens = b.shape(x)[0], per_group = a.experts / a.groups;
  TensorId weight = b.parameter("weight", {a.experts, a.hidden});
  TensorId logits = b.linear(b.cast_to(x, DType::fp32), b.cast_to(weight, DType::fp32));
  TensorId scores = b.unary(OpKind::sigmoid, logits);
  TensorId biased = b.add(scores, b.buffer("e_score_correction_bias", {a.experts}));
  // Each group's score is the sum of its two best; only experts of the best groups may be chosen.
  TensorId by_group = b.view(biased, {tokens, a.groups, per_group});
  TensorId group_scores = b.sum(b.topk(by_group, 2).first, -1, false);
  TensorId groups = b.topk(group_scores, a.top_groups).second;
  TensorId chosen = b.integer_op({b.integer_op({}, {tokens, a.groups}, DType::fp32), groups}, {tokens, a.groups}, DType::fp32);
  chosen = b.expand(b.view(chosen, {tokens, a.groups, 1}), {tokens, a.groups, per_group});
  chosen = b.view(b.contiguous(chosen), {tokens, a.experts});
  TensorId outside = b.integer_op({chosen}, {tokens, a.experts}, DType::boolean);
  outside = b.integer_op({outside}, {tokens, a.experts}, DType::boolean);
  TensorId indices = b.topk(b.masked_fill(biased, outside), a.top_k).second;
  TensorId weights = b.index_select(scores, indices, {tokens, a.top_k});
  if (a.normalize) {
    TensorId total = b.unary(OpKind::add_scalar, b.sum(weights, -1));
    weights = b.binary(OpKind::div, b.contiguous(weights), total);  // div_, whose operand autograd clones first
  }
  return {b.unary(OpKind::mul_scalar, weights), indices};
}

TensorId mixture(GraphBuilder& b, const DeepseekV3& a, TensorId x) {
  auto scope = b.module("mlp");
  const Shape s = b.shape(x);
  const Shape flat{s[0] * s[1], s[2]};
  const Route chosen = route(b, a, b.view(x, flat));
  TensorId routed = grouped_experts(b, b.view(x, flat), chosen.weights, chosen.indices, a.experts, a.expert_intermediate, a.act, a.weigh_inside);
  return b.add(b.view(routed, s), gated_mlp(b, "shared_experts", x, a.expert_intermediate * a.shared_experts, a.act));
}

void build(GraphBuilder& b, JsonReader& reader, const Sizes& sizes) {
  const DeepseekV3 a = read(reader);
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
    auto [cos, sin] = rotary_embedding(b, positions, a.rope_dim, x, a.dynamic_rotary);
    for (std::int64_t layer = 0; layer < a.layers; ++layer) {
      if (!b.begin_layer(layer)) continue;
      auto scope = b.module("layers." + std::to_string(layer));
      x = b.add(x, attention(b, a, rms_norm(b, "input_layernorm", x), cos, sin));
      TensorId normal = rms_norm(b, "post_attention_layernorm", x);
      x = b.add(x, layer < a.dense_layers ? gated_mlp(b, "mlp", normal, a.intermediate, a.act) : mixture(b, a, normal));
    }
    b.set_block(-1);
    x = rms_norm(b, "norm", x);
  }
  if (a.classes > 0) return sequence_classification(b, x, ids, labels, a.classes);
  x = b.view(x, b.shape(x));  // [:, 0:, :], all logits are kept
  TensorId logits;
  {
    auto head = b.module("lm_head");
    logits = b.linear(x, a.tied ? table : b.parameter("weight", {a.vocab, a.hidden}));
  }
  causal_loss(b, logits, labels);
}

std::vector<int> kinds(JsonReader& r) {
  const DeepseekV3 a = read(r);
  std::vector<int> out;
  for (std::int64_t layer = 0; layer < a.layers; ++layer) out.push_back(layer < a.dense_layers ? 0 : 1);
  return out;
}

}  // namespace
}  // namespace deepseek_v3

ModelFamily deepseek_v3_family() {
  return {.name = "deepseek_v3", .language = true, .check = [](JsonReader& r) { deepseek_v3::read(r); }, .build = deepseek_v3::build, .layer_kinds = deepseek_v3::kinds};
}

}  // namespace precog::zoo
