// How the work is spread over GPUs, and what a training step is made of. Parsed from the request's "plan".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "spec/dtype.h"

namespace precog {

enum class Recompute { none, full };
enum class MemoryFormat { contiguous, channels_last };
// Operator by operator, or the model through torch.compile; the last replays each compiled graph as one CUDA graph.
enum class Mode { eager, compile, compile_cudagraphs };

// What data-parallel ranks share out instead of each keeping all of it. Each includes those before it.
enum class Sharding {
  none,
  zero1,  // the optimizer's states and the weights it updates (Megatron's distributed optimizer, ZeRO 1)
  zero2,  // and gradients (ZeRO 2; FSDP that keeps gathered parameters until backward)
  full    // and parameters (ZeRO 3, FSDP): gathered before each use
};

struct Plan {
  int dp = 1;  // data-parallel replicas; the only kind of parallelism this version models
  Sharding fsdp = Sharding::none;
};

enum class OptimizerKind { sgd, sgd_momentum, adam, adamw };
enum class OptimizerImpl { foreach_, fused, for_loop };

struct TrainingOptions {
  OptimizerKind optimizer = OptimizerKind::adamw;
  OptimizerImpl optimizer_impl = OptimizerImpl::foreach_;
  Recompute recompute = Recompute::none;
  bool clip_grad_norm = false;     // torch.nn.utils.clip_grad_norm_ before the optimizer
  std::int64_t micro_batches = 1;  // per optimizer step: gradient accumulation
};

std::string_view to_text(OptimizerKind kind);
std::string_view to_text(Sharding sharding);
std::string_view to_text(Mode mode);

}  // namespace precog
