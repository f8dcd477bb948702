#include <doctest/doctest.h>

#include "report/inspect_report.h"

using namespace precog;

namespace {

// Three equal layers: a cast of a weight, then a linear in bf16; the loss in fp32.
Graph toy(DType math) {
  Graph graph;
  Tensor plain;
  plain.shape = Shape({2, 2});
  plain.dtype = DType::fp32;
  plain.role = Role::input;
  TensorId x = graph.add_tensor(plain);
  for (std::int16_t layer = 0; layer < 3; ++layer) {
    Tensor parameter = plain;
    parameter.role = Role::parameter;
    parameter.name = graph.intern("w" + std::to_string(layer));
    TensorId weight = graph.add_tensor(parameter);
    Tensor result = plain;
    result.role = Role::activation;
    result.dtype = math;
    Op op;
    op.block = layer;
    op.math = math;
    op.module = graph.intern("h." + std::to_string(layer) + ".fc");
    if (math != DType::fp32) {
      TensorId copy = graph.add_tensor(result);
      Op cast = op;
      cast.kind = OpKind::cast;
      cast.attributes = CastAttributes{math, {}, true};
      cast.reason = graph.intern("weight, cast once");
      TensorId in[] = {weight}, out[] = {copy};
      graph.add_op(cast, in, out);
      weight = copy;
    }
    op.kind = OpKind::linear;
    op.reason = graph.intern("lower list");
    TensorId y = graph.add_tensor(result);
    TensorId in[] = {x, weight}, out[] = {y};
    graph.add_op(op, in, out);
    x = y;
  }
  Tensor loss = plain;
  loss.role = Role::activation;
  Op op;
  op.kind = OpKind::nll_loss;
  op.math = DType::fp32;
  TensorId in[] = {x}, out[] = {graph.add_tensor(loss)};
  graph.add_op(op, in, out);
  return graph;
}

}  // namespace

TEST_CASE("EqualLayersAreShownOnce") {
  std::string text = inspect_text(toy(DType::bf16), {"toy", false}, {});
  CHECK(text.find("layers 0 to 2, all alike (x 3)") != std::string::npos);
  CHECK(text.find("h.1") == std::string::npos);
  CHECK(text.find("fp32>bf16") != std::string::npos);
  CHECK(text.find("lower list") != std::string::npos);
  CHECK(text.find("4 operators by arithmetic: bf16 3, fp32 1") != std::string::npos);
  CHECK(text.find("3 casts inserted, by what reads them: linear 3") != std::string::npos);
  std::string all = inspect_text(toy(DType::bf16), {"toy", true}, {});
  CHECK(all.find("h.1") != std::string::npos);
}

TEST_CASE("InspectJsonListsEveryOperatorWithItsReason") {
  Json json = inspect_json(toy(DType::bf16));
  REQUIRE(json["operators"].size() == 7);
  CHECK(json["operators"][0]["operator"] == "cast");
  CHECK(json["operators"][0]["from"] == "fp32");
  CHECK(json["operators"][0]["to"] == "bf16");
  CHECK(json["operators"][0]["of_parameter"] == true);
  CHECK(json["operators"][1]["why"] == "lower list");
  CHECK(json["summary"]["casts"] == 3);
  CHECK(json["summary"]["by_dtype"]["bf16"] == 3);
}

TEST_CASE("DiffShowsOperatorsInAnotherArithmetic") {
  Graph a = toy(DType::fp32), b = toy(DType::bf16);
  Json json = diff_json(a, b);
  REQUIRE(json["differences"].size() == 3);
  CHECK(json["differences"][0]["a"] == "fp32");
  CHECK(json["differences"][0]["b"] == "bf16");
  CHECK(json["casts"]["b"] == 3);
  std::string text = diff_text(a, b, "fp32", "bf16", {"toy", false}, {});
  CHECK(text.find("and 2 alike in the other layers") != std::string::npos);
  CHECK(diff_json(a, a)["differences"].empty());
  CHECK(diff_text(a, a, "fp32", "fp32", {"toy", false}, {}).find("no operator runs in another arithmetic") != std::string::npos);
}
