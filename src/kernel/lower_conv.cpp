// Convolutions: cuDNN's and PyTorch's own kernels, and the layout copies around them.
#include <algorithm>

#include "kernel/library_rules.h"
#include "kernel/library_space.h"
#include "kernel/lowering.h"

namespace precog {

// --- convolution: cuDNN's tensor-core kernels want NHWC, its fp32 kernels NCHW; from the other layout each operand is
// transposed on the way in and out. Seen on an H200: 1x1 stride 1 on tensor cores is a matrix product in either layout
// when its rows are aligned; in fp32 images of few channels and most weight gradients are read as they are.
bool Lowering::transposes(const Op& op, const ConvAttributes& conv, const Shape& image, ConvDirection direction) const {
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

namespace {

// Small ones are not worth the copies: kernels that multiply without tensor cores read NCHW as it lies (kernels recorded on an H200,
// data/measured/2026-11-16-h200-conv to -conv-3).
bool reads_as_it_lies(const ConvShape& shape, DType math, Flops flops) {
  constexpr double kLittle = 1 << 28;
  constexpr std::int64_t kShortSum = 128, kFewChannels = 32, kSmallImage = 1 << 16;  // the last: bytes
  if (math == DType::fp32 || shape.channels_last || shape.groups > 2) return false;
  const std::int64_t channels = shape.in_channels / std::max<std::int64_t>(1, shape.groups);
  switch (shape.direction) {
    case ConvDirection::forward: return flops.value < kLittle && channels < kFewChannels && channels * shape.kernel_h * shape.kernel_w < kShortSum;
    case ConvDirection::data_gradient: return math == DType::tf32 && flops.value < kLittle / 2;
    case ConvDirection::weight_gradient: break;
  }
  const std::int64_t image = shape.batch * shape.in_channels * shape.in_h * shape.in_w * bits_of(math) / 8;
  return flops.value < kLittle / 32 && (math == DType::tf32 || image <= kSmallImage);
}

}  // namespace

std::int64_t Lowering::pixels(const Shape& image) {
  std::int64_t product = 1;
  for (int axis = 2; axis < image.rank(); ++axis) product *= image[axis];
  return product;
}

// Which library runs a depthwise convolution in NCHW: PyTorch keeps cuDNN for fp16 with square filters of 1, 3 or 5 on
// tensor cores, and strided ones only of many channels (use_cudnn_depthwise, aten/src/ATen/native/Convolution.cpp; the
// recorded kernels of an H200 agree). In NHWC it is cuDNN always.
bool Lowering::native_depthwise(const Op& op, const Shape& image, const ConvAttributes& a) const {
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
ConvShape Lowering::conv_shape(const Op& op, ConvDirection direction, const Shape& x, const Shape& y, const ConvAttributes& a) const {
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

void Lowering::transpose_of(const Op& op, std::string_view name, Bytes bytes, int times, std::int64_t channels) {
  Kernel& kernel = memory(name, op, MemoryPattern::layout, bytes, bytes, 1, bytes.value * 8 / bits_of(op.math));
  kernel.launches = times;
  std::get<MemoryShape>(kernel.shape).part = channels;
  call_.workspace += bytes;
}

// The convolution between its layout copies: both operands on the way in, the result on the way out (the filter too: seen in
// recorded kernels, two copies to NHWC for each one back), and what else the library launches for it.
void Lowering::convolution(const Op& op, std::string_view name, const ConvShape& shape, const Work& work, bool layout, Bytes first, Bytes second) {
  layout = layout && !reads_as_it_lies(shape, op.math, work.flops);
  const ConvHelpers helpers = conv_helpers(shape, op.math, gpu_);
  layout = layout && !helpers.bare;
  const bool tensor_cores = op.math != DType::fp32 && gpu_.matrix.has(op.math);
  const bool pointwise = shape.kernel_h * shape.kernel_w == 1 && shape.strides() == 1 && shape.groups == 1;
  const bool turned = !layout && pointwise && turns_pointwise(shape, op.math, tensor_cores);
  const bool forward = shape.direction == ConvDirection::forward, of_weight = shape.direction == ConvDirection::weight_gradient;
  const std::int64_t in = shape.in_channels, out = shape.out_channels, filters = in / std::max<std::int64_t>(1, shape.groups);
  const bool flat = shape.kernel_h * shape.kernel_w == 1;  // a filter of one tap lies the same in both layouts
  if (layout || turned) transpose_of(op, "nchw_to_nhwc", first, helpers.loops, forward ? in : out);
  if ((layout || turned) && (of_weight || !flat)) transpose_of(op, "nchw_to_nhwc", second, helpers.loops, of_weight ? in : filters);
  const bool by_fourier = op.math == DType::fp32 && gpu_.capability() >= kTransformsKnown && fourier_way(shape).side > 0;
  if (by_fourier) call_.workspace += fourier_space(shape);
  if (helpers.clears || helpers.pads > 0) clear(op, (helpers.clears ? helpers.loops : 0) + helpers.pads);
  if (helpers.slices > 0) transpose_of(op, "conv_slices", first + work.written, helpers.slices * helpers.loops, forward ? in : out);
  if (helpers.prepares) helper(op, "conv_prepare", {0}, std::min(work.written, Bytes{1 << 20}), 1);
  // The bytes of transforms are in the pace that was fitted to the whole convolution; here are their launches.
  if (helpers.inner > 0) helper(op, "conv_transforms", {4096}, {4096}, helpers.inner * helpers.loops);
  ConvShape one = shape;  // of a loop
  one.by_fourier = by_fourier;
  one.turned_groups = helpers.turns;
  if (helpers.loops > 1) one.in_channels /= shape.groups, one.out_channels /= shape.groups, one.groups = 1;
  Kernel& kernel = put(name, op, one, work);
  kernel.launches = helpers.loops;
  if (helpers.vector) kernel.math = DType::fp32;
  if (helpers.sums && !turned) helper(op, "conv_partial_sums", work.written * 8.0, work.written, 1);
  if ((layout || (turned && !of_weight)) && !(of_weight && flat)) transpose_of(op, "nhwc_to_nchw", work.written, helpers.loops, of_weight ? filters : forward ? out : in);
}

// A small kernel of a library's own.
void Lowering::helper(const Op& op, std::string_view name, Bytes read, Bytes written, int times) {
  Kernel& kernel = memory(name, op, MemoryPattern::pointwise, read, written, 1, std::max<std::int64_t>(1, std::max(read, written).value / 4));
  kernel.launches = times;
}

void Lowering::lower_conv(const Op& op) {
  const auto& a = std::get<ConvAttributes>(op.attributes);
  if (a.axes == 1 || has_gaps(graph_.input(op, 0))) copy_inside(op, 0, "conv_input_copy");
  const bool layout = transposes(op, a, in(op, 0).shape, a.transposed ? ConvDirection::data_gradient : ConvDirection::forward);
  convolution(op, "conv2d", conv_shape(op, ConvDirection::forward, in(op, 0).shape, out(op).shape, a),
              {convolution_flops(in(op, 0).shape, out(op).shape, a), in_bytes(op, 0) + in_bytes(op, 1), out_bytes(op)}, layout,
              in_bytes(op, 0), in_bytes(op, 1));
  // Compiled, the bias is added by whoever reads the result, or by a kernel of its own.
  if (op.input_count < 3) return;
  if (!call_.compiled) memory("conv_bias", op, MemoryPattern::broadcast, out_bytes(op), out_bytes(op));
  else if (fusion_->ops[call_.op.index()].adds_bias) {
    Kernel& bias = memory("conv_bias", op, MemoryPattern::pointwise, out_bytes(op), out_bytes(op), 1, out(op).shape.elements());
    bias.estimated = bias.fused = true;
  }
}

// inputs: gradient, x, weight; outputs: those of {x, weight, bias} that need one.
void Lowering::lower_conv_backward(const Op& op) {
  const auto& a = std::get<ConvAttributes>(op.attributes);
  const Shape &y = in(op, 0).shape, &x = in(op, 1).shape, &w = in(op, 2).shape;
  const bool both = op.output_count > 1 && out(op, 1).shape.rank() > 1;  // then the input's comes first
  // Of sequences both are made contiguous, in whatever order they lie ("avoid accidentally going through NHWC", native/Convolution.cpp). A part
  // of a larger gradient (what a concatenation hands back) is copied first.
  if (a.axes == 1) copy_inside(op, 0, "conv_gradient_copy");
  else if (format_ == MemoryFormat::contiguous && !call_.compiled && lies_last(graph_.input(op, 0)) != last_) {
    Kernel& kernel = memory("conv_gradient_copy", op, MemoryPattern::transpose, in_bytes(op, 0), in_bytes(op, 0), y.elements() / std::max<std::int64_t>(1, y[-1]), y[-1]);
    auto& place = std::get<MemoryShape>(kernel.shape);
    place.part = last_ ? pixels(y) : y[1], place.axes = 3, place.across = 50;
  } else if (format_ == MemoryFormat::contiguous && !call_.compiled && !last_ && order_[graph_.input(op, 0).index()] != Order::plain)
    memory("conv_gradient_copy", op, MemoryPattern::permute, in_bytes(op, 0), in_bytes(op, 0), 1, y.elements());
  if (a.axes == 1 || has_gaps(graph_.input(op, 1))) copy_inside(op, 1, "conv_input_copy");
  const Bytes copies = call_.workspace;
  Bytes largest = copies;  // each gradient is a call of its own: its workspace is given back before the next one's is taken
  for (std::size_t i = 0; i < op.output_count; ++i) {
    call_.workspace = copies;
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
bool Lowering::transforms_weight_gradient(const Op& op, const ConvAttributes& a, const Shape& image) const {
  return op.math == DType::fp32 && a.axes == 2 && a.kernel[0] == 3 && a.kernel[1] == 3 && unit_stride(a) && a.groups == 1 && !a.transposed &&
         image[1] > 4 && !last_;
}

// 6x6 numbers for each 4x4 tile of the images and of the filters' gradients, all at once.
Bytes Lowering::transformed(const Shape& x, const Shape& y, const Shape& w) {
  auto tiles = [](const Shape& image) { return image[0] * image[1] * ((image[-2] + 3) / 4) * ((image[-1] + 3) / 4); };
  return {(tiles(x) + tiles(y) + w[0] * w[1]) * 36 * 4};
}

}  // namespace precog
