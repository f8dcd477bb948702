#include <doctest/doctest.h>

#include "graph/operator.h"
#include "support.h"

using namespace precog;
using namespace precog::testing;

TEST_CASE("BuilderInfersShapesAndKeepsModulePaths") {
  const Graph graph = two_layers();
  CHECK(verify(graph).empty());
  CHECK(kinds(graph, Phase::forward) == std::vector<std::string>{"linear", "relu", "linear", "log_softmax", "nll_loss"});
  const Op& first = graph.ops[OpId{0}];
  CHECK(graph.name(first.module) == "first");
  CHECK(graph.tensors[graph.output(first)].shape == Shape{32, 128});
  CHECK(graph.name(graph.tensors[graph.input(first, 1)].name) == "first.weight");
  CHECK(parameter_count(graph) == 64 * 128 + 128 + 128 * 10 + 10);
}

TEST_CASE("AnOperatorPrintsOnOneLine") {
  const Graph graph = two_layers();
  CHECK(to_text(graph, graph.ops[OpId{0}]) ==
        "%4:model[32,128] = linear(@x, @first.weight, @first.bias) b=1 m=32 n=128 k=64 bias");
}

TEST_CASE("ViewsShareMemoryAndCostNoWork") {
  GraphBuilder b;
  TensorId x = b.input("x", {4, 6});
  TensorId y = b.transpose(x, 0, 1);
  b.relu(y);
  const Graph graph = std::move(b).finish();
  CHECK(graph.tensors[y].storage == x);
  CHECK(graph.tensors[y].shape == Shape{6, 4});
  CHECK(work_of(graph, graph.ops[OpId{0}]).read.value == 0);
}

TEST_CASE("AnExpandedViewReadsOnlyWhatIsStored") {
  GraphBuilder b;
  TensorId x = b.input("x", {1, 8}, DType::fp32);
  b.relu(b.expand(x, {1000, 8}));
  const Graph graph = std::move(b).finish();
  const Work work = work_of(graph, graph.ops[OpId{1}]);
  CHECK(work.read.value == 32);
  CHECK(work.written.value == 32000);
}

TEST_CASE("GemmWorkCountsTwoFlopsPerProduct") {
  const Graph graph = two_layers(32, 64, 128);
  CHECK(work_of(graph, graph.ops[OpId{0}]).flops.value == 2.0 * 32 * 64 * 128);
}

TEST_CASE("ConvolutionWorkFollowsTheOutput") {
  GraphBuilder b;
  TensorId y = b.conv2d_layer("conv", b.input("x", {2, 3, 8, 8}), 4, 3, 1, 1);
  CHECK(b.shape(y) == Shape{2, 4, 8, 8});
  const Graph graph = std::move(b).finish();
  CHECK(work_of(graph, graph.ops[OpId{0}]).flops.value == 2.0 * (2 * 4 * 8 * 8) * (3 * 3 * 3));
}

TEST_CASE("CausalAttentionIsHalfTheArithmetic") {
  auto flops = [](bool causal) {
    GraphBuilder b;
    TensorId q = b.input("q", {1, 2, 16, 8}), k = b.input("k", {1, 2, 16, 8}), v = b.input("v", {1, 2, 16, 8});
    b.attention(q, k, v, causal);
    const Graph graph = std::move(b).finish();
    return work_of(graph, graph.ops[OpId{0}]).flops.value;
  };
  CHECK(flops(false) == 4.0 * 2 * 16 * 16 * 8);
  CHECK(flops(true) == flops(false) / 2);
}

TEST_CASE("VerifyFindsATensorReadBeforeItIsMade") {
  Graph graph;
  TensorId a = graph.add_tensor({.shape = {1}}), b = graph.add_tensor({.shape = {1}});
  Op op;
  op.kind = OpKind::relu;
  graph.add_op(op, std::array{a}, std::array{b});
  CHECK(verify(graph).find("before it is made") != std::string::npos);
}

TEST_CASE("BroadcastingFollowsPyTorch") {
  CHECK(broadcast({4, 1, 3}, {2, 3}) == Shape{4, 2, 3});
  CHECK_THROWS_AS(broadcast({4}, {3}), BrokenPromise);
}

TEST_CASE("EveryOperatorIsDefined") {
  for (int i = 0; i < static_cast<int>(OpKind::kCount); ++i) {
    const auto kind = static_cast<OpKind>(i);
    CHECK_MESSAGE(!to_text(definition(kind).family).empty(), to_text(kind));
  }
}
