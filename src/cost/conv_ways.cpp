#include "cost/conv_ways.h"
#include "base/real.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>

namespace precog {
namespace {

// Read off the kernels that cuDNN 9.19 took on an H200, whose names say their tiles (data/measured/2026-11-16-h200-conv,
// choices.jsonl.gz): 128 x 128 x 64 in 16 bits takes 0.31 us a step, 64 x 64 x 64 takes 0.11. Off by a factor, a way is still
// told from the others by how it grows with the shape: the factor is learned.
constexpr double kStart = 4.5, kSplitStart = 7;   // us, before and after all blocks; splits clear and add up
constexpr double kWave = 0.6;                     // us, a block's first loads and its result
constexpr double kMatrixShare = 0.9, kVectorShare = 0.75;  // of the datasheet's peak
constexpr double kFeedPerClock = 75;              // bytes from the L2 cache to an SM
constexpr double kMemoryShare = 0.875, kMemoryStart = 2.5, kDirectStart = 3;  // of the bandwidth; us
constexpr double kPartialShare = 0.6;             // of the bandwidth, for partial sums
// Fourier transforms, one kernel at a time (the same file, 110 calls): numbers of a frequency are multiplied as products of 32 rows and 32 columns a block, or, in
// large squares, one by one for 128 results; transforms write as fast as their size lets them. Most of the calls come out within a quarter.
constexpr double kComplexBytes = 8, kFloatBytes = 4, kTileSide = 32, kTileNew = 30, kOneByOne = 64, kByLines = 128;
constexpr double kComplexShare = 0.72, kComplexBlock = 32, kOneByOneShare = 0.28, kOneByOneBlock = 128;  // of the vector peak; rows and columns
constexpr double kComplexStart = 4, kComplexStep = 0.09, kMostComplexStart = 16;  // us; us for a term of the sum
constexpr double kTransformStart = 5, kSmallTransform = 0.23, kTransform = 0.45, kTransformByLines = 0.12;  // us; of the bandwidth: squares of 16, of 32 and 64, larger
constexpr double kVectorStep = 8, kMatrixStepBytes = 128;  // of the sum, that cuDNN's kernels take at once

}  // namespace

ConvWays::ConvWays(const ConvShape& s, DType math, double element_bytes, double bytes, double flops, const GpuSpec& gpu)
    : sms_(gpu.sms), groups_(real(s.groups)), element_bytes_(element_bytes), flops_(flops) {
  const bool matrix = gpu.matrix.has(math);
  const double in = real(s.in_channels) / groups_, out = real(s.out_channels) / groups_, filter = real(s.kernel_h * s.kernel_w);
  const double x = real(s.batch * s.in_h * s.in_w), y = real(s.batch * s.out_h * s.out_w);
  double taps = 1, depth = y;
  switch (s.direction) {
    case ConvDirection::forward: rows_ = y, columns_ = out, taps = filter, depth = in; break;
    case ConvDirection::data_gradient: rows_ = x, columns_ = in, taps = std::max(1.0, filter / real(s.strides())), depth = out; break;
    case ConvDirection::weight_gradient: rows_ = out, columns_ = in * filter; break;
  }
  step_length_ = matrix ? kMatrixStepBytes / element_bytes : kVectorStep;
  steps_ = taps * std::ceil(depth / step_length_);
  tried_ = s.direction == ConvDirection::data_gradient ? real(s.strides()) : 1;
  vector_rate_ = gpu.vector[DType::fp32].value * kVectorShare / sms_ * 1e-6;
  rate_ = matrix ? gpu.matrix[math].value * kMatrixShare / sms_ * 1e-6 : vector_rate_;
  feed_ = matrix ? kFeedPerClock * gpu.boost_clock.value * 1e-6 : std::numeric_limits<double>::infinity();
  memory_ = kMemoryStart + bytes / (gpu.memory_bandwidth.value * kMemoryShare) * 1e6;
  partial_ = gpu.memory_bandwidth.value * kPartialShare * 1e-6;
  if (!matrix && s.direction != ConvDirection::weight_gradient) transform(s, gpu);  // of weight gradients one in thirty was
}

// cuDNN's fp32 kernels (fft2d_r2c, products of complex numbers or pointwise_mult_and_sum_complex, fft2d_c2r): filters once, images and results tile by tile.
void ConvWays::transform(const ConvShape& s, const GpuSpec& gpu) {
  const bool tiled = s.direction == ConvDirection::data_gradient;
  const double edge = std::max(real(s.in_h) + real(s.kernel_h), real(s.in_w) + real(s.kernel_w)) - 1, side = tiled ? kTileSide : std::exp2(std::ceil(std::log2(edge)));
  const double tiles = tiled ? std::ceil(real(s.in_h) / kTileNew) * std::ceil(real(s.in_w) / kTileNew) : 1, frequencies = side * (side / 2 + 1);
  const double in = real(s.in_channels) / groups_, out = real(s.out_channels) / groups_, images = real(s.batch);
  const double summed = tiled ? out : in, results = tiled ? in : out;
  const auto up = [](double value, double block) { return std::ceil(value / block) * block; };
  const double peak = gpu.vector[DType::fp32].value * 1e-6, bandwidth = gpu.memory_bandwidth.value * 1e-6;  // per us
  const double flops = 8 * frequencies * summed;  // of one result of one image
  const double multiplying = side >= kOneByOne ? flops * images * up(results, kOneByOneBlock) / (peak * kOneByOneShare)
                                               : std::min(kMostComplexStart, kComplexStart + kComplexStep * summed) + flops * up(images, kComplexBlock) * up(results, kComplexBlock) / (peak * kComplexShare);
  const double share = side >= kByLines ? kTransformByLines : side < kTileSide ? kSmallTransform : kTransform, plane = kComplexBytes * frequencies;
  const double pixels = kFloatBytes * real(s.in_h * s.in_w) / tiles, filters = in * out * (plane + kFloatBytes * real(s.kernel_h * s.kernel_w));
  const double transforms = 2 * kTransformStart + images * (in + out) * (plane + pixels) / (bandwidth * share);
  fourier_ = groups_ * (kTransformStart + filters / (bandwidth * share) + tiles * (multiplying + transforms));
  square_ = real(s.in_h * s.in_w) / (tiles * side * side);
}

double ConvWays::blocks(double tm, double tn) const { return groups_ * std::ceil(rows_ / tm) * std::ceil(columns_ / tn); }

double ConvWays::step(double tm, double tn) const {
  return std::max(2 * tm * tn * step_length_ / rate_, (tm + tn) * step_length_ * element_bytes_ / feed_);
}

double ConvWays::with_memory(double t) const {
  const double a = t * t, b = memory_ * memory_;
  return std::sqrt(std::sqrt(a * a + b * b));
}

double ConvWays::tiles(double tm, double tn) const {
  return with_memory(kStart + std::max(1.0, std::ceil(blocks(tm, tn) / sms_)) * (kWave + steps_ * step(tm, tn)));
}

double ConvWays::small_tiles(double tm, double tn, double few) const {
  return with_memory(kStart + std::max(few, blocks(tm, tn) / sms_) * steps_ * step(tm, tn));
}

double ConvWays::split(double tm, double tn) const {
  const double whole = blocks(tm, tn), each = step(tm, tn), result = 4 * rows_ * columns_ * groups_;
  double best = std::numeric_limits<double>::infinity();
  for (double pieces : {1., 2., 3., 4., 6., 8., 12., 16., 24., 32., 64., 128.}) {
    if (pieces > 1 && pieces > steps_) break;
    const double sums = pieces > 1 ? 2 * pieces * result / partial_ : 0;
    best = std::min(best, kSplitStart + std::max(1.0, std::ceil(whole * pieces / sms_)) * (kWave + std::ceil(steps_ / pieces) * each) + sums);
  }
  return with_memory(best);
}

double ConvWays::work(bool skipping) const { return with_memory(kDirectStart + flops_ * (skipping ? 1 : tried_) / (rate_ * sms_)); }
double ConvWays::vector_work() const { return with_memory(kDirectStart + flops_ / (vector_rate_ * sms_)); }
double ConvWays::moving() const { return memory_; }
double ConvWays::fourier() const { return fourier_; }
double ConvWays::square() const { return square_; }

}  // namespace precog
