#include <doctest/doctest.h>

#include "kernel/fuse.h"
#include "kernel/kernel.h"
#include "kernel/megatron_softmax.h"
#include "precision/precision.h"
#include "support.h"
#include "training/step_graph.h"

using namespace precog;
using namespace precog::testing;

namespace {

Graph causal_attention(std::int64_t batch, std::int64_t heads, std::int64_t length) {
  GraphBuilder b;
  TensorId x = b.linear_layer("qkv", b.input("x", {batch * length, 32}), heads * 16);
  TensorId q = b.view(x, {batch, heads, length, 16});
  TensorId scores = b.unary(OpKind::mul_scalar, b.matmul(q, b.transpose(q, 2, 3)));
  scores = b.masked_fill(scores, b.buffer("causal_mask", {1, 1, length, length}, DType::boolean));
  TensorId y = b.matmul(b.cast_like(b.softmax(scores), q), q);
  b.cross_entropy(b.view(y, {batch * heads * length, 16}), b.input("t", {batch * heads * length}, DType::int64));
  return std::move(b).finish();
}
KernelProgram megatron(Graph forward) {
  const PrecisionRecipe recipe = uniform(DType::fp16);
  const OwnKernels own{.norms = true, .softmax_and_loss = true, .products = true};
  const Graph graph = make_step(apply_precision(recipe, gpu(), convert_scores(std::move(forward), own.softmax)), recipe, {}).graph;
  const FusionPlan plan = plan_fusion(graph, 132, {}, own);
  return make_kernels(graph, gpu(), MemoryFormat::contiguous, &plan);
}
const Kernel* find(const KernelProgram& program, std::string_view name) {
  for (const Kernel& kernel : program.kernels)
    if (kernel.name == name) return &kernel;
  return nullptr;
}

}  // namespace

TEST_CASE("MegatronsSoftmaxTakesHeadsInFours") {
  const FusedSoftmaxRule rule;
  CHECK(rule.takes({1, 8, 2048, 2048}));
  CHECK(rule.takes({2, 2, 1024, 1024}));
  CHECK_FALSE(rule.takes({1, 2, 1024, 1024}));
  CHECK_FALSE(rule.takes({4, 8, 8192, 8192}));
  CHECK_FALSE(rule.takes({4, 8, 2046, 2046}));
  CHECK_FALSE(rule.takes({1, 4, 64, 64}));  // short rows share a warp: eight to a block
}

TEST_CASE("WithHeadsForLengthsFewHeadsWantLargeMicroBatches") {
  const FusedSoftmaxRule rule{.heads_for_lengths = true};
  const auto takes = [&](std::int64_t batch, std::int64_t heads) { return rule.takes({batch, heads, 2048, 2048}); };
  for (std::int64_t batch : {1, 2, 6}) CHECK_FALSE(takes(batch, 8));  // blocks of 32
  for (std::int64_t batch : {4, 8}) CHECK(takes(batch, 8));
  CHECK_FALSE(takes(4, 14));  // of 16
  CHECK(takes(1, 16));
  CHECK(takes(2, 24));        // of 8
  CHECK_FALSE(takes(4, 2));   // of 128
}

TEST_CASE("TheCausalKernelReadsUpToTheDiagonal") {
  const KernelProgram program = megatron(causal_attention(2, 4, 64));
  const Kernel* kernel = find(program, "causal_softmax");
  REQUIRE(kernel);
  const std::int64_t scores = 2 * 4 * 64 * 64 * 2;
  CHECK(kernel->read.value == scores / 2);
  CHECK(kernel->written.value == scores);
  CHECK_FALSE(find(program, "masked_fill"));
}

TEST_CASE("ScoresThatItDoesNotTakeAreConverted") {
  const KernelProgram program = megatron(causal_attention(1, 2, 64));
  CHECK_FALSE(find(program, "causal_softmax"));
  for (const char* name : {"mul_scalar", "masked_fill", "softmax"}) {
    const Kernel* kernel = find(program, name);
    REQUIRE_MESSAGE(kernel, name);
    CHECK(kernel->math == DType::fp32);
  }
}
