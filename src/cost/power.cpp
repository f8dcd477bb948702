#include "cost/power.h"

#include <algorithm>
#include <cmath>

#include "cost/profile.h"

namespace precog {

Watts full_clock_power(const Kernel& kernel, const KernelCost& cost, const GpuSpec& gpu, const PowerCoefficients& power) {
  if (power.exponent <= 0 || cost.total.value <= 0) return {};
  const double moved = static_cast<double>(kernel.read.value + kernel.written.value) / (cost.total.value * gpu.memory_bandwidth.value);
  const double streaming = (power.streaming.value - power.idle.value) * std::min(1.0, moved);
  const double computing = power.watts_per_tflops[static_cast<std::size_t>(kernel.math)] * kernel.flops.value / cost.total.value * 1e-12;
  return {power.idle.value + streaming + computing};
}

double kept_clock(Watts average, const GpuSpec& gpu, const ArchitectureProfile& profile) {
  const PowerCoefficients& c = profile.power;
  if (c.exponent <= 0 || average <= gpu.power || gpu.power <= c.idle) return 1;
  return std::pow((gpu.power.value - c.idle.value) / (average.value - c.idle.value), 1 / c.exponent);
}

KernelCost at_clock(KernelCost cost, double clock) {
  if (cost.bound != Bound::compute || clock >= 1) return cost;
  const Seconds worked = cost.total - cost.launch;
  cost.total = cost.launch + worked * (1 / clock);
  cost.compute = cost.compute * (1 / clock);
  return cost;
}

}  // namespace precog
