// Whether attention reads rows whose elements lie side by side, as every fused kernel wants them (sdp_utils_cpp.h,
// check_last_dim_stride_equals_1_dense): not where a model cuts the channels of an image into heads and turns them behind the pixels.
// Told from the views of the graph, of images that lie as NCHW; where shapes leave it open, rows are taken to be.
#pragma once

#include "graph/graph.h"

namespace precog {

// Sets AttentionAttributes::across.
void note_rows_across(Graph& forward);

}  // namespace precog
