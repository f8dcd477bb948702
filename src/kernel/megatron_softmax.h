// Megatron-LM's softmax of attention's scores: one kernel for scale, mask and softmax where its conditions hold, else PyTorch's
// operators on scores converted to fp32 (megatron/model/fused_softmax.py: is_kernel_available, forward_torch_softmax).
// Takes a forward graph before types are decided. Not here: what the fused kernel costs (cost/fallback_kernels.h).
#pragma once

#include "graph/graph.h"

namespace precog {

struct FusedSoftmaxRule {
  // The forks of 2021 and 2022 hand the kernel's block size the micro-batch and the heads where it wants the two lengths
  // (get_batch_per_block(b, np, sq, sk), called with sq, sk, b, np): fewer heads then want more of them.
  bool heads_for_lengths = false;
  // Of scores [micro-batch, heads of a rank, length, length].
  bool takes(const Shape& scores) const;
};

// Whether it has the shape of attention's scores.
bool are_scores(const Shape& shape);
// Where the rule does not take them: converted to fp32 before they are scaled. What comes back from softmax has the model's type already.
Graph convert_scores(Graph forward, FusedSoftmaxRule rule);

}  // namespace precog
