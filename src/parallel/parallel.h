// Spreads the step over GPUs: here, data parallelism as DistributedDataParallel does it. Gradients go into buckets in
// the order in which backward makes them; each full bucket is averaged by an all_reduce that runs beside the rest of
// backward; the optimizer waits for the last. One rank's view: every rank is alike.
#pragma once

#include "spec/plan.h"
#include "training/step_graph.h"

namespace precog {

StepGraph apply_plan(const Plan& plan, StepGraph step);

}  // namespace precog
