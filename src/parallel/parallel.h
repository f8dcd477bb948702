// Spreads the step over data-parallel GPUs, as the framework that has the plan does it: DistributedDataParallel
// (data_parallel.cpp), a distributed optimizer (distributed_optimizer.cpp), fully sharded parameters (fully_shard.cpp). The
// recipe says in which types gradients and parameters travel. One rank's view: every rank is alike. Copies and collectives
// become operators, their order in the graph is the order in which the host issues them, and tensors between them say what
// waits for what; how long anything takes is not known here.
#pragma once

#include "spec/plan.h"
#include "spec/precision_recipe.h"
#include "training/step_graph.h"

namespace precog {

StepGraph apply_plan(const Plan& plan, const PrecisionRecipe& recipe, StepGraph step);

}  // namespace precog
