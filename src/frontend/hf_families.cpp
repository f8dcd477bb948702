// The keys and defaults of each configuration class of transformers 5.17 (models/<type>/configuration_<type>.py).
#include <algorithm>

#include <fmt/format.h>

#include "frontend/hf_reader.h"

namespace precog::hf {
namespace {

constexpr std::int64_t kWidth = 1 << 18, kInner = 1 << 20, kVocabulary = 1 << 22, kLayers = 4096, kHeads = 1 << 14, kExperts = 1 << 12;

struct Size {
  std::int64_t vocab, hidden, intermediate, layers, heads;
  std::int64_t kv_heads;   // 0: as heads
  std::int64_t head_dim;   // 0: hidden / heads
  std::int64_t positions;
};

// What every decoder of Llama's kind has. Returns the number of layers.
std::int64_t decoder(Reader& r, const Size& d) {
  r.integer("vocab", {"vocab_size"}, d.vocab, 2, kVocabulary);
  const std::int64_t hidden = r.integer("hidden", {"hidden_size"}, d.hidden, 1, kWidth);
  r.integer("intermediate", {"intermediate_size"}, d.intermediate, 1, kInner);
  const std::int64_t layers = r.integer("layers", {"num_hidden_layers"}, d.layers, 1, kLayers);
  const std::int64_t heads = r.integer("heads", {"num_attention_heads"}, d.heads, 1, kHeads);
  const std::int64_t fallback = d.kv_heads == 0 || r.null("num_key_value_heads") ? heads : d.kv_heads;
  r.integer("kv_heads", {"num_key_value_heads"}, fallback, 1, kHeads);
  const std::int64_t width = r.integer("head_dim", {"head_dim"}, d.head_dim != 0 ? d.head_dim : heads > 0 ? hidden / heads : 0, 0, 1 << 14);
  if (width < 2) r.in.problem("hidden_size", fmt::format("is {}: too small for {} heads", hidden, heads));
  r.max_positions = r.integer("max_positions", {"max_position_embeddings"}, d.positions, 1, std::int64_t{1} << 30);
  r.probability("attention_dropout", {"attention_dropout"}, 0);
  r.read_rope_type();
  return layers;
}

void tie(Reader& r, bool fallback) { r.boolean("tie_embeddings", {"tie_word_embeddings"}, fallback); }

void attention_bias(Reader& r) {
  const bool bias = r.boolean("qkv_bias", {"attention_bias"}, false);
  r.set("out_bias", "attention_bias", bias);
}

// A window, or 0: `fallback` where the key is absent; null is none.
std::int64_t window(Reader& r, std::int64_t fallback) {
  if (r.null("sliding_window")) return 0;
  return r.in.integer("sliding_window", 1, std::int64_t{1} << 30).value_or(fallback);
}
void set_window(Reader& r, std::int64_t tokens) {
  if (tokens > 0) r.set("sliding_window", "sliding_window", tokens);
}

void llama(Reader& r) {
  decoder(r, {32000, 4096, 11008, 32, 32, 0, 0, 2048});
  r.activation({"hidden_act"}, "silu");
  attention_bias(r);
  r.boolean("mlp_bias", {"mlp_bias"}, false);
  tie(r, false);
}

void mistral(Reader& r) {
  decoder(r, {32000, 4096, 14336, 32, 32, 8, 0, 4096 * 32});
  r.activation({"hidden_act"}, "silu");
  set_window(r, window(r, 4096));
  tie(r, false);
}

void qwen_layers(Reader& r, std::int64_t layers) {
  const bool use = r.in.boolean("use_sliding_window").value_or(false);
  const std::int64_t tokens = use ? window(r, 4096) : 0;
  const std::int64_t from = r.in.integer("max_window_layers", 0, kLayers).value_or(28);
  set_window(r, tokens);
  r.set("masks", "layer_types", "by_layer");
  r.sliding_layers(layers, [](std::int64_t layer, std::int64_t first) { return layer >= first; }, tokens > 0 ? from : kLayers + 1);
}

void qwen2(Reader& r) {
  const std::int64_t layers = decoder(r, {151936, 4096, 22016, 32, 32, 32, 0, 32768});
  r.activation({"hidden_act"}, "silu");
  r.set("qkv_bias", "model_type", true);
  qwen_layers(r, layers);
  tie(r, false);
}

void qwen3(Reader& r) {
  const std::int64_t layers = decoder(r, {151936, 4096, 22016, 32, 32, 32, 128, 32768});
  r.activation({"hidden_act"}, "silu");
  r.set("qk_norm", "model_type", true);
  attention_bias(r);
  qwen_layers(r, layers);
  tie(r, false);
}

void experts(Reader& r, std::initializer_list<const char*> count, std::int64_t count_fallback, std::int64_t chosen) {
  r.integer("experts", count, count_fallback, 1, kExperts);
  r.integer("experts_per_token", {"num_experts_per_tok"}, chosen, 1, 256);
  r.refuse("output_router_logits", r.in.boolean("output_router_logits").value_or(false), "the routers' auxiliary loss is not built");
}

void mixtral(Reader& r) {
  decoder(r, {32000, 4096, 14336, 32, 32, 8, 0, 4096 * 32});
  r.activation({"hidden_act"}, "silu");
  set_window(r, window(r, 0));
  tie(r, false);
  experts(r, {"num_local_experts", "num_experts"}, 8, 2);
  r.refuse("router_jitter_noise", r.in.number("router_jitter_noise", 0, 1).value_or(0) > 0, "noise on the routers' input is not built");
}

void qwen_experts(Reader& r, std::int64_t width, std::int64_t count, std::int64_t chosen) {
  experts(r, {"num_experts", "num_local_experts"}, count, chosen);
  r.integer("expert_intermediate", {"moe_intermediate_size"}, width, 1, kInner);
  r.integer("sparse_step", {"decoder_sparse_step"}, 1, 1, kLayers);
  r.boolean("normalize_weights", {"norm_topk_prob"}, false);
  r.set("cast_weights", "model_type", true);
  if (const Json* dense = r.in.raw("mlp_only_layers"); dense && !dense->is_null()) {
    Json layers = Json::array();
    bool right = dense->is_array() && dense->size() <= static_cast<std::size_t>(kLayers);
    if (right)
      for (const Json& layer : *dense) {
        right = right && layer.is_number_integer();
        layers.push_back(layer);
      }
    if (right) r.set("dense_mlp_layers", "mlp_only_layers", layers);
    else r.in.problem("mlp_only_layers", "wants a list of layer numbers");
  }
}

void qwen2_moe(Reader& r) {
  const std::int64_t layers = decoder(r, {151936, 2048, 5632, 24, 16, 16, 0, 32768});
  r.activation({"hidden_act"}, "silu");
  r.boolean("qkv_bias", {"qkv_bias"}, true);
  tie(r, false);
  qwen_experts(r, 1408, 60, 4);
  r.integer("shared_intermediate", {"shared_expert_intermediate_size"}, 5632, 1, kInner);
  const bool use = r.in.boolean("use_sliding_window").value_or(false);
  const std::int64_t first_full = r.in.integer("max_window_layers", 0, kLayers).value_or(28);
  set_window(r, use ? window(r, 4096) : 0);
  r.set("masks", "layer_types", "both");
  r.sliding_layers(layers, [](std::int64_t layer, std::int64_t end) { return layer % 2 == 0 && layer < end; }, use ? first_full : 0);
}

void qwen3_moe(Reader& r) {
  decoder(r, {151936, 2048, 6144, 24, 32, 4, 0, 32768});
  r.activation({"hidden_act"}, "silu");
  r.set("qk_norm", "model_type", true);
  attention_bias(r);
  tie(r, false);
  qwen_experts(r, 768, 128, 8);
  if (r.in.boolean("use_sliding_window").value_or(false)) set_window(r, window(r, 4096));
}

void gemma_common(Reader& r, std::initializer_list<const char*> act) {
  r.activation(act, "gelu_pytorch_tanh");
  attention_bias(r);
  tie(r, true);
  r.set("plus_one_norm", "model_type", true);
  r.set("scale_embedding", "model_type", true);
  r.refuse("use_bidirectional_attention", r.in.boolean("use_bidirectional_attention").value_or(false), "attention both ways is not built");
}

void gemma(Reader& r) {
  decoder(r, {256000, 3072, 24576, 28, 16, 16, 256, 8192});
  gemma_common(r, {"hidden_act"});
}

// Gemma 2 and 3: norms before and behind, sliding layers in a pattern, always both masks.
void gemma_windows(Reader& r, std::int64_t layers, std::int64_t pattern, double softcap) {
  r.set("sandwich_norms", "model_type", true);
  r.set("masks", "layer_types", "both");
  const std::int64_t tokens = window(r, 4096);
  if (tokens == 0) r.in.problem("sliding_window", "is null; this model's sliding layers need a number of tokens");
  set_window(r, tokens);
  r.sliding_layers(layers, [](std::int64_t layer, std::int64_t every) { return (layer + 1) % every != 0; }, std::max<std::int64_t>(1, pattern));
  const double cap = r.null("final_logit_softcapping") ? 0 : r.in.number("final_logit_softcapping", 0, 1e6).value_or(softcap);
  r.set("cap_logits", "final_logit_softcapping", cap > 0);
}

void gemma2(Reader& r) {
  const std::int64_t layers = decoder(r, {256000, 2304, 9216, 26, 8, 4, 256, 8192});
  gemma_common(r, {"hidden_activation"});
  gemma_windows(r, layers, 2, 30);
  if (!r.null("attn_logit_softcapping"))
    r.notes.emplace_back("attn_logit_softcapping is left out: transformers applies it with eager attention only, and this is SDPA");
}

void gemma3(Reader& r) {
  const std::int64_t layers = decoder(r, {262208, 2304, 9216, 26, 8, 4, 256, 131072});
  gemma_common(r, {"hidden_activation"});
  gemma_windows(r, layers, r.in.integer("sliding_window_pattern", 1, kLayers).value_or(6), 0);
  r.set("qk_norm", "model_type", true);
  r.set("rotary_by_layer", "model_type", true);
}

// int(head_dim * factor) of Python, which cuts off.
void partial_rotary(Reader& r, double factor) {
  const auto heads = r.architecture.value("head_dim", std::int64_t{0});
  const double part = static_cast<double>(heads) * factor;
  const auto width = static_cast<std::int64_t>(std::clamp(part, 0.0, 1e6));
  if (width < 2 || width % 2 != 0 || width > heads)
    r.in.problem("partial_rotary_factor", fmt::format("is {:g}: {:g} of a head's {} elements would turn; it must be an even number of them", factor, part, heads));
  r.set("rotary_dim", "partial_rotary_factor", width);
}

void phi(Reader& r) {
  decoder(r, {51200, 2048, 8192, 24, 32, 0, 0, 2048});
  r.activation({"hidden_act"}, "gelu_new");
  r.probability("dropout", {"resid_pdrop"}, 0);
  r.probability("embedding_dropout", {"embd_pdrop"}, 0);
  r.boolean("qk_norm", {"qk_layernorm"}, false);
  partial_rotary(r, r.rope_number("partial_rotary_factor", 0.5));
  tie(r, false);
}

void phi3(Reader& r) {
  decoder(r, {32064, 3072, 8192, 32, 32, 0, 0, 4096});
  r.activation({"hidden_act"}, "silu");
  r.probability("dropout", {"resid_pdrop"}, 0);
  r.set("fused_projections", "model_type", true);
  partial_rotary(r, r.rope_number("partial_rotary_factor", 1.0));
  set_window(r, window(r, 0));
  tie(r, false);
}

void gpt2(Reader& r) {
  r.integer("vocab", {"vocab_size"}, 50257, 2, kVocabulary);
  const std::int64_t hidden = r.integer("hidden", {"n_embd", "hidden_size"}, 768, 1, kWidth);
  r.integer("layers", {"n_layer", "num_hidden_layers"}, 12, 1, kLayers);
  r.integer("heads", {"n_head", "num_attention_heads"}, 12, 1, kHeads);
  r.max_positions = r.integer("max_positions", {"n_positions", "max_position_embeddings"}, 1024, 1, kVocabulary);
  r.integer("intermediate", {"n_inner"}, 4 * hidden, 1, kInner);
  r.activation({"activation_function"}, "gelu_new");
  r.probability("dropout", {"resid_pdrop"}, 0.1);
  r.probability("embedding_dropout", {"embd_pdrop"}, 0.1);
  r.probability("attention_dropout", {"attn_pdrop"}, 0.1);
  tie(r, true);
  r.refuse("add_cross_attention", r.in.boolean("add_cross_attention").value_or(false), "cross attention is not built");
}

void gpt_neox(Reader& r) {
  r.integer("vocab", {"vocab_size"}, 50432, 2, kVocabulary);
  const std::int64_t hidden = r.integer("hidden", {"hidden_size"}, 6144, 1, kWidth);
  r.integer("layers", {"num_hidden_layers"}, 44, 1, kLayers);
  const std::int64_t heads = r.integer("heads", {"num_attention_heads"}, 64, 1, kHeads);
  r.integer("intermediate", {"intermediate_size"}, 24576, 1, kInner);
  r.max_positions = r.integer("max_positions", {"max_position_embeddings"}, 2048, 1, std::int64_t{1} << 30);
  r.activation({"hidden_act"}, "gelu");
  r.probability("attention_dropout", {"attention_dropout"}, 0);
  r.probability("dropout", {"hidden_dropout"}, 0);
  r.boolean("parallel_residual", {"use_parallel_residual"}, true);
  r.boolean("attention_bias", {"attention_bias"}, true);
  tie(r, false);
  r.read_rope_type();
  r.architecture["head_dim"] = heads > 0 ? hidden / heads : 0;
  partial_rotary(r, r.rope_number("partial_rotary_factor", r.in.number("rotary_pct", 0, 1).value_or(0.25)));
  r.architecture.erase("head_dim");
}

void opt(Reader& r) {
  r.integer("vocab", {"vocab_size"}, 50272, 2, kVocabulary);
  const std::int64_t hidden = r.integer("hidden", {"hidden_size"}, 768, 1, kWidth);
  r.integer("layers", {"num_hidden_layers"}, 12, 1, kLayers);
  r.integer("heads", {"num_attention_heads"}, 12, 1, kHeads);
  r.integer("intermediate", {"ffn_dim"}, 3072, 1, kInner);
  r.max_positions = r.integer("max_positions", {"max_position_embeddings"}, 2048, 1, kVocabulary);
  r.integer("embedding", {"word_embed_proj_dim"}, hidden, 1, kWidth);
  r.activation({"activation_function"}, "relu");
  r.probability("attention_dropout", {"attention_dropout"}, 0);
  r.probability("dropout", {"dropout"}, 0.1);
  const bool first = r.boolean("norm_first", {"do_layer_norm_before"}, true);
  r.set("final_norm", "_remove_final_layer_norm", first && !r.in.boolean("_remove_final_layer_norm").value_or(false));
  r.boolean("bias", {"enable_bias"}, true);
  tie(r, true);
  r.refuse("layer_norm_elementwise_affine", !r.in.boolean("layer_norm_elementwise_affine").value_or(true), "norms without parameters are not built");
  r.refuse("layerdrop", r.in.number("layerdrop", 0, 1).value_or(0) > 0, "layers dropped at random are not built");
}

void bert_like(Reader& r, std::int64_t vocab, bool roberta) {
  r.integer("vocab", {"vocab_size"}, vocab, 2, kVocabulary);
  r.integer("hidden", {"hidden_size"}, 768, 1, kWidth);
  r.integer("layers", {"num_hidden_layers"}, 12, 1, kLayers);
  r.integer("heads", {"num_attention_heads"}, 12, 1, kHeads);
  r.integer("intermediate", {"intermediate_size"}, 3072, 1, kInner);
  r.max_positions = r.integer("max_positions", {"max_position_embeddings"}, 512, 1, kVocabulary);
  r.integer("token_types", {"type_vocab_size"}, 2, 1, kVocabulary);
  r.activation({"hidden_act"}, "gelu");
  const double dropout = r.probability("dropout", {"hidden_dropout_prob"}, 0.1);
  r.probability("attention_dropout", {"attention_probs_dropout_prob"}, 0.1);
  r.probability("classifier_dropout", {"classifier_dropout"}, dropout);
  tie(r, true);
  r.refuse("is_decoder", r.in.boolean("is_decoder").value_or(false), "this encoder as a decoder is not built");
  r.refuse("add_cross_attention", r.in.boolean("add_cross_attention").value_or(false), "cross attention is not built");
  const std::string places = r.in.text("position_embedding_type").value_or("absolute");
  r.refuse("position_embedding_type", places != "absolute", "only absolute positions are built");
  if (roberta) {
    r.set("roberta", "model_type", true);
    // Positions start behind the padding token's.
    r.max_positions -= r.in.integer("pad_token_id", 0, kVocabulary).value_or(1) + 1;
    if (r.max_positions < 1) r.in.problem("max_position_embeddings", "leaves no position: they start behind pad_token_id");
  }
  if (r.head == Head::pretraining) r.set("next_sentence", "architectures", true);
}

void bert(Reader& r) { bert_like(r, 30522, false); }
void roberta(Reader& r) { bert_like(r, 50265, true); }

void t5(Reader& r) {
  r.integer("vocab", {"vocab_size"}, 32128, 2, kVocabulary);
  r.integer("hidden", {"d_model", "hidden_size"}, 512, 1, kWidth);
  r.integer("head_dim", {"d_kv", "head_dim"}, 64, 1, 1 << 14);
  r.integer("intermediate", {"d_ff"}, 2048, 1, kInner);
  const std::int64_t layers = r.integer("layers", {"num_layers", "num_hidden_layers"}, 6, 1, kLayers);
  r.integer("decoder_layers", {"num_decoder_layers"}, layers, 1, kLayers);
  r.integer("heads", {"num_heads", "num_attention_heads"}, 8, 1, kHeads);
  r.integer("relative_buckets", {"relative_attention_num_buckets"}, 32, 1, kVocabulary);
  r.probability("dropout", {"dropout_rate"}, 0.1);
  const std::string projection = r.in.text("feed_forward_proj").value_or("relu");
  const bool gated = projection.rfind("gated-", 0) == 0;
  r.set("gated", "feed_forward_proj", gated);
  r.set("activation", "feed_forward_proj", projection == "gated-gelu" ? "gelu_new" : gated ? projection.substr(6) : projection);
  // transformers 5 ties the head whatever this says; it only tells whether the decoder's outputs are scaled.
  r.set("scale_outputs", "tie_word_embeddings", r.in.boolean("tie_word_embeddings").value_or(true));
  r.max_positions = r.in.integer("n_positions", 1, std::int64_t{1} << 20).value_or(512);
}

void deepseek_v3(Reader& r) {
  r.integer("vocab", {"vocab_size"}, 129280, 2, kVocabulary);
  r.integer("hidden", {"hidden_size"}, 7168, 1, kWidth);
  r.integer("intermediate", {"intermediate_size"}, 18432, 1, kInner);
  r.integer("expert_intermediate", {"moe_intermediate_size"}, 2048, 1, kInner);
  r.integer("layers", {"num_hidden_layers"}, 61, 1, kLayers);
  const std::int64_t heads = r.integer("heads", {"num_attention_heads"}, 128, 1, kHeads);
  const std::int64_t kv_heads = r.null("num_key_value_heads") ? heads : r.in.integer("num_key_value_heads", 1, kHeads).value_or(128);
  r.refuse("num_key_value_heads", kv_heads != heads, "latent attention with fewer key heads than heads is not built");
  r.integer("shared_experts", {"n_shared_experts"}, 1, 1, kExperts);
  r.integer("experts", {"n_routed_experts", "num_local_experts"}, 256, 1, kExperts);
  r.integer("kv_lora_rank", {"kv_lora_rank"}, 512, 1, kWidth);
  if (!r.null("q_lora_rank")) r.integer("q_lora_rank", {"q_lora_rank"}, 1536, 1, kWidth);
  r.integer("qk_rope_head_dim", {"qk_rope_head_dim"}, 64, 2, 1 << 14);
  r.integer("qk_nope_head_dim", {"qk_nope_head_dim"}, 128, 1, 1 << 14);
  r.integer("v_head_dim", {"v_head_dim"}, 128, 1, 1 << 14);
  r.integer("expert_groups", {"n_group"}, 8, 1, kExperts);
  r.integer("groups_per_token", {"topk_group"}, 4, 1, kExperts);
  r.integer("experts_per_token", {"num_experts_per_tok"}, 8, 1, 256);
  r.integer("dense_layers", {"first_k_dense_replace"}, 3, 0, kLayers);
  r.boolean("normalize_weights", {"norm_topk_prob"}, true);
  r.boolean("interleaved_rotary", {"rope_interleave"}, true);
  r.boolean("attention_bias", {"attention_bias"}, false);
  r.probability("attention_dropout", {"attention_dropout"}, 0);
  r.activation({"hidden_act"}, "silu");
  r.max_positions = r.integer("max_positions", {"max_position_embeddings"}, 4096, 1, std::int64_t{1} << 30);
  tie(r, false);
  r.read_rope_type();
}

// "224", or "[224, 224]".
std::int64_t square(Reader& r, const char* name, const char* key, std::int64_t fallback) {
  const Json* value = r.in.raw(key);
  std::int64_t side = fallback;
  if (value && value->is_array()) {
    const bool right = value->size() == 2 && (*value)[0].is_number_integer() && (*value)[0] == (*value)[1];
    if (right) side = (*value)[0].get<std::int64_t>();
    else r.in.problem(key, "wants one number, or a list of two that are the same");
    if (right && (side < 1 || side > 4096)) r.in.problem(key, fmt::format("is {}; 1 to 4096 are possible", side));
  } else {
    side = r.in.integer(key, 1, 4096).value_or(fallback);
  }
  r.set(name, key, side);
  return side;
}

void vit(Reader& r) {
  r.integer("hidden", {"hidden_size"}, 768, 1, kWidth);
  r.integer("layers", {"num_hidden_layers"}, 12, 1, kLayers);
  r.integer("heads", {"num_attention_heads"}, 12, 1, kHeads);
  r.integer("mlp", {"intermediate_size"}, 3072, 1, kInner);
  square(r, "image", "image_size", 224);
  square(r, "patch", "patch_size", 16);
  r.integer("channels", {"num_channels"}, 3, 1, 4096);
  r.activation({"hidden_act"}, "gelu");
  r.probability("dropout", {"hidden_dropout_prob"}, 0);
  r.probability("attention_dropout", {"attention_probs_dropout_prob"}, 0);
  r.boolean("qkv_bias", {"qkv_bias"}, true);
}

}  // namespace

const std::vector<Type>& types() {
  using enum Head;
  static const std::vector<Type> kTypes = {
      {"llama", "llama", {language_model, classifier}, language_model, llama},
      {"mistral", "llama", {language_model, classifier}, language_model, mistral},
      {"mixtral", "mixtral", {language_model, classifier}, language_model, mixtral},
      {"qwen2", "llama", {language_model, classifier}, language_model, qwen2},
      {"qwen3", "llama", {language_model, classifier}, language_model, qwen3},
      {"qwen2_moe", "mixtral", {language_model, classifier}, language_model, qwen2_moe},
      {"qwen3_moe", "mixtral", {language_model, classifier}, language_model, qwen3_moe},
      {"gemma", "llama", {language_model, classifier}, language_model, gemma},
      {"gemma2", "llama", {language_model, classifier}, language_model, gemma2},
      {"gemma3_text", "llama", {language_model, classifier}, language_model, gemma3},
      {"phi", "phi", {language_model, classifier}, language_model, phi},
      {"phi3", "llama", {language_model, classifier}, language_model, phi3},
      {"gpt2", "gpt2", {language_model, classifier}, language_model, gpt2},
      {"gpt_neox", "gpt_neox", {language_model, classifier}, language_model, gpt_neox},
      {"opt", "opt", {language_model, classifier}, language_model, opt},
      {"bert", "bert", {masked, pretraining, classifier}, masked, bert},
      {"roberta", "bert", {masked, classifier}, masked, roberta},
      {"t5", "t5", {translation}, translation, t5},
      {"deepseek_v3", "deepseek_v3", {language_model, classifier}, language_model, deepseek_v3},
      {"vit", "hf_vit", {classifier}, classifier, vit},
  };
  return kTypes;
}

}  // namespace precog::hf
