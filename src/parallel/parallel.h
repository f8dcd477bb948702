// Spreads the step over data-parallel GPUs, as the framework that has the plan does it: DistributedDataParallel
// (data_parallel.cpp), a distributed optimizer (distributed_optimizer.cpp), fully sharded parameters (fully_shard.cpp), the host's memory
// for what the GPU's is too small for (offload_optimizer.cpp, offload_activations.cpp). The
// recipe says in which types gradients and parameters travel. One rank's view: every rank is alike. Copies and collectives
// become operators, their order in the graph is the order in which the host issues them, and tensors between them say what
// waits for what; how long anything takes is not known here.
#pragma once

#include <optional>

#include "spec/plan.h"
#include "spec/precision_recipe.h"
#include "training/step_graph.h"

namespace precog {

// DeepSpeed's ZeRO 3 gathers module by module, as far ahead as it may, where FSDP gathers block by block. All counted in elements;
// the defaults are DeepSpeed's (deepspeed.ai/docs/config-json).
struct ModuleGathers {
  std::int64_t prefetch = 50'000'000;       // stage3_prefetch_bucket_size: asked for at a time, ahead of a module
  std::int64_t live = 1'000'000'000;        // stage3_max_live_parameters: not beyond so many gathered ones
  std::int64_t reuse = 1'000'000'000;       // stage3_max_reuse_distance: what is wanted again before so many others is kept
  std::int64_t persistent = 100'000;        // stage3_param_persistence_threshold: parameters up to here every rank has
  std::int64_t reduced = 500'000'000;       // reduce_bucket_size: gradients reduced together
  // Each collective is given every rank's part as a tensor of its own (DeepSpeed before 0.5, partition_parameters.py: all_gather(partitions, ...)), which
  // PyTorch copies one by one from or to the message (ProcessGroupNCCL.cpp, flattenForScatterGather).
  bool lists = false;
  // ZeRO++ (Wang et al. 2023). zero_hpz_partition_size: ranks that share a second copy of the 16-bit weights, from which backward gathers; 0: none.
  int secondary = 0;
  bool quantised_weights = false;    // zero_quantized_weights: gathers of 8-bit weights and a scale for each stretch
  bool quantised_gradients = false;  // zero_quantized_gradients: 4 bits, inside the nodes first, then between them; on one node none are
  friend bool operator==(const ModuleGathers&, const ModuleGathers&) = default;
};

// What FSDP gathers together (its wrapping policy), and when.
struct UnitGathers {
  // block: so many repeated layers; module: every module that has parameters of its own; model: all of it at once.
  enum class Unit { block, module, model };
  Unit unit = Unit::block;
  int layers = 1;
  // Backward's gathers: issued before the unit in front computes (BACKWARD_PRE, fully_shard's own), after it (BACKWARD_POST), or where the unit begins.
  enum class Backward { before, after, none };
  Backward backward = Backward::before;
  bool forward_ahead = false;  // forward's too are issued one unit ahead (forward_prefetch); else as the host comes to the unit
  bool limited = true;         // none before the unit before the last is out of its message (limit_all_gathers; fully_shard always)
  friend bool operator==(const UnitGathers&, const UnitGathers&) = default;
};

// How ranks that have the same parameters share gradients, states and parameters, beyond what Plan::fsdp says.
struct Replicas {
  // Data-parallel ranks that share one copy of what is sharded; 0: all of them. Groups of so many hold copies: what a group has
  // reduced is summed over the groups (FSDP's HYBRID_SHARD, torchtitan's replicate degree, MiCS).
  int shard_size = 0;
  // A distributed optimizer's updated parameters are gathered beside the next step's forward, in the order in which it reads them
  // (Megatron's --overlap-param-gather); else before it.
  bool overlap_gather = false;
  // Of fully sharded parameters: FSDP's, or DeepSpeed's.
  UnitGathers gathers;
  std::optional<ModuleGathers> by_module;
  // Gradients are sent while backward goes on; else all of them after it (Megatron without --overlap-grad-reduce).
  bool overlap_reduce = true;
  // DistributedDataParallel's: bucket_cap_mb, the first bucket's, gradient_as_bucket_view, find_unused_parameters.
  Bytes bucket{25 << 20}, first_bucket{1 << 20};
  bool bucket_views = false, find_unused = false;
  // The optimizer's states and master weights live in the host's memory, and it updates them there (ZeRO-Offload); node_ranks of
  // them share that memory. Less than all of the elements: the GPU updates the rest (ZeRO-Offload++, Megatron's --optimizer-offload-fraction).
  bool offload_optimizer = false;
  double offload_fraction = 1;
  int node_ranks = 1;
  // Or the host only keeps them, and the GPU updates them as they pass (llm.q's --offload-opt-m, -v, --offload-master).
  bool offload_states = false;
  // Parameters of which products read nothing but a conversion to 8 or 4 bits: the conversions stay, they go (--offload-master).
  bool offload_master = false;
  // Parameters: each group's come up before it is used, in forward and in backward (ZeRO-Infinity's offload_param, FSDP's CPU
  // offload).
  bool offload_parameters = false;
  int offload_layers = 0;  // what so many of the first layers keep for backward
  // Tensor-parallel ranks keep a part each of what a recomputed layer begins with (Megatron's --distribute-saved-activations, DeepSpeed's
  // partition_activations).
  bool share_checkpoints = false;
  int state_tensors = 2;   // of the optimizer, per parameter
  bool offloads() const { return offload_optimizer || offload_states || offload_master || offload_parameters || offload_layers > 0; }
};

StepGraph apply_plan(const Plan& plan, const PrecisionRecipe& recipe, StepGraph step);
StepGraph apply_plan(const Plan& plan, const Replicas& replicas, const PrecisionRecipe& recipe, StepGraph step);

}  // namespace precog
