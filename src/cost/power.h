// What a power limit does to minutes of training. Kernels are timed in milliseconds, at a clock that the GPU cannot keep when
// such kernels follow each other for seconds: it lowers the clock until the average power is what it is allowed. So each
// kernel draws a power at full clock; their average over the step, waiting included, says how far the clock must fall; what
// the SMs bound slows down by that, what the memory bounds does not. Pure functions; architectures without coefficients keep
// their clock (their efficiencies were fitted to runs of seconds, or say that they are estimates).
#pragma once

#include <array>

#include "cost/cost.h"

namespace precog {

struct PowerCoefficients {
  Watts idle;       // clocks up, nothing running
  Watts streaming;  // one long memory-bound kernel after another
  Watts limit;      // of the GPU all this was measured on
  double exponent = 0;  // dynamic power goes by clock^this, the voltage falling with it; 0: no coefficients
  // In one arithmetic: the rate that matrix products keep up for seconds, of that in milliseconds. Says what power they would draw.
  std::array<double, kDTypeCount> kept_rate{};
};

// Power of the whole GPU while a kernel runs at full clock.
class FullClockPower {
 public:
  FullClockPower(const GpuSpec& gpu, const ArchitectureProfile& profile);
  Watts operator()(const Kernel& kernel, const KernelCost& cost) const;

 private:
  const GpuSpec& gpu_;
  const ArchitectureProfile& profile_;
  std::array<double, kDTypeCount> drawn_{};  // watts beyond idle, by tensor cores at their peak
};

// The clock that keeps the average within the GPU's limit, as a share of the full clock: 1 where it need not fall.
double kept_clock(Watts average, const GpuSpec& gpu, const ArchitectureProfile& profile);

// The same kernel at that clock.
KernelCost at_clock(KernelCost cost, double clock);

}  // namespace precog
