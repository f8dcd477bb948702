// How operands and results lie in memory, and the copies that follow from it.
#include <algorithm>

#include "kernel/lowering.h"

namespace precog {

// An image with more of what lies at its edge around it, or its gradient, which adds that up again: atomically, so that the corner, to which the
// most is added, decides. `part`: how often; `across`: the share of what was padded.
void Lowering::lower_edge(const Op& op) {
  Kernel& kernel = memory(name_of(op), op, copy_pattern(op));
  const Shape &from = in(op, 0).shape, &to = out(op).shape, &wide = from.elements() > to.elements() ? from : to, &inner = from.elements() > to.elements() ? to : from;
  const std::size_t digit = name_of(op).find_first_of("123");
  const int axes = digit == std::string_view::npos ? 0 : name_of(op)[digit] - '0';
  if (wide.rank() < axes || wide.rank() != inner.rank() || axes == 0) return rows_of(kernel, op, source_row(op));
  std::int64_t area = 1, corner = 1;
  for (int axis = 1; axis <= axes; ++axis) {
    area *= std::max<std::int64_t>(1, wide[-axis]);
    corner *= std::max<std::int64_t>(0, wide[-axis] - inner[-axis]) / 2 + 1;
  }
  auto& shape = std::get<MemoryShape>(kernel.shape);
  shape.rows = wide.elements() / area, shape.row_length = area, shape.part = corner, shape.axes = axes;
  shape.across = static_cast<std::int32_t>(100 * (wide.elements() - inner.elements()) / std::max<std::int64_t>(1, wide.elements()));
}

// Tensor::suggest_memory_format (c10/core/MemoryFormat.h, is_channels_last_strides_2d): tokens that are looked at as images lie so.
bool Lowering::lies_last(TensorId id) const {
  const Shape& shape = graph_.tensors[id].shape;
  const Layouts& layouts = traced_ ? *traced_ : layouts_;
  if (shape.rank() != 4 || layouts.is_plain(id)) return false;
  const Shape strides = layouts.strides(id);
  std::int64_t least = 0;
  if (strides[1] == 0) return false;
  for (int axis : {1, 3, 2, 0}) {
    if (shape[axis] == 0 || strides[axis] < least || (axis == 0 && least == strides[1])) return false;
    least = strides[axis] * std::max<std::int64_t>(1, shape[axis]);
  }
  return true;
}

// Whether kernels on images go through them channel by channel of a pixel: all of a step do, or those whose image lies so. A
// convolution's gradients go by its input and not by what arrives (determine_backend_memory_format, native/Convolution.cpp).
bool Lowering::runs_channels_last(const Op& op) const {
  if (format_ == MemoryFormat::channels_last) return true;
  const std::size_t image = op.kind == OpKind::conv2d_backward || op.kind == OpKind::batch_norm_backward ? 1 : 0;
  switch (definition(op.kind).family) {
    case Family::convolution:
    case Family::normalization:
    case Family::pooling: return op.input_count > image && lies_last(graph_.input(op, image));
    default: return false;
  }
}

// Then their results lie so too.
void Lowering::lay_last(const Op& op) {
  if (op.kind == OpKind::layer_norm || op.kind == OpKind::group_norm || op.kind == OpKind::layer_norm_backward || op.kind == OpKind::group_norm_backward) return;
  for (TensorId id : graph_.outputs(op)) {
    const Shape& shape = graph_.tensors[id].shape;
    if (shape.rank() == 4 && graph_.tensors[id].role != Role::parameter) layouts_.set(id, Shape{shape[1] * shape[2] * shape[3], 1, shape[3] * shape[1], shape[1]});
  }
}

// One for each axis that stays.
Shape Lowering::kept_axes(const Shape& from, const Shape& to) {
  Shape kept;
  for (int axis = 0; axis < from.rank(); ++axis) kept.push_back(0);
  if (from.rank() == to.rank()) {
    for (int axis = 0; axis < from.rank(); ++axis) kept.set(axis, from[axis] == to[axis] ? 1 : 0);
    return kept;
  }
  int wanted = to.rank() - 1;
  for (int axis = from.rank() - 1; axis >= 0 && wanted >= 0; --axis) {
    while (wanted >= 0 && to[wanted] == 1) --wanted;
    if (wanted >= 0 && from[axis] == to[wanted]) kept.set(axis, 1), --wanted;
  }
  return kept;
}

// How a pointwise kernel walks through operands that are broadcast or lie in different orders. The result follows the operands'
// order, unless it was there before.
void Lowering::walk_operands(Kernel& kernel, const Op& op) {
  if (op.output_count == 0) return;
  const Shape& result = out(op).shape;
  const auto plain = [&](TensorId id) { return is_number_on_host(id) || (graph_.tensors[id].shape == result && layouts_.is_plain(id)); };
  const auto inputs = graph_.inputs(op);
  if (!op.strided && std::all_of(inputs.begin(), inputs.end(), plain)) return;  // one contiguous run, as most
  std::vector<Shape> operands;
  operands.reserve(op.input_count);
  Bytes across{}, all = graph_.bytes(graph_.output(op, 0));
  // Where nobody saw that large operands differ they all lie as the one does of which more is known.
  const bool apart = op.strided || op.phase == Phase::backward || op.input_count == 1 || std::any_of(inputs.begin(), inputs.end(), [&](TensorId id) { return answered_plain_[id.index()]; });
  Shape common = contiguous_strides(result);
  for (TensorId id : graph_.inputs(op))
    if (graph_.tensors[id].shape.elements() == result.elements() && !layouts_.is_plain(id)) common = dense_like(result, layouts_.strides_over(id, result));
  for (TensorId id : graph_.inputs(op)) {
    const Shape& shape = graph_.tensors[id].shape;
    if (shape.elements() > result.elements()) return;
    const bool whole = shape.elements() == result.elements();
    operands.push_back(whole && !apart ? common : layouts_.strides_over(id, result));
  }
  if (operands.empty()) return;
  Walk how = walk(result, operands);
  std::size_t at = 0;
  for (TensorId id : graph_.inputs(op)) {
    const Bytes own = std::min(graph_.bytes(id), graph_.bytes(graph_.tensors[id].storage));
    all += own;
    if (how.across >> std::min<std::size_t>(at++, 31) & 1) across += own;
  }
  // Somebody saw that they differ, and the shapes do not say how: as heads moved before their sequence.
  if (op.strided && how.axes == 0) how.axes = 3, how.inner = result.rank() > 0 ? result[-1] : 1;
  inherit_order(op, operands);
  if (how.axes == 0) return;
  auto& shape = std::get<MemoryShape>(kernel.shape);
  // Of a part of a larger tensor each element's place is worked out, without wide loads. (Of orders that differ this is not as sure: which tensors a
  // backward pass finds turned is a guess. Forward the profile's timings of rotated halves have it in.)
  const bool cut = op.phase == Phase::backward && std::any_of(inputs.begin(), inputs.end(), [&](TensorId id) {
    return graph_.tensors[id].shape == result && !layouts_.is_plain(id) && !(dense_like(result, layouts_.strides(id)) == layouts_.strides(id));
  });
  if (shape.pattern == MemoryPattern::pointwise && how.axes >= 2 && cut) shape.pattern = MemoryPattern::broadcast;
  shape.part = smallest_input(op);
  const std::int64_t elements = shape.rows * shape.row_length;
  if (how.inner > 0 && elements % how.inner == 0) shape.rows = elements / how.inner, shape.row_length = how.inner;
  shape.axes = how.axes;
  shape.across = all.value > 0 ? static_cast<std::int32_t>(100 * across.value / all.value) : 0;
}

// A result is made in the order of the first operand that has one.
void Lowering::inherit_order(const Op& op, const std::vector<Shape>& operands) {
  const Shape& result = out(op).shape;
  for (const Shape& one : operands) {
    bool broadcast = false;
    for (int axis = 0; axis < result.rank(); ++axis) broadcast = broadcast || (result[axis] > 1 && one[axis] == 0);
    if (broadcast) continue;
    if (Shape made = dense_like(result, one); !(made == contiguous_strides(result))) layouts_.set(graph_.output(op, 0), made);
    return;
  }
}

// A copy to the order that its shape says.
void Lowering::lower_contiguous(const Op& op) {
  const Shape& result = out(op).shape;
  const TensorId source = graph_.input(op, 0);
  const Shape operands[] = {contiguous_strides(result), layouts_.strides_over(source, result)};
  const Walk how = walk(result, operands);
  const bool unseen = how.axes == 0 && copy_pattern(op) != MemoryPattern::copy;
  const MemoryPattern pattern = unseen ? copy_pattern(op) : how.axes == 0 ? MemoryPattern::copy : how.across ? MemoryPattern::transpose : MemoryPattern::permute;
  Kernel& kernel = memory(name_of(op), op, pattern);
  rows_of(kernel, op, unseen ? source_row(op) : how.across ? how.run : how.inner);
  auto& shape = std::get<MemoryShape>(kernel.shape);
  shape.axes = unseen ? 3 : how.axes;
  shape.across = how.across ? 50 : 0;
}

// Images of which all lie so are joined so, whatever their types (at::cat, native/TensorShape.cpp: the format that suggest_memory_format says of every
// part, else the usual one).
bool Lowering::joins_last(const Op& op) const {
  const auto parts = graph_.inputs(op);
  return std::all_of(parts.begin(), parts.end(), [&](TensorId id) { return lies_last(id); });
}

// Of different types they are copied into their places one by one, too.
bool Lowering::joins_types(const Op& op) {
  bool alike = true;
  for (TensorId id : graph_.inputs(op)) alike = alike && graph_.tensors[id].dtype == out(op).dtype;
  if (alike || call_.compiled) return false;
  const Shape& result = out(op).shape;
  const bool last = joins_last(op);
  if (last) lay_last(op);
  for (std::size_t i = 0; i < op.input_count; ++i) {
    const Tensor& part = in(op, i);
    const bool converts = part.dtype != out(op).dtype;
    const Bytes written{part.shape.elements() * bits_of(out(op).dtype) / 8};
    std::int64_t row = 1;  // elements that lie side by side in the result
    bool whole = true;     // along the axes that were passed
    for (int axis = 1; axis <= std::min(part.shape.rank(), result.rank()) && whole; ++axis) row *= part.shape[-axis], whole = part.shape[-axis] == result[-axis];
    if (last && part.shape[1] != result[1]) row = part.shape[1];  // the channels of a pixel
    row = std::max<std::int64_t>(1, row);
    const std::int64_t rows = std::max<std::int64_t>(1, part.shape.elements() / row);
    Kernel& kernel = memory("cat_part", op, converts ? MemoryPattern::cast : rows > 1 ? MemoryPattern::permute : MemoryPattern::copy, in_bytes(op, i), written, rows, row);
    kernel.input = part.dtype;
    auto& place = std::get<MemoryShape>(kernel.shape);
    if (rows > 1) place.axes = 2, place.part = row;
  }
  return true;
}

void Lowering::lower_cat(const Op& op) {
  if (joins_types(op)) return;
  Kernel& kernel = memory(name_of(op), op, MemoryPattern::copy);
  rows_of(kernel, op, op.input_count);
  const bool last = joins_last(op);
  bool plain = !op.strided;
  int axes = 1;
  if (last) lay_last(op);
  for (TensorId id : graph_.inputs(op)) {
    plain = plain && (last || layouts_.is_plain(id));
    axes = std::max(axes, graph_.tensors[id].shape.rank());
  }
  // Stacked along a new last axis they get it first; along another they are joined and the axis is cut afterwards (native/TensorShape.cpp).
  if (out(op).shape.rank() > axes && out(op).shape[-1] == op.input_count && out(op).shape[-2] == in(op, 0).shape[-1]) ++axes;
  if (axes > kMostJoinedAxes) kernel.launches = op.input_count;
  const std::int64_t ragged = plain ? ragged_run(op) : 0;
  if (plain && ragged == 0) {
    kernel.idle_blocks = last ? 0 : idle_blocks_of_cat(op);
    return;
  }
  kernel.name = plain ? "cat_ragged" : "cat_strided";
  kernel.estimated = true;  // by timings of its own, where there are any
  auto& shape = std::get<MemoryShape>(kernel.shape);
  shape.axes = plain ? 2 : std::clamp(axes, 2, kMostJoinedAxes);
  if (plain) shape.part = ragged;
}

// Every part gets as many blocks as the largest needs, up to 32 for each SM (getCatGridContig, native/cuda/Shape.cu): of one large part and many small
// ones nearly all find nothing to do.
std::int64_t Lowering::idle_blocks_of_cat(const Op& op) const {
  constexpr std::int64_t kBlock = 128, kLoad = 16, kMostForSm = 32;
  constexpr std::size_t kLaunch = 128;  // parts
  const std::int64_t each = kBlock * std::max<std::int64_t>(1, kLoad * 8 / bits_of(out(op).dtype));
  const auto parts = graph_.inputs(op);
  std::int64_t idle = 0;
  for (std::size_t first = 0; first < parts.size(); first += kLaunch) {
    const auto together = parts.subspan(first, std::min(kLaunch, parts.size() - first));
    std::int64_t most = 0;
    const auto needed = [&](TensorId id) { return std::min(kMostForSm * gpu_.sms, (graph_.tensors[id].shape.elements() + each - 1) / each); };
    for (TensorId id : together) most = std::max(most, needed(id));
    for (TensorId id : together) idle += most - needed(id);
  }
  return idle;
}

// Of joined parts the fewest elements that lie side by side in the result and are no multiple of 16 bytes: they are copied in narrower pieces
// (CatArrayBatchedCopy_contig and its aligned forms, native/cuda/Shape.cu). Zero where all are.
std::int64_t Lowering::ragged_run(const Op& op) const {
  constexpr std::int64_t kLoad = 16;
  const Shape& result = out(op).shape;
  std::int64_t least = 0;
  for (TensorId id : graph_.inputs(op)) {
    const Tensor& part = graph_.tensors[id];
    if (part.shape.rank() != result.rank()) continue;
    int axis = 0;
    while (axis < result.rank() && part.shape[axis] == result[axis]) ++axis;
    std::int64_t run = 1;
    for (int inner = axis; inner < result.rank(); ++inner) run *= part.shape[inner];
    if (axis == 0 || run == 0 || run * bits_of(part.dtype) / 8 % kLoad == 0) continue;  // one run each: their ends alone are ragged
    least = least == 0 ? run : std::min(least, run);
  }
  return least;
}

TensorId Lowering::widest_operand(const Op& op) const {
  TensorId widest = graph_.input(op, 0);
  for (TensorId id : graph_.inputs(op))
    if (graph_.tensors[id].shape.elements() > graph_.tensors[widest].shape.elements()) widest = id;
  return widest;
}

void Lowering::pass_on_planes(const Op& op) {
  if (op.input_count > 0 && planar_[graph_.input(op, 0).index()])
    for (TensorId id : graph_.outputs(op)) planar_[id.index()] = true;
}

// A result zeroed, or a copy of the first operand, before part of it is written.
void Lowering::prepare(const Op& op) {
  if (!known_ || op.in_place || op.output_count == 0) return;
  if (known_->clears_first) memory("fill", op, MemoryPattern::fill, {0}, out_bytes(op));
  if (known_->clones_first) memory("clone", op, MemoryPattern::copy, out_bytes(op), out_bytes(op));
}

void Lowering::lower_copy(const Op& op) {
  prepare(op);
  const MemoryPattern pattern = op.strided ? MemoryPattern::broadcast : MemoryPattern::copy;
  if (known_ && (known_->clears_first || known_->clones_first) && op.input_count > 0) {
    // Only the operand's own elements are moved, or those of them that fit (a negative padding).
    const std::size_t source = known_->clones_first ? op.input_count - 1u : 0;
    const Bytes moved = op.output_count > 0 ? std::min(in_bytes(op, source), out_bytes(op)) : in_bytes(op, source);
    memory(name_of(op), op, pattern, moved, moved);
  } else if (op.input_count == 2 && name_of(op) == "copy") {
    memory(name_of(op), op, pattern, in_bytes(op, 1), out_bytes(op));  // copy_(target, source): the target is only written
  } else if (name_of(op) == "roll" && op.output_count > 0 && out(op).shape.rank() >= 4) {
    for (int axis = 0; axis < 2; ++axis) memory("roll", op, MemoryPattern::copy);  // one axis after the other; of images two
  } else {
    Kernel& kernel = memory(name_of(op), op, pattern);
    if (name_of(op) == "im2col" && out(op).shape.rank() == 3)  // one sample after the other (aten/native/cuda/Im2Col.cu)
      kernel.launches = static_cast<std::int32_t>(std::clamp<std::int64_t>(out(op).shape[0], 1, 1 << 20));
    // A thread writes, or adds up, all that its pixel has in the blocks: one element after the other.
    if ((name_of(op) == "im2col" || name_of(op) == "col2im") && op.input_count > 0 && in(op, 0).shape.rank() > 2 && out(op).shape.rank() > 2) {
      const std::int64_t from = std::max<std::int64_t>(1, in(op, 0).shape[1]), to = std::max<std::int64_t>(1, out(op).shape[1]);
      std::get<MemoryShape>(kernel.shape).part = std::max(from, to) / std::min(from, to);
    }
  }
}

void Lowering::note_order(const Op& op) {
  if (op.input_count == 0) return;
  const Order before = order_[graph_.input(op, 0).index()];
  const auto* view = std::get_if<ViewAttributes>(&op.attributes);
  Order after = before;
  if (view && view->kind == ViewKind::transpose && turns(in(op, 0).shape, out(op).shape))
    after = before == Order::turned ? Order::permuted : Order::turned;  // there and back
  else if (before == Order::plain && !(view && view->kind == ViewKind::reshape)) after = Order::permuted;
  for (TensorId id : graph_.outputs(op)) order_[id.index()] = after;
}

MemoryPattern Lowering::copy_pattern(const Op& op) const {
  if (op.kind != OpKind::contiguous && !op.strided) return MemoryPattern::copy;
  Order worst = Order::plain;
  for (TensorId id : graph_.inputs(op)) worst = std::max(worst, order_[id.index()]);
  // A clone of what lies as it should is a plain copy; a gradient is copied because its kernel answered in another order.
  if (worst == Order::plain && op.phase != Phase::backward && !op.strided) return MemoryPattern::copy;
  return worst == Order::turned ? MemoryPattern::transpose : MemoryPattern::permute;
}

// The innermost extent of what a copy reads, as it lies in memory.
std::int64_t Lowering::source_row(const Op& op) const {
  if (op.input_count == 0) return 0;
  const Shape& stored = graph_.tensors[in(op, 0).storage].shape;
  return stored.rank() > 0 ? stored[-1] : 0;
}

void Lowering::lower_shard_copy(const Op& op) {
  const auto& a = std::get<ShardCopyAttributes>(op.attributes);
  const Work work = work_of(graph_, op);
  Kernel& kernel = memory("shard_copy", op, MemoryPattern::copy, work.read, work.written, 1, a.elements);
  kernel.launches = static_cast<std::int32_t>(std::max<std::int64_t>(1, a.launches));
  kernel.input = kernel.output = op.math;
  kernel.estimated = true;
}

// Part of a larger tensor, or the same elements again and again: what libraries want without gaps is copied. Another order of axes
// is not: it is a layout that they know, or say in their own copies.
bool Lowering::has_gaps(TensorId id) const {
  if (layouts_.is_plain(id)) return false;
  const Shape& shape = graph_.tensors[id].shape;
  const Shape strides = layouts_.strides(id), dense = dense_like(shape, strides);
  for (int axis = 0; axis < shape.rank(); ++axis)
    if (shape[axis] > 1 && strides[axis] != dense[axis]) return true;
  return false;
}

// The gradients of a fused attention are made in the order of its operands (empty_like).
void Lowering::lie_alike(TensorId made, TensorId pattern) {
  const Shape& shape = graph_.tensors[made].shape;
  if (!(shape == graph_.tensors[pattern].shape) || layouts_.is_plain(pattern)) return;
  if (const Shape dense = dense_like(shape, layouts_.strides(pattern)); !(dense == contiguous_strides(shape))) layouts_.set(made, dense);
}

// Kernels that want rows side by side copy an operand that lies otherwise, inside the call, unseen by autograd: what is told by
// the graph's views. Whether they did.
bool Lowering::copy_inside(const Op& op, std::size_t operand, std::string_view name) {
  if (call_.compiled || operand >= op.input_count) return false;
  const TensorId id = graph_.input(op, operand);
  if (layouts_.is_plain(id)) return false;
  const Shape& shape = graph_.tensors[id].shape;
  const Shape operands[] = {contiguous_strides(shape), layouts_.strides(id)};
  const Walk how = walk(shape, operands);
  if (how.axes == 0) return false;
  const Bytes bytes = graph_.bytes(id);
  const std::int64_t length = shape.rank() > 0 ? std::max<std::int64_t>(1, shape[-1]) : 1;
  Kernel& kernel = memory(name, op, how.across ? MemoryPattern::transpose : MemoryPattern::permute, bytes, bytes, shape.elements() / length, length);
  auto& place = std::get<MemoryShape>(kernel.shape);
  place.part = how.across ? how.run : how.inner;
  place.axes = how.axes;
  place.across = how.across ? 50 : 0;
  call_.workspace += bytes;
  return true;
}

// Recurrent layers whose samples come first: the library wants the steps first, and PyTorch's wrapper copies what lies otherwise
// (native/cudnn/RNN.cpp); results and gradients are the library's, looked at with the samples first.
void Lowering::copy_steps_first(const Op& op, std::size_t operand) {
  if (!std::get<RnnAttributes>(op.attributes).batch_first || operand >= op.input_count) return;
  const TensorId id = graph_.input(op, operand);
  const Shape& shape = graph_.tensors[id].shape;
  if (shape.rank() != 3) return;
  const Shape operands[] = {Shape{shape[2], shape[0] * shape[2], 1}, layouts_.strides(id)};
  const Walk how = walk(shape, operands);
  if (how.axes == 0) return;
  const Bytes bytes = graph_.bytes(id);
  Kernel& kernel = memory("rnn_copy", op, MemoryPattern::permute, bytes, bytes, shape[0] * shape[1], shape[2]);
  auto& place = std::get<MemoryShape>(kernel.shape);
  place.part = how.inner;
  place.axes = how.axes;
}

void Lowering::lay_steps_first(const Op& op) {
  if (!std::get<RnnAttributes>(op.attributes).batch_first || op.output_count == 0) return;
  const Shape& shape = out(op).shape;
  if (shape.rank() == 3 && shape[0] > 1 && shape[1] > 1) layouts_.set(graph_.output(op, 0), Shape{shape[2], shape[0] * shape[2], 1});
}

// A view that exchanges the last two axes of such an answer.
void Lowering::follow_answer(const Op& op) {
  if (op.input_count == 0 || op.output_count == 0 || !answered_plain_[graph_.input(op, 0).index()]) return;
  const Shape &from = in(op, 0).shape, &to = out(op).shape;
  if (from.rank() != 3 || to.rank() != 3 || to[1] != from[2] || to[2] != from[1] || from[1] == from[2]) return;
  const TensorId id = graph_.output(op, 0);
  layouts_.set(id, Shape{from[1] * from[2], 1, from[2]});
  answered_plain_[id.index()] = true;
}

// To rows side by side, of an operand whose last two axes are exchanged.
void Lowering::copy_turned(std::string_view name, const Op& op, std::size_t operand) {
  const Shape& shape = in(op, operand).shape;
  const Bytes bytes = in_bytes(op, operand);
  const std::int64_t length = std::max<std::int64_t>(1, shape[-1]);
  Kernel& kernel = memory(name, op, MemoryPattern::transpose, bytes, bytes, shape.elements() / length, length);
  auto& place = std::get<MemoryShape>(kernel.shape);
  place.part = length, place.axes = 3, place.across = 50;
  call_.workspace += bytes;
}

}  // namespace precog
