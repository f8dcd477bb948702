#include "cost/power.h"

#include <algorithm>
#include <cmath>

#include "cost/profile.h"

namespace precog {

FullClockPower::FullClockPower(const GpuSpec& gpu, const ArchitectureProfile& profile) : gpu_(gpu), profile_(profile) {
  const PowerCoefficients& c = profile.power;
  for (std::size_t math = 0; math < drawn_.size(); ++math)
    if (c.exponent > 0 && c.kept_rate[math] > 0) drawn_[math] = (c.limit.value - c.idle.value) / std::pow(c.kept_rate[math], c.exponent);
}

Watts FullClockPower::operator()(const Kernel& kernel, const KernelCost& cost) const {
  const PowerCoefficients& c = profile_.power;
  if (c.exponent <= 0 || cost.total.value <= 0) return {};
  const double seconds = cost.total.value;
  const double moved = static_cast<double>(kernel.read.value + kernel.written.value) / (seconds * gpu_.memory_bandwidth.value);
  double drawn = (c.streaming.value - c.idle.value) * std::min(1.0, moved);
  const auto math = static_cast<std::size_t>(kernel.math);
  const double peak = gpu_.matrix.has(kernel.math) ? gpu_.matrix[kernel.math].value * profile_.gemm.math[math].efficiency : 0;
  if (peak > 0 && c.kept_rate[math] > 0)  // tensor cores; ordinary ones never came near the limit
    drawn += drawn_[math] * std::min(1.0, kernel.flops.value / (seconds * peak));
  return {c.idle.value + drawn};
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
