#include <algorithm>
#include <set>

#include <doctest/doctest.h>

#include "frontend/source.h"
#include "parallel/parallel.h"
#include "parallel/quantised_messages.h"
#include "precision/precision.h"
#include "support.h"
#include "training/checkpointed_step.h"

using namespace precog;
using namespace precog::testing;

namespace {

constexpr std::int64_t kParameters = 64 * 128 + 128 + 128 * 10 + 10;

StepGraph spread(const Plan& plan, const Replicas& replicas, const PrecisionRecipe& recipe = uniform(DType::fp32), const TrainingOptions& training = {}) {
  return apply_plan(plan, replicas, recipe, make_step(apply_precision(recipe, gpu(), two_layers(32, 64, 128)), recipe, training));
}
std::vector<CollectiveAttributes> sent(const StepGraph& step, OpKind kind) {
  std::vector<CollectiveAttributes> out;
  for (const Op& op : step.graph.ops)
    if (op.kind == kind) out.push_back(std::get<CollectiveAttributes>(op.attributes));
  return out;
}
std::int64_t moved(const StepGraph& step, std::string_view label) {
  std::int64_t out = 0;
  for (const Op& op : step.graph.ops)
    if (op.kind == OpKind::shard_copy && step.graph.name(op.label) == label) out += std::get<ShardCopyAttributes>(op.attributes).written.value;
  return out;
}

}  // namespace

TEST_CASE("HybridShardsReduceInsideAndSumAcross") {
  const StepGraph step = spread({.dp = 16, .fsdp = Sharding::full}, {.shard_size = 4});
  const auto inside = sent(step, OpKind::reduce_scatter), across = sent(step, OpKind::all_reduce);
  REQUIRE(inside.size() == across.size());
  REQUIRE_FALSE(inside.empty());
  for (std::size_t i = 0; i < inside.size(); ++i) {
    CHECK(inside[i].participants == 4);
    CHECK(inside[i].stride == 1);
    CHECK(across[i].participants == 4);
    CHECK(across[i].stride == 4);
    CHECK(across[i].bytes.value == inside[i].bytes.value / 4);  // each rank sums its own shard
  }
  for (const CollectiveAttributes& gather : sent(step, OpKind::all_gather)) CHECK(gather.participants == 4);
  CHECK(step.shards.parameters.replicas == 4);
  CHECK(step.shards.optimizer.replicas == 4);
  CHECK(verify(step.graph).empty());
}

TEST_CASE("GroupsOfOneCastAndSumWholeParameters") {
  PrecisionRecipe recipe = uniform(DType::bf16);  // FSDP's NO_SHARD with mixed precision
  recipe.master_weights = MasterWeights{DType::fp32, MasterWeights::Copied::on_gather};
  recipe.main_gradients = MainGradients{DType::fp32, MainGradients::Made::after_reduce};
  recipe.reduced_gradients = DType::bf16;
  const StepGraph step = spread({.dp = 8, .fsdp = Sharding::full}, {.shard_size = 1}, recipe);
  CHECK(sent(step, OpKind::all_gather).empty());
  CHECK(sent(step, OpKind::reduce_scatter).empty());
  std::int64_t bytes = 0;
  for (const CollectiveAttributes& message : sent(step, OpKind::all_reduce)) {
    CHECK(message.participants == 8);
    CHECK(message.stride == 1);
    bytes += message.bytes.value;
  }
  CHECK(bytes == 2 * kParameters);
  CHECK(count(step.graph, OpKind::cast) >= 4);  // each parameter, from its fp32
  CHECK(step.shards.optimizer.replicas == 1);
  CHECK(verify(step.graph).empty());
}

TEST_CASE("Fp16ShardsAreDividedScaledAndCheckedByAll") {
  PrecisionRecipe recipe = uniform(DType::fp16);
  recipe.master_weights = MasterWeights{DType::fp32, MasterWeights::Copied::on_gather};
  recipe.main_gradients = MainGradients{DType::fp32, MainGradients::Made::after_reduce};
  recipe.loss_scaling = true;
  recipe.optimizer_state = DType::fp32;
  const auto with = [&](DType sent, OptimizerImpl impl) {
    recipe.reduced_gradients = sent;
    TrainingOptions training;
    training.optimizer_impl = impl;
    return spread({.dp = 4, .fsdp = Sharding::full}, {}, recipe, training);
  };
  const auto divisions = [](const StepGraph& step) {  // bytes that passes beside the reductions write, in the type that travels
    std::int64_t out = 0;
    for (const Op& op : step.graph.ops)
      if (op.kind == OpKind::shard_copy && op.phase == Phase::backward && step.graph.name(op.label) == "reduce_scatter" && op.math == DType::fp16) out += std::get<ShardCopyAttributes>(op.attributes).written.value;
    return out;
  };
  const StepGraph narrow = with(DType::fp16, OptimizerImpl::foreach_), wide = with(DType::fp32, OptimizerImpl::foreach_);
  const std::int64_t padded = kParameters + 2 * (128 + 1);  // ten rows of the second layer's become twelve
  const auto reduced = [](const StepGraph& step) {
    std::int64_t out = 0;
    for (const CollectiveAttributes& message : sent(step, OpKind::reduce_scatter)) out += message.bytes.value;
    return out;
  };
  CHECK(reduced(narrow) == 2 * padded);
  CHECK(reduced(wide) == 4 * padded);
  CHECK(divisions(narrow) == 2 * padded + 2 * padded / 4);  // the message before, its share after
  CHECK(divisions(wide) == 0);
  // One flag goes around, and the host waits for it, except where the optimizer reads it on the GPU.
  for (const StepGraph* step : {&narrow, &wide}) {
    const auto flags = sent(*step, OpKind::all_reduce);
    REQUIRE(flags.size() == 1);
    CHECK(flags[0].bytes.value == 4);
    CHECK(flags[0].participants == 4);
    CHECK(count(step->graph, OpKind::read_back) == 1);
    CHECK(verify(step->graph).empty());
  }
  CHECK(count(with(DType::fp16, OptimizerImpl::fused).graph, OpKind::read_back) == 0);
}

TEST_CASE("OneGroupIsNoHybrid") {
  const StepGraph all = spread({.dp = 4, .fsdp = Sharding::full}, {}), one = spread({.dp = 4, .fsdp = Sharding::full}, {.shard_size = 4});
  CHECK(to_text(all.graph) == to_text(one.graph));
}

TEST_CASE("AGroupsRanksAreNextToEachOtherBehindTensorParallelOnes") {
  const StepGraph step = spread({.dp = 8, .fsdp = Sharding::zero1, .tp = 2}, {.shard_size = 2});
  const auto inside = sent(step, OpKind::reduce_scatter);
  REQUIRE_FALSE(inside.empty());
  CHECK(inside[0].stride == 2);
  bool found = false;
  for (const CollectiveAttributes& message : sent(step, OpKind::all_reduce)) found = found || (message.participants == 4 && message.stride == 4);
  CHECK(found);
}

TEST_CASE("BucketViewsAreNotCopiedBack") {
  CHECK(count(spread({.dp = 4}, {.bucket_views = true}).graph, OpKind::bucket_copy) == 4);
  CHECK(count(spread({.dp = 4}, {}).graph, OpKind::bucket_copy) == 8);
  CHECK(sent(spread({.dp = 4}, {.bucket_views = true}), OpKind::all_reduce).size() == 1);
}

TEST_CASE("SmallerBucketsAreMoreMessages") {
  CHECK(sent(spread({.dp = 4}, {}), OpKind::all_reduce).size() == 1);
  CHECK(sent(spread({.dp = 4}, {.bucket = {1024}, .first_bucket = {1024}}), OpKind::all_reduce).size() > 1);
}

TEST_CASE("FindingUnusedParametersAsksEveryRank") {
  const auto messages = sent(spread({.dp = 4}, {.find_unused = true}), OpKind::all_reduce);
  REQUIRE(messages.size() == 2);
  CHECK(messages[1].bytes.value == 4 * 4);  // four parameters
}

TEST_CASE("OverlappedGathersNameTheParametersTheyBring") {
  const auto inputs = [](bool overlapped) {
    const StepGraph step = spread({.dp = 4, .fsdp = Sharding::zero1}, {.overlap_gather = overlapped});
    for (const Op& op : step.graph.ops)
      if (op.kind == OpKind::all_gather) return static_cast<int>(op.input_count);
    return -1;
  };
  CHECK(inputs(true) == 4);
  CHECK(inputs(false) == 0);
}

TEST_CASE("AnOptimizerOnTheHostGetsEveryGradientAndSendsEveryWeight") {
  for (int ranks : {1, 4}) {
    const StepGraph step = spread({.dp = ranks, .fsdp = ranks > 1 ? Sharding::zero2 : Sharding::none}, {.offload_optimizer = true, .node_ranks = ranks});
    CHECK(moved(step, "to_host") >= 4 * kParameters / ranks);
    CHECK(moved(step, "to_host") <= 4 * kParameters / ranks + 64);
    CHECK(moved(step, "cpu_adam") >= 4 * kParameters / ranks);
    CHECK(moved(step, "from_host") == 0);  // one micro-batch: nothing to add to
    CHECK(count(step.graph, OpKind::multi_tensor) == 0);
    CHECK(count(step.graph, OpKind::read_back) == 1);
    CHECK(step.master_weights.value == 0);
    CHECK(verify(step.graph).empty());
  }
}

TEST_CASE("ZeroThreeCopiesNewWeightsIntoTheirPlace") {
  for (Sharding sharding : {Sharding::zero1, Sharding::zero2, Sharding::full}) {
    const StepGraph step = spread({.dp = 4, .fsdp = sharding}, {.offload_optimizer = true, .node_ranks = 4});
    CHECK((moved(step, "copy updated weights") > 0) == (sharding != Sharding::full));
    CHECK(moved(step, "cpu_adam") >= 4 * kParameters / 4);
  }
}

TEST_CASE("SumsOnTheHostComeBackToBeAddedTo") {
  TrainingOptions training;
  training.micro_batches = 4;
  const StepGraph step = spread({.dp = 4, .fsdp = Sharding::zero2}, {.offload_optimizer = true, .node_ranks = 4}, uniform(DType::fp32), training);
  CHECK(moved(step, "from_host") == moved(step, "to_host"));
}

TEST_CASE("OnlySomeLayersAreRecomputed") {
  TrainingOptions full;
  full.recompute = Recompute::full;
  const PrecisionRecipe recipe = uniform(DType::fp32);
  const auto recomputed = [&](const Checkpoints& which) {
    const Json architecture = {{"hidden", 64}, {"layers", 4}, {"heads", 4}, {"vocab", 100}, {"max_positions", 32}, {"intermediate", 128}};
    auto source = family_source({{"family", "llama"}, {"architecture", architecture}}, "test");
    REQUIRE(source.has_value());
    auto built = source->build({.batch = 1, .seq = 32});
    REQUIRE(built.has_value());
    const StepGraph step = make_step(apply_precision(recipe, gpu(), *built), recipe, full, which);
    CHECK(verify(step.graph).empty());
    return std::count_if(step.graph.ops.begin(), step.graph.ops.end(), [](const Op& op) { return op.phase == Phase::recompute; });
  };
  const auto all = recomputed({});
  CHECK(all > 0);
  CHECK(recomputed({.first = 1}) * 4 == all);
  CHECK(recomputed({.every = 2}) * 2 == all);
  CHECK(recomputed({.first = 9}) == all);
  const auto kept = recomputed({.per_operator = true});
  CHECK(kept < all);
  CHECK(kept == all - 4 * 5);  // of each layer attention, and the first, third, fifth and seventh product
}

TEST_CASE("ZeroTwoKeepsAShareOfMainGradients") {
  PrecisionRecipe recipe = uniform(DType::bf16);
  recipe.main_gradients = MainGradients{.dtype = DType::fp32, .made = MainGradients::Made::in_backward};
  TrainingOptions training;
  training.micro_batches = 4;
  const StepGraph one = spread({.dp = 4, .fsdp = Sharding::zero1}, {}, recipe, training), two = spread({.dp = 4, .fsdp = Sharding::zero2}, {}, recipe, training);
  CHECK(one.gradients_folded);  // whole, in buffers
  CHECK(two.main_gradients.value == 0);
  CHECK_FALSE(two.gradients_folded);
  std::int64_t shares = 0;
  for (TensorId id : two.shards.kept_gradients) shares += two.graph.bytes(id).value;
  CHECK(shares >= kParameters);
  CHECK(shares <= kParameters + 256);
}

TEST_CASE("ModulesAreGatheredAheadAndWhatIsSmallStays") {
  const std::int64_t first = 128 * 64 * 4, second = 12 * 128 * 4;  // padded to four ranks; biases stay on every rank
  const auto gathers = [&](ModuleGathers how) { return sent(spread({.dp = 4, .fsdp = Sharding::full}, {.by_module = how}), OpKind::all_gather); };
  const auto bytes = [](const std::vector<CollectiveAttributes>& all) {
    std::vector<std::int64_t> out;
    for (const CollectiveAttributes& one : all) out.push_back(one.bytes.value);
    return out;
  };
  // Kept for backward, which wants them soon; asked for again where nothing is.
  CHECK(bytes(gathers({.persistent = 200})) == std::vector<std::int64_t>{first, second});
  CHECK(bytes(gathers({.reuse = 0, .persistent = 200})) == std::vector<std::int64_t>{first, second, second, first});
  CHECK(bytes(gathers({.prefetch = 0, .reuse = 0, .persistent = 200})) == std::vector<std::int64_t>{first, second, second, first});
  // Without a threshold biases travel in their module's message.
  CHECK(bytes(gathers({.persistent = 0})) == std::vector<std::int64_t>{first + 128 * 4, second + 12 * 4});
  // Prefetched: issued before the first module's own work, not when the second begins.
  const auto place = [](const StepGraph& step, std::size_t which) {
    std::size_t seen = 0;
    for (std::size_t i = 0; i < step.graph.ops.size(); ++i)
      if (step.graph.ops[step.graph.ops.id_at(i)].kind == OpKind::all_gather && seen++ == which) return i;
    return step.graph.ops.size();
  };
  const auto with = [](ModuleGathers how) { return spread({.dp = 4, .fsdp = Sharding::full}, {.by_module = how}); };
  const StepGraph ahead = with({.persistent = 200}), late = with({.prefetch = 0, .persistent = 200}), full = with({.live = 1, .persistent = 200});
  CHECK(place(ahead, 1) < place(late, 1));
  CHECK(place(full, 1) == place(late, 1));
  const auto whole = [](const StepGraph& step) {  // beyond each rank's share
    std::int64_t out = 0;
    for (const Tensor& tensor : step.graph.tensors) out += step.graph.name(tensor.name) == "persistent_parameters" ? tensor.shape.elements() : 0;
    return out;
  };
  CHECK(whole(ahead) == 128 - 128 / 4 + 10 - 3);
  CHECK(whole(with({})) == kParameters - (64 * 128 / 4 + 128 / 4 + 128 * 10 / 4 + 3));  // small ones all
  CHECK(whole(with({.persistent = 0})) == 0);
  CHECK(sent(with({}), OpKind::all_gather).empty());
  // Gradients wait for a bucket.
  CHECK(sent(ahead, OpKind::reduce_scatter).size() == 1);
  CHECK(sent(with({.reduced = 1}), OpKind::reduce_scatter).size() == 2);
  for (const StepGraph* step : {&ahead, &late, &full}) CHECK(verify(step->graph).empty());
  // Older ones give each collective a list: as many copies as ranks behind every gather, and in front of the reduction.
  const StepGraph lists = with({.persistent = 200, .lists = true});
  std::int64_t copies = 0;
  for (const Op& op : lists.graph.ops)
    if (op.kind == OpKind::shard_copy && lists.graph.name(op.label) == "rank_parts") copies += std::get<ShardCopyAttributes>(op.attributes).launches;
  CHECK(copies == 4 * 3);
  CHECK(verify(lists.graph).empty());
}

TEST_CASE("DeepSpeedsEngineSumsGradientsWhenBackwardIsDone") {
  PrecisionRecipe recipe = uniform(DType::fp16);
  recipe.main_gradients = MainGradients{DType::fp32, MainGradients::Made::at_step};
  const auto after_first_sum = [&](bool deepspeed) {  // operators of backward
    recipe.reduces_after_backward = deepspeed;
    const StepGraph step = spread({.dp = 4}, {.bucket = {1024}, .first_bucket = {1024}}, recipe);
    int out = 0;
    bool summed = false;
    for (const Op& op : step.graph.ops) {
      summed = summed || op.kind == OpKind::all_reduce;
      out += summed && op.phase == Phase::backward ? 1 : 0;
    }
    CHECK(summed);
    return out;
  };
  CHECK(after_first_sum(false) > 0);  // DistributedDataParallel
  CHECK(after_first_sum(true) == 0);
  // One buffer for all: laid in at once, divided, averaged, each gradient copied back.
  const StepGraph step = spread({.dp = 4}, {.bucket = {1024}, .first_bucket = {1024}}, recipe);
  CHECK(sent(step, OpKind::all_reduce).size() == 1);
  CHECK(moved(step, "flatten") == 2 * kParameters);
  CHECK(moved(step, "scale") == 2 * kParameters);
  CHECK(std::count_if(step.graph.ops.begin(), step.graph.ops.end(), [](const Op& op) { return op.kind == OpKind::bucket_copy; }) == 4);
  CHECK(verify(step.graph).empty());
}

namespace {

std::int64_t bytes_in(const std::vector<CollectiveAttributes>& messages, int participants) {
  std::int64_t out = 0;
  for (const CollectiveAttributes& one : messages) out += one.participants == participants ? one.bytes.value : 0;
  return out;
}

// The two layers in bf16, gathered module by module over two nodes of four.
StepGraph zero_plus_plus(ModuleGathers how, int ranks = 8, int node = 4) {
  how.reuse = 0, how.persistent = 200;
  return spread({.dp = ranks, .fsdp = Sharding::full}, {.by_module = how, .node_ranks = node}, uniform(DType::bf16));
}
constexpr std::int64_t kFirst = 128 * 64, kSecond = 16 * 128;  // weights, padded to eight ranks; biases stay

}  // namespace

TEST_CASE("ASecondCopyIsGatheredInsideTheNode") {
  const StepGraph step = zero_plus_plus({.secondary = 4});
  const auto gathers = sent(step, OpKind::all_gather);
  CHECK(bytes_in(gathers, 8) == 2 * (kFirst + kSecond));  // forward
  CHECK(bytes_in(gathers, 4) == 2 * (kFirst + kSecond));  // backward
  for (const CollectiveAttributes& one : gathers) CHECK(one.stride == 1);
  CHECK(moved(step, "second_copy") == 2 * (kFirst + kSecond) / 4);  // made as forward lets the weights go ...
  std::int64_t kept = 0;                                            // ... and kept
  for (const Tensor& tensor : step.graph.tensors) kept += step.graph.name(tensor.name) == "second_copy" ? tensor.shape.elements() * 2 : 0;
  CHECK(kept == 2 * (kFirst + kSecond) / 4);
  CHECK(bytes_in(sent(zero_plus_plus({}), OpKind::all_gather), 8) == 4 * (kFirst + kSecond));
  CHECK(verify(step.graph).empty());
}

TEST_CASE("WeightsTravelInEightBitsWithTheirScales") {
  CHECK(scales_of(1024) == 1);
  CHECK(scales_of(16000) == 2);
  CHECK(scales_of(8008) == 7);  // 2 groups are no multiple of eight elements each, nor 3, 4, 5, 6; 8008 = 8 x 7 x 143
  const StepGraph step = zero_plus_plus({.quantised_weights = true});
  const auto gathers = sent(step, OpKind::all_gather);
  const std::int64_t scales = 4 * 8 * (scales_of(kFirst / 8) + scales_of(kSecond / 8));
  CHECK(bytes_in(gathers, 8) == 2 * (kFirst + kSecond + scales));  // forward and backward
  CHECK(moved(step, "dequantise") == 2 * 2 * (kFirst + kSecond));
  CHECK(verify(step.graph).empty());
}

TEST_CASE("GradientsAreExchangedInFourBitsInsideAndBetweenNodes") {
  const StepGraph step = zero_plus_plus({.quantised_gradients = true});
  const auto exchanges = sent(step, OpKind::all_to_all);
  // Weights of 128 x 64 and 10 x 128; a scale for each of the larger extent's, a quarter as many for a node's sum.
  std::int64_t inside = 0, across = 0;
  for (auto [elements, scales] : {std::pair{128 * 64, 128}, {10 * 128, 128}}) inside += elements / 2 + 4 * scales, across += elements / 2 / 4 + 4 * (scales / 4);
  CHECK(bytes_in(exchanges, 4) == inside);
  CHECK(bytes_in(exchanges, 2) == across);
  for (const CollectiveAttributes& one : exchanges) CHECK(one.stride == (one.participants == 4 ? 1 : 4));
  const auto reduced = sent(step, OpKind::reduce_scatter);  // biases, each by itself
  CHECK(reduced.size() == 2);
  CHECK(bytes_in(reduced, 8) == 2 * (128 + 16));
  CHECK(sent(zero_plus_plus({.quantised_gradients = true}, 4), OpKind::all_to_all).empty());  // one node
  CHECK_FALSE(exchanged_in_4_bits({10, 127}, 8));
  CHECK(verify(step.graph).empty());
}

TEST_CASE("APartOfTheOptimizerOnTheHost") {
  const auto with = [](double fraction) { return spread({.dp = 4, .fsdp = Sharding::full}, {.offload_optimizer = true, .offload_fraction = fraction, .node_ranks = 4}); };
  const StepGraph all = with(1), half = with(0.5);
  CHECK(moved(half, "cpu_adam") >= 4 * (kParameters / 4 / 2) - 8);
  CHECK(moved(half, "cpu_adam") <= moved(all, "cpu_adam") / 2);
  CHECK(moved(half, "to_host") <= moved(all, "to_host") / 2);
  CHECK(moved(half, "to_host") >= moved(all, "to_host") / 2 - 16);
  CHECK(half.shards.updated_here == 0.5);
  CHECK(count(all.graph, OpKind::multi_tensor) == 0);
  // The GPU's calls, over half of its share, come before the host's.
  const StepGraph gpu = spread({.dp = 4, .fsdp = Sharding::full}, {});
  CHECK(count(half.graph, OpKind::multi_tensor) == count(gpu.graph, OpKind::multi_tensor));
  const auto elements = [](const StepGraph& step) {
    std::int64_t out = 0;
    for (const Op& op : step.graph.ops)
      if (op.kind == OpKind::multi_tensor) out += std::get<MultiTensorAttributes>(op.attributes).elements;
    return out;
  };
  CHECK(elements(half) == doctest::Approx(elements(gpu) / 2).epsilon(0.01));
  bool host = false;
  for (const Op& op : half.graph.ops) {
    if (op.kind == OpKind::multi_tensor) CHECK_FALSE(host);
    host = host || half.graph.name(op.label) == "cpu_adam";
  }
  CHECK(host);
  CHECK(verify(half.graph).empty());
}

TEST_CASE("LambSumsTheSquaresOfUpdatesThatRanksHavePartsOf") {
  TrainingOptions training;
  training.optimizer = OptimizerKind::lamb, training.optimizer_impl = OptimizerImpl::fused;
  const auto messages = sent(spread({.dp = 4, .fsdp = Sharding::zero1}, {}, uniform(DType::fp32), training), OpKind::all_reduce);
  REQUIRE(messages.size() == 2);
  CHECK(messages[0].bytes.value == 4);      // all gradients' norm
  CHECK(messages[1].bytes.value == 4 * 4);  // each update's
  CHECK(sent(spread({.dp = 1}, {}, uniform(DType::fp32), training), OpKind::all_reduce).empty());
}

TEST_CASE("RanksThatSplitLayersShareCheckpoints") {
  TrainingOptions full;
  full.recompute = Recompute::full;
  const PrecisionRecipe recipe = uniform(DType::bf16);
  const Json architecture = {{"hidden", 64}, {"layers", 4}, {"heads", 4}, {"vocab", 100}, {"max_positions", 32}, {"intermediate", 128}};
  auto source = family_source({{"family", "llama"}, {"architecture", architecture}}, "test");
  REQUIRE(source.has_value());
  auto built = source->build({.batch = 2, .seq = 32});
  REQUIRE(built.has_value());
  const StepGraph whole = make_step(apply_precision(recipe, gpu(), *built), recipe, full, Checkpoints{});
  const StepGraph step = apply_plan({.tp = 2}, {.share_checkpoints = true}, recipe, whole);
  CHECK(verify(step.graph).empty());
  const auto gathers = sent(step, OpKind::all_gather);
  CHECK(gathers.size() == 4);  // one for each layer
  for (const CollectiveAttributes& one : gathers) {
    CHECK(one.bytes.value == 2 * 2 * 32 * 64);
    CHECK(one.participants == 2);
  }
  CHECK(moved(step, "part_of_checkpoint") == 4 * 2 * 2 * 32 * 64 / 2);
  // Of forward's tensors backward reads the parts alone.
  std::set<std::int32_t> made;
  for (const Op& op : step.graph.ops) {
    if (op.phase == Phase::forward && op.block >= 0 && op.kind != OpKind::shard_copy)
      for (TensorId id : step.graph.outputs(op))
        if (step.graph.tensors[id].role == Role::activation && step.graph.tensors[id].storage == id && step.graph.tensors[id].shape.elements() == 2 * 32 * 64 && op.block < 3) made.insert(id.value);
    if (op.phase != Phase::recompute) continue;
    for (TensorId id : step.graph.inputs(op)) CHECK_FALSE(made.contains(step.graph.tensors[id].storage.value));
  }
  CHECK(made.size() > 4);
}
