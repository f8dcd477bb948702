// The passes behind shard_layers (tensor_parallel.h), one for each kind of parallelism that changes the forward graph.
#pragma once

#include "base/result.h"
#include "parallel/tensor_parallel.h"
#include "training/step_graph.h"

namespace precog {

// Collectives of ranks that share an expert which is split otherwise than its layer. No library overlaps them with products.
inline constexpr std::string_view kSplitExperts = "split_experts";

// Context parallelism: the graph was built for one rank's tokens; attention is made to see all of them.
Result<Graph> share_sequences(const Plan& plan, Graph forward);
// Experts that drop what exceeds their capacity, and may be padded to it.
Result<Graph> limit_experts(const ExpertCapacity& capacity, Graph forward);
// Expert parallelism: each rank has its part of the experts, and tokens travel to them.
Result<Graph> share_experts(const Plan& plan, const ExpertCapacity& capacity, Graph forward);
// Tensor and sequence parallelism. `chunks`: how many layers each stands for.
Result<ShardedLayers> split_layers(const Plan& plan, Graph forward, const DistinctChunks& chunks);
// Experts that are split otherwise than their layers, after both: columns of their first products, rows of their last.
Result<Graph> split_experts(const Plan& plan, Graph forward, const DistinctChunks& chunks);

// A parameter that experts of their own have: its gradient is not shared with ranks that have other experts.
bool is_expert_parameter(const Graph& graph, TensorId parameter);
// Of so many replicas, those that have this parameter; of those that share what all have or experts, the ones that do this parameter.
int ranks_sharing(const StepGraph& step, TensorId parameter, int replicas);
int ranks_sharing(const StepGraph& step, TensorId parameter, const Shards::Sharers& ranks);
// Of the master weights, which are shared out as the parameters that they are copies of.
Bytes masters_kept(const StepGraph& step, const Shards::Sharers& ranks);

}  // namespace precog
