// What a model's code does differently while torch.compile traces it. Transformers 5.17 leaves the attention mask out where it
// can see that none is needed, and hands SDPA `is_causal` instead; while being traced it looks at nothing and builds the mask
// (masking_utils.py, `is_tracing`). With a mask no kernel skips what lies above the diagonal, flash is not available, and keys
// and values are repeated per query head (`use_gqa_in_sdpa`). A mask that says the same of every key is expanded along its last
// axis, which no fused kernel reads: the math path. Seen in data/measured/2026-11-15-h200-compiled.
// Nor does the host wait for such a look, or for a number that the code sends up: when compiled that is a constant.
// A captured graph says at each attention which mask was left out, by the operator's label; of language models of the zoo or of a
// config.json it is known. Takes and returns a forward graph, precision-free.
#pragma once

#include <string_view>

#include "frontend/source.h"
#include "graph/graph.h"

namespace precog {

// The label of an attention operator whose mask the code leaves out and builds when traced: one value for each pair, or one per
// query, spread over the keys by a stride of nothing.
inline constexpr std::string_view kDenseMask = "dense", kExpandedMask = "expanded";

Graph with_traced_masks(const ModelSource& model, const Graph& forward);
// The same, where attention operators say it themselves.
Graph with_traced_masks(const Graph& forward);
// Marks what an encoder, a decoder or both leave out by the rules above.
Graph mark_left_out_masks(const Graph& forward, bool encoder_decoder);

}  // namespace precog
