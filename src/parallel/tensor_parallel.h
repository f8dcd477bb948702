// Tensor parallelism (Shoeybi et al. 2019), with sequence parallelism (Korthikanti et al. 2022) where the plan has it: one rank's
// view of a forward graph, before anybody decided types. Layers are known by the names of their modules, or by the plan's own
// list; from a column-split product on, the split is followed through whatever operators come until a product takes it as its
// inner extent, whose partial sums are then added up. The embedding and the head are split by vocabulary, and so is the loss.
// Writes forward operators only: the collectives of backward are those operators' gradients.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "graph/graph.h"
#include "parallel/pipeline_stages.h"
#include "spec/plan.h"

namespace precog {

struct ShardedLayers {
  Graph graph;
  DistinctChunks chunks;  // of a pipeline: which of the model's the graph has; its own graph has moved here
  // Elements of parameters that every rank has but meets with its part of the work only: their gradients are summed over the
  // group at the step's end.
  std::int64_t summed_gradients = 0;
  std::vector<std::string> notes;  // what was assumed
  Flops model_flops;               // what the model's step must compute, this rank's share of it (training_flops)
  std::int64_t parameters = 0;     // of the whole model
};

// How many rows an expert takes, over what the mean expert gets: the rest is dropped (expert_capacity.cpp).
struct ExpertCapacity {
  double factor = 0;    // at most; 0: all are taken
  bool padded = false;  // and always, filled up
};

// The share of the rows that find no room, where the busiest place has `imbalance` times the mean. Loads are taken to lie as imbalance x
// u^(imbalance - 1) for u from 0 to 1, the simplest curve with this largest value and a mean of 1: all equal for 1, evenly spread for 2.
double dropped_share(const ExpertCapacity& capacity, double imbalance);

// All that of a plan changes the forward graph. Of a pipeline's equal chunks it keeps one, unless asked for each; where `foreseen`
// leaves any out, the graph was built without them.
Result<ShardedLayers> shard_layers(const Plan& plan, Graph forward, bool each_chunk = false, DistinctChunks foreseen = {}, const ExpertCapacity& capacity = {});

// How a module's product is split by the names people give them; whole where nothing is known. A product whose input arrives
// split is a row product whatever it is called.
TensorSplit known_split(std::string_view module);
// Tables of tokens.
bool is_token_table(std::string_view module);

}  // namespace precog
