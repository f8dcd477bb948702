// What a kernel takes at least, whatever a correction learned from timings says of it: where timings of the call by itself do not show what it does in
// a step, and where a library's slow kernel is known but too few shapes of it were timed to be learned. Takes a kernel and the physics' cost of it;
// zero where there is nothing to say. Figures are of an H200; elsewhere they last so many clocks. Not for `calibrate`.
#pragma once

#include <optional>

#include "cost/cost.h"

namespace precog {

Seconds least_cost(const Kernel& kernel, const KernelCost& physics, const GpuSpec& gpu, const ArchitectureProfile& profile);

// What blocks that find nothing to do take beside those that work.
Seconds idle_blocks_cost(const Kernel& kernel, const GpuSpec& gpu);

// The matrix product whose kernels a convolution runs on, and takes as long as, where its rows are misaligned.
std::optional<Kernel> product_alike(const Kernel& kernel);

}  // namespace precog
