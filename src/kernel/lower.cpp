// Operators to kernels: what eager PyTorch launches for each; compiled, the library calls among them.
#include <algorithm>

#include "base/ensure.h"
#include "graph/framework_names.h"
#include "graph/recurrent_space.h"
#include "kernel/kernel.h"
#include "kernel/layouts.h"
#include "kernel/library_rules.h"
#include "kernel/library_space.h"
#include "kernel/lower_fused.h"

namespace precog {
namespace {

// Nothing of their kind has been measured: their patterns are borrowed, and the report says so.
bool has_no_pattern_of_its_own(OpKind kind) {
  switch (kind) {
    case OpKind::sort:
    case OpKind::scan:
    case OpKind::random:
    case OpKind::pool:
    case OpKind::pool_backward:
    case OpKind::group_norm:
    case OpKind::group_norm_backward:
    case OpKind::rnn:
    case OpKind::rnn_backward: return true;
    default: return false;
  }
}

// Copies and gathers that go another way than others of their kind: a thread per pixel that adds up or looks up what belongs there.
bool goes_its_own_way(std::string_view name) {
  return name == "im2col" || name == "col2im" || name.starts_with("reflection_pad") || name.starts_with("replication_pad") || name.starts_with("grid_sampler");
}

Collective collective_of(OpKind kind) {
  switch (kind) {
    case OpKind::all_gather: return Collective::all_gather;
    case OpKind::reduce_scatter: return Collective::reduce_scatter;
    case OpKind::all_to_all: return Collective::all_to_all;
    case OpKind::send_recv: return Collective::send_recv;
    default: return Collective::all_reduce;
  }
}

class Lowering {
 public:
  Lowering(const Graph& graph, const GpuSpec& gpu, MemoryFormat format, const FusionPlan* fusion, const KnownStrides* strides)
      : graph_(graph), gpu_(gpu), format_(format), fusion_(fusion), layouts_(graph, strides) {}

  KernelProgram run() {
    program_.calls.reserve(graph_.ops.size());
    program_.kernels.reserve(graph_.ops.size() + graph_.ops.size() / 4);
    for (std::size_t i = 0; i < graph_.ops.size(); ++i) {
      const OpId id = graph_.ops.id_at(i);
      const Op& op = graph_.ops[id];
      call_ = {};
      known_ = is_generic(op.kind) ? framework_name(graph_.name(op.label)) : nullptr;
      call_.op = id;
      call_.phase = op.phase;
      call_.family = definition(op.kind).family;
      call_.collective = op.on_communication_stream;
      call_.first_kernel = static_cast<std::uint32_t>(program_.kernels.size());
      call_.compiled = fusion_ && fusion_->ops[i].compiled;
      last_ = runs_channels_last(op);
      if ((!fusion_ || !fusion_->ops[i].compiled || !fusion_->ops[i].absorbed) && !is_on_host(op)) lower(op);
      if (last_ && format_ == MemoryFormat::contiguous) lay_last(op);
      if (fusion_) put_fused(fusion_->ops[i]);
      call_.kernel_count = static_cast<std::uint32_t>(program_.kernels.size()) - call_.first_kernel;
      if (has_no_pattern_of_its_own(op.kind))
        for (std::size_t k = call_.first_kernel; k < program_.kernels.size(); ++k) program_.kernels[k].estimated = true;
      if (known_ && goes_its_own_way(known_->name))
        for (std::size_t k = call_.first_kernel; k < program_.kernels.size(); ++k)
          if (program_.kernels[k].name == known_->name) program_.kernels[k].estimated = true;
      program_.calls.push_back(call_);
    }
    if (fusion_) program_.last_use = fusion_->last_use;
    return std::move(program_);
  }

 private:
  // A number that the model's code made a tensor of (torch.tensor(x)) lies in the host's memory, and so does what is computed
  // from such numbers alone: no kernel. A buffer of a module is on the GPU, however small.
  bool is_on_host(const Op& op) {
    if (op.input_count == 0 || op.output_count == 0 || definition(op.kind).family == Family::host) return false;
    for (TensorId id : graph_.inputs(op)) {
      const Tensor& tensor = graph_.tensors[id];
      const bool number = tensor.shape.rank() == 0 && tensor.role == Role::buffer && tensor.name.valid() && graph_.name(tensor.name) == "constant";
      if (!number && !on_host_[id.index()]) return false;
    }
    for (TensorId id : graph_.outputs(op))
      if (graph_.tensors[id].shape.rank() > 0) return false;
    for (TensorId id : graph_.outputs(op)) on_host_[id.index()] = true;
    return true;
  }
  // Tensor::suggest_memory_format (c10/core/MemoryFormat.h, is_channels_last_strides_2d): tokens that are looked at as images lie so.
  bool lies_last(TensorId id) const {
    const Shape& shape = graph_.tensors[id].shape;
    if (shape.rank() != 4 || layouts_.is_plain(id)) return false;
    const Shape strides = layouts_.strides(id);
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
  bool runs_channels_last(const Op& op) const {
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
  void lay_last(const Op& op) {
    if (op.kind == OpKind::layer_norm || op.kind == OpKind::group_norm || op.kind == OpKind::layer_norm_backward || op.kind == OpKind::group_norm_backward) return;
    for (TensorId id : graph_.outputs(op)) {
      const Shape& shape = graph_.tensors[id].shape;
      if (shape.rank() == 4 && graph_.tensors[id].role != Role::parameter) layouts_.set(id, Shape{shape[1] * shape[2] * shape[3], 1, shape[3] * shape[1], shape[1]});
    }
  }
  void put_fused(const FusionPlan::PerOp& planned) {
    for (std::int32_t index : planned.kernels) {
      const FusedKernel& fused = fusion_->kernels[static_cast<std::size_t>(index)];
      for (const Kernel& kernel : lower_fused(fused, graph_)) program_.kernels.push_back(kernel);
      call_.family = family_of(fused, graph_);
    }
    for (TensorId id : planned.turned) {
      program_.kernels.push_back(layout_copy(id, graph_));
      call_.workspace += graph_.bytes(id);
    }
    if (!planned.padded) return;
    for (TensorId operand : planned.copied) {
      program_.kernels.push_back(padding_copy(operand, graph_));
      call_.workspace += graph_.bytes(operand);
    }
    for (std::size_t k = call_.first_kernel; k < program_.kernels.size(); ++k)
      if (auto* product = std::get_if<GemmShape>(&program_.kernels[k].shape)) {
        const std::int64_t unit = is_16bit(program_.kernels[k].input) ? 8 : 4;
        for (std::int64_t* extent : {&product->m, &product->n, &product->k}) *extent = *extent == 1 ? 1 : (*extent + unit - 1) / unit * unit;
      }
  }

  const Tensor& in(const Op& op, std::size_t i) const { return graph_.tensors[graph_.input(op, i)]; }
  const Tensor& out(const Op& op, std::size_t i = 0) const { return graph_.tensors[graph_.output(op, i)]; }
  Bytes in_bytes(const Op& op, std::size_t i) const { return graph_.bytes(graph_.input(op, i)); }
  Bytes out_bytes(const Op& op, std::size_t i = 0) const { return graph_.bytes(graph_.output(op, i)); }

  Kernel& put(std::string_view name, const Op& op, KernelShape shape, Work work) {
    Kernel kernel;
    kernel.name = name;
    kernel.shape = shape;
    kernel.math = op.math;
    kernel.output = op.output_count > 0 ? out(op).dtype : op.math;
    kernel.input = op.input_count > 0 ? in(op, 0).dtype : kernel.output;
    kernel.flops = work.flops;
    kernel.read = work.read;
    kernel.written = work.written;
    const bool arithmetic = !std::holds_alternative<MemoryShape>(shape) && !std::holds_alternative<CollectiveShape>(shape);
    kernel.emulated = arithmetic && op.math != DType::fp32 && !gpu_.computes(op.math);
    program_.kernels.push_back(kernel);
    return program_.kernels.back();
  }

  // Without rows: one row of the largest operand's elements.
  Kernel& memory(std::string_view name, const Op& op, MemoryPattern pattern, Bytes read, Bytes written, std::int64_t rows = 0,
                 std::int64_t row_length = 0) {
    if (rows == 0) {
      rows = 1;
      for (TensorId id : graph_.inputs(op)) row_length = std::max(row_length, graph_.tensors[id].shape.elements());
      for (TensorId id : graph_.outputs(op)) row_length = std::max(row_length, graph_.tensors[id].shape.elements());
    }
    return put(name, op, MemoryShape{pattern, rows, row_length}, Work{{static_cast<double>(rows * row_length)}, read, written});
  }
  Kernel& memory(std::string_view name, const Op& op, MemoryPattern pattern, std::int64_t rows = 0, std::int64_t row_length = 0) {
    const Work work = work_of(graph_, op);
    return memory(name, op, pattern, work.read, work.written, rows, row_length);
  }
  // Counters and small buffers, cleared by the driver's own kernel.
  void clear(const Op& op, std::int32_t times = 1) {
    if (times <= 0) return;
    Kernel& kernel = memory("memset", op, MemoryPattern::pointwise, {0}, Bytes{4096} * static_cast<double>(times), 1, 1024);
    kernel.launches = times;
  }
  // PyTorch's reduction: where several blocks share a result they meet through counters. Sums over all that lies before an axis
  // (a bias's gradient) are told from others.
  Kernel& reduce(std::string_view name, const Op& op, Bytes read, Bytes written, std::int64_t outputs, std::int64_t length, const Walk& how) {
    if (sums_across_blocks(outputs, length, how.keeps, gpu_.sms)) clear(op);
    const bool down = how.keeps && how.axes <= 2 && outputs > 1;
    if (down && !call_.compiled) call_.workspace += column_sum_space(outputs, length, gpu_.sms);
    Kernel& kernel = memory(name, op, down ? MemoryPattern::bias_gradient : MemoryPattern::reduction, read, written, outputs, length);
    auto& shape = std::get<MemoryShape>(kernel.shape);
    shape.channels_last = how.keeps;
    shape.part = how.inner;
    shape.axes = how.axes;
    shape.across = how.across ? 100 : 0;
    return kernel;
  }
  // Of plain operands: `columns` sums down them, else along rows.
  Kernel& reduce(std::string_view name, const Op& op, Bytes read, Bytes written, std::int64_t outputs, std::int64_t length, bool columns) {
    return reduce(name, op, read, written, outputs, length, Walk{.axes = outputs > 1 && length > 1 ? 2 : 1, .inner = columns ? outputs : length, .keeps = columns});
  }
  // One for each axis that stays.
  static Shape kept_axes(const Shape& from, const Shape& to) {
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
  void walk_operands(Kernel& kernel, const Op& op) {
    if (op.output_count == 0) return;
    const Shape& result = out(op).shape;
    std::vector<Shape> operands;
    Bytes across{}, all = graph_.bytes(graph_.output(op, 0));
    // Where nobody saw that large operands differ they all lie as the one does of which more is known.
    const bool apart = op.strided || op.input_count == 1;
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
    shape.part = smallest_input(op);
    const std::int64_t elements = shape.rows * shape.row_length;
    if (how.inner > 0 && elements % how.inner == 0) shape.rows = elements / how.inner, shape.row_length = how.inner;
    shape.axes = how.axes;
    shape.across = all.value > 0 ? static_cast<std::int32_t>(100 * across.value / all.value) : 0;
  }
  // A result is made in the order of the first operand that has one.
  void inherit_order(const Op& op, const std::vector<Shape>& operands) {
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
  void lower_contiguous(const Op& op) {
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
  // Parts that lie side by side are joined by a kernel of wide loads, others by one that works out each element's place, of up to
  // four axes; of more they are copied one by one (aten/native/cuda/Shape.cu, cat_out_cuda).
  static constexpr int kMostJoinedAxes = 4;
  // Of different types they are copied into their places one by one, too.
  bool joins_types(const Op& op) {
    bool alike = true;
    for (TensorId id : graph_.inputs(op)) alike = alike && graph_.tensors[id].dtype == out(op).dtype;
    if (alike || call_.compiled) return false;
    const Shape& result = out(op).shape;
    for (std::size_t i = 0; i < op.input_count; ++i) {
      const Tensor& part = in(op, i);
      const bool converts = part.dtype != out(op).dtype;
      const Bytes written{part.shape.elements() * bits_of(out(op).dtype) / 8};
      std::int64_t row = 1;  // elements that lie side by side in the result
      bool whole = true;     // along the axes that were passed
      for (int axis = 1; axis <= std::min(part.shape.rank(), result.rank()) && whole; ++axis) row *= part.shape[-axis], whole = part.shape[-axis] == result[-axis];
      row = std::max<std::int64_t>(1, row);
      const std::int64_t rows = std::max<std::int64_t>(1, part.shape.elements() / row);
      Kernel& kernel = memory("cat_part", op, converts ? MemoryPattern::cast : rows > 1 ? MemoryPattern::permute : MemoryPattern::copy, in_bytes(op, i), written, rows, row);
      kernel.input = part.dtype;
      auto& place = std::get<MemoryShape>(kernel.shape);
      if (rows > 1) place.axes = 2, place.part = row;
    }
    return true;
  }
  void lower_cat(const Op& op) {
    if (joins_types(op)) return;
    Kernel& kernel = memory(name_of(op), op, MemoryPattern::copy);
    rows_of(kernel, op, op.input_count);
    bool plain = !op.strided, last = true;
    int axes = 1;
    for (TensorId id : graph_.inputs(op)) last = last && lies_last(id);
    if (last) lay_last(op);
    for (TensorId id : graph_.inputs(op)) {
      plain = plain && (last || layouts_.is_plain(id));
      axes = std::max(axes, graph_.tensors[id].shape.rank());
    }
    // Stacked along a new last axis they get it first; along another they are joined and the axis is cut afterwards (native/TensorShape.cpp).
    if (out(op).shape.rank() > axes && out(op).shape[-1] == op.input_count && out(op).shape[-2] == in(op, 0).shape[-1]) ++axes;
    if (axes > kMostJoinedAxes) kernel.launches = op.input_count;
    if (plain) return;
    kernel.name = "cat_strided";
    kernel.estimated = true;  // by timings of its own, where there are any
    std::get<MemoryShape>(kernel.shape).axes = std::clamp(axes, 2, kMostJoinedAxes);
  }
  // How the large operand's rows lie, and what tells it from others of its pattern (MemoryShape::part).
  void rows_of(Kernel& kernel, const Op& op, std::int64_t part = 0) const {
    auto& shape = std::get<MemoryShape>(kernel.shape);
    shape.part = part;
    const Shape& result = op.output_count > 0 ? out(op).shape : in(op, 0).shape;
    const std::int64_t all = shape.rows * shape.row_length, length = result.rank() > 0 ? std::max<std::int64_t>(1, result[-1]) : 1;
    if (all % length == 0) shape.rows = all / length, shape.row_length = length;
  }
  // Elements of the smallest operand, or of the first one of whole numbers.
  std::int64_t smallest_input(const Op& op) const {
    std::int64_t least = 0;
    for (TensorId id : graph_.inputs(op)) least = least == 0 ? graph_.tensors[id].shape.elements() : std::min(least, graph_.tensors[id].shape.elements());
    return least;
  }
  std::int64_t places(const Op& op) const {
    for (TensorId id : graph_.inputs(op))
      if (!is_floating(graph_.tensors[id].dtype)) return graph_.tensors[id].shape.elements();
    return 0;
  }
  // The framework's own name of a generic operator; both live as long as the program.
  std::string_view name_of(const Op& op) const {
    if (known_) return known_->name;
    return to_text(op.kind);
  }

  // Of one row a sample, or of every pixel: then kernels of their own, which read the one score that each is about.
  void lower_nll_loss(const Op& op) {
    if (op.kind != OpKind::nll_loss && op.kind != OpKind::nll_loss_backward) return row_wise(op, MemoryPattern::loss);
    const bool backward = op.kind == OpKind::nll_loss_backward;
    std::size_t target = 1;  // the first operand of integers
    while (target + 1 < op.input_count && is_floating(in(op, target).dtype)) ++target;
    const bool maps = (backward ? out(op) : in(op, 0)).shape.rank() >= 4;
    const std::int64_t places = std::max<std::int64_t>(1, in(op, target).shape.elements()), images = maps ? std::max<std::int64_t>(1, in(op, target).shape[0]) : 1;
    const Bytes scores{places * 32};  // a sector each
    if (backward) {
      memory("fill", op, MemoryPattern::fill, {0}, out_bytes(op));
      if (maps) memory("nll_loss2d_backward", op, MemoryPattern::loss, in_bytes(op, target), scores, images, places / images).estimated = true;
      else memory("nll_loss_backward", op, MemoryPattern::loss, in_bytes(op, target), scores);
    } else if (maps) {
      memory("nll_loss2d", op, MemoryPattern::loss, in_bytes(op, target) + scores, {8}, images, places / images).estimated = true;
    } else {
      row_wise(op, MemoryPattern::loss);
    }
  }
  // A logarithm of four axes is of classes, the second of them, for every pixel: a kernel of its own that goes through them three
  // times, a pixel a thread (cunn_SpatialSoftMaxForward, aten/native/cuda/SoftMax.cu). Others are along rows.
  void lower_softmax(const Op& op) {
    const bool forward = op.kind == OpKind::softmax || op.kind == OpKind::log_softmax;
    const MemoryPattern pattern = forward ? MemoryPattern::softmax_forward : MemoryPattern::softmax_backward;
    const Shape& shape = op.input_count > 0 ? in(op, 0).shape : out(op).shape;
    const bool logarithm = op.kind == OpKind::log_softmax || op.kind == OpKind::log_softmax_backward;
    if (!logarithm || shape.rank() < 4 || call_.compiled) return row_wise(op, pattern);
    const std::int64_t classes = std::max<std::int64_t>(1, shape[1]);
    Kernel& kernel = memory(forward ? "log_softmax2d" : "log_softmax2d_backward", op, pattern, shape.elements() / classes, classes);
    kernel.estimated = true;  // by timings of its own, where there are any
    auto& place = std::get<MemoryShape>(kernel.shape);
    place.channels_last = true;  // down the columns
    place.part = pixels(shape);
    place.across = 100;
  }
  void row_wise(const Op& op, MemoryPattern pattern) {
    const Shape& shape = op.input_count > 0 ? in(op, 0).shape : out(op).shape;
    const std::int64_t length = shape.rank() > 0 ? std::max<std::int64_t>(1, shape[-1]) : 1;
    memory(name_of(op), op, pattern, shape.elements() / length, length);
  }

  void lower(const Op& op) {
    switch (call_.family) {
      case Family::view:
        pass_on_planes(op);
        layouts_.follow(op);
        return note_order(op);
      case Family::host:
        call_.waits_for_gpu = true;
        memory("copy_to_host", op, MemoryPattern::copy, {4}, {4});
        return;
      case Family::gemm: return lower_gemm(op);
      case Family::convolution: return op.kind == OpKind::conv2d ? lower_conv(op) : lower_conv_backward(op);
      case Family::attention: return lower_attention(op);
      case Family::normalization: return lower_normalization(op);
      case Family::softmax:
        // The product of gradient and result is written out first (softmax_backward_cuda_out, aten/src/ATen/native/cuda/SoftMax.cu).
        if (op.kind == OpKind::softmax_backward) call_.workspace += in_bytes(op, 0);
        for (TensorId id : graph_.outputs(op)) planar_[id.index()] = true;  // it makes its operands contiguous, and so is what it returns
        for (std::size_t i = 0; i < std::min<std::size_t>(op.input_count, 2); ++i) copy_inside(op, i, "softmax_copy");
        return lower_softmax(op);
      case Family::loss:
        return lower_nll_loss(op);
      case Family::pointwise: {
        if (op.output_count == 0) {  // adds to what is there already
          memory(name_of(op), op, MemoryPattern::pointwise);
          return;
        }
        if (known_ && known_->reduces_after && input_elements(op) > out(op).shape.elements()) return lower_loss(op);
        // A kernel that mixes types is the slower, unrolled one: its input type is its narrowest large operand's.
        Kernel& kernel = memory(name_of(op), op, pointwise_pattern(op));
        walk_operands(kernel, op);
        for (TensorId id : graph_.inputs(op)) {
          const Tensor& operand = graph_.tensors[id];
          if (is_floating(operand.dtype) && bits_of(operand.dtype) < bits_of(kernel.input) && operand.shape == out(op).shape)
            kernel.input = operand.dtype;
        }
        return;
      }
      case Family::cast:
        pass_on_planes(op);
        if (op.kind == OpKind::quantize) lower_quantize(op);
        else walk_operands(memory("cast", op, MemoryPattern::cast), op);
        return;
      case Family::copy:
        if (op.kind == OpKind::shard_copy) lower_shard_copy(op);
        else if (op.kind == OpKind::bucket_copy) memory("bucket_copy", op, MemoryPattern::copy, in_bytes(op, 0), in_bytes(op, 0));
        else if (op.kind == OpKind::copy) lower_copy(op);
        else if (op.kind == OpKind::contiguous && op.output_count > 0) lower_contiguous(op);
        else if (op.kind == OpKind::cat && op.output_count > 0) lower_cat(op);
        else rows_of(memory(name_of(op), op, copy_pattern(op)), op, source_row(op));
        return;
      case Family::reduction: {
        if (op.kind == OpKind::scan) return row_wise(op, MemoryPattern::reduction);
        const std::int64_t kept = op.output_count > 0 ? std::max<std::int64_t>(1, out(op).shape.elements()) : 1;
        const std::int64_t all = std::max(kept, op.kind == OpKind::reduction ? input_elements(op) : in(op, 0).shape.elements());
        const Work work = work_of(graph_, op);
        Walk how{.axes = 1, .inner = all, .keeps = false};
        if (op.output_count > 0) {
          const Shape& from = widest_input(op);
          how = walk_reduction(from, op.strided ? layouts_.strides(widest_operand(op)) : contiguous_strides(from), kept_axes(from, out(op).shape));
        }
        Bytes read = work.read;
        // Truths are made numbers of the result's type first, and those are summed (make_reduction, native/ReduceOpsUtils.h).
        if ((op.kind == OpKind::sum || op.kind == OpKind::mean) && in(op, 0).dtype == DType::boolean && op.output_count > 0 && !call_.compiled) {
          read = Bytes{all * bits_of(out(op).dtype) / 8};
          memory("cast", op, MemoryPattern::cast, work.read, read, 1, all);
        }
        Kernel& sum = reduce(name_of(op), op, read, work.written, kept, all / kept, how);
        if (in(op, 0).dtype == DType::boolean && op.output_count > 0) sum.input = out(op).dtype;
        return;
      }
      case Family::pooling: {
        const bool forward = op.kind == OpKind::max_pool2d || op.kind == OpKind::adaptive_avg_pool2d || op.kind == OpKind::pool;
        Kernel& kernel = memory(name_of(op), op, forward ? MemoryPattern::pooling_forward : MemoryPattern::pooling_backward);
        const Shape& large = forward ? out(op).shape : in(op, 0).shape;
        const auto* window = std::get_if<PoolAttributes>(&op.attributes);
        // A graph that does not say the window says by how much the image shrinks: at least that.
        const Shape &from = in(op, 0).shape, &to = out(op).shape;
        const bool shrinks = from.rank() >= 3 && from.rank() == to.rank() && std::min(from[-1], to[-1]) > 0;
        rows_of(kernel, op, window ? window->kernel : shrinks ? std::max(from[-1], to[-1]) / std::min(from[-1], to[-1]) : 0);
        // A gradient goes by how it arrives.
        const bool last = last_ && !planar_[graph_.input(op, 0).index()];
        std::get<MemoryShape>(kernel.shape).channels_last = last;
        if (large.rank() == 4 && name_of(op).starts_with("upsample_"))  // planes and their pixels: resizing costs by these (fallback_kernels.h)
          kernel.shape = MemoryShape{std::get<MemoryShape>(kernel.shape).pattern, large[0] * large[1], large[2] * large[3], last || (forward && op.strided), large[1]};
        return;
      }
      case Family::recurrent: return lower_recurrent(op);
      case Family::unknown: memory("unknown", op, MemoryPattern::copy).unknown = true; return;
      case Family::embedding: return lower_embedding(op);
      case Family::index: return lower_index(op);
      case Family::optimizer:
      case Family::loss_scaling:
        if (const auto* many = std::get_if<MultiTensorAttributes>(&op.attributes)) {
          // A row per tensor.
          const std::int64_t tensors = std::max<std::int64_t>(1, many->tensors);
          Kernel& kernel = memory(name_of(op), op, many->one_by_one ? MemoryPattern::pointwise : MemoryPattern::multi_tensor, tensors,
                                  usual_size(many->elements, tensors));
          kernel.launches = static_cast<std::int32_t>(std::max<std::int64_t>(1, many->launches));
        } else {
          memory(name_of(op), op, MemoryPattern::pointwise, {8}, {8});
        }
        return;
      case Family::fill: {
        Bytes written{};
        for (std::size_t i = 0; i < op.output_count; ++i) written += out_bytes(op, i);
        if (op.kind == OpKind::random) memory(name_of(op), op, MemoryPattern::dropout, {0}, written);
        else memory("fill", op, MemoryPattern::fill, {0}, written);
        return;
      }
      case Family::collective: {
        const auto& attributes = std::get<CollectiveAttributes>(op.attributes);
        call_.collective = true;
        const Collective kind = collective_of(op.kind);
        put(to_text(kind), op, CollectiveShape{message_bytes(graph_, op), attributes.participants, kind, attributes.stride, attributes.copies}, work_of(graph_, op));
        return;
      }
    }
  }

  // The mean of several sizes, but of a parameter's own: large ones are multiples of the block of elements that a multi-tensor call
  // gives to a thread block (kChunkSize, aten/native/cuda/MultiTensorApply.cuh), small ones of a vector; a mean is of nothing.
  static std::int64_t usual_size(std::int64_t elements, std::int64_t tensors) {
    constexpr std::int64_t kChunk = 65536, kVector = 64;
    const std::int64_t mean = elements / tensors;
    if (elements % tensors == 0 && mean % kVector == 0) return mean;  // all alike, most likely
    const std::int64_t unit = mean >= 4 * kChunk ? kChunk : mean >= kVector ? kVector : 1;
    return mean / unit * unit;
  }

  // Converts, and where asked writes a transposed copy from the tile it holds: as a layout copy moves memory.
  void lower_quantize(const Op& op) {
    const bool transposes = op.output_count > 2;
    memory("quantize", op, transposes ? MemoryPattern::layout : MemoryPattern::cast).estimated = true;
  }

  TensorId widest_operand(const Op& op) const {
    TensorId widest = graph_.input(op, 0);
    for (TensorId id : graph_.inputs(op))
      if (graph_.tensors[id].shape.elements() > graph_.tensors[widest].shape.elements()) widest = id;
    return widest;
  }
  void pass_on_planes(const Op& op) {
    if (op.input_count > 0 && planar_[graph_.input(op, 0).index()])
      for (TensorId id : graph_.outputs(op)) planar_[id.index()] = true;
  }
  const Shape& widest_input(const Op& op) const { return graph_.tensors[widest_operand(op)].shape; }
  std::int64_t input_elements(const Op& op) const { return op.input_count > 0 ? widest_input(op).elements() : 0; }

  // A pointwise kernel into a temporary, then its sum or mean.
  void lower_loss(const Op& op) {
    const Bytes temporary{input_elements(op) * bits_of(out(op).dtype) / 8};
    const Work work = work_of(graph_, op);
    memory(name_of(op), op, known_->transcendental ? MemoryPattern::activation : MemoryPattern::pointwise, work.read, temporary);
    reduce("mean", op, temporary, out_bytes(op), 1, input_elements(op), false);
    call_.workspace += temporary;
  }

  // A result zeroed, or a copy of the first operand, before part of it is written.
  void prepare(const Op& op) {
    if (!known_ || op.in_place || op.output_count == 0) return;
    if (known_->clears_first) memory("fill", op, MemoryPattern::fill, {0}, out_bytes(op));
    if (known_->clones_first) memory("clone", op, MemoryPattern::copy, out_bytes(op), out_bytes(op));
  }

  void lower_copy(const Op& op) {
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

  // In which order a tensor's elements lie, as far as a copy minds. Told from shapes: a transposition that changes the last
  // extent has moved the innermost axis (two extents alike hide it).
  enum class Order : std::uint8_t { plain, permuted, turned };
  static bool turns(const Shape& from, const Shape& to) { return from.rank() > 0 && to.rank() > 0 && from[-1] != to[-1]; }
  void note_order(const Op& op) {
    if (op.input_count == 0) return;
    const Order before = order_[graph_.input(op, 0).index()];
    const auto* view = std::get_if<ViewAttributes>(&op.attributes);
    Order after = before;
    if (view && view->kind == ViewKind::transpose && turns(in(op, 0).shape, out(op).shape))
      after = before == Order::turned ? Order::permuted : Order::turned;  // there and back
    else if (before == Order::plain && !(view && view->kind == ViewKind::reshape)) after = Order::permuted;
    for (TensorId id : graph_.outputs(op)) order_[id.index()] = after;
  }
  MemoryPattern copy_pattern(const Op& op) const {
    if (op.kind != OpKind::contiguous && !op.strided) return MemoryPattern::copy;
    Order worst = Order::plain;
    for (TensorId id : graph_.inputs(op)) worst = std::max(worst, order_[id.index()]);
    // A clone of what lies as it should is a plain copy; a gradient is copied because its kernel answered in another order.
    if (worst == Order::plain && op.phase != Phase::backward && !op.strided) return MemoryPattern::copy;
    return worst == Order::turned ? MemoryPattern::transpose : MemoryPattern::permute;
  }

  // The innermost extent of what a copy reads, as it lies in memory.
  std::int64_t source_row(const Op& op) const {
    if (op.input_count == 0) return 0;
    const Shape& stored = graph_.tensors[in(op, 0).storage].shape;
    return stored.rank() > 0 ? stored[-1] : 0;
  }

  void lower_shard_copy(const Op& op) {
    const auto& a = std::get<ShardCopyAttributes>(op.attributes);
    const Work work = work_of(graph_, op);
    Kernel& kernel = memory("shard_copy", op, MemoryPattern::copy, work.read, work.written, 1, a.elements);
    kernel.launches = static_cast<std::int32_t>(std::max<std::int64_t>(1, a.launches));
    kernel.input = kernel.output = op.math;
    kernel.estimated = true;
  }

  void lower_index(const Op& op) {
    prepare(op);
    if (known_ && known_->waits) call_.waits_for_gpu = true;
    if (known_ && op.phase == Phase::backward && name_of(op) == "index_put" && op.input_count > 0) return lower_index_gradient(op);
    if (op.kind == OpKind::sort) {  // a radix sort: keys and places read and written a few times over, and its helpers
      const Work work = work_of(graph_, op);
      memory(name_of(op), op, MemoryPattern::index, (work.read + work.written) * 2.0, (work.read + work.written) * 2.0).launches = 6;
    } else {
      rows_of(memory(name_of(op), op, MemoryPattern::index), op, places(op));
    }
  }

  // The gradient of an indexed read adds in a fixed order (index_put_with_sort_kernel, native/cuda/Indexing.cu): places computed
  // in a few small kernels, numbered, sorted by as many bits as the table has rows, then summed.
  void lower_index_gradient(const Op& op) {
    std::int64_t places = 1;  // of the largest operand of integers
    for (TensorId id : graph_.inputs(op))
      if (!is_floating(graph_.tensors[id].dtype)) places = std::max(places, graph_.tensors[id].shape.elements());
    const Shape& table_shape = op.output_count > 0 ? out(op).shape : in(op, 0).shape;
    const std::int64_t table = table_shape.rank() > 0 ? table_shape[0] : 1;
    int bits = 1;
    while (bits < 62 && (std::int64_t{1} << bits) < table) ++bits;
    const Bytes keys{places * 8};
    memory("index_places", op, MemoryPattern::pointwise, keys, keys, 1, places).launches = 4;
    if (places > kSingleTile) clear(op, sort_launches(bits).memsets);
    memory("sort_indices", op, MemoryPattern::index, keys * 2.0, keys * 2.0, 1, places).launches = places > kSingleTile ? sort_launches(bits).kernels : 1;
    memory(name_of(op), op, MemoryPattern::index);
  }

  // One kernel keeps the recurrent weights on chip where they are few, but for bf16: recorded kernels of 690 layers (cuDNN 9.19), LSTMs and
  // GRUs up to 128 wide, plain ones up to 320.
  static constexpr std::int64_t kWeightsOnChip = 105'000;
  static bool is_persistent(const Op& op, const RnnAttributes& a) { return a.gates * a.hidden * a.hidden <= kWeightsOnChip && op.math != DType::bf16; }
  // Long sums of one step's product are split, or gathered in what was cleared: a kernel more.
  static bool splits_step(const Op& op, const RnnAttributes& a) {
    const std::int64_t length = a.gates * a.hidden;
    if (is_16bit(op.math)) return length >= (a.hidden % 8 == 0 ? 3072 : 1024);
    const std::int64_t tiles = (a.batch + 63) / 64 * ((a.hidden + 63) / 64);
    return a.batch > 1 && (op.math == DType::fp32 || length >= std::max<std::int64_t>(1024, 80 * tiles));
  }

  // cuDNN's recurrent layers: the inputs of all time steps as one product, then one product after the other along time,
  // each followed by the gates. Backward the same for the data, and two large products for the weights.
  void lower_recurrent(const Op& op) {
    const auto& a = std::get<RnnAttributes>(op.attributes);
    const bool backward = op.kind == OpKind::rnn_backward;
    const std::int64_t width = a.gates * a.hidden, rows = a.steps * a.batch;
    call_.workspace += recurrent_workspace(a, out(op).dtype);
    const auto bytes = [&](std::int64_t elements) { return Bytes{elements * bits_of(out(op).dtype) / 8}; };
    auto product = [&](std::string_view name, std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t times, bool transposed) {
      const double flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) * static_cast<double>(times);
      const auto repeated = static_cast<double>(times);
      Kernel& kernel = put(name, op, GemmShape{1, m, n, k, transposed},
                           Work{{flops}, (bytes(m * k) + bytes(k * n)) * repeated, bytes(m * n) * repeated});
      kernel.launches = static_cast<std::int32_t>(times);
    };
    for (std::int64_t layer = 0; layer < a.layers; ++layer) {
      const std::int64_t in_width = layer == 0 ? a.input : a.hidden * a.directions;
      for (std::int64_t direction = 0; direction < a.directions; ++direction) {
        if (is_persistent(op, a)) {  // one kernel walks through time with the weights on chip
          product(backward ? "rnn_persistent_backward" : "rnn_persistent", rows, width, in_width + a.hidden, 1, false);
          if (backward) product("rnn_weight_gradient", width, in_width + a.hidden, rows, 1, true);
          continue;
        }
        // Layers work side by side on eight time steps each, unless the one above must wait for both directions (recorded kernels of
        // language models and of deep-speech-2).
        const std::int64_t chunks = a.directions == 1 && a.layers > 1 ? (a.steps + 7) / 8 : 1;
        if (!backward) product("rnn_input", rows / chunks, width, in_width, chunks, false);
        const bool pair = a.directions > 1;
        product(backward ? pair ? "rnn_recurrent_backward_pair" : "rnn_recurrent_backward" : pair ? "rnn_recurrent_pair" : "rnn_recurrent", a.batch, backward ? a.hidden : width, backward ? width : a.hidden,
                a.steps, false);
        const Bytes gates = bytes(rows * (width + a.hidden));
        memory(backward ? pair ? "rnn_gates_backward_pair" : "rnn_gates_backward" : pair ? "rnn_gates_pair" : "rnn_gates", op, MemoryPattern::activation, gates, gates, 1, rows * width).launches =
            static_cast<std::int32_t>(a.steps);
        if (!backward) continue;
        if (splits_step(op, a)) clear(op, static_cast<std::int32_t>(a.steps));
        memory(pair ? "rnn_bias_gradient_pair" : "rnn_bias_gradient", op, MemoryPattern::bias_gradient, bytes(rows * width), bytes(width), width, rows);
        product("rnn_data_gradient", rows / chunks, in_width, width, chunks, false);
        product("rnn_weight_gradient", width, in_width, rows, 1, true);
        product("rnn_weight_gradient", width, a.hidden, rows, 1, true);
      }
    }
  }

  MemoryPattern pointwise_pattern(const Op& op) const {
    if (op.strided) return MemoryPattern::broadcast;  // PyTorch's kernel that computes each operand's place, not its vectorised one
    if (known_ && known_->transcendental) return MemoryPattern::activation;
    const OpKind arithmetic = arithmetic_of(graph_, op);
    if (arithmetic == OpKind::dropout) return MemoryPattern::dropout;
    if (definition(arithmetic).transcendental) return MemoryPattern::activation;
    for (TensorId id : graph_.inputs(op))
      if (graph_.tensors[id].shape.elements() < out(op).shape.elements() || graph_.bytes(id) > graph_.bytes(graph_.tensors[id].storage))
        return MemoryPattern::broadcast;  // the second: an expanded view
    return MemoryPattern::pointwise;
  }

  void lower_gemm(const Op& op) {
    const auto& a = std::get<GemmAttributes>(op.attributes);
    // torch._grouped_mm has one kernel for bf16 on Hopper and data-centre Blackwell; elsewhere it reads the group sizes back
    // to the host and calls one product per group.
    const bool grouped = op.kind == OpKind::grouped_linear || op.kind == OpKind::grouped_mm;
    const bool one_kernel = op.math == DType::bf16 && gpu_.capability() >= 90 && gpu_.capability() < 110;
    if (grouped && !one_kernel) {
      Kernel& kernel = put("mm", op, GemmShape{1, a.m, a.n, a.k, a.transposed_a}, work_of(graph_, op));
      kernel.launches = static_cast<std::int32_t>(std::max<std::int64_t>(1, a.batch));
      call_.waits_for_gpu = true;
      return;
    }
    GemmShape shape{a.batch, a.m, a.n, a.k, a.transposed_a};
    shape.a_turned = a.transposed_a || lies_turned(op, 0, a.k);
    shape.b_turned = op.kind == OpKind::linear || lies_turned(op, 1, a.n);
    shape.bias = a.bias;
    if (op.kind == OpKind::scaled_mm) {
      shape.row_scales = op.input_count > 2 && in(op, 2).shape.elements() > 1;
      shape.careful_sums = op.phase == Phase::backward;
    }
    product(op, name_of(op), shape);
  }
  // Whether an operand that is multiplied with `inner` innermost is stored with that axis second.
  bool lies_turned(const Op& op, std::size_t operand, std::int64_t inner) const {
    if (operand >= op.input_count) return false;
    const Shape& shape = in(op, operand).shape;
    const bool other = shape.rank() >= 2 && shape[-1] != inner && shape[-2] == inner;
    return other != (order_[graph_.input(op, operand).index()] == Order::turned);
  }
  void product(const Op& op, std::string_view name, const GemmShape& shape) {
    const ProductHelpers helpers = product_helpers(shape, op.math, gpu_, op.phase != Phase::backward);
    if (helpers.clears) clear(op);
    put(name, op, shape, work_of(graph_, op));
    if (!helpers.reduces) return;
    // Two partial products in fp32, summed and rounded; in cuBLAS's own workspace.
    const Bytes whole{shape.batch * shape.m * shape.n * 4};
    memory("split_sum", op, MemoryPattern::pointwise, whole * 2.0, op.output_count > 0 ? out_bytes(op) : whole, 1, whole.value / 4);
  }

  // --- convolution: cuDNN's tensor-core kernels want NHWC, its fp32 kernels NCHW; from the other layout each operand is
  // transposed on the way in and out. Seen on an H200: 1x1 stride 1 on tensor cores is a matrix product in either layout
  // when its rows are aligned; in fp32 images of few channels and most weight gradients are read as they are.
  bool transposes(const Op& op, const ConvAttributes& conv, const Shape& image, ConvDirection direction) const {
    if (conv.groups > 1 && conv.groups == image[1]) return false;  // depthwise: kernels of their own for either layout
    // Where TF32 is no faster than fp32 (consumer cards) the library has no reason to transpose for it.
    const bool idle_tf32 = op.math == DType::tf32 && gpu_.matrix[DType::tf32] < gpu_.vector[DType::fp32] * 1.5;
    if (op.math == DType::fp32 || !gpu_.matrix.has(op.math) || idle_tf32) {
      const bool of_volume = gpu_.capability() >= 80 && conv.axes == 3 && direction == ConvDirection::weight_gradient && conv.volume() > 1;
      if (of_volume && conv.groups == 1) return !last_;  // the one kernel there is wants NHWC
      if (!last_ || image[1] <= 4 || conv.groups > 1) return false;
      return direction != ConvDirection::weight_gradient || (conv.kernel[0] == 3 && unit_stride(conv));
    }
    if (last_) return false;
    return !(conv.volume() == 1 && unit_stride(conv) && conv.groups == 1);
  }
  static bool unit_stride(const ConvAttributes& conv) { return conv.stride[0] * conv.stride[1] * conv.stride[2] == 1; }
  static std::int64_t pixels(const Shape& image) {
    std::int64_t product = 1;
    for (int axis = 2; axis < image.rank(); ++axis) product *= image[axis];
    return product;
  }
  // Which library runs a depthwise convolution in NCHW: PyTorch keeps cuDNN for fp16 with square filters of 1, 3 or 5 on
  // tensor cores, and strided ones only of many channels (use_cudnn_depthwise, aten/src/ATen/native/Convolution.cpp; the
  // recorded kernels of an H200 agree). In NHWC it is cuDNN always.
  bool native_depthwise(const Op& op, const Shape& image, const ConvAttributes& a) const {
    if (last_) return false;
    const bool dilated = a.dilation[0] * a.dilation[1] * a.dilation[2] > 1;
    if (op.math != DType::fp16 || gpu_.capability() < 70 || a.transposed || a.axes > 2 || dilated || image[1] < 32) return true;
    const bool row = a.axes == 1 || image[2] == 1;
    const std::int64_t filter = a.kernel[0], stride = a.stride[0], width = image[-1], channels = image[1], batch = image[0];
    if (row && unit_stride(a)) return false;
    if (a.axes != 2 || a.kernel[1] != filter || a.stride[1] != stride || (filter != 1 && filter != 3 && filter != 5) || width < 7) return true;
    if (stride == 1) return false;
    if (stride != 2) return true;
    if (filter == 1) return !(batch == 1 ? width <= 28 : batch <= 16 && channels >= 128 && width <= 7);
    return !(batch == 1 || channels >= 512 || (channels >= 256 && width >= 28));
  }
  // As cuDNN sees it. A transposed convolution is the data gradient of an ordinary one from its result to its input, and
  // the other way round. One axis: an image of one row; three: the first two as one.
  ConvShape conv_shape(const Op& op, ConvDirection direction, const Shape& x, const Shape& y, const ConvAttributes& a) const {
    if (a.transposed && direction == ConvDirection::forward) direction = ConvDirection::data_gradient;
    else if (a.transposed && direction == ConvDirection::data_gradient) direction = ConvDirection::forward;
    const Shape &image = a.transposed ? y : x, &result = a.transposed ? x : y;
    auto width = [](const Shape& shape) { return std::max<std::int64_t>(1, shape[-1]); };
    auto height = [&](const Shape& shape) { return pixels(shape) / width(shape); };
    const int last = std::clamp(a.axes, 1, 3) - 1;
    const std::int64_t kernel_w = a.kernel[static_cast<std::size_t>(last)];
    ConvShape shape{direction, image[0], image[1], result[1], height(image), width(image), height(result), width(result),
                    a.volume() / std::max<std::int64_t>(1, kernel_w), kernel_w, std::max({a.stride[0], a.stride[1], a.stride[2]}), a.groups,
                    last_};
    shape.stride_volume = a.stride[0] * a.stride[1] * a.stride[2];
    shape.native = shape.depthwise() && native_depthwise(op, x, a);
    shape.dilation = std::max({a.dilation[0], a.dilation[1], a.dilation[2]});
    shape.axes = last + 1;
    if (last == 2) shape.in_d = std::max<std::int64_t>(1, image[2]), shape.kernel_d = std::max<std::int64_t>(1, a.kernel[0]);
    return shape;
  }
  void transpose_of(const Op& op, std::string_view name, Bytes bytes, int times, std::int64_t channels) {
    Kernel& kernel = memory(name, op, MemoryPattern::layout, bytes, bytes, 1, bytes.value * 8 / bits_of(op.math));
    kernel.launches = times;
    std::get<MemoryShape>(kernel.shape).part = channels;
    call_.workspace += bytes;
  }
  // The convolution between its layout copies: both operands on the way in, the result on the way out (the filter too: seen in
  // recorded kernels, two copies to NHWC for each one back), and what else the library launches for it.
  void convolution(const Op& op, std::string_view name, const ConvShape& shape, const Work& work, bool layout, Bytes first, Bytes second) {
    const ConvHelpers helpers = conv_helpers(shape, op.math, gpu_);
    const bool tensor_cores = op.math != DType::fp32 && gpu_.matrix.has(op.math);
    const bool pointwise = shape.kernel_h * shape.kernel_w == 1 && shape.strides() == 1 && shape.groups == 1;
    const bool turned = !layout && pointwise && turns_pointwise(shape, op.math, tensor_cores);
    const bool forward = shape.direction == ConvDirection::forward, of_weight = shape.direction == ConvDirection::weight_gradient;
    const std::int64_t in = shape.in_channels, out = shape.out_channels, filters = in / std::max<std::int64_t>(1, shape.groups);
    const bool flat = shape.kernel_h * shape.kernel_w == 1;  // a filter of one tap lies the same in both layouts
    if (layout || turned) transpose_of(op, "nchw_to_nhwc", first, helpers.loops, forward ? in : out);
    if ((layout || turned) && (of_weight || !flat)) transpose_of(op, "nchw_to_nhwc", second, helpers.loops, of_weight ? in : filters);
    if (op.math == DType::fp32 && !shape.channels_last && gpu_.capability() >= 90) call_.workspace += fourier_space(shape);
    if (helpers.clears) clear(op);
    if (helpers.prepares) helper(op, "conv_prepare", {0}, std::min(work.written, Bytes{1 << 20}), 1);
    // The bytes of transforms are in the pace that was fitted to the whole convolution; here are their launches.
    if (helpers.inner > 0) helper(op, "conv_transforms", {4096}, {4096}, helpers.inner * helpers.loops);
    ConvShape one = shape;  // of a loop
    if (helpers.loops > 1) one.in_channels /= shape.groups, one.out_channels /= shape.groups, one.groups = 1;
    put(name, op, one, work).launches = helpers.loops;
    if (helpers.sums && !turned) helper(op, "conv_partial_sums", work.written * 8.0, work.written, 1);
    if (layout && !(of_weight && flat)) transpose_of(op, "nhwc_to_nchw", work.written, helpers.loops, of_weight ? filters : forward ? out : in);
  }
  // A small kernel of a library's own.
  void helper(const Op& op, std::string_view name, Bytes read, Bytes written, int times) {
    Kernel& kernel = memory(name, op, MemoryPattern::pointwise, read, written, 1, std::max<std::int64_t>(1, std::max(read, written).value / 4));
    kernel.launches = times;
  }

  // Part of a larger tensor, or the same elements again and again: what libraries want without gaps is copied. Another order of axes
  // is not: it is a layout that they know, or say in their own copies.
  bool has_gaps(TensorId id) const {
    if (layouts_.is_plain(id)) return false;
    const Shape& shape = graph_.tensors[id].shape;
    const Shape strides = layouts_.strides(id), dense = dense_like(shape, strides);
    for (int axis = 0; axis < shape.rank(); ++axis)
      if (shape[axis] > 1 && strides[axis] != dense[axis]) return true;
    return false;
  }
  void lower_conv(const Op& op) {
    const auto& a = std::get<ConvAttributes>(op.attributes);
    if (has_gaps(graph_.input(op, 0))) copy_inside(op, 0, "conv_input_copy");
    const bool layout = transposes(op, a, in(op, 0).shape, a.transposed ? ConvDirection::data_gradient : ConvDirection::forward);
    convolution(op, "conv2d", conv_shape(op, ConvDirection::forward, in(op, 0).shape, out(op).shape, a),
                {convolution_flops(in(op, 0).shape, out(op).shape, a), in_bytes(op, 0) + in_bytes(op, 1), out_bytes(op)}, layout,
                in_bytes(op, 0), in_bytes(op, 1));
    // Compiled, the bias is added by whoever reads the result.
    if (op.input_count > 2 && !call_.compiled) memory("conv_bias", op, MemoryPattern::broadcast, out_bytes(op), out_bytes(op));
  }

  // inputs: gradient, x, weight; outputs: those of {x, weight, bias} that need one.
  void lower_conv_backward(const Op& op) {
    const auto& a = std::get<ConvAttributes>(op.attributes);
    const Shape &y = in(op, 0).shape, &x = in(op, 1).shape, &w = in(op, 2).shape;
    const bool both = op.output_count > 1 && out(op, 1).shape.rank() > 1;  // then the input's comes first
    Bytes largest;  // each gradient is a call of its own: its workspace is given back before the next one's is taken
    // A part of a larger gradient (what a concatenation hands back) is copied first.
    if (format_ == MemoryFormat::contiguous && !call_.compiled && lies_last(graph_.input(op, 0)) != last_) {
      Kernel& kernel = memory("conv_gradient_copy", op, MemoryPattern::transpose, in_bytes(op, 0), in_bytes(op, 0), y.elements() / std::max<std::int64_t>(1, y[-1]), y[-1]);
      auto& place = std::get<MemoryShape>(kernel.shape);
      place.part = last_ ? pixels(y) : y[1], place.axes = 3, place.across = 50;
    } else if (format_ == MemoryFormat::contiguous && !call_.compiled && !last_ && order_[graph_.input(op, 0).index()] != Order::plain)
      memory("conv_gradient_copy", op, MemoryPattern::permute, in_bytes(op, 0), in_bytes(op, 0), 1, y.elements());
    if (has_gaps(graph_.input(op, 1))) copy_inside(op, 1, "conv_input_copy");
    for (std::size_t i = 0; i < op.output_count; ++i) {
      call_.workspace = {};
      const Shape& result = out(op, i).shape;
      const bool of_weight = result.rank() > 1 && (both ? i == 1 : result == w);
      const bool layout = transposes(op, a, x, of_weight ? ConvDirection::weight_gradient : ConvDirection::data_gradient);
      const Work work{convolution_flops(x, y, a), {}, out_bytes(op, i)};
      if (of_weight) {
        convolution(op, "conv2d_weight_gradient", conv_shape(op, ConvDirection::weight_gradient, x, y, a),
                    {work.flops, in_bytes(op, 0) + in_bytes(op, 1), work.written}, layout, in_bytes(op, 0), in_bytes(op, 1));
        if (transforms_weight_gradient(op, a, x)) call_.workspace += transformed(x, y, w);
      } else if (result.rank() > 1) {
        convolution(op, "conv2d_data_gradient", conv_shape(op, ConvDirection::data_gradient, x, y, a),
                    {work.flops, in_bytes(op, 0) + in_bytes(op, 2), work.written}, layout, in_bytes(op, 0), in_bytes(op, 2));
      } else {
        const std::int64_t length = y.elements() / std::max<std::int64_t>(1, result.elements());
        if (!call_.compiled) {  // a plain sum over images and pixels, of which the channel is the innermost axis only in NHWC
          const bool last = last_;
          const std::int64_t plane = pixels(y);
          reduce("conv_bias_gradient", op, in_bytes(op, 0), out_bytes(op, i), result.elements(), length,
                 Walk{.axes = last || y[0] == 1 ? 2 : 3, .inner = last ? result.elements() : plane, .keeps = last || plane == 1});
        } else {
          Kernel& sum = memory("conv_bias_gradient", op, MemoryPattern::pointwise, in_bytes(op, 0), out_bytes(op, i), result.elements(), length);
          sum.launches = column_stages(result.elements(), length, gpu_.sms);
          sum.fused = sum.estimated = true;
        }
      }
      largest = std::max(largest, call_.workspace);
    }
    call_.workspace = largest;
  }
  // In fp32 cuDNN takes weight gradients of 3x3 filters through Winograd's transform, out of place (kernels recorded on an
  // H200: winogradWgradData4x4 and winogradWgradDelta4x4, one of each for every such layer of ResNet and VGG).
  bool transforms_weight_gradient(const Op& op, const ConvAttributes& a, const Shape& image) const {
    return op.math == DType::fp32 && a.axes == 2 && a.kernel[0] == 3 && a.kernel[1] == 3 && unit_stride(a) && a.groups == 1 && !a.transposed &&
           image[1] > 4 && !last_;
  }
  // 6x6 numbers for each 4x4 tile of the images and of the filters' gradients, all at once.
  static Bytes transformed(const Shape& x, const Shape& y, const Shape& w) {
    auto tiles = [](const Shape& image) { return image[0] * image[1] * ((image[-2] + 3) / 4) * ((image[-1] + 3) / 4); };
    return {(tiles(x) + tiles(y) + w[0] * w[1]) * 36 * 4};
  }

  void lower_attention(const Op& op) {
    const auto& a = std::get<AttentionAttributes>(op.attributes);
    const bool backward = op.kind == OpKind::attention_backward;
    AttentionShape shape{a.batch, a.heads, a.kv_heads, a.q_len, a.kv_len, a.head_dim, a.value_dim, a.causal, backward, a.backend, a.dropout, a.mask};
    if (backward) {
      // Row sums of gradient times output first; the query gradient is gathered in fp32 and converted last.
      const Bytes rows{a.batch * a.heads * a.q_len * 4};
      const bool efficient = a.backend == AttentionBackend::memory_efficient;
      // Memory-efficient: the gradients' accumulators are zeroed; (grad * out).sum(-1) takes two kernels and a copy in fp32, and is
      // done by the attention kernel itself in 16 bits (attention_backward.cu, kKernelComputesDelta).
      const bool apart = !is_16bit(in(op, 0).dtype);
      if (efficient) {
        if (apart) memory("attention_row_products", op, MemoryPattern::pointwise, in_bytes(op, 0) + in_bytes(op, 4), in_bytes(op, 0));
        memory("attention_clear", op, MemoryPattern::fill, {0}, in_bytes(op, 0));
        if (apart) memory("attention_copy_sums", op, MemoryPattern::copy, rows, rows, 1, rows.value / 4);
      }
      if (!efficient || apart)
        memory("attention_row_sums", op, MemoryPattern::reduction, efficient ? in_bytes(op, 0) : in_bytes(op, 0) + in_bytes(op, 4), rows,
               a.batch * a.heads * a.q_len, a.value_dim);
      if (a.backend == AttentionBackend::cudnn) clear(op, 2);
      put("attention_backward", op, shape, work_of(graph_, op));
      if (a.backend == AttentionBackend::flash || a.backend == AttentionBackend::cudnn) {
        const Bytes gathered{a.batch * a.heads * a.q_len * a.head_dim * 4};
        memory("attention_convert_dq", op, MemoryPattern::cast, gathered, out_bytes(op));
        call_.workspace += gathered;
      }
      for (std::size_t i = 0; i < std::min<std::size_t>(op.output_count, 3); ++i) lie_alike(graph_.output(op, i), graph_.input(op, i + 1));
      if (a.heads != a.kv_heads) {  // per query head first, then summed over each group
        const Bytes expanded{a.batch * a.heads * a.kv_len * (a.head_dim + a.value_dim) * 2};
        memory("attention_sum_groups", op, MemoryPattern::reduction, expanded, out_bytes(op, op.output_count - 1u));
        call_.workspace += expanded;
      }
    } else {
      // The random state of dropout is unpacked on the device for cuDNN.
      if (a.dropout && a.backend == AttentionBackend::cudnn) memory("attention_seed", op, MemoryPattern::pointwise, {16}, {16}, 1, 2);
      put("scaled_dot_product_attention", op, shape, work_of(graph_, op));
    }
  }

  // The gradients of a fused attention are made in the order of its operands (empty_like).
  void lie_alike(TensorId made, TensorId pattern) {
    const Shape& shape = graph_.tensors[made].shape;
    if (!(shape == graph_.tensors[pattern].shape) || layouts_.is_plain(pattern)) return;
    if (const Shape dense = dense_like(shape, layouts_.strides(pattern)); !(dense == contiguous_strides(shape))) layouts_.set(made, dense);
  }

  static constexpr std::int64_t kNormSplitRows = 65536;
  // Elements of a normalised row: the last axis unless the operator says otherwise.
  static std::int64_t row_of(const Op& op, const Shape& shape) {
    const auto* norm = std::get_if<NormAttributes>(&op.attributes);
    const std::int64_t width = norm && norm->width > 0 ? norm->width : shape.rank() > 0 ? shape[-1] : 1;
    return std::max<std::int64_t>(1, width);
  }

  // Kernels that want rows side by side copy an operand that lies otherwise, inside the call, unseen by autograd: what is told by
  // the graph's views. Whether they did.
  bool copy_inside(const Op& op, std::size_t operand, std::string_view name) {
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
  // Norms of rows are such kernels (the recorded kernels of ViT: 24 of its 25 forward, and again backward, which is handed the
  // original).
  void copy_for_norm(const Op& op, std::size_t operand, bool told) {
    if (copy_inside(op, operand, "layer_norm_copy") || !told) return;
    // Rows were strided because a convolution's image was turned into tokens: the channels lie outermost.
    memory("layer_norm_copy", op, MemoryPattern::transpose, in_bytes(op, operand), in_bytes(op, operand));
    call_.workspace += in_bytes(op, operand);
  }

  // inputs: gradient, x, ...; outputs: those of {x, weight, bias} that need one.
  void lower_row_norm_backward(const Op& op) {
    const std::int64_t length = row_of(op, in(op, 0).shape), rows = in(op, 0).shape.elements() / length;
    const Bytes both = in_bytes(op, 0) + in_bytes(op, 1);
    Bytes parameters{};
    bool input_gradient = false;
    for (std::size_t i = 0; i < op.output_count; ++i) {
      if (out(op, i).shape == in(op, 0).shape && (out(op, i).shape.rank() > 1 || i == 0)) input_gradient = true;
      else parameters += out_bytes(op, i);
    }
    const bool rms = op.kind == OpKind::rms_norm_backward;
    copy_for_norm(op, 0, false);
    if (op.strided || rms) copy_for_norm(op, 1, op.strided && !rms);
    if (input_gradient) memory(rms ? "rms_norm_backward" : "layer_norm_backward", op, MemoryPattern::norm_backward, both, out_bytes(op), rows, length);
    if (parameters.value > 0)
      memory(rms ? "rms_norm_parameter_gradients" : "layer_norm_parameter_gradients", op, MemoryPattern::norm_parameters, both, parameters, length,
             rows);
    // Many rows of few columns: blocks share a column, and PyTorch adds what they found (cuda/layer_norm_kernel.cu).
    if (parameters.value > 0 && !rms && rows > kNormSplitRows && length < gpu_.sms / 2 * 32) {
      const std::int64_t parts = std::max<std::int64_t>(1, gpu_.sms * 32 / length) * 8;
      for (std::size_t i = 0; i < op.output_count; ++i)
        if (!(out(op, i).shape == in(op, 0).shape) || out(op, i).shape.rank() <= 1)
          if (!(input_gradient && i == 0)) reduce("layer_norm_partial_sums", op, Bytes{parts * length * 4}, out_bytes(op, i), length, parts, true);
    }
  }

  // PyTorch's own kernels (native/cuda/group_norm_kernel.cu): moments, a small one for scale and shift, then the result.
  void lower_group_norm(const Op& op) {
    const bool backward = op.kind == OpKind::group_norm_backward;
    const Shape& x = in(op, 0).shape;
    const auto* norm = std::get_if<NormAttributes>(&op.attributes);
    const std::int64_t rows = std::max<std::int64_t>(1, (x.rank() > 0 ? x[0] : 1) * std::max<std::int64_t>(1, norm ? norm->groups : 1));
    const std::int64_t length = std::max<std::int64_t>(1, x.elements() / rows);
    const Bytes image = in_bytes(op, 0), small{rows * 16};
    const Bytes read = backward && op.input_count > 1 ? image + in_bytes(op, 1) : image;
    // Its kernels want images plane by plane (Tensor::contiguous in native/group_norm.cpp).
    if (!backward && last_ && x.rank() >= 4 && !call_.compiled)
      std::get<MemoryShape>(memory("group_norm_copy", op, MemoryPattern::transpose, image, image, x[0] * pixels(x), x[1]).shape).part = x[1];
    memory(backward ? "group_norm_sums" : "group_norm_moments", op, MemoryPattern::reduction, read, small, rows, length);
    memory("group_norm_parameters", op, MemoryPattern::pointwise, small, small, 1, rows);
    if (backward) memory("group_norm_scales", op, MemoryPattern::pointwise, small, small, 1, rows);
    memory(name_of(op), op, MemoryPattern::broadcast, read, image, rows, length);
    if (backward && op.output_count > 1) memory("group_norm_parameter_gradients", op, MemoryPattern::bias_gradient, small, out_bytes(op, 1), 1, rows);
  }

  void lower_normalization(const Op& op) {
    switch (op.kind) {
      case OpKind::layer_norm_backward:
      case OpKind::rms_norm_backward: return lower_row_norm_backward(op);
      case OpKind::layer_norm:
      case OpKind::rms_norm: {
        const std::int64_t length = row_of(op, in(op, 0).shape);
        const bool rms = op.kind == OpKind::rms_norm;
        if (op.strided || rms) copy_for_norm(op, 0, op.strided && !rms);
        memory(name_of(op), op, MemoryPattern::norm_forward, in(op, 0).shape.elements() / length, length);
        return;
      }
      case OpKind::group_norm:
      case OpKind::group_norm_backward: return lower_group_norm(op);
      default: return lower_batch_norm(op);
    }
  }

  void lower_batch_norm(const Op& op) {
    const bool backward = op.kind == OpKind::batch_norm_backward;
    const auto* norm = std::get_if<NormAttributes>(&op.attributes);
    if (norm && !norm->training) {  // the running statistics: a scale and a shift, nothing to sum but the weights' gradients
      const Bytes image = in_bytes(op, 0);
      if (backward && op.output_count > 1)
        memory("batch_norm_parameter_gradients", op, MemoryPattern::bias_gradient, image * 2.0, out_bytes(op, 1));
      memory(name_of(op), op, MemoryPattern::broadcast, image, image);
      return;
    }
    // cuDNN's batch norm takes fp32, or fp16 with fp32 weights; everything else runs PyTorch's own kernels, three forward.
    const DType image_type = in(op, backward ? 1 : 0).dtype;
    const DType weight_type = backward ? out(op, op.output_count - 1u).dtype : in(op, op.input_count > 1 ? 1 : 0).dtype;
    const Shape& image = in(op, 0).shape;  // one row per channel
    // Nor does it take rows without pixels, of which the channels lie innermost (native/Normalization.cpp, cuda/Normalization.cuh).
    const bool rows_alone = image.rank() == 2;
    const bool native = rows_alone || image_type == DType::bf16 || (image_type == DType::fp16 && weight_type == DType::fp16);
    const bool apart = backward && format_ == MemoryFormat::contiguous && lies_last(graph_.input(op, 0)) != last_;  // gradient and image
    const bool last = rows_alone || (last_ && !(apart && native));
    const MemoryPattern pattern = backward ? (native ? MemoryPattern::native_batch_norm_backward : MemoryPattern::batch_norm_backward)
                                           : (native ? MemoryPattern::native_batch_norm_forward : MemoryPattern::batch_norm_forward);
    if (last && !call_.compiled) {  // counters of blocks that share a channel
      if (!native) clear(op);
      else if (image.elements() / std::max<std::int64_t>(1, image[1]) >= kSharedChannelPixels) helper(op, "batch_norm_counters", {0}, {image[1]}, 1);
    }
    Kernel& kernel = memory(name_of(op), op, pattern, image[1], image.elements() / std::max<std::int64_t>(1, image[1]));
    std::get<MemoryShape>(kernel.shape).channels_last = last;
    std::get<MemoryShape>(kernel.shape).part = pixels(image);  // one plane: how many threads share it, and how it is aligned
    if (native && !backward) kernel.launches = 3;
    else if (native && last) kernel.launches = 2;
  }

  void lower_embedding(const Op& op) {
    if (op.kind == OpKind::embedding) {
      rows_of(memory("embedding", op, MemoryPattern::embedding), op, places(op));
      return;
    }
    // Zero the table's gradient; then one kernel, or for many indices: sort them, find the segments, sum each (Embedding.cu,
    // EmbeddingBackwardKernel.cu).
    const Bytes indices = in_bytes(op, 1), rows = in_bytes(op, 0);
    memory("fill", op, MemoryPattern::fill, {0}, out_bytes(op));
    if (in(op, 1).shape.elements() > kUnsortedIndices) {
      const SortLaunches sort = sort_launches(64);
      clear(op, sort.memsets);
      memory("sort_indices", op, MemoryPattern::index, indices * 4.0, indices * 4.0).launches = sort.kernels;
      memory("embedding_segments", op, MemoryPattern::index, indices * 2.0, indices * 2.0).launches = 8;
      memory("embedding_sum_segments", op, MemoryPattern::index, rows * 0.25, rows * 0.25);
    }
    const std::int64_t tokens = std::max<std::int64_t>(1, in(op, 1).shape.elements());
    Kernel& kernel = memory("embedding_backward", op, MemoryPattern::embedding_backward, rows, rows, tokens, std::max<std::int64_t>(1, in(op, 0).shape.elements() / tokens));
    std::get<MemoryShape>(kernel.shape).part = out(op).shape.rank() > 0 ? out(op).shape[0] : 0;
    if (out(op).shape.rank() > 1) call_.workspace += embedding_space(out(op).shape[0], out(op).shape[-1], tokens);
  }

  const Graph& graph_;
  const GpuSpec& gpu_;
  MemoryFormat format_;
  bool last_ = false;  // of the operator at hand: the channels of its image lie innermost
  const FusionPlan* fusion_;  // of a compiled step
  Layouts layouts_;
  std::vector<Order> order_ = std::vector<Order>(graph_.tensors.size(), Order::plain);
  std::vector<bool> planar_ = std::vector<bool>(graph_.tensors.size(), false);  // contiguous, whatever images are
  std::vector<bool> on_host_ = std::vector<bool>(graph_.tensors.size(), false);
  KernelProgram program_;
  Call call_;
  const FrameworkName* known_ = nullptr;  // of the operator at hand, where its kind is generic and its name known
};

}  // namespace

KernelProgram make_kernels(const Graph& graph, const GpuSpec& gpu, MemoryFormat memory_format, const FusionPlan* fusion,
                           const std::unordered_map<std::int32_t, Shape>* strides) {
  return Lowering(graph, gpu, memory_format, fusion, strides).run();
}

}  // namespace precog
