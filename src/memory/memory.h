// Bytes over the step: walks the step's operators in order, holding each tensor from the operator that makes it to
// the last that reads it, as reference counting does. Saved-for-backward tensors need no list of their own: backward
// operators read them.
#pragma once

#include "base/units.h"
#include "kernel/kernel.h"
#include "spec/cluster_spec.h"
#include "spec/gpu_spec.h"
#include "spec/plan.h"
#include "training/step_graph.h"

namespace precog {

struct MemoryUse {
  Bytes parameters, gradients, optimizer, activations, workspace, fragmentation;  // at the moment of the peak
  Bytes peak;      // what PyTorch calls max_memory_allocated
  Bytes reserved;  // what its allocator has taken from the device
  Bytes device;    // with the CUDA context and NCCL's buffers: what must fit
  Bytes capacity;
  bool fits = false;
  OpId peak_op;    // the operator running at the peak
};

MemoryUse memory_use(const StepGraph& step, const KernelProgram& program, const TrainingOptions& training,
                     const GpuSpec& gpu, int gpus);
std::string to_text(const MemoryUse& use);

}  // namespace precog
