// What earlier generations of a library took, from what it takes now: the cost of a kernel as costed elsewhere, slowed down by
// the ratio that was published for the two. Estimates, marked so. Not for kernels whose older form did other work.
#pragma once

#include "cost/cost.h"
#include "kernel/kernel.h"

namespace precog {

// Fused attention by flash-attention 1 in place of 2 (2022 to mid-2023): the same products, shared out among fewer blocks, with
// more traffic between a block's warps. Anything that is no fused attention comes back as it was.
KernelCost by_flash1(const Kernel& kernel, KernelCost cost);

}  // namespace precog
