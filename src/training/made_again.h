// Which forward operators' results backward makes again where it reads them, instead of keeping them: the parts of layers that
// Checkpoints names, and conversions of weights that are not there between forward and backward. Parts are recognised by what an
// operator is and by the path of the module whose code called it. Not whole layers: those are recomputed at once (training.cpp).
#pragma once

#include <vector>

#include "graph/graph.h"
#include "training/checkpoints.h"

namespace precog {

// By operator. `checkpointed`, by block: the layer is one of those that Checkpoints chooses.
std::vector<char> made_again(const Graph& forward, const Checkpoints& checkpoints, const std::vector<char>& checkpointed);

}  // namespace precog
