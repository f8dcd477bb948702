#include "calibrate/scaled_products.h"

#include <algorithm>
#include <cmath>

namespace precog {
namespace {

constexpr double kWalked = 64;      // k is walked in steps of this
constexpr double kUnderWay = 128;   // of k, loaded at once before the first step: no wait of its own
constexpr double kEvened = 0.5;     // of a last wave's missing blocks: their share of the stores is still paid
constexpr double kMostOverlap = 4;  // as in gemm_time

}  // namespace

std::size_t scaled_tile(double m, double n) {
  const double columns = std::exp2(std::ceil(std::log2(std::max(1.0, n))));  // the dispatch asks for the next power of two
  const ScaledTile tile = m <= 16    ? columns <= 8192 ? ScaledTile{16, 64} : columns <= 24576 ? ScaledTile{16, 128} : ScaledTile{32, 64}
                          : m <= 32  ? columns > 8192 && columns <= 16384 ? ScaledTile{32, 128} : ScaledTile{32, 64}
                          : m <= 64  ? columns > 8192 && columns <= 16384 ? ScaledTile{64, 128} : ScaledTile{64, 64}
                          : m <= 128 ? columns <= 8192 ? ScaledTile{64, 128} : columns <= 16384 ? ScaledTile{128, 128} : ScaledTile{128, 64}
                          : m <= 256 ? columns <= 4096 ? ScaledTile{64, 128} : ScaledTile{128, 128}
                                     : columns > 4096 && columns <= 8192 ? ScaledTile{256, 128} : ScaledTile{128, 128};
  return static_cast<std::size_t>(std::find(kScaledTiles.begin(), kScaledTiles.end(), tile) - kScaledTiles.begin());
}

double scaled_product_seconds(const GemmProblem& x, const GpuSpec& gpu, const GemmCoefficients& c, const ScaledProducts& scaled) {
  const std::size_t which = scaled_tile(x.m, x.n);
  const double tm = kScaledTiles[which].m, tn = kScaledTiles[which].n;
  const double sms = gpu.sms, clock = gpu.boost_clock.value;
  const double w = x.batch * std::ceil(x.m / tm) * std::ceil(x.n / tn) / sms, missing = w > 1 ? std::ceil(w) - w : 0;
  const double waves = std::max(1.0, w) + c.wave_quantisation * missing;
  const double kk = std::ceil(x.k / kWalked) * kWalked;
  const double arithmetic = 2 * tm * tn / (x.peak.value * x.efficiency / sms), feed = (tm + tn) * x.element_bytes / (c.l2_bytes_per_clock * clock);
  const double wait = x.k_latency_clocks * x.element_bytes / 2 / clock * std::max(0.0, kk - kUnderWay) / kk;
  const double per_k = joined(joined(arithmetic, feed, 4), wait, 4);
  const double stored = tm * tn / (scaled.results_per_clock * scaled.pace[which] * clock);
  const double compute = c.tile_overhead.value + waves * kk * per_k + stored * joined(scaled.alone, w + kEvened * missing, 3);
  const double memory = x.bytes / (gpu.memory_bandwidth.value * c.bandwidth_efficiency);
  const double longer = c.overlap_growth.value > 0 ? std::min(kMostOverlap, std::max(compute, memory) / c.overlap_growth.value) : 0;
  return c.launch_floor.value + joined(compute, memory, c.overlap_norm * (1 + longer));
}

}  // namespace precog
