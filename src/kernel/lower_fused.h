// Fused groups to kernels. What Inductor generates is one program over the bytes that enter and leave; it takes the pattern of
// the slowest thing in it as PyTorch's own kernels have it (a norm, a softmax, an exponential, random numbers, else a plain
// pointwise kernel). Those coefficients were fitted to other kernels than these, and each says so (`estimated`). Internal to the kernel stage.
#pragma once

#include "kernel/fuse.h"
#include "kernel/kernel.h"

namespace precog {

std::vector<Kernel> lower_fused(const FusedKernel& fused, const Graph& graph, OwnKernels own = {});
// A product's operand, copied to rounded-up extents.
Kernel padding_copy(TensorId operand, const Graph& graph);
// A tensor copied into another order of axes.
Kernel layout_copy(TensorId id, const Graph& graph);
// What reports count the group as: the family of its heaviest operator.
Family family_of(const FusedKernel& fused, const Graph& graph);

}  // namespace precog
