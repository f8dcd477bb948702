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
  if (enlarged == 1) return std::nullopt;  // of the same size it is a copy
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
  } else if (const auto* memory = std::get_if<MemoryShape>(&kernel.shape)) {
    if (const auto resized = resize_time(kernel, *memory)) cost.total = std::max(cost.memory + cost.launch, cost.launch + *resized);
  }
  return cost;
}

}  // namespace precog
