// What one micro-batch keeps between its forward and its backward: in a pipeline several are there at once.
#pragma once

#include "base/units.h"
#include "kernel/kernel.h"
#include "training/step_graph.h"

namespace precog {

// Of tensors made in forward and read later. What arrived from another stage is not made here, and not in it.
Bytes saved_for_backward(const StepGraph& step, const KernelProgram& program);

}  // namespace precog
