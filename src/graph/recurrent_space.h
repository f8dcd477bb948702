// What cuDNN's recurrent layers take besides operands and results: the reserve, which forward hands to backward, and the workspace of
// one call. Drawn from what the allocator was asked for by 264 layers on an H200 (cuDNN 9.19; data/measured/2026-11-16-h200-operator-memory).
#pragma once

#include "base/units.h"
#include "graph/graph.h"

namespace precog {

// Elements of the layer's type. Exact for all that were measured, but for 256 bytes and the bits of a dropout between layers.
std::int64_t reserve_elements(const RnnAttributes& layer);

// Of forward, and of each of backward's two calls; `type`: of the operands.
Bytes recurrent_workspace(const RnnAttributes& layer, DType type);

}  // namespace precog
