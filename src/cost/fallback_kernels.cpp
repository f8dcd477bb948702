#include "cost/fallback_kernels.h"

#include <algorithm>
#include <cmath>
#include <optional>

namespace precog {
namespace {

// The products of a recurrent layer run on kernels made for Ampere, with tiles of 32 x 32 for the few rows of one time step, where
// cuBLAS would take wider ones or split the sum. How much longer they take than a product of cuBLAS, about, from timings of
// recurrent layers and their kernels (data/measured): single shapes leave it by a factor of 1.5.
constexpr double kRecurrentWide = 1.6;       // fp32 and TF32
constexpr double kRecurrentUnaligned = 1.8;  // 16 bits where rows are no multiples of 16 bytes

double recurrent_slowdown(const Kernel& kernel, const GemmShape& s) {
  if (!kernel.name.starts_with("rnn_") || s.transposed_a) return 1;
  if (!is_16bit(kernel.math)) return kRecurrentWide;
  return s.n % 8 == 0 && s.k % 8 == 0 ? 1 : kRecurrentUnaligned;
}

// Groups of a 16-bit convolution with a very long filter (wav2vec 2's positions: 48 channels a group, 128 taps) have no tensor-core
// kernel: each group runs in one for ordinary arithmetic whose few blocks walk the whole sum of channels and taps, two or three
// groups side by side. Seconds per term and group, from the kernels of one model at two batches; a data gradient of many
// rows is spared. An estimate elsewhere.
constexpr std::int64_t kLongFilter = 64, kSparedRows = 1024;
constexpr double kTerm = 0.059e-6;

Seconds long_filter_time(const Kernel& kernel, const ConvShape& s) {
  const std::int64_t taps = s.kernel_h * s.kernel_w, groups = s.groups * std::max(1, kernel.launches);
  const bool spared = s.direction == ConvDirection::data_gradient && s.batch * s.out_h * s.out_w > kSparedRows;
  if (!is_16bit(kernel.math) || s.channels_last || s.depthwise() || groups <= 1 || taps < kLongFilter || spared) return {};
  return {static_cast<double>(groups * (s.in_channels / s.groups) * taps) * kTerm};
}

// PyTorch's resizing of images (aten/native/cuda/UpSample*.cu). Bilinear and bicubic ones in NCHW have a thread per pixel of the result that
// walks all planes, images times channels, one after the other: small images leave the GPU idle. The gradient of a bilinear one is
// added atomically, the more slowly the more results meet in a pixel, and in 16 bits by exchanges of whole words; that of a bicubic
// one walks the planes too. Others take so long per pixel of the result, whatever the type. From 140 timings on an H200
// (data/measured/2026-11-15-h200-profile, family "resize"), most within a factor of 1.4.
struct Resize {
  double plane, pixel;                  // bilinear, NCHW: seconds per plane, and per pixel of one
  double gradient, gradient_nhwc;       // bilinear: seconds per result; in NCHW times the enlargement
  double bicubic_gradient;              // seconds per plane
};
constexpr Resize kResizeWide{0.18e-6, 3.6e-12, 5.5e-12, 9.5e-12, 3.5e-6}, kResizeNarrow{0.27e-6, 1.2e-12, 14e-12, 15e-12, 25e-6};
constexpr double kBilinearNhwc = 8.9e-12, kNearest = 2.9e-12, kNearestNhwc = 6e-12;
constexpr double kNearestGradient = 5e-12, kNearestGradientNhwc = 7e-12;  // over the enlargement

std::optional<Seconds> resize_time(const Kernel& kernel, const MemoryShape& s) {
  const bool cubic = kernel.name.starts_with("upsample_bicubic2d"), linear = kernel.name.starts_with("upsample_bilinear2d");
  const bool nearest = kernel.name.starts_with("upsample_nearest2d"), backward = s.pattern == MemoryPattern::pooling_backward;
  if (!(cubic || linear || nearest) || s.rows <= 1) return std::nullopt;
  const Resize& c = is_16bit(kernel.input) ? kResizeNarrow : kResizeWide;
  const double planes = static_cast<double>(s.rows), pixels = static_cast<double>(s.row_length), results = planes * pixels;
  const double enlarged = std::sqrt(static_cast<double>(backward ? kernel.read.value : kernel.written.value) /
                                    static_cast<double>(std::max<std::int64_t>(1, backward ? kernel.written.value : kernel.read.value)));
  if (enlarged > 0.9 && enlarged < 1.1 && backward) return std::nullopt;  // of the same size it is a copy
  if (cubic) return Seconds{planes * (backward ? c.bicubic_gradient : 2 * (c.plane + pixels * c.pixel))};
  if (nearest) {
    if (!backward) return Seconds{results * (s.channels_last ? kNearestNhwc : kNearest)};
    return Seconds{results * (s.channels_last ? kNearestGradientNhwc : kNearestGradient) / enlarged};
  }
  if (s.channels_last) return Seconds{results * (backward ? c.gradient_nhwc : kBilinearNhwc)};
  return Seconds{backward ? results * c.gradient * enlarged : planes * (c.plane + pixels * c.pixel)};
}

}  // namespace

KernelCost with_fallbacks(const Kernel& kernel, KernelCost cost) {
  if (const auto* product = std::get_if<GemmShape>(&kernel.shape)) {
    const double slowdown = recurrent_slowdown(kernel, *product);
    cost.compute = cost.compute * slowdown;
    cost.total = cost.total * slowdown;
  } else if (const auto* convolution = std::get_if<ConvShape>(&kernel.shape)) {
    const Seconds walked = long_filter_time(kernel, *convolution);
    if (walked > cost.total) {
      cost.compute = cost.total = walked;
      cost.bound = Bound::compute;
      cost.source = CostSource::estimate;
    }
  } else if (const auto* memory = std::get_if<MemoryShape>(&kernel.shape)) {
    if (const auto resized = resize_time(kernel, *memory)) cost.total = std::max(cost.memory + cost.launch, cost.launch + *resized);
  }
  return cost;
}

}  // namespace precog
