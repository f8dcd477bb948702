#include <doctest/doctest.h>

#include "frontend/pad_vocabulary.h"

using namespace precog;

namespace {

// A table of `vocabulary` rows of 8, looked up for `tokens` tokens, and a head that reads the same table.
Graph model(std::int64_t vocabulary, std::int64_t tokens) {
  Graph graph;
  const TensorId ids = graph.add_tensor({.shape = {tokens}, .dtype = DType::int64, .role = Role::input});
  const TensorId table = graph.add_tensor({.shape = {vocabulary, 8}, .role = Role::parameter, .requires_grad = true});
  const TensorId x = graph.add_tensor({.shape = {tokens, 8}});
  const TensorId scores = graph.add_tensor({.shape = {tokens, vocabulary}});
  Op look_up, head;
  look_up.kind = OpKind::embedding;
  head.kind = OpKind::linear;
  head.attributes = GemmAttributes{.m = tokens, .n = vocabulary, .k = 8};
  const TensorId a[] = {ids, table}, b[] = {x}, c[] = {x, table}, d[] = {scores};
  graph.add_op(look_up, a, b);
  graph.add_op(head, c, d);
  return graph;
}

}  // namespace

TEST_CASE("EverythingAsWideAsTheVocabularyIsPadded") {
  const Graph padded = pad_vocabulary(model(50257, 64), 64);
  CHECK(vocabulary_of(padded) == 50304);
  CHECK(parameter_count(padded) == 50304 * 8);
  const Op& head = padded.ops[padded.ops.id_at(1)];
  CHECK(std::get<GemmAttributes>(head.attributes).n == 50304);
  CHECK(padded.tensors[padded.output(head)].shape == Shape{64, 50304});
}

TEST_CASE("WhatNeedsNoPaddingOrCannotBeToldApartStays") {
  CHECK(vocabulary_of(model(100, 64)) == 0);                                    // too small to be told from other extents
  CHECK(vocabulary_of(pad_vocabulary(model(50304, 64), 64)) == 50304);          // a multiple already
  CHECK(vocabulary_of(pad_vocabulary(model(50257, 50257), 64)) == 50257);       // as many tokens in the batch, by chance
}
