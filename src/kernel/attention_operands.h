// What Transformer Engine hands its fused attention: queries, keys and values as they lie where they are one block of memory,
// keys and values where they are, else each of them in memory of its own. A value that is a part of a joint projection, behind
// queries and keys that were rotated into memory of their own, is therefore copied, and the projection's result is not kept for
// backward (pytorch/attention/dot_product_attention/utils.py: get_qkv_layout). Takes a forward graph before types are decided.
#pragma once

#include "graph/graph.h"

namespace precog {

Graph lay_out_operands(Graph forward);

}  // namespace precog
