#include "graph/weights_alone.h"

#include <doctest/doctest.h>

#include "graph/builder.h"

using namespace precog;

TEST_CASE("WhatIsMadeOfWeightsIsTheSameInEveryMicroBatch") {
  GraphBuilder b;
  TensorId x = b.input("x", {4, 8});
  TensorId weight = b.parameter("weight", {8, 8});
  TensorId turned = b.contiguous(b.transpose(weight, 0, 1));
  TensorId product = b.matmul(x, turned);
  const Graph graph = std::move(b).finish();
  const std::vector<char> found = weights_alone(graph);
  CHECK(found[turned.index()] == 1);
  CHECK(found[product.index()] == 0);
}
