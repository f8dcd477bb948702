// Operators to kernels: what eager PyTorch launches for each; compiled, the library calls among them.
#include <algorithm>
#include <numeric>

#include "kernel/library_rules.h"
#include "kernel/library_space.h"
#include "kernel/lowering.h"
#include "training/optimizer.h"

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

bool pads_by_edge(std::string_view name) { return name.starts_with("reflection_pad") || name.starts_with("replication_pad"); }

// Copies and gathers that go another way than others of their kind: a thread per pixel that adds up or looks up what belongs there.
bool goes_its_own_way(std::string_view name) {
  return name == "im2col" || name == "col2im" || pads_by_edge(name) || name.starts_with("grid_sampler") || name == "scatter_add" || name == "index_add";
}

// Adam's calls on moments kept in fp16 (torch/optim/adam.py): the second ones underflow, and so do many of the first (cost/least_cost.h).
Zeros zeros_of(std::string_view call, DType moments) {
  if (moments != DType::fp16) return Zeros::none;
  return call == "div_" || call == "addcdiv_" ? Zeros::divided : call == "sqrt" ? Zeros::rooted : Zeros::none;
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

}  // namespace

KernelProgram Lowering::run() {
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
      for (std::size_t k = call_.first_kernel; k < program_.kernels.size(); ++k)
        if (const std::string_view name = program_.kernels[k].name; name != "rnn_mm" && name != "rnn_copy" && name != "split_sum" && name != "fill" && name != "group_norm_copy") program_.kernels[k].estimated = true;
    if (known_ && goes_its_own_way(known_->name))
      for (std::size_t k = call_.first_kernel; k < program_.kernels.size(); ++k)
        if (program_.kernels[k].name == known_->name) program_.kernels[k].estimated = true;
    program_.calls.push_back(call_);
  }
  if (fusion_) program_.last_use = fusion_->last_use;
  return std::move(program_);
}

// A number that the model's code made a tensor of (torch.tensor(x)) lies in the host's memory, and so does what is computed
// from such numbers alone: no kernel. A buffer of a module is on the GPU, however small.
bool Lowering::is_on_host(const Op& op) {
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

// A number without axes that the host holds: said so by the capture, or made from such.
bool Lowering::is_number_on_host(TensorId id) const {
  const Tensor& tensor = graph_.tensors[id];
  if (tensor.shape.rank() > 0) return false;
  if (on_host_[id.index()]) return true;
  if (tensor.role != Role::buffer || !tensor.name.valid()) return false;
  const std::string_view name = graph_.name(tensor.name);
  return name == "constant" || name == "host";
}

void Lowering::put_fused(const FusionPlan::PerOp& planned) {
  for (std::int32_t index : planned.kernels) {
    const FusedKernel& fused = fusion_->kernels[static_cast<std::size_t>(index)];
    for (const Kernel& kernel : lower_fused(fused, graph_, fusion_->own)) program_.kernels.push_back(kernel);
    call_.family = family_of(fused, graph_);
  }
  for (TensorId id : planned.turned) {
    program_.kernels.push_back(layout_copy(id, graph_));
    call_.workspace += graph_.bytes(id);
  }
  if (!planned.padded) return;
  const std::size_t copies = program_.kernels.size();
  std::vector<TensorId> read;
  for (TensorId operand : planned.copied) {
    call_.workspace += graph_.bytes(operand);
    const auto known = std::find(read.begin(), read.end(), operand);
    if (known != read.end()) {  // written twice by one kernel
      program_.kernels[copies + static_cast<std::size_t>(known - read.begin())].written += graph_.bytes(operand);
      continue;
    }
    program_.kernels.push_back(padding_copy(operand, graph_));
    read.push_back(operand);
  }
  for (std::size_t k = call_.first_kernel; k < program_.kernels.size(); ++k)
    if (auto* product = std::get_if<GemmShape>(&program_.kernels[k].shape)) {
      const std::int64_t unit = is_16bit(program_.kernels[k].input) ? 8 : 4;
      for (std::int64_t* extent : {&product->m, &product->n, &product->k}) *extent = *extent == 1 ? 1 : (*extent + unit - 1) / unit * unit;
    }
}

Kernel& Lowering::put(std::string_view name, const Op& op, KernelShape shape, Work work) {
  Kernel& kernel = program_.kernels.emplace_back();  // written where it stays
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
  return kernel;
}

// Without rows: one row of the largest operand's elements.
Kernel& Lowering::memory(std::string_view name, const Op& op, MemoryPattern pattern, Bytes read, Bytes written, std::int64_t rows, std::int64_t row_length) {
  if (rows == 0) {
    rows = 1;
    for (TensorId id : graph_.inputs(op)) row_length = std::max(row_length, graph_.tensors[id].shape.elements());
    for (TensorId id : graph_.outputs(op)) row_length = std::max(row_length, graph_.tensors[id].shape.elements());
  }
  return put(name, op, MemoryShape{pattern, rows, row_length}, Work{{static_cast<double>(rows * row_length)}, read, written});
}

Kernel& Lowering::memory(std::string_view name, const Op& op, MemoryPattern pattern, std::int64_t rows, std::int64_t row_length) {
  const Work work = work_of(graph_, op);
  return memory(name, op, pattern, work.read, work.written, rows, row_length);
}

// Counters and small buffers, cleared by the driver's own kernel.
void Lowering::clear(const Op& op, std::int32_t times) {
  if (times <= 0) return;
  Kernel& kernel = memory("memset", op, MemoryPattern::pointwise, {0}, Bytes{4096} * static_cast<double>(times), 1, 1024);
  kernel.launches = times;
}

// PyTorch's reduction: where several blocks share a result they meet through counters. Sums over all that lies before an axis
// (a bias's gradient) are told from others.
Kernel& Lowering::reduce(std::string_view name, const Op& op, Bytes read, Bytes written, std::int64_t outputs, std::int64_t length, const Walk& how) {
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
Kernel& Lowering::reduce(std::string_view name, const Op& op, Bytes read, Bytes written, std::int64_t outputs, std::int64_t length, bool columns) {
  return reduce(name, op, read, written, outputs, length, Walk{.axes = outputs > 1 && length > 1 ? 2 : 1, .inner = columns ? outputs : length, .keeps = columns});
}

// How the large operand's rows lie, and what tells it from others of its pattern (MemoryShape::part).
void Lowering::rows_of(Kernel& kernel, const Op& op, std::int64_t part) const {
  auto& shape = std::get<MemoryShape>(kernel.shape);
  shape.part = part;
  const Shape& result = op.output_count > 0 ? out(op).shape : in(op, 0).shape;
  const std::int64_t all = shape.rows * shape.row_length, length = result.rank() > 0 ? std::max<std::int64_t>(1, result[-1]) : 1;
  if (all % length == 0) shape.rows = all / length, shape.row_length = length;
}

// Elements of the smallest operand, or of the first one of whole numbers.
std::int64_t Lowering::smallest_input(const Op& op) const {
  std::int64_t least = 0;
  for (TensorId id : graph_.inputs(op)) least = least == 0 ? graph_.tensors[id].shape.elements() : std::min(least, graph_.tensors[id].shape.elements());
  return least;
}

std::int64_t Lowering::places(const Op& op) const {
  for (TensorId id : graph_.inputs(op))
    if (!is_floating(graph_.tensors[id].dtype)) return graph_.tensors[id].shape.elements();
  return 0;
}

// The framework's own name of a generic operator; both live as long as the program.
std::string_view Lowering::name_of(const Op& op) const {
  if (known_) return known_->name;
  return to_text(op.kind);
}

void Lowering::row_wise(const Op& op, MemoryPattern pattern) {
  const Shape& shape = op.input_count > 0 ? in(op, 0).shape : out(op).shape;
  const std::int64_t length = shape.rank() > 0 ? std::max<std::int64_t>(1, shape[-1]) : 1;
  memory(name_of(op), op, pattern, shape.elements() / length, length);
}

void Lowering::lower(const Op& op) {
  switch (call_.family) {
    case Family::view:
      pass_on_planes(op);
      layouts_.follow(op);
      follow_answer(op);
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
      else if (known_ && pads_by_edge(known_->name)) lower_edge(op);
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
        how = walk_reduction(from, layouts_.strides(widest_operand(op)), kept_axes(from, out(op).shape));
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
    case Family::pooling: return lower_pooling(op);
    case Family::recurrent: return lower_recurrent(op);
    case Family::unknown:
      if (!lower_alignment(op)) memory("unknown", op, MemoryPattern::copy).unknown = true;
      return;
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
        if (!many->one_by_one) std::get<MemoryShape>(kernel.shape).part = walked_chunk(op, *many);
        if (op.label.valid()) kernel.zeros = zeros_of(graph_.name(op.label), kernel.input);
        if (!many->one_by_one && op.label.valid() && graph_.name(op.label) == "norm") {  // sums of blocks, cleared before and added up after (native/cuda/ForeachReduceOp.cu)
          memory("fill", op, MemoryPattern::fill, {0}, Bytes{4 * tensors});
          memory("norm_cleanup", op, MemoryPattern::pointwise, Bytes{4 * tensors}, Bytes{4 * tensors}, 1, tensors);
        }
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

// All pixels of a plane make one: a mean (adaptive_avg_pool2d, native/AdaptiveAveragePooling.cpp). Its gradient is multiplied as it is broadcast, plane by plane
// however the image lies: the operand's order says nothing of axes along which it has one element.
void Lowering::lower_global_pooling(const Op& op, const Shape& image) {
  const std::int64_t area = pixels(image), planes = image.elements() / area, channels = image[1];
  if (op.kind == OpKind::adaptive_avg_pool2d) {
    const Walk how = last_ ? Walk{.axes = image[0] == 1 ? 2 : 3, .inner = channels, .keeps = true} : Walk{.axes = planes > 1 ? 2 : 1, .inner = area, .keeps = false};
    reduce("mean", op, in_bytes(op, 0), out_bytes(op), planes, area, how);
    return;
  }
  Kernel& kernel = memory("mul_scalar", op, MemoryPattern::broadcast, in_bytes(op, 0), out_bytes(op), planes, area);
  std::get<MemoryShape>(kernel.shape).part = planes;
  std::get<MemoryShape>(kernel.shape).axes = 2;
}

// Planes, images times channels, and their pixels: what pooling and resizing cost by. `part` of a pool: the taps of its window; of
// a resized image its channels.
void Lowering::lower_pooling(const Op& op) {
  const bool forward = op.kind == OpKind::max_pool2d || op.kind == OpKind::adaptive_avg_pool2d || op.kind == OpKind::pool;
  if (op.kind == OpKind::adaptive_avg_pool2d || op.kind == OpKind::adaptive_avg_pool2d_backward) {
    const Shape &image = forward ? in(op, 0).shape : out(op).shape, &pooled = forward ? out(op).shape : in(op, 0).shape;
    if (image.rank() >= 3 && pixels(pooled) == 1 && pixels(image) > 1) return lower_global_pooling(op, image);
  }
  Kernel& kernel = memory(name_of(op), op, forward ? MemoryPattern::pooling_forward : MemoryPattern::pooling_backward);
  const bool last = last_ && !planar_[graph_.input(op, 0).index()];  // a gradient goes by how it arrives
  const Shape &from = in(op, 0).shape, &to = out(op).shape;
  auto& shape = std::get<MemoryShape>(kernel.shape);
  if (from.rank() < 3 || from.rank() != to.rank()) {
    rows_of(kernel, op);
    shape.channels_last = last;
    return;
  }
  const bool resizes = name_of(op).starts_with("upsample_");
  const Shape &result = forward ? to : from, &widest = resizes || to.elements() <= from.elements() ? (resizes ? result : from) : to;
  const std::int64_t planes = std::max<std::int64_t>(1, widest[0] * widest[1]);
  shape = {shape.pattern, planes, std::max<std::int64_t>(1, widest.elements() / planes), last || (resizes && forward && op.strided), widest[1]};
  if (resizes) return;
  // A graph that does not say the window says by how much the image shrinks: at least that.
  const auto* window = std::get_if<PoolAttributes>(&op.attributes);
  shape.part = 1;
  for (int axis = 2; axis < from.rank(); ++axis) {
    const std::int64_t large = std::max(from[axis], to[axis]), small = std::max<std::int64_t>(1, std::min(from[axis], to[axis]));
    shape.part *= std::max<std::int64_t>(1, window ? std::min(window->kernel, large) : large / small);
  }
  shape.axes = from.rank() - 2;
  // Kernels for NHWC, and those that work out each window, were not what the pattern was fitted to.
  if (last || op.kind == OpKind::adaptive_avg_pool2d || op.kind == OpKind::adaptive_avg_pool2d_backward) kernel.estimated = true;
}

// Elements that one block of a multi-tensor call walks while the others of its launch are done, or about: by how long they take a block in
// the call's arithmetic, a product being one (2026-11-16-h200-odd: 65,536 elements take 6.5 us, sums 6.4, roots 11.2, quotients 10.8 and 12.2).
std::int64_t Lowering::walked_chunk(const Op& op, const MultiTensorAttributes& many) {
  if (parameter_sizes_.empty())
    for (const Tensor& tensor : graph_.tensors)
      if (tensor.role == Role::parameter) parameter_sizes_.push_back(tensor.shape.elements());
  const std::int64_t all = std::accumulate(parameter_sizes_.begin(), parameter_sizes_.end(), std::int64_t{0});
  if (static_cast<std::int64_t>(parameter_sizes_.size()) != many.tensors || all != many.elements || many.launches < 1) return 0;
  const std::string_view call = op.label.valid() ? graph_.name(op.label) : std::string_view();
  const double work = call == "addcdiv_" ? 1.85 : call == "div_" ? 1.65 : call == "sqrt" ? 1.7 : call == "lerp_" ? 1.25 : call == "addcmul_" ? 1.2 : 1;
  return static_cast<std::int64_t>(work * static_cast<double>(multi_tensor_walk(parameter_sizes_, call)) / static_cast<double>(many.launches));
}

// The mean of several sizes, but of a parameter's own: large ones are multiples of the block of elements that a multi-tensor call
// gives to a thread block (kChunkSize, aten/native/cuda/MultiTensorApply.cuh), small ones of a vector; a mean is of nothing.
std::int64_t Lowering::usual_size(std::int64_t elements, std::int64_t tensors) {
  constexpr std::int64_t kChunk = 65536, kVector = 64;
  const std::int64_t mean = elements / tensors;
  if (elements % tensors == 0 && mean % kVector == 0) return mean;  // all alike, most likely
  const std::int64_t unit = mean >= 4 * kChunk ? kChunk : mean >= kVector ? kVector : 1;
  return mean / unit * unit;
}

// Long sums of one step's product are split, or gathered in what was cleared: a kernel more.
bool Lowering::splits_step(const Op& op, const RnnAttributes& a) {
  const std::int64_t length = a.gates * a.hidden;
  if (is_16bit(op.math)) return length >= (a.hidden % 8 == 0 ? 3072 : 1024);
  const std::int64_t tiles = (a.batch + 63) / 64 * ((a.hidden + 63) / 64);
  return a.batch > 1 && (op.math == DType::fp32 || length >= std::max<std::int64_t>(1024, 80 * tiles));
}

MemoryPattern Lowering::pointwise_pattern(const Op& op) const {
  if (op.strided) return MemoryPattern::broadcast;  // PyTorch's kernel that computes each operand's place, not its vectorised one
  if (known_ && known_->transcendental) return MemoryPattern::activation;
  const OpKind arithmetic = arithmetic_of(graph_, op);
  if (arithmetic == OpKind::dropout) return MemoryPattern::dropout;
  if (definition(arithmetic).transcendental) return MemoryPattern::activation;
  for (TensorId id : graph_.inputs(op))
    if (is_number_on_host(id)) continue;  // becomes an argument of the kernel (opmath_gpu_kernel_with_scalars, native/cuda/Loops.cuh)
    else if (graph_.tensors[id].shape.elements() < out(op).shape.elements() || graph_.bytes(id) > graph_.bytes(graph_.tensors[id].storage))
      return MemoryPattern::broadcast;  // the second: an expanded view
  return MemoryPattern::pointwise;
}

KernelProgram make_kernels(const Graph& graph, const GpuSpec& gpu, MemoryFormat memory_format, const FusionPlan* fusion,
                           const std::unordered_map<std::int32_t, Shape>* strides) {
  Lowering lowering(graph, gpu, memory_format, fusion, strides);
  const bool images = std::any_of(graph.ops.begin(), graph.ops.end(), [](const Op& op) { return op.kind == OpKind::conv2d; });
  if (!fusion || memory_format != MemoryFormat::contiguous || !images) return lowering.run();
  // Inductor hands a convolution its image as it lay in the trace (constrain_to_fx_strides, torch/_inductor/lowering.py).
  Lowering traced(graph, gpu, memory_format, nullptr, strides);
  traced.run();
  return lowering.lying_as(traced).run();
}

}  // namespace precog
