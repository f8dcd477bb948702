#include "cost/fallback_kernels.h"

#include <algorithm>

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
  }
  return cost;
}

}  // namespace precog
