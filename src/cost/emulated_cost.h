// Time of a kernel whose arithmetic the GPU has no unit for. Takes what kernel_cost takes, which calls it.
#pragma once

#include "cost/cost.h"

namespace precog {

KernelCost emulated_cost(const Kernel& kernel, const GpuSpec& gpu, const ArchitectureProfile& profile);

}  // namespace precog
