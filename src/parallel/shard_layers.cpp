#include "graph/operator.h"
#include "parallel/layer_plans.h"

namespace precog {

Result<ShardedLayers> shard_layers(const Plan& plan, Graph forward) {
  if (plan.cp > 1) {
    PRECOG_TRY(shared, share_sequences(plan, std::move(forward)));
    forward = std::move(shared);
  }
  const Flops whole = training_flops(forward) * (1.0 / plan.tp);  // of the rank's tokens, with the layers as the model has them
  if (plan.ep > 1) {
    PRECOG_TRY(shared, share_experts(plan, std::move(forward)));
    forward = std::move(shared);
  }
  ShardedLayers out;
  if (plan.tp > 1) {
    PRECOG_TRY(split, split_layers(plan, std::move(forward)));
    out = std::move(split);
  } else {
    out.graph = std::move(forward);
  }
  out.model_flops = whole;
  return out;
}

}  // namespace precog
