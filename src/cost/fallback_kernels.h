// Kernels that a library falls back to where it has no good one: what they cost beyond what the shape alone says.
// Takes a kernel and its cost, corrections from measurements included; returns the cost with the fallback's in its place.
// Not here: which kernels are launched (kernel/library_rules.h). Figures are cuDNN 9's on an H200.
#pragma once

#include "cost/cost.h"

namespace precog {

KernelCost with_fallbacks(const Kernel& kernel, KernelCost cost);

}  // namespace precog
