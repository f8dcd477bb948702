#include <algorithm>

#include <doctest/doctest.h>

#include "parallel/parallel.h"
#include "precision/precision.h"
#include "support.h"

using namespace precog;
using namespace precog::testing;

namespace {
StepGraph spread(const PrecisionRecipe& recipe, int dp, std::int64_t hidden = 128) {
  return apply_plan({.dp = dp}, recipe, make_step(apply_precision(recipe, gpu(), two_layers(32, 64, hidden)), recipe, {}));
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
  const StepGraph step = apply_plan({.dp = 2}, recipe, make_step(apply_precision(recipe, gpu(), two_layers()), recipe, {.micro_batches = 3}));
  CHECK(verify(step.graph).empty());
  int accumulated = 0, copied = 0;
  for (const Op& op : step.graph.ops) {
    if (op.kind == OpKind::accumulate_gradient) ++accumulated;
    if (op.kind == OpKind::bucket_copy && ++copied <= 4) CHECK(accumulated >= copied);
  }
}

namespace {

// The same square layers over and over, each a block, and a head outside them.
Graph tower(int blocks, std::int64_t width = 256) {
  GraphBuilder b;
  TensorId x = b.input("x", {32, width});
  for (int block = 0; block < blocks; ++block) {
    b.set_block(block);
    x = b.relu(b.linear_layer("layers." + std::to_string(block), x, width, false));
  }
  b.set_block(-1);
  b.cross_entropy(b.linear_layer("head", x, 10, false), b.input("t", {32}, DType::int64));
  return std::move(b).finish();
}
constexpr std::int64_t kTower = 4 * 256 * 256 + 256 * 10;   // parameters of four layers and a head
constexpr std::int64_t kPadded = 4 * 256 * 256 + 256 * 16;  // cut into eight along the first axis: ten rows become sixteen

StepGraph sharded(const PrecisionRecipe& recipe, Plan plan, TrainingOptions options = {}, Graph model = tower(4)) {
  StepGraph step = apply_plan(plan, recipe, make_step(apply_precision(recipe, gpu(), model), recipe, options));
  CHECK(verify(step.graph) == "");
  return step;
}
std::int64_t sent(const StepGraph& step, OpKind kind) {
  std::int64_t total = 0;
  for (const Op& op : step.graph.ops)
    if (op.kind == kind) total += std::get<CollectiveAttributes>(op.attributes).bytes.value;
  return total;
}
// Bytes over each rank's link for one rank of many, an all_reduce being two rounds of the ring.
double traffic(const StepGraph& step) {
  return 2.0 * static_cast<double>(sent(step, OpKind::all_reduce)) + static_cast<double>(sent(step, OpKind::all_gather) + sent(step, OpKind::reduce_scatter));
}
PrecisionRecipe fsdp(DType compute, DType reduced) {  // MixedPrecisionPolicy(param_dtype, reduce_dtype) over fp32 shards
  PrecisionRecipe recipe = uniform(compute);
  recipe.master_weights = MasterWeights{DType::fp32, MasterWeights::Copied::on_gather};
  recipe.main_gradients = MainGradients{DType::fp32, MainGradients::Made::after_reduce};
  recipe.reduced_gradients = reduced;
  recipe.optimizer_state = DType::fp32;
  return recipe;
}
std::vector<OpKind> order(const StepGraph& step, std::initializer_list<OpKind> of) {
  std::vector<OpKind> out;
  for (const Op& op : step.graph.ops)
    if (std::find(of.begin(), of.end(), op.kind) != of.end()) out.push_back(op.kind);
  return out;
}
std::vector<std::string> copies(const StepGraph& step, Phase phase) {
  std::vector<std::string> out;
  for (const Op& op : step.graph.ops)
    if (op.kind == OpKind::shard_copy && op.phase == phase && !op.on_communication_stream) out.emplace_back(step.graph.name(op.label));
  return out;
}

}  // namespace

TEST_CASE("ACommunicationHookCastsTheBucketDividesItAndCastsItBack") {
  PrecisionRecipe recipe = uniform(DType::fp32);
  recipe.reduced_gradients = DType::bf16;
  const StepGraph step = sharded(recipe, {.dp = 8});
  CHECK(sent(step, OpKind::all_reduce) == 2 * kTower);
  CHECK(count(step.graph, OpKind::cast) == 2);
  CHECK(count(step.graph, OpKind::bucket_copy) == 2 * 5);
  recipe.reduced_gradients = DType::fp32;  // their own type: no hook
  CHECK(count(sharded(recipe, {.dp = 8}).graph, OpKind::cast) == 0);
}

TEST_CASE("GradientsInBuffersOfTheirOwnNeedNoCopies") {
  PrecisionRecipe recipe = uniform(DType::bf16);
  recipe.main_gradients = MainGradients{DType::fp32, MainGradients::Made::in_backward};
  CHECK(count(sharded(recipe, {.dp = 8}).graph, OpKind::bucket_copy) == 0);
}

TEST_CASE("NothingTravelsOnAWorldOfOne") {
  for (Sharding sharding : {Sharding::none, Sharding::zero1, Sharding::zero2, Sharding::full})
    for (const PrecisionRecipe& recipe : {uniform(DType::bf16), amp(DType::fp16), fsdp(DType::bf16, DType::fp32)}) {
      const StepGraph step = sharded(recipe, {.dp = 1, .fsdp = sharding});
      CHECK(order(step, {OpKind::all_reduce, OpKind::all_gather, OpKind::reduce_scatter}).empty());
    }
}

TEST_CASE("ADistributedOptimizerMovesWhatAnAllReduceDoes") {
  const PrecisionRecipe recipe = uniform(DType::fp32);
  const double replicated = traffic(sharded(recipe, {.dp = 8}));
  CHECK(replicated == 2 * 4 * kTower);
  for (Sharding sharding : {Sharding::zero1, Sharding::zero2}) {
    const StepGraph step = sharded(recipe, {.dp = 8, .fsdp = sharding});
    CHECK(traffic(step) == replicated);
    CHECK(sent(step, OpKind::reduce_scatter) == 4 * kTower);
    CHECK(step.graph.ops[step.graph.ops.id_at(step.graph.ops.size() - 1)].kind == OpKind::all_gather);  // after the optimizer
  }
}

TEST_CASE("FullShardingMovesHalfAsMuchAgainButForTheRoot") {
  const PrecisionRecipe recipe = uniform(DType::fp32);
  const StepGraph step = sharded(recipe, {.dp = 8, .fsdp = Sharding::full});
  const std::int64_t head = 256 * 16;  // the root's parameters stay gathered until backward
  CHECK(sent(step, OpKind::all_gather) == 4 * (2 * kPadded - head));
  CHECK(sent(step, OpKind::reduce_scatter) == 4 * kPadded);
  CHECK(traffic(step) == doctest::Approx(1.5 * traffic(sharded(recipe, {.dp = 8}))).epsilon(0.01));
}

TEST_CASE("HalfTheBytesInSixteenBits") {
  for (Sharding sharding : {Sharding::none, Sharding::zero1, Sharding::zero2, Sharding::full})
    CHECK(traffic(sharded(uniform(DType::bf16), {.dp = 4, .fsdp = sharding})) == traffic(sharded(uniform(DType::fp32), {.dp = 4, .fsdp = sharding})) / 2);
}

TEST_CASE("EveryTypeTravelsAsItsRecipeSays") {
  const std::int64_t gathered = 2 * kPadded - 256 * 16;
  const StepGraph narrow = sharded(fsdp(DType::bf16, DType::bf16), {.dp = 8, .fsdp = Sharding::full});
  CHECK(sent(narrow, OpKind::all_gather) == 2 * gathered);
  CHECK(sent(narrow, OpKind::reduce_scatter) == 2 * kPadded);
  const StepGraph wide = sharded(fsdp(DType::bf16, DType::fp32), {.dp = 8, .fsdp = Sharding::full});
  CHECK(sent(wide, OpKind::all_gather) == 2 * gathered);
  CHECK(sent(wide, OpKind::reduce_scatter) == 4 * kPadded);
  // Shards are cast before each gather, and back after each reduction in 16 bits; both beside the rest.
  auto beside = [](const StepGraph& step) {
    int found = 0;
    for (const Op& op : step.graph.ops) found += op.kind == OpKind::shard_copy && op.on_communication_stream ? 1 : 0;
    return found;
  };
  const int gathers = 1 + 2 * 4, reductions = 5;
  CHECK(beside(narrow) == 2 * gathers + reductions);
  CHECK(beside(wide) == 2 * gathers);
  CHECK(beside(sharded(uniform(DType::bf16), {.dp = 8, .fsdp = Sharding::full})) == gathers);
}

TEST_CASE("BlocksAreGatheredAheadOfBackwardAndReducedAfterIt") {
  const StepGraph step = sharded(uniform(DType::bf16), {.dp = 8, .fsdp = Sharding::full}, {}, tower(3));
  using enum OpKind;
  const auto seen = order(step, {all_gather, reduce_scatter, linear, mm});
  const std::vector<OpKind> expected = {all_gather, all_gather, linear, all_gather, linear, all_gather, linear, linear,
                                        // backward: the last block's before the head computes, then always the next before a block
                                        all_gather, mm, mm, all_gather, mm, mm, reduce_scatter, all_gather, mm, mm, reduce_scatter,
                                        mm, reduce_scatter, reduce_scatter};
  CHECK(seen == expected);
  CHECK(copies(step, Phase::forward) == std::vector<std::string>(4, "split_with_sizes_copy"));
}

TEST_CASE("ZeroTwoOfFullyShardKeepsWhatItGathered") {
  const StepGraph step = sharded(fsdp(DType::bf16, DType::bf16), {.dp = 8, .fsdp = Sharding::zero2});
  CHECK(sent(step, OpKind::all_gather) == 2 * kPadded);
}

TEST_CASE("AWorldOfOneCastsItsParametersAllTheSame") {
  const StepGraph step = sharded(fsdp(DType::bf16, DType::fp32), {.dp = 1});
  CHECK(count(step.graph, OpKind::cast) == 5 + 4);  // every parameter before forward, the blocks' again before backward
  CHECK(copies(step, Phase::backward) == std::vector<std::string>{"copy_out", "chunk_cat", "copy", "copy_out", "chunk_cat", "copy", "copy_out",
                                                                  "chunk_cat", "copy", "copy_out", "chunk_cat", "copy", "chunk_cat", "copy"});
  for (const Op& op : step.graph.ops) CHECK(!op.on_communication_stream);
}

TEST_CASE("TheOptimizerWorksOnItsShare") {
  auto elements = [](const StepGraph& step) {
    std::int64_t most = 0;
    for (const Op& op : step.graph.ops)
      if (op.phase == Phase::optimizer && std::holds_alternative<MultiTensorAttributes>(op.attributes))
        most = std::max(most, std::get<MultiTensorAttributes>(op.attributes).elements);
    return most;
  };
  const PrecisionRecipe recipe = uniform(DType::fp32);
  CHECK(elements(sharded(recipe, {.dp = 8})) == kTower);
  for (Sharding sharding : {Sharding::zero1, Sharding::zero2, Sharding::full}) CHECK(elements(sharded(recipe, {.dp = 8, .fsdp = sharding})) == kTower / 8);
}

TEST_CASE("TheLossScalersFlagGoesAroundWhereGradientsAreShared") {
  const PrecisionRecipe recipe = amp(DType::fp16);
  auto flags = [&](Sharding sharding) {
    int found = 0;
    for (const Op& op : sharded(recipe, {.dp = 8, .fsdp = sharding}).graph.ops) found += op.kind == OpKind::all_reduce && op.phase == Phase::loss_scaling ? 1 : 0;
    return found;
  };
  CHECK(flags(Sharding::none) == 0);
  CHECK(flags(Sharding::zero1) == 1);
  CHECK(flags(Sharding::full) == 1);
}

TEST_CASE("SharedGradientsAreSentWithEveryMicroBatchWholeOnesOnce") {
  const TrainingOptions options{.micro_batches = 4};
  auto phase_of = [&](Sharding sharding) {
    Phase phase{};
    for (const Op& op : sharded(uniform(DType::bf16), {.dp = 8, .fsdp = sharding}, options).graph.ops)
      if (op.kind == OpKind::reduce_scatter) phase = op.phase;
    return phase;
  };
  CHECK(runs_per_step(phase_of(Sharding::zero1), 4) == 1);
  CHECK(runs_per_step(phase_of(Sharding::zero2), 4) == 4);
  CHECK(runs_per_step(phase_of(Sharding::full), 4) == 4);
}

TEST_CASE("WeightsThatArriveInEightBitsTravelSo") {
  PrecisionRecipe recipe = uniform(DType::bf16);
  recipe.gathers_fp8 = true;
  Graph model = tower(2);
  // As the precision pass writes it: the product also reads the 8-bit copy that was gathered.
  Graph forward = apply_precision(recipe, gpu(), model);
  Graph quantised = forward.empty_with_names();
  quantised.tensors = forward.tensors;
  for (const Op& op : forward.ops) {
    std::vector<TensorId> inputs(forward.inputs(op).begin(), forward.inputs(op).end());
    if (op.kind == OpKind::linear && op.block >= 0)
      inputs.push_back(quantised.add_tensor({.shape = quantised.tensors[inputs[1]].shape, .dtype = DType::fp8, .role = Role::buffer}));
    quantised.add_op(op, inputs, forward.outputs(op));
  }
  const StepGraph step = apply_plan({.dp = 8, .fsdp = Sharding::full}, recipe, make_step(std::move(quantised), recipe, {}));
  CHECK(verify(step.graph) == "");
  CHECK(sent(step, OpKind::all_gather) == 2 * 2 * 256 * 256 + 2 * 256 * 16);  // fp8 weights twice, the head's bf16 once
}

TEST_CASE("WholeGradientBuffersAreClearedWholeAndSentInTheirType") {
  PrecisionRecipe recipe = uniform(DType::bf16);
  recipe.master_weights = MasterWeights{};
  recipe.optimizer_state = DType::fp32;
  using Made = MainGradients::Made;
  for (const auto& [made, sharding] : {std::pair{Made::in_backward, Sharding::none}, {Made::in_backward, Sharding::zero1}, {Made::in_product, Sharding::none}, {Made::in_product, Sharding::zero1}}) {
    recipe.main_gradients = MainGradients{DType::fp32, made};
    recipe.reduces_after_backward = made == Made::in_backward;
    const StepGraph step = sharded(recipe, {.dp = 8, .fsdp = sharding});
    // Megatron's distributed optimizer scatters the sums; DeepSpeed's bf16 optimizer has every rank sum all.
    CHECK(sent(step, sharding == Sharding::none || made == Made::in_backward ? OpKind::all_reduce : OpKind::reduce_scatter) == 4 * kTower);
    CHECK(sent(step, OpKind::all_gather) == (sharding == Sharding::none ? 0 : 2 * kTower));  // parameters in their own type
    for (const Op& op : step.graph.ops)
      if (step.graph.name(op.label) == "zero_") CHECK(std::get<MultiTensorAttributes>(op.attributes).elements == kTower);
  }
  recipe.main_gradients = MainGradients{DType::fp32, Made::in_backward};
  const StepGraph full = sharded(recipe, {.dp = 8, .fsdp = Sharding::full});
  CHECK(full.main_gradients.value == 0);  // only shards of them
  CHECK(sent(full, OpKind::reduce_scatter) == 4 * kPadded);
}

TEST_CASE("BackwardStillKnowsWhatItRunsFor") {
  const StepGraph step = sharded(uniform(DType::bf16), {.dp = 8, .fsdp = Sharding::full});
  int products = 0;
  for (const Op& op : step.graph.ops) {
    if (op.kind != OpKind::mm) continue;
    REQUIRE(op.origin.valid());
    CHECK(step.graph.ops[op.origin].kind == OpKind::linear);
    ++products;
  }
  CHECK(products == 9);
}
