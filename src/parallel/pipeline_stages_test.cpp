#include <algorithm>

#include <doctest/doctest.h>

#include "graph/operator.h"
#include "parallel/pipeline_stages.h"
#include "precision/precision.h"
#include "support.h"
#include "training/step_graph.h"

using namespace precog;
using namespace precog::testing;

namespace {

// Tokens -> table -> `layers` linear layers, each scaled by a factor made of the positions -> the table again -> loss.
Graph tied_stack(int layers, std::int64_t hidden = 64, bool tied = true) {
  GraphBuilder b;
  TensorId ids = b.input("ids", {2, 8}, DType::int64);
  TensorId target = b.input("target", {16}, DType::int64);
  TensorId table = b.parameter("table", {100, hidden});
  TensorId x = b.embedding(table, ids);
  TensorId factor = b.cast_like(b.buffer("angles", {8, hidden}), x);
  for (int layer = 0; layer < layers; ++layer) {
    b.set_block(layer);
    auto scope = b.module("layers." + std::to_string(layer));
    x = b.add(x, b.relu(b.mul(b.linear_layer("up", x, hidden, false), factor)));
  }
  b.set_block(-1);
  TensorId logits = b.linear(x, tied ? table : b.parameter("head", {100, hidden}));
  b.cross_entropy(b.view(logits, {16, 100}), target);
  return std::move(b).finish();
}

PipelineStages cut(const Plan& plan, const PrecisionRecipe& recipe, const Graph& model) {
  auto made = cut_into_stages(plan, apply_precision(recipe, gpu(), model));
  REQUIRE(made);
  return std::move(*made);
}

}  // namespace

TEST_CASE("DistinctChunksLeaveOutWhatRepeats") {
  const Graph model = tied_stack(16);
  const Plan plan{.pp = 8};
  auto distinct = distinct_chunks(plan, model);
  REQUIRE(distinct);
  CHECK(verify(distinct->forward).empty());
  CHECK(distinct->chunk_at == std::vector<std::size_t>{0, 1, 1, 1, 1, 1, 1, 2});
  CHECK(distinct->times_of(0) == 1);   // with the embedding
  CHECK(distinct->times_of(3) == 6);   // of the second chunk, which stands for six
  CHECK(distinct->times_of(15) == 1);  // with the head
  CHECK(parameter_count(model) - parameter_count(distinct->forward) == 10 * 64 * 64);
  for (const PrecisionRecipe& recipe : {uniform(DType::bf16), amp(DType::bf16)}) {
    const PipelineStages once = cut_into_stages(*distinct, apply_precision(recipe, gpu(), distinct->forward)), each = cut(plan, recipe, model);
    CHECK(once.steady);
    CHECK(once.chunk_at == each.chunk_at);
    CHECK(once.sent_forward == each.sent_forward);
    CHECK(once.sent_backward == each.sent_backward);
    CHECK(once.tied_elements == each.tied_elements);
    REQUIRE(once.chunks.size() == each.chunks.size());
    for (std::size_t i = 0; i < once.chunks.size(); ++i) {
      CHECK(to_text(once.chunks[i].forward) == to_text(each.chunks[i].forward));
      CHECK(once.chunks[i].first_layer == each.chunks[i].first_layer);
    }
  }
  auto each = distinct_chunks(plan, model, true);
  CHECK(to_text(each->forward) == to_text(model));
  CHECK(each->times_of(3) == 1);
}

TEST_CASE("WhatAPassMakesUnlikeIsNotSteady") {
  auto distinct = distinct_chunks({.pp = 8}, tied_stack(16));
  Graph decided = apply_precision(uniform(DType::bf16), gpu(), distinct->forward);
  TensorId last;  // what the second chunk hands on
  for (const Op& op : decided.ops)
    if (op.block == 3) last = decided.output(op);
  decided.tensors[last].dtype = DType::fp32;
  CHECK_FALSE(cut_into_stages(*distinct, decided).steady);
}

TEST_CASE("EqualChunksAreKeptOnce") {
  const PipelineStages stages = cut({.pp = 8}, uniform(DType::bf16), tied_stack(16));
  CHECK(stages.chunks.size() == 3);  // with the embedding, with the head, and the six between
  CHECK(stages.chunk_at == std::vector<std::size_t>{0, 1, 1, 1, 1, 1, 1, 2});
  CHECK(stages.even);
  for (const PipelineChunk& chunk : stages.chunks) CHECK(verify(chunk.forward).empty());
}

TEST_CASE("WhatCrossesHasTheTypeThatThePrecisionPassGaveIt") {
  const std::int64_t elements = 2 * 8 * 64;
  const PipelineStages half = cut({.pp = 4}, uniform(DType::bf16), tied_stack(4)), mixed = cut({.pp = 4}, amp(DType::bf16), tied_stack(4));
  for (Bytes sent : half.sent_forward) CHECK(sent.value == 2 * elements);
  for (Bytes sent : mixed.sent_forward) CHECK(sent.value == 4 * elements);  // the residual stream stays fp32
  for (Bytes sent : mixed.sent_backward) CHECK(sent.value == 4 * elements);
}

TEST_CASE("StagesMakeWhatFollowsFromBuffersThemselves") {
  const PipelineStages stages = cut({.pp = 2}, uniform(DType::bf16), tied_stack(4));
  const Graph& second = stages.chunks[stages.chunk_at[1]].forward;
  CHECK(std::any_of(second.tensors.begin(), second.tensors.end(), [&](const Tensor& t) { return second.name(t.name) == "angles"; }));
  CHECK(stages.chunks[stages.chunk_at[1]].received.value == 2 * 2 * 8 * 64);  // the hidden state alone
}

TEST_CASE("AllWorkAndAllParametersAreInSomeChunk") {
  const Graph model = apply_precision(uniform(DType::bf16), gpu(), tied_stack(6));
  const PipelineStages stages = cut({.pp = 3}, uniform(DType::bf16), tied_stack(6));
  double flops = 0;
  std::int64_t parameters = 0;
  for (std::size_t at : stages.chunk_at) {
    flops += training_flops(stages.chunks[at].forward).value;
    parameters += parameter_count(stages.chunks[at].forward);
  }
  CHECK(flops == training_flops(model).value);
  CHECK(stages.tied_elements == 100 * 64);
  CHECK(parameters == parameter_count(model) + stages.tied_elements);  // both ends have the table
  CHECK(cut({.pp = 3}, uniform(DType::bf16), tied_stack(6, 64, false)).tied_elements == 0);
}

TEST_CASE("AChunksBackwardStartsFromWhatArrives") {
  const PrecisionRecipe recipe = uniform(DType::bf16);
  const PipelineStages stages = cut({.pp = 3}, recipe, tied_stack(6));
  std::size_t gradients = 0;
  for (std::size_t at : stages.chunk_at) {
    const PipelineChunk& chunk = stages.chunks[at];
    const StepGraph step = make_step(chunk.forward, recipe, {}, chunk.has_loss ? nullptr : &chunk.sent);
    CHECK(verify(step.graph).empty());
    gradients += step.gradients.size();
    CHECK(count(step.graph, OpKind::fill) == (chunk.has_loss ? 1 : 0));  // only the loss begins with a one
  }
  CHECK(gradients == 6 + 2);  // every weight, the table at both ends
}

TEST_CASE("UnevenLayersLeaveRoomForEmbeddingAndHead") {
  CHECK(cut({.pp = 4}, uniform(DType::bf16), tied_stack(14)).layers_at == std::vector<int>{3, 4, 4, 3});
  CHECK(cut({.pp = 2, .vpp = 2}, uniform(DType::bf16), tied_stack(7)).layers_at == std::vector<int>{2, 2, 2, 1});
  CHECK(cut({.pp = 4}, uniform(DType::bf16), tied_stack(5)).layers_at == std::vector<int>{1, 1, 2, 1});
  CHECK(cut({.pp = 2, .stage_layers = {5, 3}}, uniform(DType::bf16), tied_stack(8)).layers_at == std::vector<int>{5, 3});
}

TEST_CASE("ImpossibleCutsSayWhy") {
  const Graph model = apply_precision(uniform(DType::bf16), gpu(), tied_stack(4));
  CHECK(cut_into_stages({.pp = 8}, model).error().text().find("4 repeated layers") != std::string::npos);
  CHECK(cut_into_stages({.pp = 2, .stage_layers = {1, 2}}, model).error().text().find("adds up to 3") != std::string::npos);
  CHECK(cut_into_stages({.pp = 2, .stage_layers = {4}}, model).error().text().find("1 entries") != std::string::npos);
  CHECK_FALSE(cut_into_stages({.pp = 2}, apply_precision(uniform(DType::bf16), gpu(), two_layers())));
}

TEST_CASE("ChunksOfEqualLayersAreForeseenBeforeAnyIsBuilt") {
  // Embedding, five equal chunks, head; then with one layer that is another.
  const DistinctChunks equal = foreseen_chunks({.pp = 7}, std::vector<int>(14, 0));
  CHECK(equal.chunk_at == std::vector<std::size_t>{0, 1, 1, 1, 1, 1, 2});
  CHECK(equal.left_out == std::vector<char>{0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0});
  CHECK(equal.times == std::vector<int>{1, 1, 5, 5, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1});
  std::vector<int> kinds(14, 0);
  kinds[7] = 1;
  const DistinctChunks other = foreseen_chunks({.pp = 7}, kinds);
  CHECK(other.chunk_at == std::vector<std::size_t>{0, 1, 1, 2, 3, 3, 4});
  CHECK(other.left_out == std::vector<char>{0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 0, 0});
  // Nothing to leave out, nothing known, or nothing right: said when the model is there.
  CHECK(foreseen_chunks({.pp = 2}, std::vector<int>(14, 0)).left_out.empty());
  CHECK(foreseen_chunks({.pp = 7}, {}).left_out.empty());
  CHECK(foreseen_chunks({.pp = 15}, std::vector<int>(14, 0)).left_out.empty());
  CHECK(foreseen_chunks({.pp = 3, .stage_layers = {4, 4, 4}}, std::vector<int>(14, 0)).left_out.empty());
  CHECK(foreseen_chunks({.pp = 3}, {0, 1, 0}).left_out.empty());
}
