// A vocabulary made longer, as people do by hand (50257 -> 50304): tables, the head and everything as wide as it. Products whose
// extents are no multiples of 8 (16 for 8-bit types) run on slower kernels.
#pragma once

#include "graph/graph.h"

namespace precog {

// The rows of the table of a model's tokens, where a linear layer turns as many scores out again; 0 where there is none.
std::int64_t vocabulary_of(const Graph& forward);

// The same model with its vocabulary the next multiple; unchanged where there is none, or it is one already. Every extent that is
// the vocabulary's is replaced (told by its size; nothing is changed where the number of tokens is the same by chance).
Graph pad_vocabulary(Graph forward, std::int64_t multiple);

}  // namespace precog
