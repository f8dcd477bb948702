#include <algorithm>

#include <doctest/doctest.h>

#include "graph/operator.h"
#include "precision/precision.h"
#include "support.h"
#include "training/optimizer.h"
#include "training/step_graph.h"

using namespace precog;
using namespace precog::testing;

namespace {
StepGraph step_of(const PrecisionRecipe& recipe, const TrainingOptions& options = {}, Graph forward = two_layers()) {
  return make_step(apply_precision(recipe, gpu(), forward), recipe, options);
}
double matrix_flops(const Graph& graph, Phase phase) {
  double flops = 0;
  for (const Op& op : graph.ops)
    if (op.phase == phase && definition(op.kind).family == Family::gemm) flops += work_of(graph, op).flops.value;
  return flops;
}
}  // namespace

TEST_CASE("BackwardOfTwoLayersInAutogradsOrder") {
  const StepGraph step = step_of(uniform(DType::fp32));
  CHECK(verify(step.graph).empty());
  CHECK(kinds(step.graph, Phase::backward) ==
        std::vector<std::string>{"fill", "nll_loss_backward", "log_softmax_backward", "view", "mm", "view", "mm", "sum",
                                 "pointwise_backward", "view", "view", "mm", "sum"});
}

TEST_CASE("TheInputsGradientIsNotComputed") {
  const StepGraph step = step_of(uniform(DType::fp32));
  const double first = 2.0 * 32 * 64 * 128, second = 2.0 * 32 * 128 * 10;
  CHECK(matrix_flops(step.graph, Phase::forward) == first + second);
  CHECK(matrix_flops(step.graph, Phase::backward) == first + 2 * second);
  CHECK(training_flops(two_layers()).value == 2 * first + 3 * second);
}

TEST_CASE("EveryParameterGetsOneGradientOfItsOwnType") {
  for (DType lower : {DType::fp16, DType::bf16}) {
    const StepGraph step = step_of(amp(lower));
    CHECK(step.gradients.size() == 4);
    for (const ParameterGradient& g : step.gradients) {
      CHECK(step.graph.tensors[g.gradient].dtype == DType::fp32);
      CHECK(step.graph.tensors[g.gradient].shape == step.graph.tensors[g.parameter].shape);
    }
  }
}

TEST_CASE("ACastsBackwardIsACast") {
  const StepGraph step = step_of(amp(DType::bf16));
  const auto backward = kinds(step.graph, Phase::backward);
  // logits, and weight and bias of both layers; x needs no gradient.
  CHECK(std::count(backward.begin(), backward.end(), "cast") == 5);
}

TEST_CASE("ASharedParameterSumsItsGradients") {
  GraphBuilder b;
  TensorId weight = b.parameter("w", {16, 16});
  TensorId x = b.linear(b.linear(b.input("x", {8, 16}), weight), weight);
  b.cross_entropy(x, b.input("t", {8}, DType::int64));
  const StepGraph step = step_of(uniform(DType::fp32), {}, std::move(b).finish());
  CHECK(step.gradients.size() == 1);
  const auto backward = kinds(step.graph, Phase::backward);
  CHECK(std::count(backward.begin(), backward.end(), "add") == 1);
}

TEST_CASE("FullRecomputeRunsEachBlocksForwardAgain") {
  GraphBuilder b;
  TensorId x = b.input("x", {8, 16});
  for (int block = 0; block < 3; ++block) {
    b.set_block(block);
    x = b.relu(b.linear_layer("l" + std::to_string(block), x, 16));
  }
  b.set_block(-1);
  b.cross_entropy(x, b.input("t", {8}, DType::int64));
  const Graph forward = std::move(b).finish();
  const StepGraph plain = step_of(uniform(DType::fp32), {}, forward);
  const StepGraph again = step_of(uniform(DType::fp32), {.recompute = Recompute::full}, forward);
  CHECK(verify(again.graph).empty());
  CHECK(kinds(plain.graph, Phase::recompute).empty());
  CHECK(kinds(again.graph, Phase::recompute).size() == 6);
  CHECK(kinds(again.graph, Phase::backward) == kinds(plain.graph, Phase::backward));
}

TEST_CASE("LossScalingAddsUnscaleReadBackAndUpdate") {
  const StepGraph step = step_of(amp(DType::fp16));
  const std::vector<std::string> inverse = {"cast", "pointwise", "cast", "fill", "copy", "copy"};  // 1 / scale in fp64, a cleared flag
  auto with = [&](std::initializer_list<std::string> more) {
    std::vector<std::string> all = inverse;
    all.insert(all.end(), more);
    return all;
  };
  CHECK(kinds(step.graph, Phase::loss_scaling) == with({"unscale_and_check", "read_back", "update_scale"}));
  // A fused optimizer reads the flag on the GPU.
  const StepGraph fused = step_of(amp(DType::fp16), {.optimizer_impl = OptimizerImpl::fused});
  CHECK(kinds(fused.graph, Phase::loss_scaling) == with({"unscale_and_check", "update_scale"}));
  CHECK(kinds(step_of(amp(DType::bf16)).graph, Phase::loss_scaling).empty());
}

TEST_CASE("AStateOfAnotherTypeMovesItsOwnBytes") {
  PrecisionRecipe recipe = uniform(DType::bf16);
  auto bytes = [&] {
    int moved = 0;
    const StepGraph step = step_of(recipe, {.optimizer_impl = OptimizerImpl::fused});
    for (const Op& op : step.graph.ops)
      if (op.kind == OpKind::multi_tensor) moved += std::get<MultiTensorAttributes>(op.attributes).element_bytes_moved;
    return moved;
  };
  CHECK(bytes() == 14);
  recipe.optimizer_state = DType::fp32;
  CHECK(bytes() == 3 * 2 + 4 * 4);
}

TEST_CASE("ForeachAdamWMovesTwentyPassesAndFusedSeven") {
  auto bytes = [](OptimizerImpl impl) {
    const StepGraph step = step_of(uniform(DType::fp32), {.optimizer_impl = impl});
    int moved = 0;
    for (const Op& op : step.graph.ops)
      if (op.kind == OpKind::multi_tensor) moved += std::get<MultiTensorAttributes>(op.attributes).element_bytes_moved;
    return moved;
  };
  CHECK(bytes(OptimizerImpl::foreach_) == 80);
  CHECK(bytes(OptimizerImpl::fused) == 28);
}

TEST_CASE("LambReadsThreeNormsAndWritesItsUpdatesOverTheGradients") {
  const StepGraph step = step_of(uniform(DType::fp32), {.optimizer = OptimizerKind::lamb, .optimizer_impl = OptimizerImpl::fused, .clip_grad_norm = true});
  std::vector<int> moved;
  for (const Op& op : step.graph.ops)
    if (op.kind == OpKind::multi_tensor) moved.push_back(std::get<MultiTensorAttributes>(op.attributes).element_bytes_moved);
  CHECK(moved == std::vector{4, 4, 28, 4, 12});  // gradients' norm, weights' norms, moments and updates, updates' norms, weights
  CHECK(state_tensors(OptimizerKind::lamb) == 2);
}

TEST_CASE("MultiTensorLaunchesFillByTensorsOrByChunks") {
  CHECK(multi_tensor_launches({}, 1) == 0);
  CHECK(multi_tensor_launches({1}, 1) == 1);
  CHECK(multi_tensor_launches(std::vector<std::int64_t>(110, 1), 1) == 1);
  CHECK(multi_tensor_launches(std::vector<std::int64_t>(111, 1), 1) == 2);
  CHECK(multi_tensor_launches(std::vector<std::int64_t>(48, 1), 3) == 1);
  CHECK(multi_tensor_launches(std::vector<std::int64_t>(110, 1), 1, /*scalar_list=*/true) == 2);
  CHECK(multi_tensor_launches({320LL * 65536}, 1) == 1);
  CHECK(multi_tensor_launches({320LL * 65536 + 1}, 1) == 2);
}

TEST_CASE("AccumulationAddsOneKernelPerParameterRightAfterItsGradient") {
  const StepGraph step = step_of(uniform(DType::fp32), {.micro_batches = 4});
  CHECK(verify(step.graph).empty());
  CHECK(kinds(step.graph, Phase::accumulate).size() == 4);
  for (const ParameterGradient& g : step.gradients) {
    CHECK(step.graph.ops[g.made_by].kind == OpKind::accumulate_gradient);
    CHECK(step.graph.input(step.graph.ops[g.made_by], 0) == g.gradient);
  }
  CHECK(kinds(step_of(uniform(DType::fp32)).graph, Phase::accumulate).empty());
}

TEST_CASE("AGradientInAnotherOrderOfAxesIsCopiedWhereTheViewSaysSo") {
  auto copies = [](GradientCopy gradient, DType type) {
    GraphBuilder b;
    TensorId x = b.linear_layer("l", b.input("x", {4, 8}), 6);
    x = b.transpose(b.view(x, {4, 2, 3}, ViewKind::reshape, gradient), 1, 2);
    b.cross_entropy(b.view(b.contiguous(x), {4, 6}), b.input("t", {4}, DType::int64));
    const auto found = kinds(step_of(uniform(type), {}, std::move(b).finish()).graph, Phase::backward);
    return std::count(found.begin(), found.end(), "contiguous");
  };
  for (DType type : {DType::fp32, DType::bf16}) {
    CHECK(copies(GradientCopy::none, type) == 0);
    CHECK(copies(GradientCopy::always, type) == 1);
    CHECK(copies(GradientCopy::fp32, type) == (type == DType::fp32 ? 1 : 0));
  }
}

TEST_CASE("ASlicesGradientIsOneCall") {
  GraphBuilder b;
  TensorId x = b.slice(b.linear_layer("l", b.input("x", {4, 8}), 12), -1, 6);
  b.cross_entropy(x, b.input("t", {4}, DType::int64));
  const StepGraph step = step_of(uniform(DType::fp32), {}, std::move(b).finish());
  CHECK(kinds(step.graph, Phase::backward) ==
        std::vector<std::string>{"fill", "nll_loss_backward", "log_softmax_backward", "copy", "view", "view", "mm", "sum"});
}

namespace {
PrecisionRecipe master(MainGradients::Made made) {
  PrecisionRecipe recipe = uniform(DType::bf16);
  recipe.master_weights = MasterWeights{};
  recipe.main_gradients = MainGradients{DType::fp32, made};
  recipe.optimizer_state = DType::fp32;
  return recipe;
}
std::vector<std::string> labels(const Graph& graph, Phase phase) {
  std::vector<std::string> out;
  for (const Op& op : graph.ops)
    if (op.phase == phase) out.emplace_back(graph.name(op.label));
  return out;
}
bool has(const std::vector<std::string>& names, const char* name) { return std::find(names.begin(), names.end(), name) != names.end(); }
}  // namespace

TEST_CASE("MasterWeightsAreCopiedBackAfterTheStep") {
  const TrainingOptions fused{.optimizer_impl = OptimizerImpl::fused};
  const StepGraph step = step_of(master(MainGradients::Made::at_step), fused);
  CHECK(verify(step.graph).empty());
  const std::int64_t elements = 64 * 128 + 128 + 128 * 10 + 10;
  CHECK(step.master_weights.value == elements * 4);
  CHECK(step.main_gradients.value == elements * 4);
  CHECK(labels(step.graph, Phase::optimizer) == std::vector<std::string>{"copy main gradients", "fused", "copy master weights"});
  for (const Op& op : step.graph.ops)
    if (step.graph.name(op.label) == "fused") CHECK(std::get<MultiTensorAttributes>(op.attributes).element_bytes_moved == 2 * 4 + 4 + 4 * 4);
}

TEST_CASE("MainGradientsAreAddedInBackwardOrByTheProductItself") {
  const StepGraph separate = step_of(master(MainGradients::Made::in_backward)), fused = step_of(master(MainGradients::Made::in_product));
  auto added = [](const StepGraph& step) { return count(step.graph, OpKind::accumulate_gradient); };
  CHECK(added(separate) == 4);
  CHECK(added(fused) == 2);  // the biases; the weights' products do it
  int accumulating = 0;
  for (const Op& op : fused.graph.ops)
    if (const auto* gemm = std::get_if<GemmAttributes>(&op.attributes); gemm && gemm->accumulates) ++accumulating;
  CHECK(accumulating == 2);
}

TEST_CASE("BuffersOfMainGradientsNeedNoMasterWeights") {
  PrecisionRecipe recipe = uniform(DType::bf16);
  recipe.main_gradients = MainGradients{DType::bf16, MainGradients::Made::in_product};
  const StepGraph step = step_of(recipe);
  CHECK(step.master_weights.value == 0);
  Bytes products;
  for (const Tensor& tensor : step.graph.tensors)
    if (tensor.role == Role::gradient_bucket) products += Bytes{tensor.shape.elements() * 2};
  CHECK(products.value == (64 * 128 + 128 * 10) * 2);  // weights: the buffer that the product adds to
  CHECK(step.main_gradients.value == (128 + 10) * 2);  // biases, added by kernels of their own
}

TEST_CASE("StatesOfAnotherTypeAreOnePassAndEightBitOnesTensorByTensor") {
  PrecisionRecipe recipe = uniform(DType::fp32);
  recipe.optimizer_state = DType::bf16;
  CHECK(labels(step_of(recipe).graph, Phase::optimizer) == std::vector<std::string>{"fused"});
  recipe.optimizer_state = DType::int8;
  const StepGraph step = step_of(recipe);
  CHECK(labels(step.graph, Phase::optimizer) == std::vector<std::string>{"8-bit"});
  CHECK(std::get<MultiTensorAttributes>(step.graph.ops.back().attributes).launches == 4);
}

TEST_CASE("ClippingReadsEveryGradientAndMultipliesIt") {
  const auto names = labels(step_of(uniform(DType::fp32), {.clip_grad_norm = true}).graph, Phase::optimizer);
  CHECK(has(names, "norm"));
  CHECK(names[0] == "norm");
  CHECK(!has(labels(step_of(uniform(DType::fp32)).graph, Phase::optimizer), "norm"));
}

TEST_CASE("OlderSoftwareClipsTensorByTensorAndWaits") {
  const TrainingOptions once{.clip_grad_norm = true, .clip_reads = ClipReads::norm, .tensor_by_tensor = true};
  const StepGraph waits = step_of(uniform(DType::fp32), once);
  CHECK(count(waits.graph, OpKind::read_back) == 1);
  TrainingOptions each = once;
  each.clip_reads = ClipReads::every_norm;
  CHECK(count(step_of(uniform(DType::fp32), each).graph, OpKind::read_back) == static_cast<int>(waits.gradients.size()));
  for (const Op& op : waits.graph.ops)
    if (op.kind == OpKind::multi_tensor && waits.graph.name(op.label) == "norm") CHECK(std::get<MultiTensorAttributes>(op.attributes).one_by_one);
}

TEST_CASE("GradientsThatWereZeroedAreAddedTo") {
  const TrainingOptions zeroed{.zeroes_gradients = true};
  const StepGraph step = step_of(uniform(DType::fp32), zeroed);
  CHECK(count(step.graph, OpKind::accumulate_gradient) == static_cast<int>(step.gradients.size()));
  CHECK(has(labels(step.graph, Phase::optimizer), "zero_"));
  CHECK(count(step_of(master(MainGradients::Made::at_step), zeroed).graph, OpKind::accumulate_gradient) == 0);  // Apex drops them
}

TEST_CASE("AWrapperWithMasterWeightsReadsTheFlagBackEvenWhenFused") {
  PrecisionRecipe recipe = master(MainGradients::Made::at_step);
  recipe.loss_scaling = true;
  const TrainingOptions fused{.optimizer_impl = OptimizerImpl::fused};
  CHECK(count(step_of(recipe, fused).graph, OpKind::read_back) == 1);
  PrecisionRecipe plain = amp(DType::fp16);
  plain.loss_scaling = true;
  CHECK(count(step_of(plain, fused).graph, OpKind::read_back) == 0);
}
