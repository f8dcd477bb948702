#include <doctest/doctest.h>

#include "kernel/fuse.h"
#include "memory/memory.h"
#include "parallel/parallel.h"
#include "precision/precision.h"
#include "support.h"

using namespace precog;
using namespace precog::testing;

namespace {
MemoryUse use_of(const PrecisionRecipe& recipe, Graph forward, TrainingOptions options = {}) {
  const StepGraph step = make_step(apply_precision(recipe, gpu(), forward), recipe, options);
  return memory_use(step, make_kernels(step.graph, gpu(), MemoryFormat::contiguous), options, gpu(), 1);
}
Graph deep(int blocks) {
  GraphBuilder b;
  TensorId x = b.input("x", {1024, 1024});
  for (int block = 0; block < blocks; ++block) {
    b.set_block(block);
    x = b.gelu(b.linear_layer("l" + std::to_string(block), x, 1024, false));
  }
  b.set_block(-1);
  b.cross_entropy(x, b.input("t", {1024}, DType::int64));
  return std::move(b).finish();
}
constexpr std::int64_t kMatrix = 4 * 1024 * 1024;
}  // namespace

TEST_CASE("ParametersStatesAndSavedActivationsAddUp") {
  const MemoryUse use = use_of(uniform(DType::fp32), deep(8));
  CHECK(use.parameters.value == 8 * kMatrix);
  CHECK(use.optimizer.value == 2 * 8 * kMatrix);
  // At the top of the network: the input, two saved tensors per block (the linear's input is the gelu's output),
  // and a few of the loss's.
  CHECK(use.activations.value >= 16 * kMatrix);
  CHECK(use.activations.value <= 22 * kMatrix);
  CHECK(use.fits);
}

TEST_CASE("SixteenBitsHalveEverythingButTheWorkspace") {
  const MemoryUse wide = use_of(uniform(DType::fp32), deep(8)), narrow = use_of(uniform(DType::bf16), deep(8));
  CHECK(narrow.parameters.value * 2 == wide.parameters.value);
  CHECK(narrow.optimizer.value * 2 == wide.optimizer.value);
  CHECK(narrow.workspace == wide.workspace);
}

TEST_CASE("RecomputeTradesActivationsForTime") {
  const MemoryUse plain = use_of(uniform(DType::fp32), deep(16)), again = use_of(uniform(DType::fp32), deep(16), {.recompute = Recompute::full});
  CHECK(again.activations < plain.activations);
}

TEST_CASE("TheForeachOptimizersTemporaryCounts") {
  // One row: activations are nothing, so the peak is the optimizer's square root of the second moments.
  GraphBuilder b;
  b.cross_entropy(b.linear_layer("l", b.input("x", {1, 1024}), 1024, false), b.input("t", {1}, DType::int64));
  const MemoryUse use = use_of(uniform(DType::fp32), std::move(b).finish());
  CHECK(use.gradients.value == kMatrix);
  CHECK(use.workspace.value >= kMatrix);
  CHECK(use.activations.value < kMatrix / 8);
}

TEST_CASE("WhatIsLargerThanTheCardDoesNotFit") {
  GraphBuilder b;
  b.cross_entropy(b.linear_layer("l", b.input("x", {1, 100'000}), 100'000, false), b.input("t", {1}, DType::int64));
  CHECK(!use_of(uniform(DType::fp32), std::move(b).finish()).fits);
}

TEST_CASE("AccumulationHoldsOneSetOfGradientsNotTwo") {
  const MemoryUse once = use_of(uniform(DType::fp32), deep(8));
  const MemoryUse often = use_of(uniform(DType::fp32), deep(8), {.micro_batches = 4});
  CHECK(often.gradients.value == 8 * kMatrix);
  // The gradients of the earlier micro-batches are there while activations peak, and one new one.
  CHECK(often.peak.value <= once.peak.value + 9 * kMatrix);
}

namespace {
MemoryUse sharded_use(Sharding sharding, int dp, int blocks = 32) {
  const PrecisionRecipe recipe = uniform(DType::fp32);
  const StepGraph step = apply_plan({.dp = dp, .fsdp = sharding}, recipe, make_step(apply_precision(recipe, gpu(), deep(blocks)), recipe, {}));
  return memory_use(step, make_kernels(step.graph, gpu(), MemoryFormat::contiguous), {}, gpu(), dp);
}
}  // namespace

TEST_CASE("ShardingDividesWhatItNames") {
  const std::int64_t model = 32 * kMatrix;
  const MemoryUse whole = sharded_use(Sharding::none, 8), states = sharded_use(Sharding::zero1, 8), gradients = sharded_use(Sharding::zero2, 8),
                  all = sharded_use(Sharding::full, 8);
  CHECK(whole.optimizer.value == 2 * model);
  for (const MemoryUse& use : {states, gradients, all}) CHECK(use.optimizer.value == doctest::Approx(2 * model / 8).epsilon(0.01));
  for (const MemoryUse& use : {whole, states, gradients}) CHECK(use.parameters.value == model);
  CHECK(all.parameters.value == doctest::Approx(model / 8).epsilon(0.01));
  CHECK(states.peak < whole.peak);
  CHECK(gradients.peak < states.peak);
  CHECK(all.peak < gradients.peak);
}

TEST_CASE("FullySharedStateFallsTowardsNothingWithMoreRanks") {
  const MemoryUse few = sharded_use(Sharding::full, 4), many = sharded_use(Sharding::full, 32);
  auto state = [](const MemoryUse& use) { return use.parameters.value + use.optimizer.value; };
  CHECK(state(many) == doctest::Approx(state(few) / 8.0).epsilon(0.02));
  // Two gathered blocks, one reduction's message and one whole gradient at most come on top of the activations.
  const MemoryUse plain = sharded_use(Sharding::none, 1);
  CHECK(many.activations.value <= plain.activations.value + 6 * kMatrix);
}

TEST_CASE("BucketViewsSaveTheGradientsAndNotTheBuckets") {
  const std::int64_t model = 8 * kMatrix;
  const PrecisionRecipe recipe = uniform(DType::fp32);
  const auto use = [&](bool views, Graph forward, const TrainingOptions& options = {}) {
    const StepGraph step = apply_plan({.dp = 4}, Replicas{.bucket_views = views}, recipe, make_step(apply_precision(recipe, gpu(), forward), recipe, options));
    return memory_use(step, make_kernels(step.graph, gpu(), MemoryFormat::contiguous), options, gpu(), 4);
  };
  const auto of = [](const MemoryUse& one, MemoryCategory category) { return one.by_category[static_cast<std::size_t>(category)].value; };
  const auto small = [] {  // one row: the peak is the optimizer's, where all gradients are
    GraphBuilder b;
    TensorId x = b.input("x", {1, 1024});
    for (int i = 0; i < 8; ++i) x = b.linear_layer("l" + std::to_string(i), x, 1024, false);
    b.cross_entropy(x, b.input("t", {1}, DType::int64));
    return std::move(b).finish();
  };
  const MemoryUse copies = use(false, small()), views = use(true, small());
  CHECK(of(copies, MemoryCategory::gradient_buckets) == model);
  CHECK(of(copies, MemoryCategory::gradients) == model);
  CHECK(of(views, MemoryCategory::gradient_buckets) == model);
  CHECK(of(views, MemoryCategory::gradients) == 0);
  CHECK(copies.peak.value - views.peak.value == model);
  // Buckets are there in forward too.
  CHECK(use(true, deep(8)).gradients.value >= model);
  // Micro-batches are added up beside them.
  CHECK(use(true, deep(8), {.micro_batches = 2}).gradients.value == 2 * model);
}

TEST_CASE("ScoresThatAnotherCompiledGraphReturnsGetNoZerosAsTheirGradient") {
  GraphBuilder b;
  b.cross_entropy(b.linear_layer("head", b.input("x", {1024, 64}), 32768, false), b.input("t", {1024}, DType::int64));
  const Graph forward = std::move(b).finish();
  const PrecisionRecipe recipe = uniform(DType::fp32);
  const auto peak = [&](Scores scores) {
    const StepGraph step = make_step(apply_precision(recipe, gpu(), forward), recipe, {});
    const FusionPlan plan = plan_fusion(step.graph, gpu().sms);
    KernelProgram program = make_kernels(step.graph, gpu(), MemoryFormat::contiguous, &plan);
    program.scores = scores;
    return memory_use(step, program, {}, gpu(), 1).peak.value;
  };
  constexpr std::int64_t kScores = 4ll * 1024 * 32768;
  CHECK(peak(Scores::returned) - peak(Scores::apart) == kScores);
  CHECK(peak(Scores::inside) <= peak(Scores::apart));
}
