// What the language families share, as transformers writes it: RMS norms, rotary embeddings, the check for packed
// sequences, the gated MLP and the causal loss. Each function emits the calls of one piece of its Python code.
#pragma once

#include <cstdint>
#include <string_view>
#include <string>
#include <utility>
#include <vector>

#include "frontend/families.h"

namespace precog::zoo {

// to(float32), pow, mean, + eps, rsqrt, mul, to(input dtype), weight *.
TensorId rms_norm(GraphBuilder& b, std::string_view name, TensorId x);
// Gemma's: the scale is 1 + weight, applied in fp32 before the cast back.
TensorId rms_norm_plus_one(GraphBuilder& b, std::string_view name, TensorId x);

// What transformers calls `hidden_act`: "gelu_new" and its like are written out, one kernel per operation.
TensorId activation(GraphBuilder& b, std::string_view name, TensorId x);
const std::vector<std::string>& activation_names();
// The architecture's "activation", checked; `fallback` where it is not given.
std::string read_activation(JsonReader& r, const char* fallback);
double read_probability(JsonReader& r, const char* key, double fallback = 0);

// arange(seq) + past, unsqueezed: [1, seq].
TensorId position_ids(GraphBuilder& b, std::int64_t seq);

// Without a mask transformers looks whether several sequences were packed into one: a row of small integer kernels and
// a value read back, at which the host waits for everything enqueued so far.
void packed_sequence_check(GraphBuilder& b, TensorId positions, std::int64_t batch);

// Cosine and sine of [1, seq, width], made once per forward in fp32 outside autocast, then in `like`'s type. `dynamic`: a
// kind of scaling whose frequencies depend on the longest position, which is read back each time ("dynamic", "longrope").
std::pair<TensorId, TensorId> rotary_embedding(GraphBuilder& b, TensorId positions, std::int64_t width, TensorId like, bool dynamic = false,
                                               std::string_view frequencies = "inv_freq");

// x * cos + rotate_half(x) * sin, for x[b, h, s, width] and cos, sin already [1, 1, s, width].
TensorId rotate(GraphBuilder& b, TensorId x, TensorId cos, TensorId sin);

// The same for models that turn only the first part of each head's width, as wide as cos: q and k, each joined again.
std::pair<TensorId, TensorId> rotate_partly(GraphBuilder& b, TensorId q, TensorId k, TensorId cos, TensorId sin);

// [b, s, h * d] -> [b, h, s, d]: two views. The gradient of heads that were turned comes back in the order [b, h, s, d] and is copied.
TensorId to_heads(GraphBuilder& b, TensorId x, std::int64_t heads, std::int64_t head_dim, GradientCopy gradient = GradientCopy::none);

// [b, h, s, d] -> [b, s, h * d]. Fused attention kernels write their result in the order [b, s, h, d], so the code's
// `.transpose(1, 2).contiguous()` copies nothing; the math path, which the precision pass may choose, would copy.
TensorId from_heads(GraphBuilder& b, TensorId x);

// down_proj(act(gate_proj(x)) * up_proj(x)), inside the module `name`.
TensorId gated_mlp(GraphBuilder& b, std::string_view name, TensorId x, std::int64_t intermediate, std::string_view act = "silu",
                   bool bias = false);

// Logits in fp32 against labels shifted by one.
void causal_loss(GraphBuilder& b, TensorId logits, TensorId labels);

// How a decoder classifies a sequence: a projection of every token, the last one's result picked, cross entropy. `labels`
// holds one class per sequence.
void sequence_classification(GraphBuilder& b, TensorId x, TensorId ids, TensorId labels, std::int64_t classes);

// The models' common opening: input_ids and labels.
struct TokenInputs {
  TensorId ids, labels;
};
TokenInputs token_inputs(GraphBuilder& b, const Sizes& sizes);
// A "classes" parameter asks for a classifier instead of a language model's head; 0 where there is none.
std::int64_t read_classes(JsonReader& r);
TokenInputs token_inputs(GraphBuilder& b, const Sizes& sizes, std::int64_t classes);  // one label per sequence if any

}  // namespace precog::zoo
