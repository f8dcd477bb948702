#include <doctest/doctest.h>

#include "graph/operator.h"
#include "precision/precision.h"
#include "support.h"

using namespace precog;
using namespace precog::testing;

TEST_CASE("AUniformRecipeInsertsNoCasts") {
  for (DType dtype : {DType::fp32, DType::fp16, DType::bf16}) {
    const Graph graph = apply_precision(uniform(dtype), gpu(), two_layers());
    CHECK(verify(graph).empty());
    CHECK(count(graph, OpKind::cast) == 0);
    for (const Op& op : graph.ops)
      if (op.kind == OpKind::linear) CHECK(graph.tensors[graph.output(op)].dtype == dtype);
  }
}

TEST_CASE("AutocastCastsInputsAndWeightsOfLinearAndTheLossRunsInFp32") {
  const Graph graph = apply_precision(amp(DType::bf16), gpu(), two_layers());
  CHECK(verify(graph).empty());
  // x, weight and bias of the first layer; weight and bias of the second; the log-probabilities.
  CHECK(count(graph, OpKind::cast) == 6);
  CHECK(to_text(graph, graph.ops[OpId{3}]) ==
        "%9:bf16[32,128] = linear(%6, %7, %8) b=1 m=32 n=128 k=64 bias math=bf16  # autocast: lower-precision list");
  const Op& loss = graph.ops.back();
  CHECK(graph.tensors[graph.output(loss)].dtype == DType::fp32);
}

TEST_CASE("CrossEntropyKeepsLogSoftmaxInSixteenBitsAndCastsForTheLoss") {
  const Graph graph = apply_precision(amp(DType::fp16), gpu(), two_layers());
  for (const Op& op : graph.ops) {
    if (op.kind == OpKind::log_softmax) CHECK(graph.tensors[graph.output(op)].dtype == DType::fp16);
    if (op.kind == OpKind::nll_loss) CHECK(graph.tensors[graph.input(op, 0)].dtype == DType::fp32);
  }
}

TEST_CASE("Fp16SoftmaxReadsItsInputWithoutACastAndBf16DoesNot") {
  auto casts = [](DType lower) {
    GraphBuilder b;
    b.softmax(b.linear_layer("l", b.input("x", {8, 16}), 16, false));
    const Graph graph = apply_precision(amp(lower), gpu(), std::move(b).finish());
    CHECK(graph.tensors[graph.output(graph.ops.back())].dtype == DType::fp32);
    return count(graph, OpKind::cast);
  };
  CHECK(casts(DType::fp16) == 2);
  CHECK(casts(DType::bf16) == 3);
}

TEST_CASE("ALearnedAttentionBiasTakesTheMathPathInFp32") {
  GraphBuilder b;
  TensorId q = b.linear_layer("q", b.input("x", {1, 2, 32, 16}), 16, false);
  TensorId bias = b.parameter("bias", {1, 2, 32, 32});
  b.relu(b.attention(q, q, q, false, bias));
  const Graph graph = apply_precision(uniform(DType::bf16), gpu(), std::move(b).finish());
  CHECK(verify(graph).empty());
  for (const Op& op : graph.ops)
    if (op.kind == OpKind::matmul) CHECK(op.math == DType::fp32);
  CHECK(graph.tensors[graph.output(graph.ops.back())].dtype == DType::bf16);
}

TEST_CASE("AWeightUsedTwiceIsCastOnce") {
  GraphBuilder b;
  TensorId x = b.input("x", {8, 16});
  TensorId weight = b.parameter("w", {16, 16});
  b.linear(b.linear(x, weight), weight);
  const Graph graph = apply_precision(amp(DType::bf16), gpu(), std::move(b).finish());
  CHECK(count(graph, OpKind::cast) == 2);  // x and w
}

TEST_CASE("WithoutTheCacheItIsCastTwice") {
  GraphBuilder b;
  TensorId weight = b.parameter("w", {16, 16});
  b.linear(b.linear(b.input("x", {8, 16}), weight), weight);
  PrecisionRecipe recipe = amp(DType::bf16);
  recipe.weight_cache = false;
  CHECK(count(apply_precision(recipe, gpu(), std::move(b).finish()), OpKind::cast) == 3);
}

TEST_CASE("ACastToTheTypeItAlreadyHasIsNothing") {
  GraphBuilder b;
  TensorId x = b.input("x", {8, 16});
  TensorId y = b.cast_like(b.mul(b.cast_to(x, DType::fp32), b.cast_to(x, DType::fp32)), x);
  b.relu(y);
  const Graph forward = std::move(b).finish();
  CHECK(count(apply_precision(uniform(DType::fp32), gpu(), forward), OpKind::cast) == 0);
  CHECK(count(apply_precision(uniform(DType::bf16), gpu(), forward), OpKind::cast) == 3);
}

TEST_CASE("MixedAdditionPromotesInsideOneKernel") {
  GraphBuilder b;
  TensorId x = b.input("x", {8, 16});
  TensorId y = b.linear_layer("l", x, 16);
  b.add(x, y);
  const Graph graph = apply_precision(amp(DType::bf16), gpu(), std::move(b).finish());
  CHECK(graph.tensors[graph.output(graph.ops.back())].dtype == DType::fp32);
  CHECK(count(graph, OpKind::cast) == 3);  // the linear's, none for the addition
}

TEST_CASE("LayerNormRunsInFp32UnderAutocastOnly") {
  GraphBuilder b;
  b.layer_norm_layer("norm", b.linear_layer("l", b.input("x", {8, 16}), 16));
  const Graph forward = std::move(b).finish();
  const Graph mixed = apply_precision(amp(DType::bf16), gpu(), forward);
  CHECK(mixed.tensors[mixed.output(mixed.ops.back())].dtype == DType::fp32);
  const Graph pure = apply_precision(uniform(DType::bf16), gpu(), forward);
  CHECK(pure.tensors[pure.output(pure.ops.back())].dtype == DType::bf16);
}

TEST_CASE("Tf32IsAnArithmeticOnFp32Storage") {
  PrecisionRecipe recipe = uniform(DType::fp32);
  recipe.tf32_matmul = true;
  const Graph graph = apply_precision(recipe, gpu(), two_layers());
  CHECK(graph.ops[OpId{0}].math == DType::tf32);
  CHECK(graph.tensors[graph.output(graph.ops[OpId{0}])].dtype == DType::fp32);
  // Volta has none: the flag does nothing.
  CHECK(apply_precision(recipe, gpu("7.0"), two_layers()).ops[OpId{0}].math == DType::fp32);
}

TEST_CASE("AttentionBackendFollowsTypeMaskHeadsAndGpu") {
  AttentionAttributes a{.heads = 16, .kv_heads = 16, .q_len = 512, .kv_len = 512, .head_dim = 64, .value_dim = 64};
  CHECK(attention_backend(a, DType::bf16, gpu()) == AttentionBackend::cudnn);
  CHECK(attention_backend(a, DType::bf16, gpu("8.0")) == AttentionBackend::flash);
  AttentionAttributes learned = a;
  learned.mask = true;  // its gradient comes from the memory-efficient kernel alone, which reads no scattered mask
  CHECK(attention_backend(learned, DType::bf16, gpu(), /*mask_needs_gradient=*/true) == AttentionBackend::memory_efficient);
  learned.mask_scattered = true;
  CHECK(attention_backend(learned, DType::bf16, gpu(), /*mask_needs_gradient=*/true) == AttentionBackend::math);
  CHECK(attention_backend(a, DType::fp32, gpu()) == AttentionBackend::memory_efficient);
  CHECK(attention_backend(a, DType::fp16, gpu("7.0")) == AttentionBackend::memory_efficient);
  CHECK(attention_backend(a, DType::bf16, gpu("7.0")) == AttentionBackend::math);
  AttentionAttributes masked = a;
  masked.mask = true;
  CHECK(attention_backend(masked, DType::bf16, gpu("8.0")) == AttentionBackend::memory_efficient);
  CHECK(attention_backend(masked, DType::bf16, gpu()) == AttentionBackend::cudnn);
  AttentionAttributes grouped = a;
  grouped.kv_heads = 4;
  CHECK(attention_backend(grouped, DType::bf16, gpu("8.0")) == AttentionBackend::flash);
  CHECK(attention_backend(grouped, DType::fp32, gpu()) == AttentionBackend::math);
  AttentionAttributes broadcast = a;
  broadcast.kv_heads = 1;
  broadcast.broadcast = true;  // without enable_gqa
  CHECK(attention_backend(broadcast, DType::bf16, gpu()) == AttentionBackend::math);
}

TEST_CASE("GroupedQueryAttentionInFp32MaterialisesTheScores") {
  GraphBuilder b;
  TensorId x = b.linear_layer("q", b.input("x", {1, 8, 32, 16}), 16);
  TensorId k = b.linear_layer("k", b.input("y", {1, 2, 32, 16}), 16);
  b.relu(b.attention(x, k, k, true));
  const Graph forward = std::move(b).finish();
  const Graph fp32 = apply_precision(uniform(DType::fp32), gpu(), forward);
  CHECK(verify(fp32).empty());
  CHECK(count(fp32, OpKind::scaled_dot_product_attention) == 0);
  CHECK(count(fp32, OpKind::matmul) == 2);
  CHECK(count(fp32, OpKind::softmax) == 1);
  CHECK((count(fp32, OpKind::reduction) == 1 && count(fp32, OpKind::masked_fill) == 2));  // _safe_softmax's, and the causal mask's
  const Graph bf16 = apply_precision(uniform(DType::bf16), gpu(), forward);
  CHECK(count(bf16, OpKind::scaled_dot_product_attention) == 1);
}
