// Context and expert parallelism: arithmetic, parameters and bytes on the wire by hand.
#include "parallel/layer_plans.h"

#include <map>

#include <doctest/doctest.h>

#include "frontend/zoo.h"
#include "graph/operator.h"
#include "parallel/parallel.h"
#include "precision/precision.h"
#include "support.h"

using namespace precog;
using namespace precog::testing;

namespace {

constexpr std::int64_t kBatch = 2, kSeq = 256, kHidden = 256, kHeads = 8, kVocab = 8192;

Graph build(Json architecture, const char* family, std::int64_t seq, bool written_out = false) {
  architecture.update(Json{{"hidden", kHidden}, {"layers", 2}, {"heads", kHeads}, {"vocab", kVocab}, {"max_positions", kSeq}});
  const Json json = {{"schema", 1}, {"name", "test"}, {"title", "test"}, {"family", family}, {"source", "test"}, {"published_parameters", 1},
                     {"default_seq", kSeq}, {"architecture", architecture}};
  auto spec = parse_model(json, "test");
  REQUIRE_MESSAGE(spec.has_value(), (spec ? "" : spec.error().text()));
  auto graph = build_model(*spec, {.batch = kBatch, .seq = seq, .eager_attention = written_out});
  REQUIRE(graph.has_value());
  return std::move(*graph);
}
Graph llama(std::int64_t seq) { return build({{"kv_heads", 4}, {"intermediate", 512}}, "llama", seq); }
constexpr std::int64_t kExperts = 8, kTopK = 2, kInner = 512;
Graph mixtral() { return build({{"kv_heads", 4}, {"intermediate", kInner}, {"experts", kExperts}, {"experts_per_token", kTopK}}, "mixtral", kSeq); }

ShardedLayers split(const Plan& plan, Graph forward, const ExpertCapacity& capacity = {}) {
  auto made = shard_layers(plan, std::move(forward), false, {}, capacity);
  REQUIRE_MESSAGE(made.has_value(), (made ? "" : made.error().text()));
  const std::string broken = verify(made->graph);
  CHECK_MESSAGE(broken.empty(), broken);
  return std::move(*made);
}
StepGraph step_of(const Plan& plan, Graph forward, const ExpertCapacity& capacity = {}, const Replicas& replicas = {}, const TrainingOptions& training = {}) {
  const PrecisionRecipe recipe = uniform(DType::bf16);
  StepGraph step = make_step(apply_precision(recipe, gpu(), split(plan, std::move(forward), capacity).graph), recipe, training);
  step = apply_plan(plan, replicas, recipe, std::move(step));
  const std::string broken = verify(step.graph);
  CHECK_MESSAGE(broken.empty(), broken);
  return step;
}
struct Wire {
  int messages = 0;
  std::int64_t bytes = 0;
  bool operator==(const Wire&) const = default;
};
Wire wire(const StepGraph& step, OpKind kind, Phase phase) {  // of the second layer
  Wire out;
  for (const Op& op : step.graph.ops)
    if (op.kind == kind && op.phase == phase && op.block == 1) ++out.messages, out.bytes += message_bytes(step.graph, op).value;
  return out;
}

}  // namespace

TEST_CASE("SharedSequencesComputeWhatWholeOnesDo") {
  const double whole = training_flops(llama(kSeq)).value;
  for (ContextExchange exchange : {ContextExchange::ring, ContextExchange::all_to_all}) {
    const ShardedLayers rank = split({.cp = 4, .exchange = exchange}, llama(kSeq / 4));
    CHECK(training_flops(rank.graph).value * 4 == doctest::Approx(whole));
    CHECK(rank.model_flops.value * 4 == doctest::Approx(whole));
    CHECK(parameter_count(rank.graph) == parameter_count(llama(kSeq)));
  }
  CHECK(training_flops(split({.tp = 2, .sp = true, .cp = 2}, llama(kSeq / 2)).graph).value * 4 == doctest::Approx(whole));
}

TEST_CASE("KeysAndValuesGoRoundTheRing") {
  const StepGraph step = step_of({.cp = 4}, llama(kSeq / 4));
  const std::int64_t keys = kBatch * (kSeq / 4) * (kHidden / 2) * 2;  // half as many heads as queries, bf16
  CHECK(wire(step, OpKind::send_recv, Phase::forward) == Wire{3, 3 * 2 * keys});
  // Round again, and the gradients of both back.
  CHECK(wire(step, OpKind::send_recv, Phase::backward) == Wire{3 + 6, 3 * 2 * keys + 6 * keys});
  int steps = 0, first = 0;
  for (const Op& op : step.graph.ops) {
    const auto* attention = std::get_if<AttentionAttributes>(&op.attributes);
    if (!attention || op.block != 1) continue;
    CHECK(attention->ring != AttentionAttributes::Ring::none);
    first += attention->ring == AttentionAttributes::Ring::first ? 1 : 0;
    steps += op.kind == OpKind::scaled_dot_product_attention ? 1 : 0;
  }
  CHECK(steps == 4);
  CHECK(first == 2);  // and its backward
}

TEST_CASE("HeadsAreExchangedForTokens") {
  const StepGraph step = step_of({.cp = 4, .exchange = ContextExchange::all_to_all}, llama(kSeq / 4));
  const std::int64_t queries = kBatch * (kSeq / 4) * kHidden * 2, keys = queries / 2;
  CHECK(wire(step, OpKind::all_to_all, Phase::forward) == Wire{4, 2 * queries + 2 * keys});
  CHECK(wire(step, OpKind::all_to_all, Phase::backward) == Wire{4, 2 * queries + 2 * keys});
  const auto refused = shard_layers({.cp = 8, .exchange = ContextExchange::all_to_all}, llama(kSeq / 8));
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().text().find("4 of keys cannot be shared out") != std::string::npos);
}

TEST_CASE("WrittenOutAttentionTakesHeadsForTokensButNoRing") {
  const auto decoder = [](std::int64_t seq) { return build({{"kv_heads", 4}, {"intermediate", 512}}, "llama", seq, true); };
  const Plan plan{.cp = 4, .exchange = ContextExchange::all_to_all};
  CHECK(training_flops(split(plan, decoder(kSeq / 4)).graph).value * 4 == doctest::Approx(training_flops(decoder(kSeq)).value));
  const StepGraph step = step_of(plan, decoder(kSeq / 4));
  const std::int64_t queries = kBatch * (kSeq / 4) * kHidden * 2;  // keys and values are repeated for each of them first
  CHECK(wire(step, OpKind::all_to_all, Phase::forward) == Wire{4, 4 * queries});
  CHECK(wire(step, OpKind::all_to_all, Phase::backward) == Wire{4, 4 * queries});
  for (const Op& op : step.graph.ops)
    if (op.kind == OpKind::softmax && op.block == 1) CHECK(step.graph.tensors[step.graph.input(op, 0)].shape == Shape{kBatch, kHeads / 4, kSeq, kSeq});
  const auto refused = shard_layers({.cp = 4}, decoder(kSeq / 4));
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().text().find("cp_exchange all_to_all") != std::string::npos);
  CHECK_FALSE(shard_layers({.cp = 16, .exchange = ContextExchange::all_to_all}, decoder(kSeq / 16)).has_value());  // of 8 heads
}

TEST_CASE("TokensTravelToTheirExpertsAndBack") {
  const Plan plan{.dp = 4, .ep = 4};
  const StepGraph step = step_of(plan, mixtral());
  const std::int64_t sent = kBatch * kSeq * kTopK * kHidden * 2;
  CHECK(wire(step, OpKind::all_to_all, Phase::forward) == Wire{2, 2 * sent});
  CHECK(wire(step, OpKind::all_to_all, Phase::backward) == Wire{2, 2 * sent});
  const std::int64_t experts = 2 * kExperts * 3 * kInner * kHidden;  // two layers, gate, up and down
  CHECK(parameter_count(split(plan, mixtral()).graph) == parameter_count(mixtral()) - experts + experts / 4);
  CHECK(training_flops(split(plan, mixtral()).graph).value == doctest::Approx(training_flops(mixtral()).value));
  // Nobody else has a rank's experts: their gradients are not sent.
  std::int64_t reduced = 0;
  for (const Op& op : step.graph.ops)
    if (op.kind == OpKind::all_reduce) reduced += message_bytes(step.graph, op).value;
  CHECK(reduced == 2 * (parameter_count(mixtral()) - experts));
}

TEST_CASE("TheBusiestRankSetsThePace") {
  const Plan even{.dp = 4, .ep = 4}, uneven{.dp = 4, .ep = 4, .expert_imbalance = 1.5};
  const double dense = training_flops(build({{"kv_heads", 4}, {"intermediate", kInner}}, "llama", kSeq)).value;
  const double gates = 2 * 3 * 2.0 * kBatch * kSeq * kExperts * kHidden;
  const double mlp = 2 * 3 * 3 * 2.0 * kBatch * kSeq * kInner * kHidden;
  const double routed = training_flops(split(even, mixtral()).graph).value - (dense - mlp) - gates;
  CHECK(routed == doctest::Approx(kTopK * mlp));
  CHECK(training_flops(split(uneven, mixtral()).graph).value - training_flops(split(even, mixtral()).graph).value == doctest::Approx(0.5 * routed));
  CHECK(wire(step_of(uneven, mixtral()), OpKind::all_to_all, Phase::forward).bytes == wire(step_of(even, mixtral()), OpKind::all_to_all, Phase::forward).bytes * 3 / 2);
}

TEST_CASE("ExpertsTakeNoMoreThanTheirCapacity") {
  const Plan even{.dp = 4, .ep = 4}, uneven{.dp = 4, .ep = 4, .expert_imbalance = 1.5}, alone;
  const auto flops = [](const Plan& plan, double factor = 0, bool padded = false) { return training_flops(split(plan, mixtral(), {factor, padded}).graph).value; };
  const auto bytes = [](const Plan& plan, double factor = 0, bool padded = false) { return wire(step_of(plan, mixtral(), {factor, padded}), OpKind::all_to_all, Phase::forward).bytes; };
  const double routed = 2 * (flops(uneven) - flops(even));
  // More than the busiest has changes nothing; less is all that it gets.
  CHECK(flops(uneven, 2) == flops(uneven));
  CHECK(bytes(uneven, 2) == bytes(uneven));
  CHECK(flops(uneven, 1.25) - flops(even) == doctest::Approx(0.25 * routed).epsilon(0.01));
  CHECK(flops(even) - flops(uneven, 0.5) == doctest::Approx(0.5 * routed).epsilon(0.01));
  // Padded, every rank computes and sends what experts could take, whoever is busy; and nobody waits to hear how much that is.
  CHECK(flops(even, 1.5, true) - flops(even) == doctest::Approx(0.5 * routed).epsilon(0.01));
  CHECK(static_cast<double>(bytes(even, 1.5, true)) == doctest::Approx(1.5 * static_cast<double>(bytes(even))).epsilon(0.01));
  CHECK(count(split(even, mixtral(), {1.5, true}).graph, OpKind::read_back) + 2 == count(split(even, mixtral()).graph, OpKind::read_back));
  // On one rank as well.
  CHECK(flops(alone, 1.5, true) - flops(alone) == doctest::Approx(0.5 * routed).epsilon(0.01));
  CHECK(flops(alone, 1.5) == flops(alone));
  for (double factor : {0.3, 1.0, 1.7})
    for (bool padded : {false, true}) CHECK(verify(step_of(even, mixtral(), {factor, padded}).graph).empty());
  CHECK_FALSE(shard_layers({}, llama(kSeq), false, {}, {1.5, true}).has_value());
}

TEST_CASE("DroppedRowsAreNoWorkOfTheModels") {
  CHECK(dropped_share({}, 4) == 0);
  CHECK(dropped_share({.factor = 2}, 2) == 0);
  CHECK(dropped_share({.factor = 0.75}, 1) == doctest::Approx(0.25));
  CHECK(dropped_share({.factor = 1}, 2) == doctest::Approx(0.25));  // loads evenly from 0 to 2: the upper half loses its quarter
  CHECK(dropped_share({.factor = 0.75}, 1.001) == doctest::Approx(0.25).epsilon(0.01));
  const double all = split({}, mixtral()).model_flops.value;
  const double experts = 3.0 * 2 * 2 * kBatch * kSeq * kTopK * 3 * kInner * kHidden;  // three products each, two layers
  CHECK(split({}, mixtral(), {.factor = 0.75}).model_flops.value == doctest::Approx(all - experts / 4));
  CHECK(split({}, mixtral(), {.factor = 1}).model_flops.value == doctest::Approx(all));
  // An expert gets each token once at most: of two choices among eight, four times the mean.
  CHECK(shard_layers({}, mixtral(), false, {}, {.factor = 4}).has_value());
  const auto more = shard_layers({}, mixtral(), false, {}, {.factor = 4.5});
  REQUIRE_FALSE(more.has_value());
  CHECK(more.error().text().find("4 times the mean") != std::string::npos);
}

TEST_CASE("ExpertsAreSplitLikeAnyMlp") {
  for (bool sp : {false, true}) {
    const Plan plan{.tp = 2, .sp = sp};
    const ShardedLayers rank = split(plan, mixtral());
    const std::int64_t h = kHidden, norms = 5 * h, gates = 2 * kExperts * h;
    CHECK(parameter_count(rank.graph) == (parameter_count(mixtral()) - norms - gates) / 2 + norms + gates);
    // The router is every rank's: it counts whole, or for a rank's tokens.
    const double routers = 2 * 3 * 2.0 * kBatch * kSeq * kExperts * kHidden;
    CHECK(training_flops(rank.graph).value == doctest::Approx((training_flops(mixtral()).value - routers) / 2 + (sp ? routers / 2 : routers)));
  }
  const StepGraph step = step_of({.tp = 2}, mixtral());
  const std::int64_t activation = kBatch * kSeq * kHidden * 2;
  CHECK(wire(step, OpKind::all_reduce, Phase::forward) == Wire{2, 2 * activation});
  // Besides the two activations' gradients that of the routing weights, in the fp32 that the router computes in.
  CHECK(wire(step, OpKind::all_reduce, Phase::backward).messages == 3);
}

TEST_CASE("PlansThatDoNotFitTheModelAreRefused") {
  CHECK_FALSE(shard_layers({.dp = 4, .ep = 4}, llama(kSeq)).has_value());
  CHECK_FALSE(shard_layers({.dp = 3, .ep = 3}, mixtral()).has_value());
  CHECK_FALSE(shard_layers({.cp = 2}, two_layers()).has_value());
}

TEST_CASE("WholeExpertsGetEachRanksOwnTokens") {
  // Layers split two ways, experts not at all: eight ranks share them, the two of each layer among these.
  const Plan plan{.dp = 4, .tp = 2, .sp = true, .ep = 8, .etp = 1};
  const Json megatron = {{"kv_heads", 4}, {"intermediate", kInner}, {"experts", kExperts}, {"experts_per_token", kTopK}, {"weigh_inside", true}};
  for (const Graph& model : {mixtral(), build(megatron, "mixtral", kSeq)}) {
    const StepGraph step = step_of(plan, model);
    const std::int64_t sent = kBatch * (kSeq / 2) * kTopK * kHidden * 2;  // half of the sequence
    CHECK(wire(step, OpKind::all_to_all, Phase::forward) == Wire{2, 2 * sent});
    CHECK(wire(step, OpKind::all_to_all, Phase::backward) == Wire{2, 2 * sent});
    const ShardedLayers rank = split(plan, model);
    const std::int64_t h = kHidden, norms = 5 * h, gates = 2 * kExperts * h, experts = 2 * kExperts * 3 * kInner * h;
    CHECK(parameter_count(rank.graph) == (parameter_count(model) - norms - gates - experts) / 2 + norms + gates + experts / 8);
    CHECK(training_flops(rank.graph).value == doctest::Approx(training_flops(model).value / 2));
    for (const Op& op : step.graph.ops) {
      if (op.kind == OpKind::all_to_all) CHECK(std::get<CollectiveAttributes>(op.attributes).stride == 1);
      if (op.block == 1 && op.kind == OpKind::all_gather && op.phase == Phase::forward)  // of tokens: for attention only, not for experts
        CHECK((step.graph.name(op.module).find("experts") == std::string_view::npos || step.graph.name(op.label) == "experts"));
    }
  }
}

TEST_CASE("ExpertsHaveAGridOfTheirOwn") {
  const std::int64_t h = kHidden, norms = 5 * h, gates = 2 * kExperts * h, experts = 2 * kExperts * 3 * kInner * h;
  const Json megatron = {{"kv_heads", 4}, {"intermediate", kInner}, {"experts", kExperts}, {"experts_per_token", kTopK}, {"weigh_inside", true}};
  // More ranks to an expert than to its layer, fewer, none to a layer; fewer ranks to all experts than to a layer, and as many experts as there are on every rank.
  for (const Plan& plan : {Plan{.dp = 4, .tp = 2, .sp = true, .ep = 2, .etp = 4}, Plan{.dp = 2, .tp = 4, .sp = true, .ep = 2, .etp = 2}, Plan{.dp = 4, .ep = 2, .etp = 2}, Plan{.dp = 4, .etp = 2},
                           Plan{.dp = 2, .tp = 4, .sp = true, .ep = 2, .etp = 1}, Plan{.dp = 2, .tp = 2, .sp = true, .etp = 1}, Plan{.dp = 1, .tp = 4, .sp = true, .ep = 2, .etp = 1}, Plan{.dp = 6, .ep = 2, .etp = 3}})
    for (const Graph& model : {mixtral(), build(megatron, "mixtral", kSeq)}) {
      if (kInner % plan.etp != 0) {
        const auto refused = shard_layers(plan, Graph(model));
        REQUIRE_FALSE(refused.has_value());
        CHECK(refused.error().text().find("plan.etp") != std::string::npos);
        continue;
      }
      const StepGraph step = step_of(plan, Graph(model));
      const std::int64_t own = kBatch * (kSeq / plan.tp) * kTopK * kHidden * 2;  // a rank's tokens, each for every expert that it meets
      const Wire sent = plan.ep > 1 ? Wire{2, 2 * own} : Wire{}, shared = plan.etp > 1 ? Wire{1, own * plan.etp} : Wire{};
      for (Phase phase : {Phase::forward, Phase::backward}) {
        CHECK(wire(step, OpKind::all_to_all, phase) == sent);
        std::map<OpKind, Wire> rows;  // weights of the routing go with them: [rows] alone
        for (const Op& op : step.graph.ops) {
          if (op.phase != phase || op.block != 1 || !op.label.valid()) continue;
          const auto* sends = std::get_if<CollectiveAttributes>(&op.attributes);
          if (op.kind == OpKind::all_to_all) CHECK((sends->participants == plan.ep && sends->stride == plan.etp));
          if (!sends || step.graph.name(op.label) != kSplitExperts) continue;
          const CollectiveAttributes& message = *sends;
          CHECK((message.participants == plan.etp && message.stride == 1));
          if (step.graph.tensors[step.graph.input(op, 0)].shape.elements() >= own / 2 / plan.etp) rows[op.kind].messages += 1, rows[op.kind].bytes += message_bytes(step.graph, op).value;
        }
        CHECK(rows[OpKind::all_gather] == shared);
        CHECK(rows[OpKind::reduce_scatter] == shared);
      }
      const ShardedLayers rank = split(plan, Graph(model));
      const int grid = plan.ep * plan.etp, copies = plan.tp * plan.dp / grid;
      CHECK(parameter_count(rank.graph) == (parameter_count(model) - norms - gates - experts) / plan.tp + norms + gates + experts / grid);
      CHECK(training_flops(rank.graph).value == doctest::Approx(training_flops(model).value / plan.tp));
      // Their gradients go to the ranks that have the same experts, not to those that have the same layers; states are shared out so, too.
      std::int64_t reduced = 0;
      for (const Op& op : step.graph.ops) {
        const auto* message = std::get_if<CollectiveAttributes>(&op.attributes);
        if (op.kind != OpKind::all_reduce || op.phase != Phase::gradient_sync || !message || message->stride != grid) continue;
        CHECK(message->participants == copies);
        reduced += message->bytes.value;
      }
      if (grid != plan.tp) CHECK(reduced == (copies > 1 ? 2 * experts / grid : 0));
      Plan shared_states = plan;
      shared_states.fsdp = Sharding::zero1;
      const StepGraph sharded = step_of(shared_states, Graph(model));
      for (const ParameterGradient& g : sharded.gradients)
        CHECK(ranks_sharing(sharded, g.parameter, sharded.shards.optimizer) == (is_expert_parameter(sharded.graph, g.parameter) ? copies : plan.dp));
    }
}

TEST_CASE("GroupsThatHoldCopiesHaveAllExperts") {
  const std::int64_t experts = 2 * kExperts * 3 * kInner * kHidden;
  for (Sharding sharding : {Sharding::full, Sharding::zero1})
    for (int ep : {2, 4}) {  // of a group of four: two ranks have the same experts, or nobody else has
      const Plan plan{.dp = 8, .fsdp = sharding, .ep = ep};
      const StepGraph step = step_of(plan, mixtral(), {}, {.shard_size = 4});
      std::int64_t summed = 0;
      for (const Op& op : step.graph.ops) {
        const auto* message = std::get_if<CollectiveAttributes>(&op.attributes);
        if (!message || (op.phase != Phase::backward && op.phase != Phase::gradient_sync)) continue;
        if (op.kind == OpKind::reduce_scatter) CHECK(((message->participants == 4 && message->stride == 1) || (message->participants == 4 / ep && message->stride == ep)));
        if (op.kind != OpKind::all_reduce) continue;
        CHECK(message->participants == 2);
        CHECK(message->stride == 4);
        summed += message->bytes.value;
      }
      CHECK(summed == doctest::Approx(2.0 * static_cast<double>((parameter_count(mixtral()) - experts) / 4 + experts / 4)).epsilon(0.001));  // every rank's own shard, bf16
      for (const ParameterGradient& g : step.gradients) CHECK(ranks_sharing(step, g.parameter, step.shards.optimizer) == (is_expert_parameter(step.graph, g.parameter) ? 4 / ep : 4));
    }
}

TEST_CASE("ExpertsGoToTheHostAsTheyAreSharedOut") {
  const std::int64_t experts = 2 * kExperts * 3 * kInner * kHidden, rest = parameter_count(mixtral()) - experts;
  for (Sharding sharding : {Sharding::zero1, Sharding::zero2, Sharding::full})
    for (int ep : {2, 4}) {  // others have the same experts, or nobody has
      const Plan plan{.dp = 4, .fsdp = sharding, .ep = ep};
      const StepGraph step = step_of(plan, mixtral(), {}, {.offload_optimizer = true});
      std::int64_t down = 0;
      for (const Op& op : step.graph.ops)
        if (op.kind == OpKind::shard_copy && step.graph.name(op.label) == "to_host") down += std::get<ShardCopyAttributes>(op.attributes).written.value;
      const auto share = static_cast<double>(rest / 4 + experts / 4);
      CHECK(static_cast<double>(down) == doctest::Approx(4 * share).epsilon(0.001));
      CHECK(static_cast<double>(step.on_host.value) == doctest::Approx(16 * share).epsilon(0.001));  // weights, gradients and two states in fp32
      CHECK(step_of(plan, mixtral(), {}, {.offload_states = true}).on_host.value == doctest::Approx(4 * share).epsilon(0.001));  // two states in bf16
    }
}

TEST_CASE("StagesSendGradientsToTheHostOnce") {
  // DeepSpeed's pipelines take stage 1 at most, where gradients are added up on the GPU.
  TrainingOptions training;
  training.micro_batches = 4;
  const auto copies = [&](const Plan& plan, std::string_view label) {
    std::map<Phase, int> out;
    const PrecisionRecipe recipe = uniform(DType::bf16);
    const StepGraph step = apply_plan(plan, {.offload_optimizer = true}, recipe, make_step(apply_precision(recipe, gpu(), llama(kSeq)), recipe, training));
    for (const Op& op : step.graph.ops)
      if (op.kind == OpKind::shard_copy && step.graph.name(op.label) == label) ++out[op.phase];
    return out;
  };
  for (int dp : {1, 4}) {
    const Plan plan{.dp = dp, .fsdp = dp > 1 ? Sharding::zero1 : Sharding::none, .pp = 2};
    CHECK(copies(plan, "to_host").size() == 1);
    CHECK(copies(plan, "to_host").begin()->first == Phase::gradient_sync);
    CHECK(copies(plan, "from_host").empty());
  }
  CHECK(copies({}, "to_host").begin()->first == Phase::backward);  // a rank by itself: as backward goes, each micro-batch
}

TEST_CASE("WholeExpertsOfSplitLayersGetTokensOnce") {
  // Every rank of a layer has all tokens (no sp): each sends its part, and what comes back is gathered (DeepSpeed's drop_tokens, gather_tokens).
  const Plan plan{.dp = 4, .tp = 2, .ep = 4, .etp = 1};
  const StepGraph step = step_of(plan, mixtral());
  const std::int64_t sent = kBatch * (kSeq / 2) * kTopK * kHidden * 2;
  CHECK(wire(step, OpKind::all_to_all, Phase::forward) == Wire{2, 2 * sent});
  std::int64_t gathered = 0;
  for (const Op& op : step.graph.ops)
    if (op.block == 1 && op.kind == OpKind::all_gather && op.phase == Phase::forward && step.graph.name(op.label) == "tensor") gathered += message_bytes(step.graph, op).value;
  CHECK(gathered == 2 * sent);
  for (const Op& op : step.graph.ops)  // and no sequence is shared out behind them
    if (op.kind == OpKind::layer_norm || op.kind == OpKind::rms_norm) CHECK(step.graph.tensors[step.graph.input(op, 0)].shape.elements() == kBatch * kSeq * kHidden);
}

TEST_CASE("PermutedRowsAreGatheredBothWays") {
  const Json megatron = {{"kv_heads", 4}, {"intermediate", kInner}, {"experts", kExperts}, {"experts_per_token", kTopK}, {"weigh_inside", true}};
  int scattered = 0, sorted = 0, sorted_for_nodes = 0;
  for (const Op& op : step_of({}, build(megatron, "mixtral", kSeq)).graph.ops)
    if (op.kind == OpKind::index_add && op.block == 1) ++scattered;
  CHECK(scattered == 1);  // the weights' alone
  const auto count = [&](const Plan& plan) {
    int out = 0;
    for (const Op& op : step_of(plan, build(megatron, "mixtral", kSeq)).graph.ops)
      if (op.kind == OpKind::index_select && op.phase == Phase::forward && op.block == 1) ++out;
    return out;
  };
  sorted = count({.dp = 4, .ep = 4});
  sorted_for_nodes = count({.dp = 4, .ep = 4, .dispatch = ExpertDispatch::per_node});
  CHECK(sorted == sorted_for_nodes + 2);  // by expert, and back: two experts on a rank
  CHECK(count({.dp = 8, .ep = 8}) == sorted_for_nodes);
}
