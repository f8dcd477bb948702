#include "kernel/library_space.h"

#include <algorithm>
#include <bit>

#include "kernel/library_rules.h"

namespace precog {
namespace {

constexpr std::int64_t kFloat = 4, kComplex = 8;

std::int64_t up(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit; }
std::int64_t power_below(std::int64_t value) { return static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(std::max<std::int64_t>(1, value)))); }

// Half of the frequencies of a real image: the others are their conjugates.
std::int64_t plane(std::int64_t side) { return side * (side / 2 + 1) * kComplex; }

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
  const FourierWay way = fourier_way(s);
  if (way.side == 0) return {};
  const std::int64_t filters = s.in_channels * s.out_channels;
  // Images, filters, and as much for their other order; tiles go two at a time, with those of the result.
  if (s.direction == ConvDirection::forward) return Bytes{2 * plane(way.side) * (s.batch * s.in_channels + filters) + filters * s.kernel_h * s.kernel_w * kFloat};
  return Bytes{plane(way.side) * (filters + std::min<std::int64_t>(2, way.tiles) * s.batch * (s.in_channels + s.out_channels))};
}

Bytes embedding_space(std::int64_t words, std::int64_t width, std::int64_t tokens) {
  constexpr std::int64_t kFewTokens = 3072, kTokensOfThread = 10;
  return tokens <= kFewTokens ? Bytes{} : Bytes{(std::min(words, tokens) + tokens / kTokensOfThread) * width * kFloat};
}

}  // namespace precog
