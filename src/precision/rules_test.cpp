#include <doctest/doctest.h>

#include "graph/operator.h"
#include "precision/precision.h"
#include "support.h"
#include "training/step_graph.h"

using namespace precog;
using namespace precog::testing;

namespace {

PrecisionRecipe with_rules(PrecisionRecipe recipe, std::vector<PrecisionRule> rules) {
  recipe.rules = std::move(rules);
  return recipe;
}
const Op& find(const Graph& graph, OpKind kind, std::string_view module = "") {
  for (const Op& op : graph.ops)
    if (op.kind == kind && (module.empty() || graph.name(op.module) == module)) return op;
  FAIL("no such operator");
  return graph.ops.back();
}
// Two layers whose extents fp8 products can take.
Graph wide_layers(std::int64_t rows = 32) {
  GraphBuilder b;
  TensorId hidden = b.relu(b.linear_layer("first", b.input("x", {rows, 64}), 128));
  TensorId logits = b.linear_layer("second", hidden, 64);
  b.cross_entropy(logits, b.input("labels", {rows}, DType::int64));
  return std::move(b).finish();
}
PrecisionRecipe fp8(Scaling scaling, bool fused) {
  PrecisionRecipe recipe = amp(DType::bf16);
  recipe.fp8 = Fp8Layers{.scaling = scaling, .fused = fused, .modules = {"*"}, .except = {}};
  return recipe;
}
std::size_t products(const Graph& graph, DType math) {
  std::size_t out = 0;
  for (const Op& op : graph.ops) out += op.kind == OpKind::scaled_mm && op.math == math;
  return out;
}

}  // namespace

TEST_CASE("ARuleByModuleCastsWhatComesInAndSaysSo") {
  const Graph graph = apply_precision(with_rules(amp(DType::bf16), {{.modules = "second*", .run_in = DType::fp32, .text = "second*"}}), gpu(), wide_layers());
  CHECK(verify(graph).empty());
  CHECK(find(graph, OpKind::linear, "first").math == DType::bf16);
  const Op& second = find(graph, OpKind::linear, "second");
  CHECK(second.math == DType::fp32);
  CHECK(graph.name(second.reason) == "rule: second* in fp32");
  CHECK(graph.tensors[graph.input(second, 0)].dtype == DType::fp32);
}

TEST_CASE("ARuleByOperatorBeatsAutocastsList") {
  GraphBuilder b;
  b.relu(b.layer_norm_layer("norm", b.linear_layer("l", b.input("x", {8, 16}), 16)));
  const Graph forward = std::move(b).finish();
  CHECK(find(apply_precision(amp(DType::bf16), gpu(), forward), OpKind::layer_norm).math == DType::fp32);
  const Graph ruled = apply_precision(with_rules(amp(DType::bf16), {{.operators = "layer_norm", .run_in = DType::bf16}}), gpu(), forward);
  CHECK(find(ruled, OpKind::layer_norm).math == DType::bf16);
}

TEST_CASE("ARegionWithoutAutocastRunsInTheWeightsType") {
  const Graph graph = apply_precision(with_rules(amp(DType::bf16), {{.modules = "first", .autocast_off = true}}), gpu(), wide_layers());
  CHECK(find(graph, OpKind::linear, "first").math == DType::fp32);
  CHECK(find(graph, OpKind::linear, "second").math == DType::bf16);
}

TEST_CASE("ANestedRegionHasItsOwnType") {
  const Graph graph = apply_precision(with_rules(amp(DType::bf16), {{.modules = "second", .autocast = DType::fp16}}), gpu(), wide_layers());
  CHECK(find(graph, OpKind::linear, "first").math == DType::bf16);
  CHECK(find(graph, OpKind::linear, "second").math == DType::fp16);
}

TEST_CASE("ARuleForAModuleHoldsForWhatIsInsideIt") {
  GraphBuilder b;
  b.linear_layer("blocks.mlps.up", b.linear_layer("blocks.mlp.down", b.linear_layer("blocks.mlp.up", b.input("x", {32, 64}), 128), 64), 64);
  const Graph graph = apply_precision(with_rules(amp(DType::bf16), {{.modules = "*.mlp", .autocast_off = true}, {.modules = "*.down", .autocast = DType::fp16}}), gpu(), std::move(b).finish());
  CHECK(find(graph, OpKind::linear, "blocks.mlp.up").math == DType::fp32);
  CHECK(find(graph, OpKind::linear, "blocks.mlp.down").math == DType::fp16);
  CHECK(find(graph, OpKind::linear, "blocks.mlps.up").math == DType::bf16);
}

TEST_CASE("ALaterRuleWins") {
  const Graph graph = apply_precision(
      with_rules(amp(DType::bf16), {{.modules = "*", .run_in = DType::fp32}, {.modules = "first", .run_in = DType::bf16}}), gpu(), wide_layers());
  CHECK(find(graph, OpKind::linear, "first").math == DType::bf16);
  CHECK(find(graph, OpKind::linear, "second").math == DType::fp32);
}

TEST_CASE("AParameterRuleStoresOnlyThoseParametersSo") {
  GraphBuilder b;
  b.relu(b.layer_norm_layer("norm", b.linear_layer("l", b.input("x", {8, 16}), 16)));
  const Graph graph = apply_precision(with_rules(uniform(DType::fp16), {{.operators = "layer_norm", .parameters = DType::fp32}}), gpu(), std::move(b).finish());
  for (const Tensor& tensor : graph.tensors)
    if (tensor.role == Role::parameter)
      CHECK(tensor.dtype == (graph.name(tensor.name).starts_with("norm") ? DType::fp32 : DType::fp16));
}

TEST_CASE("ARuleThatNobodyAnswersToIsNamedWithTheNearest") {
  const std::vector<PrecisionRule> rules = {{.modules = "frist"}, {.modules = "first"}, {.operators = "layernorm"}};
  const auto messages = unmatched_rules(wide_layers(), rules);
  REQUIRE(messages.size() == 2);
  CHECK(messages[0].starts_with("'frist' matches no module of the model; nearest: first"));
  CHECK(messages[1].starts_with("'layernorm' matches no operator of the model"));
}

TEST_CASE("TheWrapperCastsFloatingInputsOnce") {
  PrecisionRecipe recipe = uniform(DType::bf16);
  recipe.inputs = DType::fp32;
  recipe.casts_inputs = true;
  const Graph graph = apply_precision(recipe, gpu(), wide_layers());
  CHECK(verify(graph).empty());
  CHECK(count(graph, OpKind::cast) == 1);
}

TEST_CASE("Fp8LayersHaveThreeProductsEachAndTheirGradientsGoStraightToInputAndWeight") {
  for (const auto& [scaling, fused, math] : {std::tuple{Scaling::tensorwise, false, DType::fp8}, std::tuple{Scaling::rowwise, false, DType::fp8},
                                             std::tuple{Scaling::delayed, true, DType::fp8}, std::tuple{Scaling::mx, true, DType::mxfp8},
                                             std::tuple{Scaling::nvfp4, true, DType::nvfp4}}) {
    CAPTURE(to_text(scaling));
    const PrecisionRecipe recipe = fp8(scaling, fused);
    const Graph forward = apply_precision(recipe, gpu(), wide_layers());
    CHECK(verify(forward).empty());
    CHECK(products(forward, math) == 2);
    const StepGraph step = make_step(forward, recipe, {});
    CHECK(verify(step.graph).empty());
    CHECK(products(step.graph, math) == 5);  // nobody wants the gradient of the first layer's input
    CHECK(step.gradients.size() == 4);
    for (const ParameterGradient& g : step.gradients) {
      CHECK(step.graph.tensors[g.gradient].dtype == DType::fp32);
      CHECK(step.graph.tensors[g.gradient].shape == step.graph.tensors[g.parameter].shape);
    }
  }
}

TEST_CASE("Fp8WithOperatorsKeepsTheInputInSixteenBitsAndFusedKeepsEightBits") {
  auto kept = [](const PrecisionRecipe& recipe) {  // bits of forward activations of the hidden width that backward reads
    const StepGraph step = make_step(apply_precision(recipe, gpu(), wide_layers()), recipe, {});
    std::int64_t sixteen = 0;
    for (const Op& op : step.graph.ops)
      if (op.phase == Phase::backward)
        for (TensorId id : step.graph.inputs(op)) {
          const Tensor& tensor = step.graph.tensors[id];
          if (tensor.role == Role::activation && tensor.dtype == DType::bf16 && tensor.shape == Shape{32, 64} && op.kind != OpKind::pointwise_backward) ++sixteen;
        }
    return sixteen;
  };
  CHECK(kept(fp8(Scaling::tensorwise, false)) > kept(fp8(Scaling::delayed, true)));
}

TEST_CASE("ALayerThatFp8CannotTakeStaysInSixteenBitsAndSaysWhy") {
  const Graph graph = apply_precision(fp8(Scaling::tensorwise, false), gpu(), wide_layers(30));
  CHECK(products(graph, DType::fp8) == 0);
  CHECK(graph.name(find(graph, OpKind::linear, "first").reason) == "not in fp8: 30 rows are no multiple of 16");
  const PrecisionRecipe out = with_rules(fp8(Scaling::tensorwise, false), {{.modules = "second", .fp8 = false}});
  CHECK(products(apply_precision(out, gpu(), wide_layers()), DType::fp8) == 1);
}
