// Formulas of two papers, held against what the pipeline makes of the same layers.
#include <doctest/doctest.h>

#include "memory/memory.h"
#include "parallel/parallel.h"
#include "parallel/tensor_parallel.h"
#include "precision/precision.h"
#include "support.h"

using namespace precog;
using namespace precog::testing;

namespace {

Bytes at(const BytesByCategory& bytes, MemoryCategory category) { return bytes[static_cast<std::size_t>(category)]; }

// Megatron's layer as Korthikanti et al. count it (Reducing Activation Recomputation in Large Transformer Models, 2022,
// section 4.1): 16-bit activations, dropout after softmax, projection and MLP, attention written out.
Graph megatron_layers(std::int64_t s, std::int64_t b, std::int64_t h, std::int64_t a, int layers) {
  GraphBuilder g;
  TensorId x = g.input("x", {s, b, h});
  const std::int64_t head = h / a;
  for (int i = 0; i < layers; ++i) {
    g.set_block(i);
    const std::string name = "layer" + std::to_string(i);
    auto scope = g.module(name);
    TensorId y = g.layer_norm_layer("input_norm", x);
    const auto parts = g.split(g.reshape(g.linear_layer("qkv", y, 3 * h), {s, b, a, 3 * head}), 3, {head, head, head});
    auto heads = [&](TensorId t) { return g.transpose(g.transpose(g.contiguous(t), 0, 1), 1, 2); };  // [b,a,s,d]
    const TensorId q = heads(parts[0]), k = heads(parts[1]), v = heads(parts[2]);
    TensorId scores = g.matmul(q, g.transpose(k, 2, 3));
    TensorId context = g.matmul(g.dropout(g.softmax(scores), 0.1), v);
    y = g.linear_layer("projection", g.reshape(g.contiguous(g.transpose(g.transpose(context, 1, 2), 0, 1)), {s, b, h}), h);
    x = g.add(x, g.dropout(y, 0.1));
    y = g.layer_norm_layer("output_norm", x);
    y = g.linear_layer("down", g.gelu(g.linear_layer("up", y, 4 * h)), h);
    x = g.add(x, g.dropout(y, 0.1));
  }
  g.set_block(-1);
  g.cross_entropy(g.reshape(g.slice(x, 2, 8), {s * b, 8}), g.input("t", {s * b}, DType::int64));
  return std::move(g).finish();
}

MemoryUse use_of(const Graph& forward) {
  const PrecisionRecipe recipe = uniform(DType::bf16);
  const StepGraph step = make_step(apply_precision(recipe, gpu(), forward), recipe, {});
  return memory_use(step, make_kernels(step.graph, gpu(), MemoryFormat::contiguous), {}, gpu(), 1);
}

Bytes most_saved(const MemoryUse& use) {
  Bytes most;
  for (const BytesByCategory& bytes : use.timeline) most = std::max(most, at(bytes, MemoryCategory::activations));
  return most;
}

}  // namespace

TEST_CASE("ActivationsOfAMegatronLayerFollowKorthikantisFormula") {
  // Two and four layers, so that what is outside the layers cancels. What differs from the paper: layer norms keep a mean
  // and a deviation in fp32 per row, which the paper leaves out (16 sb bytes a layer, 0.1% here).
  for (const auto& [s, b, h, a] : {std::array<std::int64_t, 4>{1024, 4, 1024, 16}, {2048, 1, 2048, 16}}) {
    const double layer = static_cast<double>((most_saved(use_of(megatron_layers(s, b, h, a, 4))) - most_saved(use_of(megatron_layers(s, b, h, a, 2)))).value) / 2;
    const double formula = static_cast<double>(s * b * h) * (34 + 5 * static_cast<double>(a * s) / static_cast<double>(h));
    CHECK(layer == doctest::Approx(formula).epsilon(0.01));
  }
}

TEST_CASE("TensorAndSequenceParallelActivationsFollowKorthikantisTable") {
  // The paper's table 2, per layer and rank: sbh times 34 + 5as/h; 10 + 24/t + 5as/ht; (34 + 5as/h)/t; 34/t; 2.
  constexpr std::int64_t s = 1024, b = 4, h = 1024, a = 16;
  constexpr int t = 4;
  const double sbh = static_cast<double>(s * b * h), scores = 5.0 * a * s / h;
  const auto of_a_layer = [&](bool tensor, bool sequence, Recompute recompute) {
    const auto saved = [&](int layers) {
      Graph forward = megatron_layers(s, b, h, a, layers);
      if (tensor) {
        using enum TensorSplit;
        const Plan plan{.tp = t, .sp = sequence, .tp_plan = {{"*.qkv", column}, {"*.projection", row}, {"*.up", column}, {"*.down", row}}};
        auto rank = shard_layers(plan, forward);
        REQUIRE_MESSAGE(rank, (rank ? std::string() : rank.error().text()));
        forward = rank->graph;
      }
      const PrecisionRecipe recipe = uniform(DType::bf16);
      const TrainingOptions training{.recompute = recompute};
      const StepGraph step = make_step(apply_precision(recipe, gpu(), forward), recipe, training);
      return most_saved(memory_use(step, make_kernels(step.graph, gpu(), MemoryFormat::contiguous), training, gpu(), tensor ? t : 1));
    };
    return static_cast<double>((saved(6) - saved(4)).value) / 2;
  };
  CHECK(of_a_layer(false, false, Recompute::none) == doctest::Approx(sbh * (34 + scores)).epsilon(0.01));
  CHECK(of_a_layer(true, false, Recompute::none) == doctest::Approx(sbh * (10 + 24.0 / t + scores / t)).epsilon(0.01));
  CHECK(of_a_layer(true, true, Recompute::none) == doctest::Approx(sbh * (34 + scores) / t).epsilon(0.01));
  CHECK(of_a_layer(false, false, Recompute::selective) == doctest::Approx(sbh * 34).epsilon(0.01));
  CHECK(of_a_layer(true, true, Recompute::selective) == doctest::Approx(sbh * 34 / t).epsilon(0.01));
  CHECK(of_a_layer(false, false, Recompute::full) == doctest::Approx(sbh * 2).epsilon(0.01));
}

namespace {
// Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models (2020), table 1: mixed-precision Adam,
// K = 12 bytes of optimizer state, 2 of weights, 2 of gradients. A hundred square layers make the parameters.
double zero_states(Sharding sharding, int ranks, std::int64_t width) {
  constexpr std::int64_t kLayers = 100;
  GraphBuilder g;
  TensorId x = g.input("x", {1, width});
  for (int i = 0; i < kLayers; ++i) {
    g.set_block(i);
    x = g.linear_layer("layer" + std::to_string(i), x, width, false);
  }
  g.set_block(-1);
  g.cross_entropy(x, g.input("t", {1}, DType::int64));
  PrecisionRecipe recipe = uniform(DType::fp16);
  recipe.optimizer_state = DType::fp32;
  recipe.master_weights = MasterWeights{.dtype = DType::fp32};
  StepGraph step = make_step(apply_precision(recipe, gpu(), std::move(g).finish()), recipe, {.optimizer_impl = OptimizerImpl::fused});
  if (ranks > 1) step = apply_plan({.dp = ranks, .fsdp = sharding}, recipe, std::move(step));
  const MemoryUse use = memory_use(step, make_kernels(step.graph, gpu(), MemoryFormat::contiguous), {}, gpu(), ranks);
  const BytesByCategory& last = use.timeline.back();
  double states = 0;
  for (MemoryCategory category : {MemoryCategory::parameters, MemoryCategory::gradients, MemoryCategory::gradient_buckets, MemoryCategory::optimizer_states,
                                  MemoryCategory::master_weights})
    states += static_cast<double>(at(last, category).value);
  return states / 1e9;
}
}  // namespace

TEST_CASE("ModelStatesAreThoseOfTheZeroPapersTable") {
  struct Column {
    std::int64_t width;
    double none;
    std::array<std::array<double, 3>, 4> sharded;  // of 4, 16, 64 and 256 ranks: stages 1, 2 and 3
  };
  const std::array<Column, 3> kTable = {{
      {8660, 120, {{{52.5, 41.3, 30}, {35.6, 21.6, 7.5}, {31.4, 16.6, 1.88}, {30.4, 15.4, 0.47}}}},
      {35777, 2048, {{{896, 704, 512}, {608, 368, 128}, {536, 284, 32}, {518, 263, 8}}}},
      {100000, 16000, {{{7000, 5500, 4000}, {4750, 2875, 1000}, {4187, 2218, 250}, {4046, 2054, 62.5}}}},
  }};
  for (const Column& column : kTable) {
    CHECK(zero_states(Sharding::none, 1, column.width) == doctest::Approx(column.none).epsilon(0.01));
    int ranks = 1;
    for (const auto& [first, second, third] : column.sharded) {
      ranks *= 4;
      CHECK(zero_states(Sharding::zero1, ranks, column.width) == doctest::Approx(first).epsilon(0.01));
      CHECK(zero_states(Sharding::zero2, ranks, column.width) == doctest::Approx(second).epsilon(0.01));
      CHECK(zero_states(Sharding::full, ranks, column.width) == doctest::Approx(third).epsilon(0.02));
    }
  }
}
