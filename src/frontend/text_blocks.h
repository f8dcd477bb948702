// What the language families share, as transformers writes it: RMS norms, rotary embeddings, the check for packed
// sequences, the gated MLP and the causal loss. Each function emits the calls of one piece of its Python code.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>

#include "frontend/families.h"

namespace precog::zoo {

// to(float32), pow, mean, + eps, rsqrt, mul, to(input dtype), weight *.
TensorId rms_norm(GraphBuilder& b, std::string_view name, TensorId x);

// arange(seq) + past, unsqueezed: [1, seq].
TensorId position_ids(GraphBuilder& b, std::int64_t seq);

// Without a mask transformers looks whether several sequences were packed into one: a row of small integer kernels and
// a value read back, at which the host waits for everything enqueued so far.
void packed_sequence_check(GraphBuilder& b, TensorId positions, std::int64_t batch);

// Cosine and sine of [1, seq, width], made once per forward in fp32 outside autocast, then in `like`'s type.
std::pair<TensorId, TensorId> rotary_embedding(GraphBuilder& b, TensorId positions, std::int64_t width, TensorId like);

// x * cos + rotate_half(x) * sin, for x[b, h, s, width] and cos, sin already [1, 1, s, width].
TensorId rotate(GraphBuilder& b, TensorId x, TensorId cos, TensorId sin);

// [b, s, h * d] -> [b, h, s, d]: two views.
TensorId to_heads(GraphBuilder& b, TensorId x, std::int64_t heads, std::int64_t head_dim);

// [b, h, s, d] -> [b, s, h * d]. Fused attention kernels write their result in the order [b, s, h, d], so the code's
// `.transpose(1, 2).contiguous()` copies nothing; the math path, which the precision pass may choose, would copy.
TensorId from_heads(GraphBuilder& b, TensorId x);

// down_proj(silu(gate_proj(x)) * up_proj(x)), inside the module `name`.
TensorId gated_mlp(GraphBuilder& b, std::string_view name, TensorId x, std::int64_t intermediate);

// Logits in fp32 against labels shifted by one.
void causal_loss(GraphBuilder& b, TensorId logits, TensorId labels);

// The models' common opening: input_ids and labels.
struct TokenInputs {
  TensorId ids, labels;
};
TokenInputs token_inputs(GraphBuilder& b, const Sizes& sizes);

}  // namespace precog::zoo
