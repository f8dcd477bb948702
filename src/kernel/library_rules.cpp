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
constexpr std::int64_t kVeryLongSum = 12288;
constexpr std::int64_t kWideGroup = 32, kSomeGroups = 16, kManyGroups = 64;
constexpr std::int64_t kFewWeights = 24 * kTile * kTile;
constexpr std::int64_t kFewRows = 832, kSomeRows = 10000, kWaveRows = 228;
constexpr std::int64_t kManyRowsOfTaps = 15000, kFewRowsOfGroups = 13000;
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

// Rules of cuBLAS 13 on Hopper, read off the kernels of 25,000 products (data/measured/2026-11-16-h200-products/choices.jsonl.gz): a split sum is
// missed or made up in 3% of them, a memset in 6%.
ProductHelpers product_helpers(const GemmShape& s, DType math, const GpuSpec& gpu, bool forward) {
  const auto real = [](std::int64_t v) { return static_cast<double>(v); };
  const auto blocks = [&](std::int64_t tm, std::int64_t tn) { return s.batch * divide_up(s.m, tm) * divide_up(s.n, tn); };
  const auto aligned = [&](std::int64_t unit) { return s.m % unit == 0 && s.n % unit == 0 && s.k % unit == 0; };
  const bool hopper = gpu.capability() >= 90, single = s.batch == 1;
  const std::int64_t tiles = blocks(kTile, kTile), small = blocks(kTile / 2, kTile / 2);
  const double side = real(s.m) * real(s.n), length = real(s.k), work = real(s.batch) * side * length;
  ProductHelpers helpers;
  if (is_16bit(math)) {
    // nvjet's kernels split only very long sums, and long ones of a weight's gradient whose tiles would leave a quarter of the SMs idle (768 x
    // 3072: 144 tiles on 132); from two waves on a counter hands out the tiles.
    const bool idle = tiles * 4 < divide_up(tiles, gpu.sms) * gpu.sms * 3;
    const std::int64_t per_tile = s.bias ? 650 : s.transposed_a ? 250 : 180;
    helpers.reduces = single && s.k > 20 * kTile && length * length > (s.transposed_a ? 144 : 100) * side && s.k > per_tile * tiles;
    if (single && s.transposed_a && idle && s.k > kVeryLongSum && tiles < gpu.sms * 2) helpers.reduces = true;
    if (!hopper || helpers.reduces) return helpers;
    const std::int64_t large = blocks(2 * kTile, kTile);
    const bool short_sums = s.batch > 26 && tiles > gpu.sms && large * 2 <= 3 * gpu.sms && s.k * 3 < tiles * 4;
    helpers.clears = single ? s.n % 8 == 0 && s.k % 8 == 0 && hands_out_tiles(s, gpu) : aligned(8) && (large > 2 * gpu.sms || short_sums);
    return helpers;
  }
  if (math == DType::tf32) {
    constexpr double kCutWithin = 9e9;  // of more work the sum is cut within the kernel
    const bool idle = s.transposed_a ? tiles * 3 <= 2 * gpu.sms && work <= kCutWithin : small * 3 <= gpu.sms;
    helpers.reduces = single && !s.bias && idle && length * length > (s.transposed_a ? 1.7 : 1.3) * side && s.k > 2 * kTile;
    if (!hopper || helpers.reduces) return helpers;
    const bool thin = single && !s.transposed_a && tiles > gpu.sms && tiles * 3 <= 4 * gpu.sms && work > 7e8;  // of the second wave
    helpers.clears = aligned(4) && (thin || (work > 1.2e9 && (!single || tiles > (s.transposed_a ? 4 : 2) * gpu.sms)));
    if (single && s.transposed_a && work > kCutWithin && tiles <= gpu.sms) helpers.clears = true;
    return helpers;
  }
  if (math != DType::fp32 || !single) return helpers;
  if (s.bias) {  // scaled first, then added to
    helpers.clears = s.k > 158 * tiles && work > 7e7;
    return helpers;
  }
  helpers.reduces = s.k > (tiles * 8 <= 3 * gpu.sms ? 12 : 27) * tiles && small * 5 <= 13 * gpu.sms && s.k > 228;
  if (helpers.reduces) {  // in recorded steps, not where such products were called alone
    helpers.clears = s.transposed_a && s.k <= 2048;
    return helpers;
  }
  if (s.transposed_a) helpers.clears = (work > 1e10 && length * length > 0.45 * side) || (work <= 1e10 && s.k > 1204 && blocks(kTile, 2 * kTile) * 5 > 2 * gpu.sms);
  else helpers.clears = s.k > (forward ? 3500 : 2016) && tiles * 2 > gpu.sms && small * 10 <= 137 * gpu.sms;
  return helpers;
}

// From 36 timings either way of which 14 were such kernels (data/measured/2026-11-16-h200-conv), and a step of strided ones (-18-h200-scouts).
bool walks_long_filter(const ConvShape& s, DType math, std::int64_t calls) {
  constexpr std::int64_t kLongFilter = 95, kWide = 48, kLongSum = 6000, kLongerSum = 10000, kFewSamples = 2;
  const std::int64_t taps = s.kernel_h * s.kernel_w, width = s.in_channels / std::max<std::int64_t>(1, s.groups);
  if (!is_16bit(math) || s.channels_last || calls < 2 || taps != std::max(s.kernel_h, s.kernel_w) || taps < kLongFilter || width < kWide) return false;
  if (s.direction == ConvDirection::forward) return width % 32 != 0 && width * taps > kLongSum;
  if (s.direction != ConvDirection::data_gradient || s.stride != 1) return false;
  return s.batch <= kFewSamples || (width % 32 != 0 && width * taps >= kLongerSum);
}

bool cuts_slowly(const ConvShape& s, DType math) {
  constexpr std::int64_t kPicture = 3, kResults = 64, kPictures = 64, kPixels = 100'000;
  if (!is_16bit(math) || s.channels_last || s.direction != ConvDirection::weight_gradient || s.axes != 2 || s.groups > 1 || s.dilation > 1 || s.in_channels != kPicture) return false;
  const bool filter = s.kernel_h == s.kernel_w && (s.kernel_h == 4 || s.kernel_h == 6);
  return filter && s.out_channels < kResults && s.batch >= kPictures && s.batch * s.out_h * s.out_w >= kPixels;
}

SortLaunches sort_launches(int bits) {
  const int passes = std::max(1, (bits + 7) / 8);
  return {passes + 2, passes + 2};
}

bool several_blocks_pick(std::int64_t rows, std::int64_t columns) {
  struct Least {
    std::int64_t rows, columns;
  };
  constexpr Least kLeast[] = {{4001, 400}, {800, 800}, {200, 3000}, {81, 5000}, {41, 8000}, {21, 10'000}, {0, 20'000}};
  for (const Least& least : kLeast)
    if (rows >= least.rows) return columns >= least.columns;
  return false;
}

namespace {

// Two to four groups in TF32: one by one in true fp32, or all in one kernel. From 343 calls of 3x3 and larger filters in NCHW: of data gradients 160 of 178 are told,
// forward 140 of 165 (data/measured, family grouped, 2026-11-18-h200-conv-stems among them).
bool few_run_apart(const ConvShape& s, std::int64_t rows) {
  constexpr std::int64_t kVeryFewRows = 784, kRowsAtOnce = 9216, kImages = 8, kSomeImages = 16, kLeast = 8;
  const std::int64_t width = s.in_channels / s.groups, results = s.out_channels / s.groups, narrow = std::min(width, results);
  const bool pointwise = s.kernel_h * s.kernel_w == 1;
  if (s.direction == ConvDirection::data_gradient)
    return pointwise ? narrow < kTile / 2 : width < kTile / 2 && results % (kTile / 2) != 0 && (s.strides() == 1 || rows <= kRowsAtOnce);
  if (narrow < kLeast || narrow > kWideGroup) return false;
  if (pointwise) return true;
  if (results >= kTile / 2) return rows <= kVeryFewRows;
  if (rows <= kRowsAtOnce || s.batch <= kImages) return true;
  return s.groups < 4 && (narrow != kWideGroup || s.batch > kSomeImages);
}

// Groups of several channels, as the kernels of 2,900 such convolutions show (data/measured, family grouped). On tensor cores one kernel takes
// all groups up to 32 channels, and wider ones but for strided data gradients, few rows and large filters; in fp32 it is a call for each
// group.
ConvHelpers grouped_helpers(const ConvShape& s, DType math, bool tensor_cores) {
  ConvHelpers helpers;
  const std::int64_t width = s.in_channels / s.groups, rows = s.batch * s.out_h * s.out_w, taps = s.kernel_h * s.kernel_w;
  const std::int64_t narrow = std::min(width, s.out_channels / s.groups);
  const bool weight = s.direction == ConvDirection::weight_gradient, data = s.direction == ConvDirection::data_gradient, unit = s.strides() == 1;
  const bool three = s.kernel_h == 3 && s.kernel_w == 3 && unit, wide = narrow > kWideGroup;
  const bool few = s.groups <= 4, power = std::has_single_bit(static_cast<std::uint64_t>(std::max<std::int64_t>(1, narrow)));
  bool apart = false;
  if (!tensor_cores) apart = data || weight ? narrow >= 8 : true;
  else if (taps == 1) apart = !weight || s.groups <= kSomeGroups;
  else if (math == DType::tf32) apart = (weight ? taps > 16 && narrow > 16 : taps > 37) || narrow >= 232 || (wide && data && !unit) || (weight && narrow >= 48 && s.groups <= 4) || (weight && narrow >= 112 && rows > kSomeRows) ||
                                          (few && (weight ? rows > kFewRows : few_run_apart(s, rows)));
  else if (wide && data) apart = !unit || taps > 37 || (rows <= kFewRows && narrow >= 88) || (narrow % 64 == 0 && (narrow >= kTile) == (rows <= kSomeRows));
  else if (few && !data && !weight && narrow < kTile / 2 && narrow % 8 == 0 && !power) apart = true;
  else if (weight && taps > 9 && narrow >= 24 && narrow < 64) apart = rows > kManyRowsOfTaps;
  else if (wide && weight) apart = (narrow >= 76 && rows <= kFewRows) || (narrow >= 112 && rows <= kSomeRows && (narrow >= kTile || s.groups < 16));
  else if (!data && !weight && taps > 64 && narrow == kWideGroup) apart = true;
  else if (wide) apart = (rows <= kFewRows && narrow >= 50) || taps > 30 || narrow >= 232;
  if (apart) helpers.loops = static_cast<int>(s.groups);
  if (!tensor_cores) {
    helpers.bare = true;
    if (weight && three && apart && (narrow >= kWideGroup || (s.groups >= kManyGroups && rows <= kFewRowsOfGroups))) helpers.inner = 3;  // Winograd
    else if (weight) helpers.clears = apart;
    else if (data) helpers.inner = apart ? (wide && unit) || taps == 1 ? 2 : 1 : 0;  // turned there and back, or scaled by zero first
    else helpers.inner = wide ? 2 : 0;
    if (s.channels_last && apart) helpers.slices = weight ? 2 : wide || data ? 3 : 0;
    return helpers;
  }
  // No tensor core kernel for few channels: plain fp32 kernels that read NCHW, from turned operands, or one that needs no turning.
  const bool turned = math == DType::tf32 && (taps == 1 || few) && (data ? narrow < kTile / 2 : !weight && taps > 1 && narrow <= kWideGroup);
  const bool walked = taps == 1 && !weight && !data && (math == DType::tf32 || narrow < kWideGroup / 2);
  if (apart && (turned || walked) && !s.channels_last) {
    helpers.bare = true, helpers.inner = turned ? 2 : 0, helpers.vector = math == DType::tf32, helpers.turns = turned && taps > 1;
    return helpers;
  }
  if (apart && weight && three && narrow >= (math == DType::tf32 ? 48 : kTile) && !s.channels_last && rows <= kSomeRows / 4) {
    helpers.bare = true, helpers.inner = 3;  // Winograd
  } else if (apart && weight && rows > kFewRows) {
    helpers.clears = true, helpers.inner = is_16bit(math) || taps == 1 ? 1 : 0;  // partial sums, added by a kernel
  }
  if (walks_long_filter(s, math, s.groups)) {  // forward in three pieces where no padding hides part of the filter, one of them by a table of places
    helpers.loops = static_cast<int>(s.groups), helpers.bare = true, helpers.inner = data ? 1 : s.in_w >= taps ? 3 : 0;
    return helpers;
  }
  if (apart && s.channels_last) helpers.slices = 2;
  if (!apart && !power) helpers.pads = 2;
  return helpers;
}

// Forward, whole images in a square of the next power of two that has room for the filter's edge. Low images are taken however many there are.
FourierWay whole_images(const ConvShape& s, std::int64_t rows, std::int64_t narrow) {
  constexpr std::int64_t kImages = 28, kRows = 8152, kRowsOfMany = 6000, kMostRows = 101'000, kMostRowsOfFew = 99'328, kLow = 24, kHigh = 36;
  constexpr std::int64_t kManyChannels = 512, kFewInputs = 130, kFewInputsOfMany = 192, kFullRows = 30'000, kSomeChannels = 320;
  constexpr double kWork = 5.5e7;
  const auto power = [](std::int64_t x) { return std::has_single_bit(static_cast<std::uint64_t>(x)); };
  constexpr std::int64_t kLeastSide = 16, kUsualSide = 64, kMostSide = 256, kManyImages = 64;
  const std::int64_t side = std::max(kLeastSide, static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(std::max(s.in_h, s.in_w) + s.kernel_h - 1))));
  // Long images leave most of the square empty: many of them go that way all the same, where their channels are powers of two.
  const bool sparse = side > kUsualSide || (side == kUsualSide && s.in_h * s.in_w * 4 < side * side);
  if (side > kMostSide || (sparse && (s.channels_last || s.batch < kManyImages || !power(s.in_channels) || !power(s.out_channels)))) return {};
  const bool enough = rows > (narrow >= kManyChannels ? kRowsOfMany : kRows) && static_cast<double>(rows) * static_cast<double>(s.in_channels) * static_cast<double>(s.out_channels) > kWork;
  const bool few = s.in_channels <= (rows > kFullRows ? kFewInputsOfMany : kFewInputs);
  const bool suited = few ? s.in_h <= kHigh || s.channels_last : (power(s.in_channels) && power(s.out_channels)) || (side == 16 && narrow >= kSomeChannels);
  const bool bounded = s.in_h <= kLow || rows <= (few ? kMostRowsOfFew : kMostRows);
  return s.batch > kImages && enough && suited && bounded ? FourierWay{side} : FourierWay{};
}

// The input's gradient, tiles of 32 of which 30 are new each way.
FourierWay tiled_images(const ConvShape& s, std::int64_t rows, std::int64_t narrow) {
  constexpr std::int64_t kSide = 32, kNew = 30, kRows = 8152, kLeastImage = 28, kFewInputs = 138, kMostSide = 72, kMultiple = 64, kFlat = 8, kVeryFewInputs = 8;
  if (rows <= kRows || std::min(s.in_h, s.in_w) <= kFlat || s.in_channels <= kVeryFewInputs) return {};
  const std::int64_t planes = s.batch * s.in_channels;
  const bool small = std::max(s.in_h, s.in_w) < kLeastImage;
  const bool few = s.in_channels <= kFewInputs && planes > 330 && (small ? narrow > 48 : narrow <= 44 || narrow > 56);
  const bool many = !small && s.in_channels > kFewInputs && planes > 496 && s.in_channels * s.out_channels > 61'568 && std::min(s.in_h, s.in_w) <= kMostSide &&
                    s.in_channels % kMultiple == 0 && s.out_channels % kMultiple == 0;
  return few || many ? FourierWay{kSide, divide_up(s.in_h, kNew) * divide_up(s.in_w, kNew)} : FourierWay{};
}

}  // namespace

// cuDNN 9.19 on Hopper: thresholds between what 2,093 forward calls and 2,089 data gradients of 3x3 filters took (choices.jsonl.gz of the files below and of
// 2026-11-18-h200-conv-fp32). Of 194 and 432 that were transformed 90 and 333 are found, 72 and 148 are made up. Forests over 35 features of the shape, judged on calls that
// they had not seen, do no better (77 and 328 found, 43 and 137 made up): shapes that hardly differ go either way, some of them to a thousand tiles in turn. Memory that is
// short goes another way too.
FourierWay fourier_way(const ConvShape& s) {
  if (s.axes != 2 || s.kernel_h != 3 || s.kernel_w != 3 || s.strides() != 1 || s.groups != 1 || s.dilation != 1) return {};
  const std::int64_t rows = s.batch * s.in_h * s.in_w, narrow = std::min(s.in_channels, s.out_channels);
  if (s.direction == ConvDirection::forward) return whole_images(s, rows, narrow);
  return s.direction == ConvDirection::data_gradient ? tiled_images(s, rows, narrow) : FourierWay{};
}

// Of 221 timings of 3x3 filters that this finds (data/measured, family grouped) half are within 14% with transpositions; without they came out twice too fast.
bool turns_groups(const ConvShape& s) {
  constexpr std::int64_t kRows = 1500, kWidth = 48, kFewGroups = 5;
  const std::int64_t in = s.in_channels / s.groups, out = s.out_channels / s.groups, narrow = std::min(in, out), rows = s.batch * s.out_h * s.out_w;
  const auto power = [](std::int64_t x) { return std::has_single_bit(static_cast<std::uint64_t>(std::max<std::int64_t>(1, x))); };
  if (s.channels_last || s.kernel_h != 3 || s.kernel_w != 3 || rows <= kRows) return false;
  if (narrow < kWidth && (narrow < kWideGroup || s.groups > kFewGroups || s.strides() > 1)) return false;
  if (out > in && power(in) && power(out)) return false;
  return s.direction == ConvDirection::forward || (s.direction == ConvDirection::data_gradient && s.strides() == 1 && narrow < kTile);
}

// Rules of cuDNN 9.19 on Hopper, from the kernels of 40,000 convolutions (data/measured, choices.jsonl.gz of 2026-11-16-h200-conv and its successors).
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
  const std::int64_t pixels = s.out_h * s.out_w, rows = s.batch * pixels, narrow = std::min(s.in_channels, s.out_channels);
  const bool weight = s.direction == ConvDirection::weight_gradient, data = s.direction == ConvDirection::data_gradient;
  if (s.groups > 1) {
    helpers = grouped_helpers(s, math, tensor_cores);
    if (!tensor_cores || helpers.loops > 1) return helpers;
  } else if (!tensor_cores) {
    if (pointwise && !s.channels_last) {
      helpers.prepares = data && narrow > kTile && divide_up(rows, kTile) * divide_up(s.in_channels, kTile) * 4 > 3 * gpu.sms;
      helpers.clears = weight && !turns_pointwise(s, math, false);
      return helpers;
    }
    if (three && width > 4 && weight) {
      helpers.inner = width > kWideGroup && rows > kWaveRows ? 3 : 0;  // Winograd
      helpers.clears = helpers.inner == 0;
    }
    // Of whole images the filter is flipped, and it and they are transformed and the result is; of tiles three kernels each, with the product.
    const FourierWay fourier = fourier_way(s);
    if (fourier.side > 0) helpers.inner = data ? static_cast<int>(3 * fourier.tiles) : 4;
    else if (data && !pointwise) helpers.prepares = s.out_channels > kTile / 2;
    if (weight && !three) helpers.clears = true;
    return helpers;
  }
  if (pointwise && s.channels_last && is_16bit(math)) {  // one product over all images; its tiles are narrow, and no counter was seen
    helpers.sums = weight && product_helpers({1, s.out_channels, s.in_channels, rows, true}, math, gpu).reduces;
    return helpers;
  }
  const bool hopper = gpu.capability() >= 90, tf32 = math == DType::tf32;
  const double work = static_cast<double>(rows) * static_cast<double>(weights);
  if (pointwise && pixels > 1 && !s.channels_last) {  // a product per image
    if (weight) {
      helpers.sums = weights <= kFewWeights || pixels > (tf32 ? 90 : 272);
      helpers.prepares = hopper && tf32 && turns_pointwise(s, math, true);
    } else if (tf32) {
      helpers.clears = hopper && work > 2.7e9;
    } else {
      helpers.clears = product_helpers({s.batch, pixels, data ? s.in_channels : s.out_channels, data ? s.out_channels : s.in_channels}, math, gpu).clears && pixels % 8 == 0;
    }
  }
  if (!weight && (!pointwise || s.channels_last) && hopper) {  // tiles handed out by a counter
    const std::int64_t made = data ? s.batch * s.in_h * s.in_w : rows, channels = data ? s.in_channels : s.out_channels;
    helpers.clears = divide_up(made, kTile) * divide_up(channels, kTile) > (tf32 ? 1 : 2) * gpu.sms;
  }
  if (weight && !pointwise && hopper) {
    if (s.groups > 1) helpers.prepares = rows >= kManyRows;
    else if (tf32) helpers.prepares = work * static_cast<double>(s.kernel_h * s.kernel_w) > 1.1e9 || weights > 447'000;
    else helpers.prepares = rows * 5 > weights * 6 || s.in_channels > 680;
    helpers.sums = s.groups == 1 && rows > 8 * weights;
  }
  if (s.groups == 1 && !pointwise && is_16bit(math)) helpers.pads = s.in_channels % 8 != 0 ? 2 : s.out_channels % 8 != 0 ? 1 : 0;
  return helpers;
}

bool turns_pointwise(const ConvShape& s, DType math, bool tensor_cores) {
  if (s.channels_last) return false;
  const std::int64_t pixels = s.out_h * s.out_w, weights = s.in_channels * s.out_channels, rows = s.batch * pixels;
  if (s.direction != ConvDirection::weight_gradient) {  // small images of many whose rows are not aligned, and many results of many images
    const bool forward = s.direction == ConvDirection::forward;
    if (forward && is_16bit(math) && tensor_cores && pixels > 1 && s.batch > 56 && s.out_channels > 288) return true;
    if (!tensor_cores || pixels <= 1 || pixels % 8 == 0 || pixels > (forward ? 99 : 65) || s.batch < 12) return false;
    return math != DType::tf32 || !forward || s.in_channels > 704;
  }
  const double work = static_cast<double>(rows) * static_cast<double>(weights);
  if (!tensor_cores) return weights >= 4 * kTile * 4 * kTile;
  if (math == DType::tf32) return pixels > 1 && ((pixels <= 90 && work > 2e8) || (s.batch > 64 && pixels % 8 != 0 && weights >= 8 * kTile * kTile));
  return pixels > 1 && pixels <= 4 * kTile && (weights > 480'000 || (rows < kManyRows && work > 6e8));
}

}  // namespace precog
