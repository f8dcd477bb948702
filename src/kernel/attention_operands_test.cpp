#include <doctest/doctest.h>

#include "kernel/attention_operands.h"
#include "support.h"
#include "training/step_graph.h"

using namespace precog;
using namespace precog::testing;

namespace {

constexpr std::int64_t kBatch = 2, kLength = 16, kWidth = 8;

TensorId heads(GraphBuilder& b, TensorId x, std::int64_t count) { return b.transpose(b.view(x, {kBatch, kLength, count, kWidth}), 1, 2); }
TensorId turned(GraphBuilder& b, TensorId x) { return b.mul(x, b.buffer("cos", {1, 1, kLength, kWidth})); }

struct Joint {
  std::int64_t heads, kv_heads;
  bool rotated;
};
Graph joint_projection(const Joint& job) {
  GraphBuilder b;
  const std::int64_t q_width = job.heads * kWidth, kv_width = job.kv_heads * kWidth;
  TensorId x = b.linear_layer("qkv", b.input("x", {kBatch, kLength, 32}), q_width + 2 * kv_width);
  TensorId q = heads(b, b.slice(x, -1, q_width), job.heads), k = heads(b, b.slice(x, -1, kv_width), job.kv_heads), v = heads(b, b.slice(x, -1, kv_width), job.kv_heads);
  if (job.rotated) q = turned(b, q), k = turned(b, k);
  TensorId y = b.attention(q, k, v, true, {}, 0);
  b.cross_entropy(b.view(b.transpose(y, 1, 2), {kBatch * kLength, q_width}), b.input("t", {kBatch * kLength}, DType::int64));
  return std::move(b).finish();
}
const Op& attention_in(const Graph& graph) {
  for (const Op& op : graph.ops)
    if (op.kind == OpKind::scaled_dot_product_attention) return op;
  FAIL("no attention");
  return graph.ops[graph.ops.id_at(0)];
}
const Op& projection_in(const Graph& graph) {
  for (const Op& op : graph.ops)
    if (op.kind == OpKind::linear) return op;
  FAIL("no projection");
  return graph.ops[graph.ops.id_at(0)];
}
bool read_in_backward(const Graph& graph, TensorId storage) {
  for (const Op& op : graph.ops)
    for (TensorId id : graph.inputs(op))
      if (op.phase == Phase::backward && graph.tensors[id].storage == storage) return true;
  return false;
}

}  // namespace

TEST_CASE("AValueBehindRotatedKeysIsCopiedOutOfTheProjection") {
  for (std::int64_t kv_heads : {1, 4}) {
    const Joint job{4, kv_heads, true};
    const Graph before = joint_projection(job), after = lay_out_operands(joint_projection(job));
    CHECK(count(before, OpKind::contiguous) == 0);
    CHECK(count(after, OpKind::contiguous) == 1);
    const Tensor& value = after.tensors[after.inputs(attention_in(after))[2]];
    CHECK(after.tensors[value.storage].shape.elements() == value.shape.elements());
    // What is copied is the value alone, and backward no longer keeps what it was a part of.
    CHECK(read_in_backward(make_step(before, uniform(DType::bf16), {}).graph, before.output(projection_in(before))));
    const Graph step = make_step(after, uniform(DType::bf16), {}).graph;
    CHECK_FALSE(read_in_backward(step, step.output(projection_in(step))));
  }
}

TEST_CASE("OneBlockOfQueriesKeysAndValuesIsReadWhereItLies") {
  CHECK(count(lay_out_operands(joint_projection({4, 4, false})), OpKind::contiguous) == 0);
  // With fewer keys than queries no layout describes it: each is copied.
  CHECK(count(lay_out_operands(joint_projection({4, 2, false})), OpKind::contiguous) == 3);
}

TEST_CASE("KeysAndValuesOfOneBlockAreReadWhereTheyLie") {
  GraphBuilder b;
  TensorId x = b.input("x", {kBatch, kLength, 32});
  TensorId q = turned(b, heads(b, b.linear_layer("q", x, 4 * kWidth), 4)), kv = b.linear_layer("kv", x, 4 * kWidth);
  TensorId k = heads(b, b.slice(kv, -1, 2 * kWidth), 2), v = heads(b, b.slice(kv, -1, 2 * kWidth), 2);
  b.attention(q, k, v, true, {}, 0);
  CHECK(count(lay_out_operands(std::move(b).finish()), OpKind::contiguous) == 0);
}

TEST_CASE("ProjectionsOfTheirOwnAreReadWhereTheyLie") {
  GraphBuilder b;
  TensorId x = b.input("x", {kBatch, kLength, 32});
  TensorId q = heads(b, b.linear_layer("q", x, 4 * kWidth), 4), k = heads(b, b.linear_layer("k", x, 2 * kWidth), 2), v = heads(b, b.linear_layer("v", x, 2 * kWidth), 2);
  b.attention(turned(b, q), turned(b, k), v, true, {}, 0);
  CHECK(count(lay_out_operands(std::move(b).finish()), OpKind::contiguous) == 0);
}
