// One micro-batch's forward and backward plus the end of the step, as one graph in execution order.
// What autograd does: every forward operator's gradient in reverse, sums where a tensor has several readers,
// recomputation of checkpointed blocks; then the loss scaler and the optimizer.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "graph/graph.h"
#include "spec/plan.h"
#include "spec/precision_recipe.h"

namespace precog {

struct ParameterGradient {
  TensorId parameter, gradient;
  OpId made_by;  // the operator after which the gradient is complete, accumulation included
};

// What one rank keeps of what data-parallel ranks share out: the divisors, and what differs because of it.
struct Shards {
  struct Sharers {
    int replicas = 1, experts = 1;        // ranks that share one copy; of experts that have replicas of their own
  };
  Sharers parameters, optimizer;
  std::optional<DType> parameter_type;    // between gathers parameters are kept in this type, and only so (FSDP's shards)
  bool parameters_on_host = false;        // between gathers
  bool converted_on_host = false;         // those that are read through conversions only
  double updated_here = 1;                // of the optimizer's elements: the host has the others, and their states
  bool gradients_released = false;        // a gradient is let go when it has been copied for the reduction
  std::vector<TensorId> kept_gradients;   // what the reductions left, where that is memory of its own
  bool flat = false;                      // states and kept gradients are a few long buffers, there before the first step (DeepSpeed)
};

struct StepGraph {
  Graph graph;
  std::vector<ParameterGradient> gradients;  // in the order in which backward completes them
  DType optimizer_state_type = DType::fp32;
  Bytes master_weights, main_gradients;  // held besides what the graph's tensors are
  Bytes on_host, saved_on_host;          // what a plan keeps of this rank's in the host's memory: all along, and of each micro-batch until its backward
  bool gradients_folded = false;         // into main gradients during backward: autograd's own are let go at once
  Shards shards;
  std::int64_t summed_gradients = 0;  // elements of gradients that tensor-parallel ranks have parts of, see tensor_parallel.h
  int replica_stride = 1;             // how far apart the ranks are that share gradients
  int expert_stride = 1;              // and those that have the same experts: those between have each expert once
  bool experts_own_replicas() const { return expert_stride != replica_stride; }
  // Of experts, given how many ranks share the rest: a whole number of those that have the same, or one.
  int expert_sharers(int replicas) const { return std::max(1, replicas * replica_stride / expert_stride); }
};

// `sent`: the graph is a part of a model, which has no loss but these results, whose gradients arrive from elsewhere.
StepGraph make_step(Graph forward, const PrecisionRecipe& recipe, const TrainingOptions& options, const std::vector<TensorId>* sent = nullptr);

}  // namespace precog
