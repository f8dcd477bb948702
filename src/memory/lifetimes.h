// Which blocks of memory a step takes and gives back, in order: the sequence that the caching allocator sees.
// A tensor lives from the operator that makes it to the last that reads it, as reference counting has it; what autograd, the
// autocast cache and the optimizer hold beyond that is added here. Saved-for-backward tensors need no list of their own:
// backward operators read them. Sizes are those asked for; rounding and splitting are the allocator's.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "kernel/kernel.h"
#include "spec/dtype.h"
#include "spec/gpu_spec.h"
#include "spec/plan.h"
#include "training/step_graph.h"

namespace precog {

enum class MemoryCategory : std::uint8_t {
  parameters,             // and buffers
  gradients,
  gradient_buckets,       // DDP's buckets, messages of sharded reductions, main gradients
  gathered_parameters,    // of a sharded model: messages and whole copies
  optimizer_states,
  master_weights,
  inputs,
  weight_casts,           // autocast's copies of weights: its cache, and what backward keeps of it
  activations,            // made in forward and read by backward
  recomputed,             // made again in backward by recomputation
  temporaries,            // everything else that an operator makes
  optimizer_temporaries,
  workspaces,             // of one call: layout copies, transforms, partial results
  libraries,              // held by libraries all along
  kCount
};
inline constexpr std::size_t kMemoryCategories = static_cast<std::size_t>(MemoryCategory::kCount);
std::string_view to_text(MemoryCategory category);

struct MemoryBlock {
  std::int64_t bytes = 0;
  MemoryCategory category = MemoryCategory::temporaries;
  DType dtype = DType::fp32;
  NameId name;             // of the module whose code made it; of a parameter its own name
  bool parameter = false;
  bool in_graph_pool = false;  // the private pool of CUDA graphs
};

struct MemoryEvent {
  enum class Kind : std::uint8_t { take, take_once, give };  // once: in the first step, and kept from then on
  Kind kind = Kind::take;
  std::int32_t block = 0;
};

struct MemoryTrace {
  std::vector<MemoryBlock> blocks;
  std::vector<std::int32_t> resident;      // there before the first step, in order
  std::vector<std::int32_t> cleared;       // let go when the next step begins: gradients
  std::vector<MemoryEvent> events;
  std::vector<std::uint32_t> first_event;  // of each operator, and one past the last
  // What one micro-batch keeps between its forward and its backward, for in a pipeline several are there at once: the blocks that forward takes and
  // backward reads, not what is made from weights alone (one copy serves all micro-batches) nor what arrived from another stage.
  std::vector<std::int32_t> kept;
};

using BytesByType = std::array<Bytes, kDTypeCount>;
BytesByType kept_by_type(const MemoryTrace& trace);

MemoryTrace memory_trace(const StepGraph& step, const KernelProgram& program, const TrainingOptions& training, const GpuSpec& gpu);

}  // namespace precog
