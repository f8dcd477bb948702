#include "cost/conv_cost.h"
#include "base/real.h"

#include <algorithm>
#include <cmath>

namespace precog {
namespace {

constexpr double kWinogradTile = 4;       // outputs a side
constexpr double kFewChannels = 4;        // no wide loads from so few
constexpr double kTransformedBytes = 4;   // of a transformed element, whatever the images are stored in
constexpr double kGroupWidth = 16;        // channels of narrow groups that one block of tensor cores takes together
constexpr double kThinTiles = 32;         // 1x1 weight gradients of fewer tiles of weights ...
constexpr double kThinTile = 128 * 128;   // ... of this size run slow fp32 kernels in NCHW

// What the library was seen to choose, docs/model_notes; vector units only.
bool is_winograd(const ConvShape& s, const ConvCoefficients& c) {
  if (s.kernel_h != 3 || s.kernel_w != 3 || s.stride != 1 || real(s.in_channels) <= kFewChannels) return false;
  if (s.direction == ConvDirection::weight_gradient) return true;
  const double tiles = real(s.batch) * std::ceil(real(s.out_h) / kWinogradTile) * std::ceil(real(s.out_w) / kWinogradTile);
  if (tiles * real(s.out_channels) < c.winograd_work) return false;
  return s.direction == ConvDirection::forward || real(s.out_h) > c.winograd_gradient_size;
}

double vector_factor(const ConvShape& s, bool product, const ConvCoefficients& c) {
  const ConvCoefficients::Direction& direction = c.direction[static_cast<std::size_t>(s.direction)];
  double factor = direction.vector;
  if (s.groups > 1) return factor * direction.grouped_vector;  // neither transformed nor thin: direct kernels
  const double weights = real(s.in_channels) * real(s.out_channels);
  if (is_winograd(s, c)) {
    factor *= direction.winograd;
    // Its transforms are passes of their own here; their share shrinks as the channels grow.
    if (s.direction == ConvDirection::weight_gradient)
      factor *= std::pow(std::min(512.0, std::sqrt(weights)) / 128, c.winograd_channels_exponent);
  }
  const bool thin = product && s.direction == ConvDirection::weight_gradient && !s.channels_last && weights < kThinTiles * kThinTile;
  return thin ? factor * c.thin_weight_gradient_factor : factor;
}

double matrix_factor(const ConvShape& s, DType math, bool product, const ConvCoefficients& c) {
  const ConvCoefficients::Direction& direction = c.direction[static_cast<std::size_t>(s.direction)];
  double factor = math == DType::tf32 ? direction.tf32 : direction.matrix;
  if (s.groups > 1) factor *= math == DType::tf32 ? direction.grouped_tf32 : direction.grouped_matrix;
  if (math == DType::tf32 && product && s.direction != ConvDirection::weight_gradient) factor *= c.tf32_pointwise_factor;
  if (s.direction == ConvDirection::data_gradient && s.stride > 1) factor *= c.strided_gradient_factor;
  return factor;
}

}  // namespace

bool can_transform(const ConvShape& s) {
  return s.axes == 2 && s.groups == 1 && s.dilation == 1 && s.kernel_h == 3 && s.kernel_w == 3 && s.stride == 1 && real(s.in_channels) > kFewChannels;
}

TransformedConv transformed_conv(const ConvShape& s, double element_bytes) {
  const bool of_input = s.direction == ConvDirection::data_gradient;
  const double in = real(s.in_channels), out = real(s.out_channels);
  const double tiles = real(s.batch) * std::ceil(real(of_input ? s.in_h : s.out_h) / kWinogradTile) * std::ceil(real(of_input ? s.in_w : s.out_w) / kWinogradTile);
  TransformedConv conv;
  GemmProblem& gemm = conv.product;
  gemm.batch = (kWinogradTile + 2) * (kWinogradTile + 2);  // a tile and the filter's reach around it
  switch (s.direction) {
    case ConvDirection::forward: gemm.m = tiles, gemm.n = out, gemm.k = in; break;
    case ConvDirection::data_gradient: gemm.m = tiles, gemm.n = in, gemm.k = out; break;
    case ConvDirection::weight_gradient: gemm.m = out, gemm.n = in, gemm.k = tiles; break;
  }
  gemm.bytes = kTransformedBytes * gemm.batch * (tiles * in + tiles * out + in * out);
  const double images = real(s.batch) * (in * real(s.in_h * s.in_w) + out * real(s.out_h * s.out_w));
  conv.passes = {static_cast<std::int64_t>(gemm.bytes + element_bytes * images)};
  return conv;
}

ConvProblem conv_problem(const ConvShape& s, DType math, bool matrix, double few_channels, const ConvCoefficients& c) {
  // Tensor cores multiply blocks of channels: narrow groups go several to a block, most of it zeros.
  const double narrow = std::min(real(s.in_channels), real(s.out_channels)) / real(s.groups);
  const double together = matrix && s.groups > 1 ? std::min(real(s.groups), std::max(1.0, std::ceil(kGroupWidth / narrow))) : 1;
  const double groups = std::ceil(real(s.groups) / together);
  const double in = real(s.in_channels) / real(s.groups) * together, out = real(s.out_channels) / real(s.groups) * together;
  const double filter = real(s.kernel_h * s.kernel_w);
  const double x = real(s.batch * s.in_h * s.in_w), y = real(s.batch * s.out_h * s.out_w);
  const bool product = s.kernel_h * s.kernel_w == 1 && s.stride == 1;
  ConvProblem problem;
  GemmProblem& gemm = problem.product;
  gemm.batch = groups;
  switch (s.direction) {
    case ConvDirection::forward: gemm.m = y, gemm.n = out, gemm.k = in * filter; break;
    // A strided gradient has filter positions that meet no output; libraries skip them.
    case ConvDirection::data_gradient: gemm.m = x, gemm.n = in, gemm.k = out * filter / real(s.strides()); break;
    case ConvDirection::weight_gradient: gemm.m = out, gemm.n = in * filter, gemm.k = y; break;
  }
  gemm.k = std::max(1.0, gemm.k);
  // Of volumes cuDNN has one fp32 weight gradient, and it sums in one block per 32 x 32 weights: few weights of large volumes take
  // tens of milliseconds (seen in recorded kernels; sm80_xmma_wgrad ... tilesize32x32x8 ... ffma).
  gemm.may_split = matrix || s.axes < 3 || s.direction != ConvDirection::weight_gradient || filter == 1;
  if (!matrix) problem.factor = vector_factor(s, product, c);
  else if (real(s.in_channels) <= kFewChannels) problem.factor = c.few_channels_rate * few_channels;
  else problem.factor = matrix_factor(s, math, product, c);
  if (!product) problem.overhead = c.indexing_overhead;
  return problem;
}

}  // namespace precog
