#include "kernel/layouts.h"

#include <array>

#include <doctest/doctest.h>

namespace precog {
namespace {

// A graph of one tensor and views of it, one after the other.
struct Views {
  Graph graph;
  TensorId last;

  explicit Views(const Shape& shape) { last = graph.add_tensor({.shape = shape, .dtype = DType::fp32}); }
  Views& view(ViewKind kind, const Shape& shape, Phase phase = Phase::forward) {
    Tensor made = graph.tensors[last];
    made.shape = shape;
    const TensorId next = graph.add_tensor(made);
    Op op;
    op.kind = OpKind::view;
    op.phase = phase;
    op.attributes = ViewAttributes{kind};
    const TensorId in[] = {last}, out[] = {next};
    graph.add_op(op, in, out);
    last = next;
    return *this;
  }
  Shape strides() const {
    Layouts layouts(graph);
    for (std::size_t i = 0; i < graph.ops.size(); ++i) layouts.follow(graph.ops[graph.ops.id_at(i)]);
    return layouts.strides(last);
  }
};

TEST_CASE("Layouts: views move strides, and the extents tell which axes moved") {
  CHECK(Views({2, 128, 12, 64}).view(ViewKind::transpose, {2, 12, 128, 64}).strides() == Shape{98304, 64, 768, 1});
  CHECK(Views({16, 8, 7, 8, 7, 64}).view(ViewKind::transpose, {16, 8, 8, 7, 7, 64}).strides() == Shape{200704, 25088, 448, 3584, 64, 1});
  CHECK(Views({2, 14, 14, 8}).view(ViewKind::transpose, {2, 8, 14, 14}).strides() == Shape{1568, 1, 112, 8});  // a square image: its rows stay rows
  CHECK(Views({64, 64}).view(ViewKind::transpose, {64, 64}).strides() == Shape{1, 64});  // extents alike: the last two
  // A reshape is contiguous; the gradient of one that exchanged axes is exchanged back.
  CHECK(Views({2, 9, 5}).view(ViewKind::reshape, {2, 5, 9}).strides() == Shape{45, 9, 1});
  CHECK(Views({2, 5, 9}).view(ViewKind::reshape, {2, 9, 5}, Phase::backward).strides() == Shape{45, 1, 9});
  CHECK(Views({2, 5, 9}).view(ViewKind::reshape, {10, 9}, Phase::backward).strides() == Shape{9, 1});
  CHECK(Views({4, 2304}).view(ViewKind::slice, {4, 768}).strides() == Shape{2304, 1});
  CHECK(Views({3, 4, 8}).view(ViewKind::slice, {4, 8}).strides() == Shape{8, 1});
  CHECK(Views({4, 1, 8}).view(ViewKind::expand, {4, 5, 8}).strides() == Shape{8, 0, 1});
  // Tokens that an image was turned into, seen as an image again.
  CHECK(Views({2, 9, 5}).view(ViewKind::transpose, {2, 5, 9}).view(ViewKind::transpose, {2, 5, 3, 3}).strides() == Shape{45, 1, 15, 5});
}

TEST_CASE("Walk: neighbouring axes are one where all operands allow it") {
  const Shape shape{8, 128, 768};
  const Shape plain = contiguous_strides(shape), bias{0, 0, 1}, rows{128, 1, 0};
  CHECK(walk(shape, std::array{plain, plain}).axes == 0);
  const Walk biased = walk(shape, std::array{plain, bias});
  CHECK(biased.axes == 2);
  CHECK(biased.inner == 768);
  CHECK(walk(shape, std::array{plain, rows}).axes == 2);
  CHECK(walk(shape, std::array{plain, Shape{768, 0, 1}}).axes == 3);
  // All in the same other order: the kernel sees plain memory.
  const Shape turned{98304, 1, 128};
  CHECK(walk(shape, std::array{turned, turned}).axes == 0);
  // A copy from that order: read across memory, 128 elements of the source side by side.
  const Walk copied = walk(shape, std::array{plain, turned});
  CHECK(copied.axes == 3);
  CHECK(copied.across == 2);
  CHECK(copied.run == 128);
}

TEST_CASE("Walk: a reduction's innermost run, kept or summed") {
  const Shape image{32, 64, 14, 14};
  const Walk per_channel = walk_reduction(image, contiguous_strides(image), {0, 1, 0, 0});
  CHECK_FALSE(per_channel.keeps);
  CHECK(per_channel.inner == 196);
  CHECK(per_channel.axes == 3);
  const Walk last = walk_reduction(image, {12544, 1, 896, 64}, {0, 1, 0, 0});
  CHECK(last.keeps);
  CHECK(last.inner == 64);
  CHECK(last.axes == 2);
  const Shape three{8, 256, 96};
  const Walk middle = walk_reduction(three, contiguous_strides(three), {1, 0, 1});
  CHECK(middle.keeps);
  CHECK(middle.inner == 96);
  CHECK(middle.axes == 3);
}

}  // namespace
}  // namespace precog
