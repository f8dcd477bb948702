// What a model's code does differently while torch.compile traces it. Transformers 5.17 leaves the attention mask out where it
// can see that none is needed, and hands SDPA `is_causal` instead; while being traced it looks at nothing and builds the mask
// (masking_utils.py, `is_tracing`). With a mask no kernel skips what lies above the diagonal, flash is not available, and keys
// and values are repeated per query head (`use_gqa_in_sdpa`). An encoder's mask is expanded along its last axis, which no
// fused kernel reads: the math path. Seen in data/measured/2026-11-15-h200-compiled.
// Takes and returns a forward graph, precision-free. Not for models whose code we do not know (captured graphs, ONNX).
#pragma once

#include "frontend/source.h"
#include "graph/graph.h"

namespace precog {

// The model's own code is that of transformers: a language model of the zoo or a config.json.
bool builds_masks_when_traced(const ModelSource& model);
Graph with_traced_masks(const Graph& forward, bool encoder_decoder);

}  // namespace precog
