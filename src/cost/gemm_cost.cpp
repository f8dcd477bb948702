#include "cost/gemm_cost.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace precog {
namespace {

struct Tile {
  int m, n;
};
constexpr std::array<Tile, 10> kTiles = {{{256, 128}, {128, 256}, {128, 128}, {128, 64}, {64, 128},
                                          {64, 64}, {64, 32}, {32, 64}, {16, 64}, {32, 32}}};
constexpr std::array<int, 10> kSplits = {1, 2, 3, 4, 6, 8, 16, 32, 64, 128};
constexpr double kStep = 32;        // k is walked in steps of this
constexpr double kEnoughWaves = 4;  // beyond, splitting k further cannot fill the GPU better
constexpr double kMostOverlap = 4;  // times the p of short products, and once more
constexpr int kMostSplits = 32;     // where the largest tile is taken ...
constexpr double kPipeline = 128;   // ... and how much of k is under way at once: less does not fill it

double fourth(double x) { return (x * x) * (x * x); }
double fourth_root(double x) { return std::sqrt(std::sqrt(x)); }

// std::ceil is a library call on the oldest x86-64; this stage is asked thousands of times per prediction.
double ceiling(double x) {
  const auto whole = static_cast<double>(static_cast<std::int64_t>(x));
  return whole < x ? whole + 1 : whole;
}

}  // namespace

double joined(double a, double b, double p) {
  const double high = std::max(a, b), low = std::min(a, b);
  if (low <= 0) return high;
  return high * std::pow(1 + std::pow(low / high, p), 1 / p);
}

GemmTime gemm_time(const GemmProblem& x, const GpuSpec& gpu, const GemmCoefficients& c) {
  const double sms = gpu.sms, clock = gpu.boost_clock.value, bandwidth = gpu.memory_bandwidth.value;
  const double flops_per_sm = x.peak.value * x.efficiency / sms;
  const double feed_rate = c.l2_bytes_per_clock * clock;
  const double latency = x.k_latency_clocks * x.element_bytes / 2 / clock;
  const double memory = x.bytes / (bandwidth * c.bandwidth_efficiency);

  struct Prepared {
    double blocks, work4, work;  // per step of k, arithmetic and feed joined; to the fourth power, and as it is
    double stored;               // how long a block's results are on their way out
    bool chosen_from;
  };
  std::array<Prepared, kTiles.size()> tiles;
  double fewest_blocks = std::numeric_limits<double>::infinity(), least_area = 0;
  for (std::size_t i = 0; i < kTiles.size(); ++i) {
    const double tm = kTiles[i].m, tn = kTiles[i].n;
    const double blocks = x.batch * ceiling(x.m / tm) * ceiling(x.n / tn);
    const double work4 = fourth(2 * tm * tn / flops_per_sm) + fourth((tm + tn) * x.element_bytes / feed_rate);
    const double stored = c.results_per_clock > 0 ? std::min(tm, x.m) * std::min(tn, x.n) / (c.results_per_clock * clock) : 0;
    tiles[i] = {blocks, work4, fourth_root(work4), stored, tm * tn >= least_area};
    if (c.largest_tile && x.batch * x.m * x.n >= tm * tn * sms) least_area = std::max(least_area, tm * tn);  // they come by size
    fewest_blocks = std::min(fewest_blocks, blocks);
  }

  GemmTime best;
  best.total = {std::numeric_limits<double>::infinity()};
  for (int split : kSplits) {
    if (split > 1 && !x.may_split) break;
    if (split > kMostSplits && c.largest_tile) break;
    if (split > 1 && fewest_blocks * (split - 1) / sms >= kEnoughWaves) break;
    const double kk = ceiling(x.k / split / kStep) * kStep;
    if (split > 1 && kk * (split - 1) >= x.k) continue;  // some split would have nothing to do
    const double filling = c.tile_overhead.value * (c.largest_tile ? kk / (kk + kPipeline) : 1);
    double compute = std::numeric_limits<double>::infinity();
    std::size_t chosen = 0;
    for (std::size_t i = 0; i < kTiles.size(); ++i) {
      if (!tiles[i].chosen_from) continue;
      const double w = tiles[i].blocks * (split / sms);
      if (std::max(w, 1.0) * kk * tiles[i].work >= compute) continue;  // could not be faster
      const double waves = w <= 1 ? 1 : w + c.wave_quantisation * (ceiling(w) - w);
      const double share = c.largest_tile ? 1 : std::clamp(w, 1.0, 2.0);  // two blocks on one SM hide each other's latency
      const double per_k = fourth_root(tiles[i].work4 + fourth(latency / share));
      const double time = waves * ((filling + tiles[i].stored) / share + kk * per_k);
      if (time < compute) {
        compute = time;
        chosen = i;
      }
    }
    const double sums = split > 1 ? c.split_overhead.value + 8.0 * split * x.batch * x.m * x.n / (bandwidth * c.l2_gain) : 0;
    const double launch = c.launch_floor.value + sums;
    if (launch + std::max(compute, memory) >= best.total.value) continue;  // nor could this split
    const double longer = c.overlap_growth.value > 0 ? std::min(kMostOverlap, std::max(compute, memory) / c.overlap_growth.value) : 0;
    const double total = launch + joined(compute, memory, c.overlap_norm * (1 + longer));
    if (total < best.total.value) {
      const double fill = std::min(compute, c.tile_overhead.value);  // filling and draining one block: time that no work fills
      best = {{compute - fill}, {memory}, {launch + fill}, {total}, kTiles[chosen].m, kTiles[chosen].n, split};
    }
  }
  return best;
}

}  // namespace precog
