// A profile of products from published timings alone, for a GPU that nobody profiled: the shipped coefficients stay, and what
// they leave is learned as `precog calibrate` learns it. Takes a file of reference_data.h, returns a profile like any other;
// relatives of the GPU's architecture then take its corrections too, marked as scaled.
#pragma once

#include "calibrate/physics_fit.h"
#include "cost/residual.h"

namespace precog {

Result<FittedProfile> reference_profile(const std::filesystem::path& products, const GpuSpec& gpu, const ArchitectureProfile& physics, std::size_t rows);

}  // namespace precog
