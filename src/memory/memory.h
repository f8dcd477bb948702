// Bytes over the step: the step's allocations (lifetimes.h) replayed through a model of PyTorch's caching allocator
// (allocator.h) until steps repeat. Gives the peak and what is alive there by category and module, memory over the step, what
// the allocator reserves, and whether the job fits. Rules and how far they are off: docs/model_notes/memory.md.
#pragma once

#include <array>
#include <map>
#include <string>
#include <vector>

#include "base/units.h"
#include "kernel/kernel.h"
#include "memory/lifetimes.h"
#include "spec/cluster_spec.h"
#include "spec/gpu_spec.h"
#include "spec/plan.h"
#include "training/step_graph.h"

namespace precog {

using BytesByCategory = std::array<Bytes, kMemoryCategories>;

// Forward, the head's backward, backward of the first layer that it meets, of the last, of what lies below, and the update: what saves
// memory in one need not in another.
inline constexpr std::size_t kStepParts = 6;

// Parts of a step in which work that is in flight elsewhere differs; a pipeline's pieces of work.
enum class StepPart : std::uint8_t { whole, forward, backward, end };  // backward with all that runs beside it, up to the gradients' reduction
constexpr StepPart part_of_step(Phase phase) {
  return phase == Phase::forward ? StepPart::forward : phase >= Phase::loss_scaling ? StepPart::end : StepPart::backward;
}

struct ModuleMemory {  // at the peak, of all modules of that path; numbers of repeated layers are written *
  std::string module;
  Bytes parameters, gradients, optimizer, weight_copies, activations, workspace;
  Bytes total() const { return parameters + gradients + optimizer + weight_copies + activations + workspace; }
};

// How sure the verdict is: certain where the whole interval is on one side of the capacity.
enum class Certainty : std::uint8_t { likely, certain };

struct MemoryUse {
  // At the moment of the peak; together they are it. Weight copies: autocast's casts, and what sharded weights are gathered into.
  Bytes parameters, gradients, optimizer, weight_copies, activations, workspace;
  Bytes fragmentation;  // what the allocator holds beyond the peak
  Bytes peak;           // what PyTorch calls max_memory_allocated
  Bytes reserved;       // what its allocator takes from the device when nothing stops it
  Bytes graph_pool;     // of it: CUDA graphs', which nothing else can have
  Bytes device;         // the least that the device must have: segments that cannot be given back, CUDA context, NCCL's buffers
  Bytes device_pinned;  // of it: the segments
  Bytes device_low, device_high;  // an 80% interval of it
  Bytes capacity;
  Bytes host;                          // what the plan keeps in the host's memory, of one GPU
  Bytes host_of_node, host_capacity;   // of all GPUs of a node; what a node has: 0 where nobody says
  bool fits = false;
  Certainty verdict = Certainty::likely;
  OpId peak_op;         // the operator running at the peak
  BytesByCategory by_category{};                     // at the peak
  std::array<BytesByCategory, kStepParts> moments{};  // the worst of each part of the step
  std::map<std::string, Bytes> activations_by_dtype;  // at the peak: activations and weight copies, all of them
  std::vector<ModuleMemory> by_module;               // largest first
  std::vector<BytesByCategory> timeline;             // of each operator: what is there while it runs
};

MemoryUse memory_use(const StepGraph& step, const KernelProgram& program, const TrainingOptions& training,
                     const GpuSpec& gpu, int gpus);
// The same of a trace that is there already.
MemoryUse memory_use(const MemoryTrace& trace, const StepGraph& step, const KernelProgram& program, const TrainingOptions& training,
                     const GpuSpec& gpu, int gpus);
// Instead of the peak's, the parts, categories, types and modules of where a part of the step has most.
void describe_part(MemoryUse& use, StepPart part, const MemoryTrace& trace, const StepGraph& step, const TrainingOptions& training);
// All GPUs of a node together keep `of_node` in its memory of `capacity` (0: not known). A job that does not fit there does not fit.
void judge_host(MemoryUse& use, Bytes of_node, Bytes capacity);
// Of what one micro-batch keeps for backward: activations all.
std::vector<ModuleMemory> kept_by_module(const MemoryTrace& trace, const StepGraph& step);
// For who adds to a use what else is there (other micro-batches, other chunks of layers): the parts, peak, reserved, device and
// the verdict have been changed, and the types of activations; the interval, the categories and the modules follow. `beside`: which modules what
// was added is of; the rest are messages.
void recount(MemoryUse& use, int gpus, const std::vector<ModuleMemory>& beside);
std::string to_text(const MemoryUse& use);

}  // namespace precog
