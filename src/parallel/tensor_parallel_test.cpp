// Tensor and sequence parallelism against what the papers count: parameters and arithmetic per rank, bytes on the wire per layer
// (Shoeybi et al. 2019), activations per layer (Korthikanti et al. 2022, equations 1 to 4 and table 2).
#include "parallel/tensor_parallel.h"

#include <filesystem>
#include <map>

#include <doctest/doctest.h>

#include "frontend/source.h"
#include "frontend/zoo.h"
#include "graph/operator.h"
#include "parallel/forward_rewrite.h"
#include "parallel/parallel.h"
#include "parallel/placement.h"
#include "precision/precision.h"
#include "support.h"
#include "training/step_graph.h"

using namespace precog;
using namespace precog::testing;

namespace {

constexpr std::int64_t kBatch = 2, kSeq = 256, kHidden = 512, kHeads = 8, kVocab = 8192, kLayers = 3;

// Megatron's GPT: learned positions, one kernel for GELU, dropout everywhere.
Graph gpt(std::int64_t layers = kLayers, std::int64_t batch = kBatch, std::int64_t vocab = kVocab, std::int64_t heads = kHeads) {
  const Json json = {{"schema", 1}, {"name", "gpt"}, {"title", "gpt"}, {"family", "gpt2"}, {"source", "test"}, {"published_parameters", 1}, {"default_seq", kSeq},
                     {"architecture", {{"hidden", kHidden}, {"layers", layers}, {"heads", heads}, {"vocab", vocab}, {"max_positions", kSeq}, {"dropout", 0.1}, {"activation", "gelu"}}}};
  auto spec = parse_model(json, "test");
  REQUIRE_MESSAGE(spec.has_value(), (spec ? "" : spec.error().text()));
  auto graph = build_model(*spec, {.batch = batch, .seq = kSeq});
  REQUIRE(graph.has_value());
  return std::move(*graph);
}

ShardedLayers split(const Plan& plan, Graph forward) {
  auto made = shard_layers(plan, std::move(forward));
  REQUIRE_MESSAGE(made.has_value(), (made ? "" : made.error().text()));
  const std::string broken = verify(made->graph);
  CHECK_MESSAGE(broken.empty(), broken);
  return std::move(*made);
}
StepGraph step_of(const Plan& plan, Graph forward, TrainingOptions options = {}) {
  const PrecisionRecipe recipe = uniform(DType::bf16);
  ShardedLayers rank = split(plan, std::move(forward));
  StepGraph step = make_step(apply_precision(recipe, gpu(), rank.graph), recipe, options);
  step.summed_gradients = rank.summed_gradients;
  step = apply_plan(plan, recipe, std::move(step));
  const std::string broken = verify(step.graph);
  CHECK_MESSAGE(broken.empty(), broken);
  return step;
}

struct Wire {
  int messages = 0;
  std::int64_t bytes = 0;
  bool operator==(const Wire&) const = default;
};
// What one block sends in one direction, by collective.
std::map<std::string, Wire> wire(const StepGraph& step, Phase phase, int block) {
  std::map<std::string, Wire> out;
  for (const Op& op : step.graph.ops) {
    if (op.phase != phase || op.block != block || definition(op.kind).family != Family::collective) continue;
    Wire& kind = out[std::string(to_text(op.kind))];
    ++kind.messages;
    kind.bytes += message_bytes(step.graph, op).value;
  }
  return out;
}

// The same model with attention as it was run in 2022: two products, a masked softmax and dropout between them.
Graph written_out(Graph forward) {
  ForwardRewrite graph(std::move(forward));
  for (const Op& op : graph.in.ops) {
    if (op.kind != OpKind::scaled_dot_product_attention) {
      graph.keep(op);
      continue;
    }
    const auto& a = std::get<AttentionAttributes>(op.attributes);
    const TensorId q = graph.in.input(op, 0), k = graph.in.input(op, 1), v = graph.in.input(op, 2), result = graph.in.output(op);
    const Shape scores{a.batch, a.heads, a.q_len, a.kv_len};
    const TensorId turned = graph.like(k, Shape{a.batch, a.heads, a.head_dim, a.kv_len});
    graph.out.tensors[turned].storage = graph.out.tensors[k].storage;
    graph.put(graph.beside(op, OpKind::view, ViewAttributes{ViewKind::transpose}), {k}, {turned});
    const TensorId mask = graph.out.add_tensor({.shape = {1, 1, a.q_len, a.kv_len}, .dtype = DType::boolean, .role = Role::buffer, .name = graph.out.intern("mask")});
    const TensorId raw = graph.like(result, scores), scaled = graph.like(result, scores), masked = graph.like(result, scores);
    const TensorId weights = graph.like(result, scores), kept = graph.like(result, scores);
    const TensorId dropped = graph.out.add_tensor({.shape = scores, .dtype = DType::boolean});
    graph.put(graph.beside(op, OpKind::matmul, GemmAttributes{a.batch * a.heads, a.q_len, a.kv_len, a.head_dim}), {q, turned}, {raw});
    graph.put(graph.beside(op, OpKind::mul_scalar), {raw}, {scaled});
    graph.put(graph.beside(op, OpKind::masked_fill), {scaled, mask}, {masked});
    graph.put(graph.beside(op, OpKind::softmax), {masked}, {weights});
    graph.put(graph.beside(op, OpKind::dropout), {weights}, {kept, dropped});
    graph.put(graph.beside(op, OpKind::matmul, GemmAttributes{a.batch * a.heads, a.q_len, a.head_dim, a.kv_len}), {kept, v}, {result});
  }
  return std::move(graph.out);
}

// Bytes that a block's forward leaves for backward.
std::int64_t saved_by(const StepGraph& step, int block) {
  std::map<std::int32_t, bool> saved;
  const Graph& graph = step.graph;
  for (const Op& op : graph.ops) {
    if (op.phase == Phase::forward && op.block == block)
      for (TensorId id : graph.outputs(op))
        if (graph.tensors[id].role == Role::activation && graph.tensors[id].storage == id) saved[id.value] = false;
    if (op.phase == Phase::backward || op.phase == Phase::recompute)
      for (TensorId id : graph.inputs(op))
        if (auto found = saved.find(graph.tensors[id].storage.value); found != saved.end()) found->second = true;
  }
  std::int64_t bytes = 0;
  for (const auto& [id, needed] : saved)
    if (needed) bytes += graph.bytes(TensorId{id}).value;
  return bytes;
}

}  // namespace

TEST_CASE("SplitsFollowReshapesAndTranspositions") {
  const Placement columns{2, 96, false, false};
  const auto heads = through_reshape({2, 16, 96}, {2, 16, 8, 12}, columns, 4);
  REQUIRE(heads);
  CHECK(heads->axis == 2);
  CHECK(heads->extent == 8);
  CHECK(through_transpose({2, 16, 8, 12}, {2, 8, 16, 12}, *heads)->axis == 1);
  CHECK(through_transpose({2, 8, 8, 12}, {2, 8, 8, 12}, *heads)->axis == 1);  // alike: heads and tokens change places
  CHECK(through_reshape({2, 16, 8, 12}, {2, 16, 96}, *heads, 4)->axis == 2);
  CHECK(through_reshape({2, 16, 96}, {2, 16, 3, 32}, columns, 4)->axis == 3);  // three parts, each split
  const Placement tokens{1, 16, true, false};
  const auto rows = through_reshape({4, 16, 96}, {64, 96}, tokens, 4);
  REQUIRE(rows);
  CHECK(rows->axis == 0);
  CHECK(through_reshape({64, 96}, {4, 16, 96}, *rows, 4)->axis == 1);  // tokens again, though the batch would divide too
  CHECK(through_reshape({4, 16, 96}, {4, 1, 16, 96}, tokens, 4)->axis == 2);
  // nn.MultiheadAttention: samples and heads as one axis, and apart again.
  const auto merged = through_reshape({197, 32, 1024}, {197, 512, 64}, Placement{2, 1024, false, false}, 4);
  REQUIRE(merged);
  CHECK(merged->axis == 1);
  CHECK(merged->extent == 16);
  CHECK(through_reshape({512, 197, 64}, {32, 16, 197, 64}, Placement{0, 16, false, false}, 4)->axis == 1);
  CHECK_FALSE(through_reshape({2, 16, 96}, {2, 16, 3, 32}, columns, 5));
}

TEST_CASE("EveryRankHasItsPartOfEveryLayer") {
  for (int t : {2, 4, 8}) {
    const std::int64_t h = kHidden;
    const std::int64_t layer = 12 * h * h / t + 7 * h / t + 2 * h + 4 * h;
    const std::int64_t rest = kVocab / t * h + kSeq * h + 2 * h;
    CHECK(parameter_count(split({.tp = t}, gpt()).graph) == kLayers * layer + rest);
    CHECK(parameter_count(split({.tp = t, .sp = true}, gpt()).graph) == kLayers * layer + rest);
  }
}

TEST_CASE("ArithmeticIsSharedOutEvenly") {
  const double whole = training_flops(gpt()).value;
  for (bool sp : {false, true}) CHECK(training_flops(split({.tp = 4, .sp = sp}, gpt()).graph).value * 4 == doctest::Approx(whole));
}

TEST_CASE("TensorParallelLayersReduceTwiceEachWay") {
  const StepGraph step = step_of({.tp = 4}, gpt());
  const std::int64_t activation = kBatch * kSeq * kHidden * 2;
  for (int block = 0; block < kLayers; ++block)
    for (Phase phase : {Phase::forward, Phase::backward})
      CHECK(wire(step, phase, block) == std::map<std::string, Wire>{{"all_reduce", {2, 2 * activation}}});
  // Outside the layers: the embedding's sum and three values a token forward, the head's input backward.
  CHECK(wire(step, Phase::forward, -1) == std::map<std::string, Wire>{{"all_reduce", {4, activation + 3 * 4 * kBatch * kSeq}}});
  CHECK(wire(step, Phase::backward, -1) == std::map<std::string, Wire>{{"all_reduce", {1, activation}}});
}

TEST_CASE("SequenceParallelLayersGatherAndScatterTheSameVolume") {
  const StepGraph step = step_of({.tp = 4, .sp = true}, gpt());
  const std::int64_t activation = kBatch * kSeq * kHidden * 2;
  CHECK(wire(step, Phase::forward, 1) == std::map<std::string, Wire>{{"all_gather", {2, 2 * activation}}, {"reduce_scatter", {2, 2 * activation}}});
  // Backward, and what the products' own gradients need again.
  CHECK(wire(step, Phase::backward, 1) == std::map<std::string, Wire>{{"all_gather", {4, 4 * activation}}, {"reduce_scatter", {2, 2 * activation}}});
  // Norms and biases after the sum are every rank's: two of each a layer, and the last norm.
  CHECK(split({.tp = 4, .sp = true}, gpt()).summed_gradients == kLayers * (4 + 2) * kHidden + 2 * kHidden);
  CHECK(split({.tp = 4}, gpt()).summed_gradients == 0);
}

TEST_CASE("ActivationsPerLayerAreKorthikantis") {
  const std::int64_t sbh = kSeq * kBatch * kHidden, rows = kSeq * kBatch;
  // Fused attention keeps no scores: what it keeps instead is one fp32 value a head and token; norms keep two a token.
  const std::int64_t statistics = 2 * 2 * 4 * rows, sums = 4 * kHeads * rows;
  CHECK(saved_by(step_of({}, gpt()), 1) == 34 * sbh + statistics + sums);
  for (std::int64_t t : {2, 4, 8}) {
    CHECK(saved_by(step_of({.tp = static_cast<int>(t)}, gpt()), 1) == 10 * sbh + 24 * sbh / t + statistics + sums / t);
    CHECK(saved_by(step_of({.tp = static_cast<int>(t), .sp = true}, gpt()), 1) == 34 * sbh / t + statistics / t + sums / t);
  }
  // Full recomputation keeps the layer's input, which the layer before made: here its own result, split with the tokens.
  CHECK(saved_by(step_of({.tp = 4}, gpt(), {.recompute = Recompute::full}), 1) == 2 * sbh);
  CHECK(saved_by(step_of({.tp = 4, .sp = true}, gpt(), {.recompute = Recompute::full}), 1) == 2 * sbh / 4);
}

TEST_CASE("ActivationsOfAttentionThatIsWrittenOutToo") {
  const std::int64_t sbh = kSeq * kBatch * kHidden, scores = 5 * kHeads * kSeq * kSeq * kBatch, statistics = 2 * 2 * 4 * kSeq * kBatch;
  CHECK(saved_by(step_of({}, written_out(gpt())), 1) == 34 * sbh + scores + statistics);  // equation 1
  for (std::int64_t t : {2, 4, 8}) {
    const Plan tp{.tp = static_cast<int>(t)}, sp{.tp = static_cast<int>(t), .sp = true};
    const TrainingOptions selective{.recompute = Recompute::selective};
    CHECK(saved_by(step_of(tp, written_out(gpt())), 1) == 10 * sbh + 24 * sbh / t + scores / t + statistics);  // equation 2
    CHECK(saved_by(step_of(sp, written_out(gpt())), 1) == 34 * sbh / t + scores / t + statistics / t);        // equation 4
    CHECK(saved_by(step_of(tp, written_out(gpt()), selective), 1) == 10 * sbh + 24 * sbh / t + statistics);
    CHECK(saved_by(step_of(sp, written_out(gpt()), selective), 1) == 34 * sbh / t + statistics / t);          // equation 6
  }
}

TEST_CASE("AVocabularyIsPaddedForItsRanks") {
  const ShardedLayers rank = split({.tp = 4}, gpt(kLayers, kBatch, 8190));
  REQUIRE(rank.notes.size() == 1);
  CHECK(rank.notes[0].find("8190 made 8192") != std::string::npos);
}

TEST_CASE("WhatDoesNotDivideIsSaid") {
  const auto refused = shard_layers({.tp = 3}, gpt());
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().text().find("cannot be shared out to 3 ranks") != std::string::npos);
  const auto unknown = shard_layers({.tp = 2}, two_layers());
  REQUIRE_FALSE(unknown.has_value());
  CHECK(unknown.error().text().find("plan.tp_plan") != std::string::npos);
  CHECK(unknown.error().text().find("first") != std::string::npos);
}

TEST_CASE("AUsersOwnPlanNamesTheLayers") {
  const ShardedLayers rank = split({.tp = 2, .tp_plan = {{"first", TensorSplit::column}}}, two_layers());
  CHECK(parameter_count(rank.graph) == 64 * 128 / 2 + 128 / 2 + 128 * 10 / 2 + 10);
  CHECK(count(rank.graph, OpKind::all_reduce) == 1);
}

TEST_CASE("ReplicasOfASplitModelLieApart") {
  const StepGraph step = step_of({.dp = 4, .tp = 8}, gpt());
  int reductions = 0;
  for (const Op& op : step.graph.ops) {
    if (op.kind != OpKind::all_reduce) continue;
    const auto& message = std::get<CollectiveAttributes>(op.attributes);
    CHECK((message.participants == 8 ? message.stride == 1 : message.stride == 8));
    if (op.phase != Phase::gradient_sync) continue;
    ++reductions;
    CHECK(message.participants == 4);
  }
  CHECK(reductions > 0);
}

TEST_CASE("ACapturedModelIsSplitAsTheZoosIs") {
  const std::filesystem::path folder = std::filesystem::path(PRECOG_SOURCE_DIR) / "tests" / "data" / "captured_zoo";
  for (const char* name : {"llama3-8b", "gpt2", "bert-base", "qwen3-0.6b"}) {
    CAPTURE(name);
    const auto captured = graph_source(folder / (std::string(name) + ".precog.json.zst"), name);
    const auto zoo = hf_source(folder / (std::string(name) + ".config.json"), name);
    REQUIRE(captured.has_value());
    REQUIRE(zoo.has_value());
    const ModelInputs sizes{.batch = captured->default_batch, .seq = captured->default_seq};
    const Plan plan{.tp = 2, .sp = true};
    const ShardedLayers theirs = split(plan, *captured->build(sizes)), ours = split(plan, *zoo->build(sizes));
    CHECK(parameter_count(theirs.graph) == parameter_count(ours.graph));
    CHECK(training_flops(theirs.graph).value == doctest::Approx(training_flops(ours.graph).value));
    CHECK(theirs.summed_gradients == ours.summed_gradients);
    for (OpKind kind : {OpKind::all_gather, OpKind::reduce_scatter, OpKind::all_reduce}) CHECK(count(theirs.graph, kind) == count(ours.graph, kind));
  }
}

TEST_CASE("ACapturedModelsExpertsAreSplitThoughTheirWeightsAreLookedAtFirst") {
  const std::filesystem::path folder = std::filesystem::path(PRECOG_SOURCE_DIR) / "tests" / "data" / "captured_zoo";
  const auto captured = graph_source(folder / "mixtral-8x7b.precog.json.zst", "mixtral-8x7b");
  const auto zoo = hf_source(folder / "mixtral-8x7b.config.json", "mixtral-8x7b");
  REQUIRE(captured.has_value());
  REQUIRE(zoo.has_value());
  const ModelInputs sizes{.batch = captured->default_batch, .seq = captured->default_seq};
  const Plan plan{.dp = 4, .tp = 2, .sp = true, .ep = 4};
  CHECK(parameter_count(split(plan, *captured->build(sizes)).graph) == parameter_count(split(plan, *zoo->build(sizes)).graph));
}
