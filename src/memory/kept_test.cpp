// What is kept for backward on the GPU when parts of layers are recomputed, or the host's memory is used.
#include <algorithm>
#include <numeric>

#include <doctest/doctest.h>

#include "frontend/source.h"
#include "kernel/fuse.h"
#include "memory/lifetimes.h"
#include "parallel/parallel.h"
#include "precision/precision.h"
#include "support.h"
#include "training/checkpointed_step.h"

using namespace precog;
using namespace precog::testing;

namespace {

std::int64_t moved(const StepGraph& step, std::string_view label) {
  std::int64_t out = 0;
  for (const Op& op : step.graph.ops)
    if (op.kind == OpKind::shard_copy && step.graph.name(op.label) == label) out += std::get<ShardCopyAttributes>(op.attributes).written.value;
  return out;
}
StepGraph llama_step(const Checkpoints& which, Recompute recompute = Recompute::none, const Replicas& replicas = {}, int layers = 4) {
  const Json architecture = {{"hidden", 1024}, {"layers", layers}, {"heads", 16}, {"vocab", 100}, {"max_positions", 1024}, {"intermediate", 4096}};
  auto source = family_source({{"family", "llama"}, {"architecture", architecture}}, "test");
  REQUIRE(source.has_value());
  auto built = source->build({.batch = 1, .seq = 1024});
  REQUIRE(built.has_value());
  const PrecisionRecipe recipe = uniform(DType::bf16);
  StepGraph step = make_step(apply_precision(recipe, gpu(), *built), recipe, {.recompute = recompute}, which);
  step = apply_plan({}, replicas, recipe, std::move(step));
  CHECK(verify(step.graph) == "");
  return step;
}
Bytes kept(const MemoryTrace& trace) {
  const BytesByType types = kept_by_type(trace);
  return std::accumulate(types.begin(), types.end(), Bytes{});
}
Bytes kept(const StepGraph& step, const TrainingOptions& training = {}) {
  return kept(memory_trace(step, make_kernels(step.graph, gpu(), MemoryFormat::contiguous), training, gpu()));
}
// A tensor of so many columns, in bf16, of every token of every layer.
constexpr std::int64_t column_bytes(std::int64_t columns) { return 4 * 1024 * columns * 2; }
}  // namespace

TEST_CASE("PartsOfLayersAreMadeAgainWhereBackwardReadsThem") {
  const Bytes all = kept(llama_step({}));
  const auto saved_by = [&](const RecomputedParts& parts) { return (all - kept(llama_step({.parts = parts}, Recompute::parts))).value; };
  CHECK(saved_by({.activation = true}) >= column_bytes(2 * 4096));  // silu's result and its product with the other half
  CHECK(saved_by({.mlp = true}) >= column_bytes(4 * 4096));         // and both halves
  CHECK(saved_by({.mlp = true}) == saved_by({.activation = true, .mlp = true}));
  CHECK(saved_by({.norms = true}) >= column_bytes(2 * 1024));
  CHECK(saved_by({.attention = true}) >= column_bytes(4 * 1024));
  CHECK(saved_by({.norms = true, .mlp = true, .attention = true}) > saved_by({.norms = true}) + saved_by({.mlp = true}));
  // Products are run again only where an MLP's or an attention's are.
  const auto products = [](const RecomputedParts& parts) {
    const StepGraph step = llama_step({.parts = parts}, Recompute::parts);
    return std::count_if(step.graph.ops.begin(), step.graph.ops.end(), [](const Op& op) { return op.phase == Phase::recompute && op.kind == OpKind::linear; });
  };
  CHECK(products({.norms = true, .activation = true}) == 0);
  CHECK(products({.mlp = true}) == 4 * 2);        // not the last one, whose result nothing of backward reads
  CHECK(products({.qkv = true}) == 4 * 3);
  CHECK(products({.attention = true}) == 4 * 3);
}

TEST_CASE("ActivationsOfTheFirstLayersWaitOnTheHost") {
  const StepGraph none = llama_step({}), two = llama_step({}, Recompute::none, {.offload_layers = 2}), all = llama_step({}, Recompute::none, {.offload_layers = 4096});
  CHECK(moved(none, "to_host") == 0);
  CHECK(moved(two, "to_host") > 0);
  CHECK(moved(two, "to_host") == moved(two, "from_host"));
  CHECK(moved(all, "to_host") == 2 * moved(two, "to_host"));
  CHECK(kept(all) < kept(two));
  CHECK((kept(none) - kept(all)).value == moved(all, "to_host"));
}

TEST_CASE("WhatWaitsForBackwardIsWhatTheStepItselfHasThere") {
  // Compiled: a norm's backward reads what the norm was given, and makes the rest again.
  const auto of_layers = [](int layers) {
    const StepGraph step = llama_step({}, Recompute::none, {}, layers);
    const FusionPlan plan = plan_fusion(step.graph, gpu().sms);
    const MemoryTrace trace = memory_trace(step, make_kernels(step.graph, gpu(), MemoryFormat::contiguous, &plan), {}, gpu());
    std::int64_t alive = 0;  // when forward is over
    std::vector<std::int64_t> sizes(trace.blocks.size(), 0);
    for (std::size_t i = 0; i < step.graph.ops.size() && step.graph.ops[step.graph.ops.id_at(i)].phase == Phase::forward; ++i)
      for (std::size_t e = trace.first_event[i]; e < trace.first_event[i + 1]; ++e) {
        const auto block = static_cast<std::size_t>(trace.events[e].block);
        if (trace.blocks[block].category == MemoryCategory::activations) sizes[block] = trace.events[e].kind == MemoryEvent::Kind::take ? trace.blocks[block].bytes : 0;
      }
    for (std::int64_t bytes : sizes) alive += bytes;
    return std::pair{kept(trace).value, alive};
  };
  const auto [kept_of_two, alive_of_two] = of_layers(2);
  const auto [kept_of_four, alive_of_four] = of_layers(4);
  CHECK(kept_of_four - kept_of_two == doctest::Approx(alive_of_four - alive_of_two).epsilon(0.001));
}

TEST_CASE("ScoresInPiecesDoNotWaitForBackward") {
  const StepGraph step = llama_step({});
  CHECK((kept(step) - kept(step, {.loss_chunks = 4})).value >= 1024 * 100 * 4);  // log-probabilities in fp32
}

TEST_CASE("ParametersOnTheHostComeUpForForwardAndForBackward") {
  const StepGraph step = llama_step({}, Recompute::none, {.offload_parameters = true});
  CHECK(step.shards.parameters_on_host);
  // Layers twice and the update's once; what is outside the layers is kept from forward to backward.
  CHECK(moved(step, "from_host") > 2 * 2 * parameter_count(step.graph));
  CHECK(moved(step, "from_host") < 3 * 2 * parameter_count(step.graph) + 64);
}

TEST_CASE("StatesThatTheHostKeepsPassOnceForTheUpdate") {
  const StepGraph step = llama_step({}, Recompute::none, {.offload_states = true});
  CHECK(moved(step, "from_host") == 2 * 2 * parameter_count(step.graph));  // two moments in bf16
  CHECK(count(step.graph, OpKind::multi_tensor) > 0);                       // updated on the GPU
}
