#include "kernel/library_rules.h"

#include <algorithm>
#include <bit>

namespace precog {
namespace {

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
std::int64_t power_below(std::int64_t x, std::int64_t most) {
  return x >= most ? most : static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(std::max<std::int64_t>(1, x))));
}

// aten/src/ATen/native/cuda/Reduce.cuh
constexpr std::int64_t kReduceThreads = 512, kWarp = 32, kFewValues = 16, kManyValues = 256, kThreadsPerSm = 2048;

constexpr std::int64_t kTile = 128;  // of the products below, either way
constexpr std::int64_t kLongSum = 768, kVeryLongSum = 12288;
constexpr std::int64_t kFewWaves = 8, kManyWaves = 12;
constexpr std::int64_t kWideGroup = 32;
constexpr std::int64_t kFewWeights = 24 * kTile * kTile;
constexpr std::int64_t kManyImages = 64;
constexpr std::int64_t kManyRows = 16384;  // images times pixels that a weight gradient sums

// More than two waves of the large 16-bit tiles, whichever of them fits best.
bool hands_out_tiles(const GemmShape& s, const GpuSpec& gpu) {
  constexpr std::int64_t kTiles[][2] = {{256, 128}, {128, 256}, {192, 192}};
  for (const auto& tile : kTiles)
    if (s.batch * divide_up(s.m, tile[0]) * divide_up(s.n, tile[1]) <= 2 * gpu.sms) return false;
  return true;
}

}  // namespace

ReductionGrid reduction_grid(std::int64_t outputs, std::int64_t length, bool columns, int sms) {
  if (outputs <= 0 || length <= 0) return {};
  const std::int64_t vector = !columns ? 1 : outputs % 4 == 0 ? 4 : outputs % 2 == 0 ? 2 : 1;  // results a thread holds
  const std::int64_t threads = kReduceThreads / vector;
  const std::int64_t across = power_below(columns ? outputs / vector : length, threads);
  const std::int64_t along = power_below(columns ? length : outputs, threads);
  ReductionGrid grid;
  grid.width = std::min(across, kWarp);
  grid.height = std::min(along, threads / grid.width);
  grid.width = std::min(across, threads / grid.height);
  grid.values = columns ? length : divide_up(length, grid.width);
  const std::int64_t each = divide_up(outputs / vector, columns ? grid.width : 1);
  if (grid.values < grid.height * kFewValues && grid.values < kManyValues) {  // a block's rows then have results of their own
    grid.blocks = divide_up(each, grid.height);
    return grid;
  }
  grid.values = divide_up(grid.values, grid.height);
  grid.blocks = each;
  const std::int64_t target = sms * (kThreadsPerSm / (grid.width * grid.height));
  if (grid.values < kManyValues || each > target) return grid;
  grid.sharing = std::max(std::min(divide_up(target, each), divide_up(grid.values, kFewValues)), divide_up(grid.values, kManyValues));
  grid.blocks *= grid.sharing;
  grid.values = divide_up(grid.values, grid.sharing);
  return grid;
}

bool sums_across_blocks(std::int64_t outputs, std::int64_t length, bool columns, int sms) {
  return reduction_grid(outputs, length, columns, sms).sharing > 1;
}

bool keeps_innermost(const Shape& from, const Shape& to) {
  if (from.rank() == 0 || to.rank() == 0 || to.rank() > from.rank()) return false;
  if (from.rank() == to.rank()) return from[-1] > 1 && to[-1] == from[-1];
  for (int axis = 1; axis <= to.rank(); ++axis)
    if (to[-axis] != from[-axis]) return false;
  return true;
}

ProductHelpers product_helpers(const GemmShape& s, DType math, const GpuSpec& gpu, bool forward) {
  ProductHelpers helpers;
  const std::int64_t tiles = s.batch * divide_up(s.m, kTile) * divide_up(s.n, kTile);
  const bool wide = math == DType::fp32 || math == DType::tf32;
  if (s.transposed_a && s.batch == 1) {
    // Weight gradients: a long sum and few tiles. nvjet's 16-bit kernels split only very long ones, and long ones whose tiles would
    // leave a quarter of the SMs idle (768 x 3072: 144 tiles on 132).
    const double length = static_cast<double>(s.k), side = static_cast<double>(s.m) * static_cast<double>(s.n);
    const bool idle = tiles * 4 < divide_up(tiles, gpu.sms) * gpu.sms * 3;
    helpers.reduces = wide ? tiles < gpu.sms / 2 && s.k >= kLongSum
                           : tiles < gpu.sms * 2 && (length * length > 144 * side || (idle && s.k > kVeryLongSum));
    const bool cleared_sums = math == DType::fp32 && (s.k <= 2048 || s.k > 8192);
    helpers.clears = (helpers.reduces && cleared_sums) || (is_16bit(math) && gpu.capability() >= 90 && !helpers.reduces && hands_out_tiles(s, gpu));
    return helpers;
  }
  // Gradients of few rows in fp32: split too.
  if (math == DType::fp32 && s.batch == 1 && !forward) helpers.reduces = tiles * 5 < gpu.sms && s.k >= 512 && s.m >= kTile;
  // Hopper's kernels hand out tiles by a counter: of batches, of very many tiles, and in TF32 where a few waves would leave
  // the last one thin.
  if (gpu.capability() < 90 || tiles <= gpu.sms) return helpers;
  const bool many = tiles > kManyWaves * gpu.sms, few = tiles <= kFewWaves * gpu.sms;
  if (math == DType::tf32) helpers.clears = s.batch > 1 || many || few;
  else if (is_16bit(math) && s.n % 8 == 0 && s.k % 8 == 0) helpers.clears = s.batch > 1 || hands_out_tiles(s, gpu);
  return helpers;
}

SortLaunches sort_launches(int bits) {
  const int passes = std::max(1, (bits + 7) / 8);
  return {passes + 2, passes + 2};
}

ConvHelpers conv_helpers(const ConvShape& s, DType math, const GpuSpec& gpu) {
  ConvHelpers helpers;
  const bool tensor_cores = math != DType::fp32 && gpu.matrix.has(math);
  if (s.depthwise()) {  // in NHWC the weights' gradients meet across blocks, in 16 bits by way of partial sums
    const bool shared = s.channels_last && s.direction == ConvDirection::weight_gradient;
    helpers.clears = shared;
    helpers.sums = shared && is_16bit(math);
    return helpers;
  }
  const bool pointwise = s.kernel_h * s.kernel_w == 1 && s.stride == 1 && s.groups == 1;
  const bool three = s.kernel_h == 3 && s.kernel_w == 3 && s.stride == 1;
  const std::int64_t width = s.in_channels / std::max<std::int64_t>(1, s.groups), weights = width * s.out_channels;
  const std::int64_t pixels = s.out_h * s.out_w, rows = s.batch * pixels;
  const bool weight = s.direction == ConvDirection::weight_gradient, data = s.direction == ConvDirection::data_gradient;
  // Groups too wide for the direct kernels and of no power of two: one call each, but for one direction (RegNet's 56 channels;
  // 32 or 64 take one call, as their times show).
  const bool odd_width = !std::has_single_bit(static_cast<std::uint64_t>(std::max<std::int64_t>(1, width)));
  if (s.groups > 1 && width >= kWideGroup && width < 256 && odd_width && !s.channels_last) {
    if (is_16bit(math) && tensor_cores && !data) helpers.loops = static_cast<int>(s.groups);
    if (!tensor_cores && (weight || data)) helpers.loops = static_cast<int>(s.groups);
  }
  if (!tensor_cores) {
    if (three && width > 4 && weight) helpers.inner = s.groups > 1 ? 5 : 3;       // Winograd; of a group turned there and back too
    // Fourier transforms of image, filter and result; of many images the filter is flipped and the result cut out as well.
    const bool many = s.batch >= kManyImages && std::min(width, s.out_channels) >= 64;
    if (three && width > 4 && data && !s.channels_last) helpers.inner = many ? 5 : 3;
    if (three && many && s.direction == ConvDirection::forward && !s.channels_last) helpers.inner = 3;
    helpers.prepares = pointwise && data && !s.channels_last && s.out_channels > kTile;
    return helpers;
  }
  if (pointwise && s.channels_last && is_16bit(math)) {  // one product over all images; its tiles are narrow, and no counter was seen
    helpers.sums = weight && product_helpers({1, s.out_channels, s.in_channels, rows, true}, math, gpu).reduces;
    return helpers;
  }
  if (pointwise && pixels > 1 && !s.channels_last) {  // a product per image
    if (weight) helpers.sums = weights <= kFewWeights;
    else helpers.clears = product_helpers({s.batch, pixels, data ? s.in_channels : s.out_channels, data ? s.out_channels : s.in_channels}, math, gpu).clears &&
                          pixels % 8 == 0;
  }
  if (!weight && (!pointwise || s.channels_last) && s.groups == 1 && gpu.capability() >= 90) {  // tiles handed out by a counter
    const std::int64_t made = data ? s.batch * s.in_h * s.in_w : rows, channels = data ? s.in_channels : s.out_channels;
    helpers.clears = divide_up(made, kTile) * divide_up(channels, kTile) > gpu.sms;
  }
  helpers.prepares = weight && !pointwise && rows >= kManyRows && gpu.capability() >= 90;
  return helpers;
}

bool turns_pointwise(const ConvShape& s, DType math, bool tensor_cores) {
  if (s.channels_last || s.direction != ConvDirection::weight_gradient) return false;
  if (math == DType::tf32 && s.batch <= kManyImages) return false;
  const std::int64_t pixels = s.out_h * s.out_w, weights = s.in_channels * s.out_channels;
  if (!tensor_cores) return weights >= 4 * kTile * 4 * kTile;
  return pixels > 1 && (pixels % 2 == 1 || (pixels % 8 != 0 && weights >= 8 * kTile * kTile));
}

}  // namespace precog
