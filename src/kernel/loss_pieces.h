// Head and loss in pieces of the tokens (Liger's fused linear cross-entropy, llm.q's --lmhead-chunks): every kernel of them runs once
// for each piece, and the head's gradient is added up piece by piece. Not what that saves in memory: memory/lifetimes.cpp.
#pragma once

#include "kernel/kernel.h"

namespace precog {

// Changes the kernels of what has the size of the scores. One piece, or a model without such a loss: nothing.
void run_loss_in_pieces(const Graph& graph, int pieces, KernelProgram& program);

}  // namespace precog
