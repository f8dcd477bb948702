#include "kernel/library_space.h"

#include <algorithm>
#include <bit>

namespace precog {
namespace {

constexpr std::int64_t kFloat = 4, kComplex = 8;

std::int64_t up(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit; }
std::int64_t power_below(std::int64_t value) { return static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(std::max<std::int64_t>(1, value)))); }

// Half of the frequencies of a real image: the others are their conjugates.
std::int64_t plane(std::int64_t side) { return side * (side / 2 + 1) * kComplex; }

// Filters are transformed once for all images or tiles. Of 8 images no measured forward was, of 32 many were; gradients that were, of 4
// and 8 images, had many tiles. Between 8 and 32, the middle.
constexpr std::int64_t kEnoughImages = 17;

// Forward: the whole image at once, in a square of the next power of two. Images, filters, and as much for their other order.
Bytes whole_images(const ConvShape& s) {
  const std::int64_t image = std::max(s.in_h, s.in_w), side = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(image + s.kernel_h - 1)));
  const std::int64_t work = s.batch < kEnoughImages ? 0 : s.batch * s.in_channels * s.out_channels;
  const std::int64_t least = side == 16 ? 4'000'000 : side == 32 ? 500'000 : side == 64 ? 1'500'000 : 0;
  if (least == 0 || work < least || image * 4 < side * 3) return {};
  const std::int64_t filters = s.in_channels * s.out_channels;
  return Bytes{2 * plane(side) * (s.batch * s.in_channels + filters) + filters * s.kernel_h * s.kernel_w * kFloat};
}

// The input's gradient: tiles of 32, of which the filter's edge is lost, two at a time.
Bytes tiled_images(const ConvShape& s) {
  constexpr std::int64_t kTransformed = 32, kLeastImage = 28, kLeastFilters = 1200, kMostFilters = 1'300'000'000;
  const std::int64_t filters = s.in_channels * s.out_channels, transformed = filters * plane(kTransformed);
  const std::int64_t used = kTransformed - s.kernel_h + 1, tiles = up(s.in_h, used) * up(s.in_w, used);
  if (std::min(s.in_h, s.in_w) < kLeastImage || filters < kLeastFilters || s.batch * tiles < kEnoughImages || transformed > kMostFilters) return {};
  return Bytes{transformed + std::min<std::int64_t>(2, tiles) * plane(kTransformed) * s.batch * (s.in_channels + s.out_channels)};
}

}  // namespace

Bytes column_sum_space(std::int64_t outputs, std::int64_t length, int sms) {
  constexpr std::int64_t kThreads = 512, kWarp = 32, kThreadsOfProcessor = 2048, kLeastPerThread = 256, kFewPerThread = 16;
  const std::int64_t together = outputs % 4 == 0 ? 4 : 1;  // columns of a thread
  const std::int64_t threads = kThreads / together, columns = std::min(threads, power_below(outputs / together)), rows = std::min(threads, power_below(length));
  std::int64_t width = std::min(columns, kWarp);
  const std::int64_t height = std::min(rows, threads / width);
  width = std::min(columns, threads / height);
  const std::int64_t each = up(length, height);
  if (outputs <= 1 || each < kLeastPerThread) return {};
  const std::int64_t grid = up(outputs, width * together), target = sms * (kThreadsOfProcessor / (width * height));
  if (grid > target) return {};
  const std::int64_t blocks = std::max(std::min(up(target, grid), up(each, kFewPerThread)), up(each, kLeastPerThread));
  return blocks > 1 ? Bytes{kFloat * outputs * blocks * width * together} : Bytes{};
}

Bytes fourier_space(const ConvShape& s) {
  if (s.axes != 2 || s.kernel_h != 3 || s.kernel_w != 3 || s.strides() != 1 || s.groups != 1 || s.dilation != 1) return {};
  if (s.direction == ConvDirection::forward) return whole_images(s);
  return s.direction == ConvDirection::data_gradient ? tiled_images(s) : Bytes{};
}

Bytes embedding_space(std::int64_t words, std::int64_t width, std::int64_t tokens) {
  constexpr std::int64_t kFewTokens = 3072, kTokensOfThread = 10;
  return tokens <= kFewTokens ? Bytes{} : Bytes{(std::min(words, tokens) + tokens / kTokensOfThread) * width * kFloat};
}

}  // namespace precog
