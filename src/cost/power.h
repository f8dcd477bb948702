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
  double exponent = 0;  // dynamic power goes by clock^this, the voltage falling with it; 0: no coefficients
  // Of tensor cores at full clock, by arithmetic, beyond idle; 0: never near the limit. What products draw follows from how far they fall
  // behind over seconds at a known limit.
  std::array<double, kDTypeCount> watts_per_tflops{};
};

// Power of the whole GPU while a kernel runs at full clock.
Watts full_clock_power(const Kernel& kernel, const KernelCost& cost, const GpuSpec& gpu, const PowerCoefficients& power);

// The clock that keeps the average within the GPU's limit, as a share of the full clock: 1 where it need not fall.
double kept_clock(Watts average, const GpuSpec& gpu, const ArchitectureProfile& profile);

// The same kernel at that clock.
KernelCost at_clock(KernelCost cost, double clock);

}  // namespace precog
