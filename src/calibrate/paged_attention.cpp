#include "calibrate/paged_attention.h"

#include <algorithm>
#include <cmath>

#include "cost/gemm_cost.h"

namespace precog {

double paged_attention_seconds(const AttentionShape& shape, const GpuSpec& gpu, FlopsPerSecond peak, const PagedAttention& c, double memory) {
  const auto real = [](std::int64_t v) { return static_cast<double>(v); };
  const double seq = real(shape.q_len), dim = real(shape.head_dim), sms = gpu.sms;
  const double rows = 64, columns = dim <= 64 ? 256 : dim <= 128 ? 128 : 64;  // of a tile, whatever the GPU
  const double blocks = std::ceil(seq / rows), longest = std::ceil(seq / columns) * columns;
  // Keys that a causal block meets, in whole tiles.
  const double before = rows * (blocks - 1) * blocks / 2 + (columns > rows ? (blocks - 1) * (columns - rows) / 2 : 0);
  const double keys = std::min(longest, (before + longest) / blocks);
  const double waves = real(shape.batch * shape.heads) * blocks / sms;
  const double narrow = std::pow(std::min(1.0, dim / 128), c.head_dim_exponent);
  const double idle = c.power < 1 ? std::min(1 / c.power, std::max(1.0, 1 / waves)) : 1;  // power is short when all SMs are busy
  const double per_key = 4 * rows * dim / (peak.value / sms * c.efficiency * c.power * idle * narrow);
  const double overhead = c.block_overhead.value + c.block_load.value * std::min(seq, rows) / 64 * dim / 128 +
                          c.mask_clocks * rows * std::min(seq, columns) / gpu.boost_clock.value;
  const double block = overhead + per_key * keys;
  const double together = (waves + c.tail * std::min(waves, 1.0)) * block;
  const double alone = c.first_block.value + c.alone * (overhead + per_key * longest);
  double compute = joined(together, alone, c.longest_norm);
  const double used = narrow * keys / (keys + overhead / per_key);  // of the time, by the tensor cores
  compute *= 1 + c.slower_later * used * compute / (compute + c.later.value);
  return c.launch_floor.value + joined(compute, memory, c.overlap_norm);
}

}  // namespace precog
