#include <doctest/doctest.h>

#include "parallel/parallel.h"
#include "precision/precision.h"
#include "support.h"

using namespace precog;
using namespace precog::testing;

namespace {
StepGraph spread(const PrecisionRecipe& recipe, int dp, std::int64_t hidden = 128) {
  return apply_plan({.dp = dp}, make_step(apply_precision(recipe, gpu(), two_layers(32, 64, hidden)), recipe, {}));
}
std::vector<std::int64_t> messages(const StepGraph& step) {
  std::vector<std::int64_t> out;
  for (const Op& op : step.graph.ops)
    if (op.kind == OpKind::all_reduce) out.push_back(std::get<CollectiveAttributes>(op.attributes).bytes.value);
  return out;
}
}  // namespace

TEST_CASE("OneRankHasNoCollectives") {
  CHECK(messages(spread(uniform(DType::fp32), 1)).empty());
  CHECK(count(spread(uniform(DType::fp32), 1).graph, OpKind::bucket_copy) == 0);
}

TEST_CASE("GradientsTravelInTheParametersType") {
  const std::int64_t parameters = 64 * 128 + 128 + 128 * 10 + 10;
  CHECK(messages(spread(uniform(DType::fp32), 8)) == std::vector<std::int64_t>{4 * parameters});
  CHECK(messages(spread(uniform(DType::bf16), 8)) == std::vector<std::int64_t>{2 * parameters});
  CHECK(messages(spread(amp(DType::bf16), 8)) == std::vector<std::int64_t>{4 * parameters});
}

TEST_CASE("BucketsFillInBackwardsOrderFirstOneSmall") {
  // Hidden 262144: the second layer's weight is 10 MB, the first's 64 MB.
  const StepGraph step = spread(uniform(DType::fp32), 2, 262144);
  const auto sent = messages(step);
  REQUIRE(sent.size() == 3);
  CHECK(sent[0] == 4 * 262144 * 10);
  std::int64_t total = 0;
  for (std::int64_t bytes : sent) total += bytes;
  CHECK(total == 4 * (64 * 262144 + 262144 + 262144 * 10 + 10));
  CHECK(verify(step.graph).empty());
}

TEST_CASE("TheFirstBucketLeavesBeforeBackwardEnds") {
  const StepGraph step = spread(uniform(DType::fp32), 2, 262144);
  bool sent = false, backward_after = false;
  for (const Op& op : step.graph.ops) {
    if (op.kind == OpKind::all_reduce) sent = true;
    if (sent && op.phase == Phase::backward) backward_after = true;
  }
  CHECK(backward_after);
}

TEST_CASE("EveryGradientGoesInAndComesBack") {
  CHECK(count(spread(uniform(DType::fp32), 4).graph, OpKind::bucket_copy) == 2 * 4);
}

TEST_CASE("WhatIsSentHasBeenAccumulated") {
  const PrecisionRecipe recipe = uniform(DType::fp32);
  const StepGraph step = apply_plan({.dp = 2}, make_step(apply_precision(recipe, gpu(), two_layers()), recipe, {.micro_batches = 3}));
  CHECK(verify(step.graph).empty());
  int accumulated = 0, copied = 0;
  for (const Op& op : step.graph.ops) {
    if (op.kind == OpKind::accumulate_gradient) ++accumulated;
    if (op.kind == OpKind::bucket_copy && ++copied <= 4) CHECK(accumulated >= copied);
  }
}
