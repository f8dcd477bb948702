// How the work is spread over GPUs, and what a training step is made of. Parsed from the request's "plan".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "spec/dtype.h"

namespace precog {

// selective: what lies between queries, keys, values and the attention's result; up_projections: what makes them from narrow
// ones, where a model has that (Megatron's recompute_modules mla_up_proj).
// parts: those of a layer that training/checkpoints.h names.
enum class Recompute { none, selective, full, up_projections, parts };
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

// In what order pipeline stages work on the micro-batches of a step (schedule/pipeline_schedule.h).
enum class PipelineSchedule {
  gpipe,            // all forwards, then all backwards
  one_f_one_b,      // backward as soon as it can be; as few micro-batches in flight as there are stages to the end
  interleaved,      // 1F1B over several chunks of layers per stage (Megatron's virtual pipeline)
  zero_bubble,      // ZB-H1: weights' gradients apart, put where a stage would wait
  zero_bubble_v,    // ZB-V: the same over two chunks per stage, laid out as a V: the first stage has the first and the last
  dualpipe          // both ends feed micro-batches; every stage keeps two chunks (DeepSeek-V3)
};

// How ranks that share a sequence let every query meet every key: keys and values passed around a ring beside the products
// (ring attention), or heads exchanged for tokens before and after them (Ulysses).
enum class ContextExchange { ring, all_to_all };
// How tokens travel to their experts: a copy for each expert (NCCL's all_to_all), or one for each node that has any of them, copied
// on inside it (DeepEP, HybridEP); what comes back is summed on the way.
enum class ExpertDispatch { all_to_all, per_node };
// How a layer's weights are shared out by tensor parallelism.
enum class TensorSplit { column, row, whole };

// Ranks are numbered as Megatron does: tensor fastest, then context, pipeline slowest; of experts: tensor fastest, then expert.
struct Plan {
  int dp = 1;  // data-parallel replicas
  Sharding fsdp = Sharding::none;
  int tp = 1;       // ranks that share each layer
  bool sp = false;  // and, between split layers, the sequence
  int cp = 1;       // ranks that share each sequence
  ContextExchange exchange = ContextExchange::ring;
  int ep = 1;   // ranks, of all of a stage's, that share the experts
  int etp = 0;  // ranks that share each expert (0: tp)
  ExpertDispatch dispatch = ExpertDispatch::all_to_all;
  bool expert_overlap = false;  // tokens travel beside another micro-batch's computation
  double expert_imbalance = 1;  // tokens of the busiest rank's experts over the mean
  std::vector<std::pair<std::string, TensorSplit>> tp_plan;  // patterns of modules, before the known names

  int pp = 1, vpp = 1;            // pipeline stages, and chunks of layers that each stage has
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  std::vector<int> stage_layers;  // layers of each of the pp x vpp chunks in the model's order; empty: even

  int gpus_per_replica() const { return tp * cp * pp; }
  int replicas() const { return dp * cp; }  // ranks that have the same parameters: they share gradients
  int ranks_per_expert() const { return etp > 0 ? etp : tp; }
  // Experts have a grid of their own: etp x ep x (their own replicas) make the tp x cp x dp ranks of a stage, whose layers are split otherwise.
  bool experts_apart() const { return ranks_per_expert() != tp; }
  bool experts_own_replicas() const { return ranks_of_experts() != tp; }  // their gradients are shared by others than their layers' are
  std::int64_t ranks_of_experts() const { return static_cast<std::int64_t>(ep) * ranks_per_expert(); }  // neighbours that together have each expert once
};

// Who hands out the GPU's memory: PyTorch's caching allocator as it comes, the same with expandable segments
// (PYTORCH_CUDA_ALLOC_CONF), or a program that lays out every buffer before the first step.
enum class Allocator { caching, expandable, planned };

enum class OptimizerKind { sgd, sgd_momentum, adam, adamw, lamb };
enum class OptimizerImpl { foreach_, fused, for_loop };

// What torch.nn.utils.clip_grad_norm_ reads back: nothing, the whole norm once (`if coefficient < 1`), or every tensor's norm.
enum class ClipReads { nothing, norm, every_norm };

struct TrainingOptions {
  OptimizerKind optimizer = OptimizerKind::adamw;
  OptimizerImpl optimizer_impl = OptimizerImpl::foreach_;
  Recompute recompute = Recompute::none;
  bool clip_grad_norm = false;     // torch.nn.utils.clip_grad_norm_ before the optimizer
  std::int64_t micro_batches = 1;  // per optimizer step: gradient accumulation
  Allocator allocator = Allocator::caching;
  // Head and loss together in so many pieces of the tokens, scores' gradients written over the scores (Liger, llm.q's
  // --lmhead-chunks); 0: as the model's code has it, all at once.
  int loss_chunks = 0;
  // What older software does (software_spec.h).
  ClipReads clip_reads = ClipReads::nothing;
  bool tensor_by_tensor = false;   // clipping loops over tensors; the optimizer, where the request says nothing of it, too
  bool zeroes_gradients = false;   // gradients are filled with zeros, and backward adds to them
};

std::string_view to_text(OptimizerKind kind);
std::string_view to_text(Sharding sharding);
std::string_view to_text(PipelineSchedule schedule);
std::string_view to_text(Mode mode);

}  // namespace precog
