#include <algorithm>
#include <utility>

#include "parallel/parallel.h"
#include "parallel/rewrite.h"
#include "training/optimizer.h"

namespace precog {
namespace {

// How many launches a call over lists of the shards needs: its depth is the one that explains its launches over whole tensors.
std::int64_t sharded_launches(const MultiTensorAttributes& call, const std::vector<std::int64_t>& sizes, const std::vector<std::int64_t>& shards) {
  for (int depth = 1; depth <= 5; ++depth)
    for (bool scalars : {false, true})
      if (multi_tensor_launches(sizes, depth, scalars) == call.launches) return multi_tensor_launches(shards, depth, scalars);
  return call.launches;
}

// A buffer of whole gradients is cleared whole; scales of fp8 layers are every rank's.
bool works_on_wholes(std::string_view label) { return label == "zero_" || label.starts_with("amax_and_scale_update"); }

}  // namespace

void shard_end_of_step(int ranks, StepGraph& step) {
  std::vector<std::int64_t> sizes, shards;
  double all = 0, kept = 0;
  for (const ParameterGradient& g : step.gradients) {
    sizes.push_back(step.graph.tensors[g.parameter].shape.elements());
    shards.push_back(share_of(sizes.back(), ranks_sharing(step, g.parameter, ranks)));
    all += static_cast<double>(sizes.back());
    kept += static_cast<double>(shards.back());
  }
  // Experts are shared among others.
  const auto part_of = [&](std::int64_t elements) {
    return step.experts_own_replicas() && all > 0 ? static_cast<std::int64_t>(static_cast<double>(elements) * kept / all) : share_of(elements, ranks);
  };
  Graph& graph = step.graph;
  const auto shared_out = [&](const Op& op) { return std::holds_alternative<MultiTensorAttributes>(op.attributes) && ends_step(op.phase) && !works_on_wholes(graph.name(op.label)); };
  const auto shard = [&](Op& op) {
    auto& many = std::get<MultiTensorAttributes>(op.attributes);
    many.launches = many.one_by_one ? many.launches : sharded_launches(many, sizes, shards);
    for (TensorId made : graph.outputs(op))  // what it makes on its way is as much smaller
      if (graph.tensors[made].role == Role::activation && graph.tensors[made].shape.elements() == many.elements)
        graph.tensors[made].shape = {part_of(many.elements)};
    many.elements = part_of(many.elements);
  };
  // What was found in one share must be known to all: a flag, or a sum of squares; LAMB's updates' are of each tensor (apex's
  // contrib/optimizers/distributed_fused_lamb.py, __compute_contrib_update_norm; weights every rank has whole). In bytes; 0: nothing.
  const auto told = [&](std::size_t i) -> std::int64_t {
    const auto op = [&](std::size_t at) -> const Op& { return graph.ops[graph.ops.id_at(at)]; };
    if (!shared_out(op(i))) return 0;
    const bool checks = op(i).kind == OpKind::unscale_and_check && (i + 1 == graph.ops.size() || op(i + 1).kind != OpKind::unscale_and_check);
    const std::string_view label = graph.name(op(i).label);
    if (label == "lamb update norms") return 4 * std::get<MultiTensorAttributes>(op(i).attributes).tensors;
    return checks || label == "norm" ? 4 : 0;
  };
  std::vector<std::pair<std::size_t, std::int64_t>> tells;
  for (std::size_t i = 0; i < graph.ops.size(); ++i)
    if (const std::int64_t bytes = told(i)) tells.emplace_back(i, bytes);
  for (Op& op : graph.ops)
    if (shared_out(op)) shard(op);
  if (!tells.empty()) {
    Rewrite out(step);
    auto next = tells.begin();
    for (std::size_t i = 0; i < out.size(); ++i) {
      out.keep(i);
      if (next == tells.end() || next->first != i) continue;
      out.put({OpKind::all_reduce, out.old(i).phase, DType::fp32, CollectiveAttributes{{next->second}, ranks, step.replica_stride}}, {}, {});
      ++next;
    }
    out.finish();
  }
  if (!step.gradients_folded) step.main_gradients = {share_of(step.main_gradients.value, ranks)};  // made of the share alone
}

// Weights that products read in 8 bits only are kept so: the optimizer's master weights have the rest, or, where it has none of its
// own, each rank's share of the weights themselves (Megatron's fp8_param_gather; llm.q).
static void keep_converted(StepGraph& step) {
  step.shards.converted_on_host = true;
  if (step.master_weights.value > 0) return;
  std::vector<char> counted(step.graph.tensors.size(), 0);
  for (const Op& op : step.graph.ops)
    if (op.kind == OpKind::scaled_mm && op.phase == Phase::forward)
      for (TensorId id : step.graph.inputs(op))
        if (const Tensor& tensor = step.graph.tensors[id]; tensor.role == Role::parameter && tensor.shape.rank() > 1 && !std::exchange(counted[id.index()], 1))
          step.master_weights += step.graph.bytes(id);
}

StepGraph apply_plan(const Plan& plan, const PrecisionRecipe& recipe, StepGraph step) { return apply_plan(plan, Replicas{}, recipe, std::move(step)); }

StepGraph apply_plan(const Plan& plan, const Replicas& replicas, const PrecisionRecipe& recipe, StepGraph step) {
  // Transformer Engine's weights are converted by the optimizer that is shared out, and gathered so: no gathers of their own.
  const bool by_optimizer = recipe.fp8 && recipe.fp8->fused && plan.fsdp != Sharding::full;
  const bool gathers = (recipe.gathers_fp8 && !by_optimizer) || (recipe.master_weights && recipe.master_weights->copied == MasterWeights::Copied::on_gather);
  const int all = std::max(1, plan.replicas());
  const int ranks = replicas.shard_size > 0 && plan.fsdp != Sharding::none ? replicas.shard_size * plan.cp : all, copies = all / ranks;
  // stage_1_and_2.py, stage3.py, bf16_optimizer.py, fp16/fused_optimizer.py: flat groups, and initialize_optimizer_states takes a step before the first.
  step.shards.flat = recipe.reduces_after_backward || replicas.by_module.has_value();
  step.replica_stride = plan.tp;
  step.expert_stride = static_cast<int>(plan.ranks_of_experts());
  const auto several = [&](int sharing) { return sharing > 1 || (step.experts_own_replicas() && step.expert_sharers(sharing) > 1); };
  // A recipe of fully_shard's own casts on a world of one too, and knows ZeRO 2 as parameters kept until backward.
  if (replicas.share_checkpoints) share_checkpoints(plan.tp, step);
  if (replicas.offload_layers > 0) offload_activations(replicas.offload_layers, step);
  if (plan.fsdp == Sharding::full || replicas.offload_parameters || (gathers && (ranks == 1 || plan.fsdp == Sharding::zero2))) {
    fully_shard(ranks, copies, plan.fsdp == Sharding::zero2, replicas, recipe, step);
  } else if (several(ranks) && plan.fsdp != Sharding::none) {
    distribute_optimizer(ranks, copies, plan.fsdp == Sharding::zero2, replicas, recipe, step);
  } else if (several(all)) {
    replicate(all, replicas, recipe, step);
  }
  if (several(ranks) && plan.fsdp != Sharding::none) shard_end_of_step(ranks, step);
  if (by_optimizer && recipe.gathers_fp8) keep_converted(step);
  const Shards::Sharers owners = plan.fsdp == Sharding::none ? Shards::Sharers{} : Shards::Sharers{ranks, step.expert_sharers(ranks)};
  // DeepSpeed's pipelines take stage 1 at most, which adds gradients up on the GPU (pipe/engine.py); Megatron's hybrid optimizer copies them in its step.
  const bool once = plan.pp > 1 && (plan.fsdp == Sharding::none || plan.fsdp == Sharding::zero1);
  if (replicas.offload_optimizer) offload_optimizer(owners, plan.fsdp == Sharding::full, once, replicas, recipe, step);
  else if (replicas.offload_states || replicas.offload_master || replicas.offload_parameters) offload_states(owners, replicas, replicas.state_tensors, step);
  if (plan.tp > 1) finish_split_layers(plan.tp, recipe, step);
  return step;
}

}  // namespace precog
