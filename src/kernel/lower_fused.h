// Fused groups to kernels. What Inductor generates is one streaming program whatever the group holds, so its cost is that of
// a contiguous pointwise kernel over the bytes that enter and leave; nothing of it has been measured by itself, and each
// kernel says so (`estimated`). Internal to the kernel stage.
#pragma once

#include "kernel/fuse.h"
#include "kernel/kernel.h"

namespace precog {

Kernel lower_fused(const FusedKernel& fused, const Graph& graph);
// What reports count the group as: the family of its heaviest operator.
Family family_of(const FusedKernel& fused, const Graph& graph);

}  // namespace precog
