// A measured operator as the kernels that the program itself would launch for it: the same lowering that a prediction goes
// through, on a graph of that one operator. Takes a line of a measurement file (precog.profile, python/precog/gpu), returns
// kernels, or says why the line is none that a prediction could use.
#pragma once

#include <vector>

#include "base/json.h"
#include "kernel/kernel.h"

namespace precog {

Result<std::vector<Kernel>> kernels_of(const Json& line, const GpuSpec& gpu);

}  // namespace precog
