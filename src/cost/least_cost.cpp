#include "cost/least_cost.h"

#include <algorithm>

#include "kernel/library_rules.h"

namespace precog {
namespace {

// Sums down columns (PyTorch's reduce_kernel) have blocks side by side, of which the last may have threads without a column. Blocks are dealt to
// idle SMs in turn, so where the number side by side divides that of SMs the same SMs get all the full ones, and the sum lasts as long as they do.
// Right behind a call like it blocks are dealt as SMs fall free, which mixes them: timings of the call by itself do not show it. Kernels named one
// by one behind others (data/measured/2026-11-16-h200-cached, 60 sums of 96, 192 and 320 columns): as the physics has it up to two blocks for each
// SM, 1.8 times as long from ten on. Other widths take what they take by themselves.
constexpr double kFewBlocks = 2, kManyBlocks = 10, kUneven = 0.8;

double uneven_blocks(const MemoryShape& s, const GpuSpec& gpu) {
  const ReductionGrid grid = reduction_grid(s.rows, s.row_length, true, gpu.sms);
  if (grid.sharing <= 1) return 1;
  const std::int64_t vector = s.rows % 4 == 0 ? 4 : s.rows % 2 == 0 ? 2 : 1, side = grid.blocks / grid.sharing;
  if (side < 2 || gpu.sms % side != 0 || side * grid.width * vector == s.rows) return 1;
  const double each = static_cast<double>(grid.blocks) / gpu.sms;
  return 1 + kUneven * std::clamp((each - kFewBlocks) / (kManyBlocks - kFewBlocks), 0.0, 1.0);
}

// Squares of gradients are zero in fp16 from 2e-4 down, and so are the moments made of them. Division and root then leave their fast path, which
// knows no zeros: so many clocks of an SM for each number, whatever the memory does. Kernels named in recorded steps of 60 models (division of the
// second moments 0.64 to 0.7, the update's 0.6 to 0.78, roots 0.42 to 0.45); bf16 has the range of fp32, timings of random numbers no zeros.
constexpr double kDivision = 0.64, kRoot = 0.42;

// Depthwise filters of more than seven pixels over images in NHWC, channels by the 32: cuDNN's conv2d_grouped_direct_kernel and its like, which take
// a term at a time, those in the padding left out. Terms per clock of an SM, from 45 timings of 2026-11-16-h200-conv-3 to -6: squares 0.79 to 0.92,
// filters of one axis 0.51 to 0.76, their weight gradients in fp32 and TF32 0.37 to 0.45. Other widths have kernels three to five times as fast.
constexpr std::int64_t kLargeFilter = 7, kDirectChannels = 32;
constexpr double kSquareTerms = 0.86, kLineTerms = 0.63, kLineGradientTerms = 0.42;

double terms_per_clock(const ConvShape& s, DType math) {
  const bool line = std::min(s.kernel_h, s.kernel_w) == 1, square = std::min(s.kernel_h, s.kernel_w) > kLargeFilter;
  if (!s.depthwise() || !s.channels_last || s.axes != 2 || s.in_channels % kDirectChannels != 0 || std::max(s.kernel_h, s.kernel_w) <= kLargeFilter) return 0;
  switch (s.direction) {
    case ConvDirection::forward: return line ? kLineTerms : kSquareTerms;
    case ConvDirection::data_gradient: return square && math == DType::fp32 ? kSquareTerms : s.kernel_w == 1 && !is_16bit(math) ? kLineTerms : 0;
    case ConvDirection::weight_gradient: return line && !is_16bit(math) ? kLineGradientTerms : 0;
  }
  return 0;
}

// Groups called one by one, each with a shape of its own.
bool looped_and_turned(const Kernel& kernel, const ConvShape& s) {
  if (kernel.launches < 2 || s.groups != 1 || kernel.math != DType::fp32 || s.turned_groups || s.by_fourier) return false;
  ConvShape all = s;
  all.groups = kernel.launches, all.in_channels *= kernel.launches, all.out_channels *= kernel.launches;
  return turns_groups(all);
}

// Of all results along an axis, terms that are not padding.
double terms(std::int64_t in, std::int64_t out, std::int64_t taps, std::int64_t stride, std::int64_t dilation) {
  const std::int64_t padding = std::max<std::int64_t>(0, ((out - 1) * stride + dilation * (taps - 1) + 1 - in + 1) / 2);
  std::int64_t inside = 0;
  for (std::int64_t t = 0; t < taps; ++t) {
    const std::int64_t first = t * dilation - padding;  // the pixel that the first result meets with this tap
    const std::int64_t from = first >= 0 ? 0 : (-first + stride - 1) / stride, to = first >= in ? 0 : std::min(out, (in - 1 - first) / stride + 1);
    inside += std::max<std::int64_t>(0, to - from);
  }
  return static_cast<double>(inside);
}

}  // namespace

Seconds least_cost(const Kernel& kernel, const KernelCost& physics, const GpuSpec& gpu, const ArchitectureProfile& profile) {
  const double clocks = gpu.sms * gpu.boost_clock.value;
  if (clocks <= 0) return {};
  if (const auto* conv = std::get_if<ConvShape>(&kernel.shape)) {
    if (looped_and_turned(kernel, *conv)) {
      Kernel turned = kernel;
      std::get<ConvShape>(turned.shape).turned_groups = true;
      return kernel_cost(turned, gpu, profile).total;
    }
    const double rate = terms_per_clock(*conv, kernel.math);
    if (rate == 0) return {};
    return Seconds{static_cast<double>(conv->batch * conv->in_channels) * terms(conv->in_h, conv->out_h, conv->kernel_h, conv->stride, conv->dilation) *
                   terms(conv->in_w, conv->out_w, conv->kernel_w, conv->stride, conv->dilation) / (rate * clocks)};
  }
  const auto* memory = std::get_if<MemoryShape>(&kernel.shape);
  if (!memory || kernel.fused) return {};
  if (kernel.zeros != Zeros::none) return Seconds{kernel.flops.value * (kernel.zeros == Zeros::divided ? kDivision : kRoot) / clocks};
  if (memory->pattern != MemoryPattern::bias_gradient || kernel.estimated || kernel.launches > 1) return {};
  const double uneven = uneven_blocks(*memory, gpu);
  return uneven > 1 ? physics.total * uneven : Seconds{};
}

// Blocks are dealt about one a clock, idle or not: 0.40 to 0.47 ns for each idle one in 22 recorded steps of densely connected networks (2026-11-15-h200-models,
// 2026-11-16-h200-ninth). Timings of joins are of parts alike.
Seconds idle_blocks_cost(const Kernel& kernel, const GpuSpec& gpu) {
  constexpr double kBlockClocks = 0.87;
  return gpu.boost_clock.value > 0 ? Seconds{static_cast<double>(kernel.idle_blocks) * kBlockClocks / gpu.boost_clock.value} : Seconds{};
}

// Over NHWC a 1x1 convolution is a product, and where channels are no multiples of 16 bytes cuDNN takes it to the kernels that cuBLAS has for such (cutlass
// ... align1, named in recorded steps). Of 1,200 timings of such convolutions the correction learned from all the others misses the
// wide ones, up to three times too fast; data gradients of odd channels from 256 up are 27% off in the mean by it, and 4% by the product (2026-11-16-h200-conv to -conv-6).
std::optional<Kernel> product_alike(const Kernel& kernel) {
  constexpr std::int64_t kAligned = 8;
  const auto* s = std::get_if<ConvShape>(&kernel.shape);
  if (!s || !s->channels_last || s->groups > 1 || s->axes != 2 || s->kernel_h * s->kernel_w != 1 || s->strides() != 1 || !is_16bit(kernel.math) || kernel.launches > 1) return std::nullopt;
  if (s->in_channels % kAligned == 0 && s->out_channels % kAligned == 0) return std::nullopt;
  if (s->in_h * s->in_w != s->out_h * s->out_w) return std::nullopt;  // padded
  const std::int64_t pixels = s->batch * s->out_h * s->out_w;
  Kernel product = kernel;
  switch (s->direction) {
    case ConvDirection::forward: product.shape = GemmShape{.m = pixels, .n = s->out_channels, .k = s->in_channels, .b_turned = true}, product.name = "linear"; break;
    case ConvDirection::data_gradient: product.shape = GemmShape{.m = pixels, .n = s->in_channels, .k = s->out_channels}, product.name = "mm"; break;
    case ConvDirection::weight_gradient:
      product.shape = GemmShape{.m = s->out_channels, .n = s->in_channels, .k = pixels, .transposed_a = true, .a_turned = true}, product.name = "mm";
      break;
  }
  return product;
}

}  // namespace precog
