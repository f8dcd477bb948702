// What one micro-batch keeps between its forward and its backward: in a pipeline several are there at once.
#pragma once

#include <array>

#include "base/units.h"
#include "kernel/kernel.h"
#include "spec/dtype.h"
#include "training/step_graph.h"

namespace precog {

using BytesByType = std::array<Bytes, kDTypeCount>;

// Of tensors made in forward and read later. What arrived from another stage is not made here, and not in it.
BytesByType saved_by_type(const StepGraph& step, const KernelProgram& program);
Bytes saved_for_backward(const StepGraph& step, const KernelProgram& program);

}  // namespace precog
