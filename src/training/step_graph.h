// One micro-batch's forward and backward plus the end of the step, as one graph in execution order.
// What autograd does: every forward operator's gradient in reverse, sums where a tensor has several readers,
// recomputation of checkpointed blocks; then the loss scaler and the optimizer.
#pragma once

#include <vector>

#include "graph/graph.h"
#include "spec/plan.h"
#include "spec/precision_recipe.h"

namespace precog {

struct ParameterGradient {
  TensorId parameter, gradient;
  OpId made_by;  // the operator after which the gradient is complete, accumulation included
};

struct StepGraph {
  Graph graph;
  std::vector<ParameterGradient> gradients;  // in the order in which backward completes them
  DType optimizer_state_type = DType::fp32;
  Bytes master_weights, main_gradients;  // held besides what the graph's tensors are
};

StepGraph make_step(Graph forward, const PrecisionRecipe& recipe, const TrainingOptions& options);

}  // namespace precog
