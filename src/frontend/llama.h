// The decoder-only skeleton of Llama and its relatives, shared by the dense models and the mixtures of experts.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "frontend/families.h"

namespace precog::zoo {

// When transformers makes masks, and with them looks for packed sequences, once per mask.
enum class Masks : std::uint8_t {
  one,               // one for all layers: causal, or of the sliding window where there is one
  by_layer,          // a causal one, and one of the window if a layer slides
  both,              // always a causal one and one of the window
};

struct DecoderArchitecture {
  std::int64_t hidden = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0, intermediate = 0, vocab = 0;
  std::int64_t rotary_dim = 0;               // 0: the whole head turns, in place; else a part (or all) is cut off and joined again
  std::int64_t sliding_window = 0;           // 0: none
  std::vector<bool> sliding_layers;          // which layers slide; empty: all, where there is a window
  Masks masks = Masks::one;
  bool tie_embeddings = false, qkv_bias = false, out_bias = false, mlp_bias = false;
  bool qk_norm = false;                      // q and k are normalised over each head's width
  bool plus_one_norm = false;                // Gemma's RMS norm
  bool sandwich_norms = false;               // norms behind attention and MLP too, before the residual sums
  bool scale_embedding = false, cap_logits = false;
  bool gated = true;                         // the MLP multiplies two projections; else one, then its activation (Nemotron)
  bool layer_norm = false;                   // instead of RMS norm (Nemotron)
  bool fused_projections = false;            // one projection for q, k, v, one for gate and up
  bool dynamic_rotary = false;
  bool rotary_by_layer = false;              // sliding layers have frequencies of their own
  double attention_dropout = 0, dropout = 0;
  std::int64_t classes = 0;                  // a classifier instead of the language model's head
  std::string act = "silu";

  bool slides(std::int64_t layer) const {
    return sliding_layers.empty() ? sliding_window > 0 : sliding_layers[static_cast<std::size_t>(layer) % sliding_layers.size()];
  }
};

DecoderArchitecture read_decoder(JsonReader& r);

// The mask of a sliding window that the sequence outgrows; invalid where `is_causal` is enough.
TensorId sliding_window_mask(GraphBuilder& b, const DecoderArchitecture& a, const Sizes& sizes);
TensorId decoder_attention(GraphBuilder& b, const DecoderArchitecture& a, TensorId x, TensorId cos, TensorId sin, TensorId mask);

// Embedding, layers, norm, head, loss. `feed_forward` is called inside each layer's module, after its second norm.
void build_decoder(GraphBuilder& b, const DecoderArchitecture& a, const Sizes& sizes,
                   const std::function<TensorId(TensorId x, std::int64_t layer)>& feed_forward);
// As ModelFamily::layer_kinds, of layers whose feed-forward part is the same.
std::vector<int> decoder_kinds(const DecoderArchitecture& a);

}  // namespace precog::zoo
