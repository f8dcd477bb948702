// Rebuilds a step's operators in order, with others put between them. What the passes of this folder share.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "parallel/layer_plans.h"
#include "training/step_graph.h"

namespace precog {

// Where a gradient is complete, the bucket it goes into: in the order in which backward completes them.
struct Bucket {
  std::vector<std::size_t> gradients;  // indices into StepGraph::gradients
  std::int64_t elements = 0;
  OpId ready;            // the operator that completes its last gradient
  bool experts = false;  // shared with fewer ranks: those that have the same experts
};

// `full` says, given a bucket and how many were filled before it, whether it is closed.
template <class Full>
std::vector<Bucket> fill_buckets(const StepGraph& step, Full full) {
  std::vector<Bucket> buckets;
  std::array<Bucket, 2> opened;  // and one of experts' gradients, where those are shared out
  opened[1].experts = true;
  for (std::size_t i = 0; i < step.gradients.size(); ++i) {
    const ParameterGradient& g = step.gradients[i];
    const bool experts = step.experts_own_replicas() && is_expert_parameter(step.graph, g.parameter);
    Bucket& open = opened[experts ? 1 : 0];
    open.gradients.push_back(i);
    open.elements += step.graph.tensors[g.gradient].shape.elements();
    open.ready = std::max(open.ready, g.made_by);
    if (full(open, buckets.size())) {
      buckets.push_back(std::move(open));
      open = {.experts = experts};
    }
  }
  for (Bucket& open : opened)
    if (!open.gradients.empty()) buckets.push_back(std::move(open));
  std::stable_sort(buckets.begin(), buckets.end(), [](const Bucket& a, const Bucket& b) { return a.ready < b.ready; });
  return buckets;
}

// The group that a bucket's gradients are shared in, of `ranks` replicas.
inline CollectiveAttributes group_of(const Bucket& bucket, const StepGraph& step, Bytes bytes, int ranks) {
  if (!bucket.experts) return {bytes, ranks, step.replica_stride};
  return {bytes, step.expert_sharers(ranks), step.expert_stride};
}

class Rewrite {
 public:
  explicit Rewrite(StepGraph& of) : step(of), graph(of.graph), before_(std::move(of.graph.ops)), moved_(before_.size()) {
    graph.ops = {};
    graph.ops.reserve(before_.size() + 4 * step.gradients.size());
  }

  StepGraph& step;
  Graph& graph;

  std::size_t size() const { return before_.size(); }
  const Op& old(std::size_t i) const { return before_[before_.id_at(i)]; }
  // A gradient is added to a buffer, or converted for that alone (autocast's conversion makes the gradient itself).
  bool accumulates(std::size_t i) const {
    if (old(i).kind == OpKind::accumulate_gradient) return true;
    if (old(i).kind != OpKind::cast || i + 1 == size() || old(i + 1).kind != OpKind::accumulate_gradient) return false;
    const TensorId converted = graph.output(old(i));
    return converted == graph.input(old(i + 1), 0) && graph.tensors[converted].role != Role::gradient;
  }
  // Operator i of the old list, now at the end of the new one; or left out of it.
  void keep(std::size_t i) {
    moved_[i] = graph.ops.add(old(i));
    Op& kept = graph.ops[moved_[i]];
    if (kept.origin.valid()) kept.origin = moved_[kept.origin.index()];  // a forward operator, kept before
  }
  // The same, reading something else.
  void keep(std::size_t i, std::span<const TensorId> inputs) {
    Op op = old(i);
    if (op.origin.valid()) op.origin = moved_[op.origin.index()];
    const std::vector<TensorId> outputs(graph.outputs(op).begin(), graph.outputs(op).end());
    moved_[i] = graph.add_op(op, inputs, outputs);
  }
  void drop(std::size_t i) { moved_[i] = graph.ops.id_at(graph.ops.size() - 1); }
  void finish() {
    for (ParameterGradient& g : step.gradients) g.made_by = moved_[g.made_by.index()];
  }

  struct Put {
    OpKind kind;
    Phase phase;
    DType math = DType::fp32;
    Attributes attributes{};
    std::string_view label{};
    bool beside = false;  // on the communication stream
  };
  OpId put(Put what, std::span<const TensorId> inputs, std::span<const TensorId> outputs) {
    Op op;
    op.kind = what.kind;
    op.phase = what.phase;
    op.math = what.math;
    op.attributes = std::move(what.attributes);
    op.on_communication_stream = what.beside;
    if (!what.label.empty()) op.label = graph.intern(what.label);
    return graph.add_op(op, inputs, outputs);
  }
  OpId put(Put what, std::initializer_list<TensorId> inputs, std::initializer_list<TensorId> outputs) {
    return put(std::move(what), std::span(inputs.begin(), inputs.size()), std::span(outputs.begin(), outputs.size()));
  }
  TensorId tensor(std::int64_t elements, DType type) { return graph.add_tensor({.shape = {elements}, .dtype = type}); }
  // No memory: what is done before an operator that reads it may run.
  TensorId event() { return tensor(0, DType::uint8); }

 private:
  Store<OpId, Op> before_;
  std::vector<OpId> moved_;
};

inline Bytes bytes_of(std::int64_t elements, DType type) { return {(elements * bits_of(type) + 7) / 8}; }
inline bool ends_step(Phase phase) { return phase == Phase::optimizer || phase == Phase::loss_scaling; }
inline std::int64_t share_of(std::int64_t elements, int ranks) { return (elements + ranks - 1) / ranks; }

// Gradients that backward adds to buffers of the framework's own (Megatron) need no copy to be sent.
inline bool gradients_in_buffers(const PrecisionRecipe& recipe) {
  using Made = MainGradients::Made;
  return recipe.main_gradients && (recipe.main_gradients->made == Made::in_backward || recipe.main_gradients->made == Made::in_product);
}
// The type that a gradient is kept in until it is sent.
inline DType kept_type(const PrecisionRecipe& recipe, DType gradient) {
  return gradients_in_buffers(recipe) ? recipe.main_gradients->dtype : gradient;
}

// What a group of ranks has reduced, summed over the `copies` groups that hold the same shards; on a stream of its own, where the
// label kAcrossGroups puts it. Reads what the reduction made, so that it comes after. Groups lie `group_span` ranks apart.
inline constexpr std::string_view kAcrossGroups = "replicas";
// Every rank's part of a message, copied one by one; the host makes a view of each first.
inline constexpr std::string_view kListOfRanks = "rank_parts";
inline TensorId sum_over_groups(Rewrite& out, Phase phase, DType type, Bytes shard, int group_span, int copies, TensorId reduced) {
  const TensorId summed = out.event();
  out.put({OpKind::all_reduce, phase, type, CollectiveAttributes{shard, copies, group_span}, kAcrossGroups}, {reduced}, {summed});
  return summed;
}

struct Replicas;
// DistributedDataParallel, or what sends nothing before all of backward has run: DeepSpeed's engine, by its recipes, and Megatron where nothing overlaps.
void replicate(int ranks, const Replicas& how, const PrecisionRecipe& recipe, StepGraph& step);
// ZeRO 1 and 2; and ZeRO 3, FSDP. `ranks` share one copy, of which there are `copies`.
void distribute_optimizer(int ranks, int copies, bool gradients_too, const Replicas& how, const PrecisionRecipe& recipe, StepGraph& step);
void fully_shard(int ranks, int copies, bool keep_gathered, const Replicas& how, const PrecisionRecipe& recipe, StepGraph& step);
// What the optimizer's kernels did becomes the host's work; `owners` share its elements out. What nobody shares goes down once, when
// all of backward is done, or as backward goes.
void offload_optimizer(const Shards::Sharers& owners, bool in_place, bool once, const Replicas& how, const PrecisionRecipe& recipe, StepGraph& step);
// States (and master weights) come up for the update and go down again; parameters too, where the host has them.
void offload_states(const Shards::Sharers& owners, const Replicas& how, int state_tensors, StepGraph& step);
// What the first layers keep for backward waits in the host's memory.
void offload_activations(int layers, StepGraph& step);
// What recomputed layers begin with, a part on each of the ranks that split them.
void share_checkpoints(int ranks, StepGraph& step);
// What tensor-parallel ranks tell each other once a step.
void finish_split_layers(int ranks, const PrecisionRecipe& recipe, StepGraph& step);
// The end of the step on 1/ranks of the elements.
void shard_end_of_step(int ranks, StepGraph& step);

}  // namespace precog
