#include "memory/memory.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

#include <fmt/format.h>

#include "parallel/layer_plans.h"
#include "training/optimizer.h"

namespace precog {
namespace {

// PyTorch's caching allocator (c10/cuda/CUDACachingAllocator.cpp) rounds every block up to 512 bytes. Large blocks come in
// segments of 2 MiB, and a rest of at most 1 MiB is not split off but counts as allocated.
constexpr std::int64_t kAllocationUnit = 512, kSegment = 2 << 20, kSmallestRest = 1 << 20;

// cuBLAS workspace that PyTorch allocates per handle and stream: 32 MiB on Hopper and later, 8.125 MiB before
// (CUBLAS_WORKSPACE_CONFIG's default ":4096:2:16:8"; aten/src/ATen/cuda/CublasHandlePool.cpp).
Bytes cublas_workspace(const GpuSpec& gpu) {
  return {gpu.capability() >= 90 ? 32 << 20 : 8519680};
}

// Estimates, and marked so in the report: the share of reserved memory lost to block splitting on steady steps, the
// CUDA context with loaded modules, and NCCL's channel buffers for a handful of peers.
constexpr double kFragmentation = 0.04;
constexpr Bytes kContext{520'000'000};
constexpr Bytes kNcclBuffers{600'000'000};

Bytes rounded(Bytes bytes) {
  const std::int64_t size = (bytes.value + kAllocationUnit - 1) / kAllocationUnit * kAllocationUnit;
  const std::int64_t rest = (kSegment - size % kSegment) % kSegment;
  return {size > kSmallestRest && rest <= kSmallestRest ? size + rest : size};
}

std::int64_t share(std::int64_t elements, int ranks) { return (elements + ranks - 1) / ranks; }

// Master weights are shared out as the parameters that they are copies of.
Bytes master_share(const StepGraph& step) {
  double all = 0, kept = 0;
  for (const ParameterGradient& g : step.gradients) {
    const auto elements = static_cast<double>(step.graph.tensors[g.parameter].shape.elements());
    all += elements;
    kept += elements / ranks_sharing(step, g.parameter, step.shards.optimizer);
  }
  if (step.expert_ranks == 1 || all == 0) return {step.master_weights.value / step.shards.optimizer};
  return step.master_weights * (kept / all);
}

}  // namespace

MemoryUse memory_use(const StepGraph& step, const KernelProgram& program, const TrainingOptions& training,
                     const GpuSpec& gpu, int gpus) {
  const Graph& graph = step.graph;
  const std::size_t ops = graph.ops.size();
  const bool accumulating = training.micro_batches > 1;

  // The last operator that touches each storage, through whatever view.
  constexpr std::int32_t kForever = 0x7fffffff;
  std::vector<std::int32_t> last_use(graph.tensors.size(), -1);
  for (std::size_t i = 0; i < ops; ++i) {
    const Op& op = graph.ops[graph.ops.id_at(i)];
    for (TensorId id : graph.inputs(op)) last_use[graph.tensors[id].storage.index()] = static_cast<std::int32_t>(i);
    for (TensorId id : graph.outputs(op)) last_use[graph.tensors[id].storage.index()] = static_cast<std::int32_t>(i);
  }

  if (!program.last_use.empty()) last_use = program.last_use;  // compiled: some tensors never reach memory
  const bool compiled = !program.last_use.empty();

  MemoryUse use;
  Bytes held_parameters, held_inputs, held_gradients = step.main_gradients, held_states = master_share(step);
  for (const ParameterGradient& g : step.gradients) {
    const std::int64_t elements = share(graph.tensors[g.parameter].shape.elements(), ranks_sharing(step, g.parameter, step.shards.optimizer));
    held_states += rounded({elements * bits_of(step.optimizer_state_type) / 8}) * static_cast<double>(state_tensors(training.optimizer));
  }
  for (const Tensor& tensor : graph.tensors) {
    const TensorId id = graph.tensors.id_at(static_cast<std::size_t>(&tensor - &*graph.tensors.begin()));
    if (tensor.role == Role::parameter) {
      const DType kept = step.shards.parameter_type.value_or(tensor.dtype);
      held_parameters += rounded({share(tensor.shape.elements(), step.shards.parameters) * bits_of(kept) / 8});
    }
    if (tensor.role == Role::input) held_inputs += rounded(graph.bytes(id));
    if (tensor.role == Role::buffer && tensor.storage == id) held_parameters += rounded(graph.bytes(id));
    if (tensor.role == Role::gradient_bucket) held_gradients += rounded(graph.bytes(id));
  }
  // A gradient stays until the next step clears it; when accumulating, those of earlier micro-batches are there all
  // along and a new one is folded in as soon as it is complete.
  std::vector<char> is_gradient(graph.tensors.size(), 0);
  auto keep = [&](TensorId gradient, std::int32_t folded_in_by) {
    const std::size_t storage = graph.tensors[gradient].storage.index();
    const bool folded = accumulating || step.gradients_folded;
    is_gradient[storage] = folded ? 0 : 1;
    last_use[storage] = folded ? folded_in_by : kForever;
    if (accumulating && !step.gradients_folded) held_gradients += rounded(graph.bytes(gradient));
  };
  if (!step.shards.gradients_released)
    for (const ParameterGradient& g : step.gradients) keep(g.gradient, g.made_by.value);
  for (TensorId shard : step.shards.kept_gradients) keep(shard, last_use[shard.index()]);

  // What the optimizer makes on its way is its workspace, not an activation: recomputation would not save it.
  Bytes activations = held_inputs, gradients = held_gradients, temporaries;
  auto pool = [&](TensorId id, Phase phase) -> Bytes& {
    if (is_gradient[id.index()]) return gradients;
    return phase == Phase::optimizer ? temporaries : activations;
  };
  const Bytes library = cublas_workspace(gpu);
  std::vector<std::vector<std::int32_t>> dies(ops);
  for (std::size_t i = 0; i < ops; ++i) {
    const Op& op = graph.ops[graph.ops.id_at(i)];
    for (TensorId id : graph.outputs(op)) {
      const Tensor& tensor = graph.tensors[id];
      const bool allocated = tensor.storage == id && (tensor.role == Role::activation || tensor.role == Role::gradient);
      if (!allocated || (compiled && last_use[id.index()] < 0)) continue;
      pool(id, op.phase) += rounded(graph.bytes(id));
      const std::int32_t last = last_use[id.index()];
      if (last != kForever) dies[static_cast<std::size_t>(std::max<std::int32_t>(last, static_cast<std::int32_t>(i)))].push_back(id.value);
    }
    const Bytes workspace = library + program.calls[i].workspace + temporaries;
    const Bytes total = held_parameters + held_states + activations + gradients + workspace;
    if (total > use.peak) {
      use.peak = total;
      use.parameters = held_parameters;
      use.optimizer = held_states;
      use.activations = activations;
      use.gradients = gradients;
      use.workspace = workspace;
      use.peak_op = graph.ops.id_at(i);
    }
    for (std::int32_t value : dies[i]) {
      const TensorId id{value};
      pool(id, op.phase) -= rounded(graph.bytes(id));
    }
  }
  use.fragmentation = use.peak * kFragmentation;
  use.reserved = use.peak + use.fragmentation;
  use.device = use.reserved + kContext + (gpus > 1 ? kNcclBuffers : Bytes{});
  use.capacity = gpu.memory_capacity;
  use.fits = use.device <= use.capacity;
  return use;
}

std::string to_text(const MemoryUse& use) {
  return fmt::format(
      "peak {}: parameters {}, gradients {}, optimizer {}, activations {}, workspace {}\n"
      "reserved {} (fragmentation {}), device {} of {}: {}\n",
      to_text(use.peak), to_text(use.parameters), to_text(use.gradients), to_text(use.optimizer), to_text(use.activations),
      to_text(use.workspace), to_text(use.reserved), to_text(use.fragmentation), to_text(use.device), to_text(use.capacity),
      use.fits ? "fits" : "does not fit");
}

}  // namespace precog
