#include "graph/operator.h"
#include "parallel/layer_plans.h"

namespace precog {

Result<ShardedLayers> shard_layers(const Plan& plan, const Graph& model, bool each_chunk) {
  Graph forward;
  const Graph* whole = &model;
  if (plan.cp > 1) {
    PRECOG_TRY(shared, share_sequences(plan, model));
    forward = std::move(shared);
    whole = &forward;
  }
  const Flops flops = training_flops(*whole) * (1.0 / plan.tp);  // of the rank's tokens, with the layers as the model has them
  DistinctChunks chunks;
  if (plan.pp > 1) {
    PRECOG_TRY(distinct, distinct_chunks(plan, *whole, each_chunk));
    chunks = std::move(distinct);
    forward = std::move(chunks.forward);
  } else if (whole == &model) {
    forward = model;
  }
  if (plan.ep > 1) {
    PRECOG_TRY(shared, share_experts(plan, std::move(forward)));
    forward = std::move(shared);
  }
  ShardedLayers out;
  if (plan.tp > 1) {
    PRECOG_TRY(split, split_layers(plan, std::move(forward), chunks));
    out = std::move(split);
  } else {
    out.graph = std::move(forward);
  }
  out.chunks = std::move(chunks);
  out.model_flops = flops;
  return out;
}

}  // namespace precog
