#include <doctest/doctest.h>

#include "report/diff_report.h"
#include "report/example_report.h"
#include "report/inspect_report.h"

using namespace precog;

namespace {

// A step whose every operator launches one kernel of 1 ms: three equal layers (a weight's cast, a linear, an activation in fp32 that
// needs a cast too), the loss, then the gradients of the linears: a product and a cast back.
struct Toy {
  Graph graph;
  KernelProgram program;
  std::vector<KernelCost> costs;
  Report report;
  Inspection inspection;

  Inspected view() const { return {graph, inspection, report, {}}; }

  TensorId tensor(DType dtype, Role role) {
    Tensor made;
    made.shape = Shape({2, 2});
    made.dtype = dtype;
    made.role = role;
    return graph.add_tensor(made);
  }
  OpId add(Op op, std::initializer_list<TensorId> inputs, TensorId output) {
    TensorId outputs[] = {output};
    const OpId id = graph.add_op(op, {inputs.begin(), inputs.size()}, outputs);
    Call call;
    call.op = id;
    call.phase = op.phase;
    call.family = definition(op.kind).family;
    call.first_kernel = static_cast<std::uint32_t>(program.kernels.size());
    call.kernel_count = 1;
    program.calls.push_back(call);
    program.kernels.emplace_back();
    KernelCost cost;
    cost.total = {1e-3};
    costs.push_back(cost);
    return id;
  }
};

Toy toy(DType math, std::int64_t micro_batches = 1) {
  Toy toy;
  Graph& graph = toy.graph;
  const bool mixed = math != DType::fp32;
  TensorId x = toy.tensor(DType::fp32, Role::input);
  std::vector<std::pair<OpId, OpId>> linears;  // with the cast of its weight
  std::vector<TensorId> saved;
  for (std::int16_t layer = 0; layer < 3; ++layer) {
    TensorId weight = toy.tensor(DType::fp32, Role::parameter);
    Op op;
    op.block = layer;
    op.math = math;
    op.module = graph.intern("h." + std::to_string(layer) + ".fc");
    Op cast = op;
    cast.kind = OpKind::cast;
    cast.attributes = CastAttributes{.to = math, .by_autocast = true};
    cast.reason = graph.intern("weight, cast once");
    OpId weight_cast;
    if (mixed) {
      const TensorId copy = toy.tensor(math, Role::activation);
      weight_cast = toy.add(cast, {weight}, copy);
      weight = copy;
    }
    op.kind = OpKind::linear;
    op.reason = graph.intern("lower list");
    TensorId y = toy.tensor(math, Role::activation);
    linears.emplace_back(toy.add(op, {x, weight}, y), weight_cast);
    saved.push_back(weight);
    if (mixed) {
      const TensorId wide = toy.tensor(DType::fp32, Role::activation);
      cast.attributes = CastAttributes{.to = DType::fp32, .by_autocast = true};
      cast.math = DType::fp32;
      toy.add(cast, {y}, wide);
      y = wide;
    }
    op.kind = OpKind::layer_norm;
    op.math = DType::fp32;
    op.autocast = Autocast::fp32;
    op.reason = graph.intern("fp32 list");
    x = toy.tensor(DType::fp32, Role::activation);
    toy.add(op, {y}, x);
  }
  Op loss;
  loss.kind = OpKind::nll_loss;
  loss.math = DType::fp32;
  toy.add(loss, {x}, toy.tensor(DType::fp32, Role::activation));
  for (std::size_t i = linears.size(); i-- > 0;) {
    Op product;
    product.kind = OpKind::mm;
    product.phase = Phase::backward;
    product.math = math;
    product.origin = linears[i].first;
    const TensorId narrow = toy.tensor(math, mixed ? Role::activation : Role::gradient);
    toy.add(product, {saved[i]}, narrow);
    if (!mixed) continue;
    Op back;
    back.kind = OpKind::cast;
    back.phase = Phase::backward;
    back.math = DType::fp32;
    back.origin = linears[i].second;
    back.attributes = CastAttributes{.to = DType::fp32};
    toy.add(back, {narrow}, toy.tensor(DType::fp32, Role::gradient));
  }
  toy.report = example_report(mixed ? "amp-bf16" : "fp32", mixed ? 0.020 : 0.025);
  toy.report.breakdown.host = {};
  toy.inspection = inspect_step(graph, toy.program, toy.costs, micro_batches);
  return toy;
}

}  // namespace

TEST_CASE("CastsBelongToTheOperatorTheyAreFor") {
  const Toy amp = toy(DType::bf16);
  REQUIRE(amp.inspection.ops.size() == 7);  // three linears, three norms, the loss: the casts are inside
  const InspectedOp &linear = amp.inspection.ops[0], &norm = amp.inspection.ops[1];
  CHECK(linear.forward.value == doctest::Approx(1e-3));
  CHECK(linear.backward.value == doctest::Approx(1e-3));
  CHECK(linear.in.count == 1);
  CHECK(linear.back.count == 1);  // the gradient of the weight's cast, through the cast's own origin
  CHECK(linear.cast_from == DType::fp32);
  CHECK(norm.in.count == 1);
  CHECK(norm.back.count == 0);
  CHECK(norm.cast_from == DType::bf16);
  CHECK(amp.inspection.all_casts().count == 9);
  CHECK(amp.inspection.all_casts().time.value == doctest::Approx(9e-3));
  CHECK(amp.inspection.of_weights.count == 6);  // forward and back
  CHECK(amp.inspection.saved.at("bf16").value == 3 * 8);
  CHECK(toy(DType::bf16, 4).inspection.ops[0].own().value == doctest::Approx(8e-3));  // per step, not per micro-batch
}

TEST_CASE("WhatANarrowRecipeKeepsInFp32IsCounted") {
  const Toy amp = toy(DType::bf16);
  const auto kept = kept_in_fp32(amp.graph, amp.inspection);
  REQUIRE(kept.size() == 2);
  CHECK(kept[0].name == "layer_norm");
  CHECK(kept[0].count == 3);
  CHECK(kept[0].casts.count == 3);
  const Toy plain = toy(DType::fp32);
  CHECK(kept_in_fp32(plain.graph, plain.inspection).empty());  // nothing is kept where nothing is narrow
}

TEST_CASE("EqualLayersAreShownOnce") {
  const Toy amp = toy(DType::bf16);
  std::string text = inspect_text(amp.view(), {"toy", false}, {});
  CHECK(text.find("layers 0 to 2, all alike (x 3)") != std::string::npos);
  CHECK(text.find("layers 0 to 2, all alike (x 3): h.0.fc") != std::string::npos);
  CHECK(text.find("h.1") == std::string::npos);
  CHECK(text.find("3+3 fp32>") != std::string::npos);
  CHECK(text.find("lower list") != std::string::npos);
  const Json lines = inspect_json(amp.view())["summary"]["lines"];
  CHECK(lines[0] == "7 operators by arithmetic, with their share of the step: bf16 3 (30%), fp32 4 (20%)");
  CHECK(lines[2].get<std::string>().rfind("casts cost 45% of the step (9 ms in 9 kernels, backward included): 6 for linear (6 ms), 3 for layer_norm (3 ms)", 0) == 0);
  std::string all = inspect_text(amp.view(), {"toy", true}, {});
  CHECK(all.find("h.1") != std::string::npos);
}

TEST_CASE("InspectJsonListsEveryOperatorWithItsReason") {
  const Toy amp = toy(DType::bf16);
  Json json = inspect_json(amp.view());
  REQUIRE(json["operators"].size() == 13);  // forward, casts as well
  CHECK(json["operators"][0]["operator"] == "cast");
  CHECK(json["operators"][0]["from"] == "fp32");
  CHECK(json["operators"][0]["to"] == "bf16");
  CHECK(json["operators"][0]["of_parameter"] == true);
  CHECK(json["operators"][1]["why"] == "lower list");
  CHECK(json["operators"][1]["casts"]["back_s"] == doctest::Approx(1e-3));
  CHECK(json["summary"]["casts"] == 6);
  CHECK(json["summary"]["by_dtype"]["bf16"] == 3);
  CHECK(json["summary"]["cast_share"] == doctest::Approx(0.45));
  CHECK(json["summary"]["kept_fp32"][0]["operator"] == "layer_norm");
  CHECK(json["summary"]["saved_bytes"]["bf16"] == 24);
}

TEST_CASE("DiffShowsOperatorsInAnotherArithmetic") {
  const Toy a = toy(DType::fp32), b = toy(DType::bf16);
  Json json = diff_json(a.view(), b.view());
  REQUIRE(json["differences"].size() == 2);  // linears, and norms that have casts now; all layers together
  CHECK(json["differences"][0]["operator"] == "linear");
  CHECK(json["differences"][0]["count"] == 3);
  CHECK(json["differences"][0]["a"]["dtype"] == "fp32");
  CHECK(json["differences"][0]["b"]["dtype"] == "bf16");
  CHECK(json["differences"][0]["difference_s"] == doctest::Approx(6e-3));
  CHECK(json["casts"]["b"] == 9);
  CHECK(json["casts_s"]["b"] == doctest::Approx(9e-3));
  CHECK(json["parts_s"]["casts"]["b"].is_number());
  CHECK(json["saved_bytes_by_type"]["b"]["bf16"] == 24);
  CHECK(json["difference_s"] == doctest::Approx(-5e-3));
  double sum = 0;
  for (const Json& reason : json["reasons"]) sum += reason["difference_s"].get<double>();
  CHECK(sum == doctest::Approx(-5e-3 * 0.96));  // the parts of the example's step, its host's share taken out
  std::string text = diff_text(a.view(), b.view(), {"toy", false}, {});
  CHECK(text.find("linear x3") != std::string::npos);
  CHECK(text.find("0>6") != std::string::npos);
  CHECK(text.find("amp-bf16 takes 5 ms less than fp32; the largest reasons:") != std::string::npos);
  CHECK(diff_json(a.view(), a.view())["differences"].empty());
  CHECK(diff_text(a.view(), a.view(), {"toy", false}, {}).find("no operator runs in another arithmetic") != std::string::npos);
}
