// Kernels that a library falls back to where it has no good one: what they cost beyond what the shape alone says.
// Takes a kernel, the GPU's clock and the physics' cost; returns the cost with the fallback's in its place.
// Not here: which kernels are launched (kernel/library_rules.h). Figures are cuDNN 9's on an H200; elsewhere they last so many clocks.
#pragma once

#include "cost/cost.h"

namespace precog {

KernelCost with_fallbacks(const Kernel& kernel, Hertz clock, KernelCost cost);

}  // namespace precog
