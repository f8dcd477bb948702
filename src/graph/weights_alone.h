// Which tensors of a step depend on nothing but weights: what is made from them is the same in every micro-batch.
#pragma once

#include <vector>

#include "graph/graph.h"

namespace precog {

// By tensor: forward made it, directly or through others, from parameters (gathered ones too) and buffers only.
std::vector<char> weights_alone(const Graph& graph);

}  // namespace precog
