// Kernels at the clock that the GPU keeps while the whole step repeats for minutes (cost/power.h): the step's average power,
// and every kernel's cost at the clock that brings it under the limit.
#pragma once

#include <vector>

#include "cost/profile.h"
#include "predict/request.h"
#include "predict/summarise.h"

namespace precog {

// Slows the chunks' costs down where power is the limit; returns the clock as a share of the full one. The step's length is
// not known before it is simulated: it is taken to be what the GPU is busy with or what the host issues, whichever is longer,
// and a pipeline's idle share.
double keep_within_power(const Request& request, const ArchitectureProfile& profile, Seconds gap, std::vector<ChunkOfStep>& chunks);

}  // namespace precog
