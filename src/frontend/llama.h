// The decoder-only skeleton of Llama and its relatives, shared by the dense models and Mixtral.
#pragma once

#include <cstdint>
#include <functional>

#include "frontend/families.h"

namespace precog::zoo {

struct DecoderArchitecture {
  std::int64_t hidden = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0, intermediate = 0, vocab = 0;
  std::int64_t sliding_window = 0;  // 0: none
  bool tie_embeddings = false, qkv_bias = false;
};

DecoderArchitecture read_decoder(JsonReader& r);

// The mask of a sliding window that the sequence outgrows; invalid where `is_causal` is enough.
TensorId sliding_window_mask(GraphBuilder& b, const DecoderArchitecture& a, const Sizes& sizes);
TensorId decoder_attention(GraphBuilder& b, const DecoderArchitecture& a, TensorId x, TensorId cos, TensorId sin, TensorId mask);

// Embedding, layers, norm, head, loss. `feed_forward` is called inside each layer's module, after its second norm.
void build_decoder(GraphBuilder& b, const DecoderArchitecture& a, const Sizes& sizes,
                   const std::function<TensorId(TensorId)>& feed_forward);

}  // namespace precog::zoo
