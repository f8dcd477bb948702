// Time of one matrix product: the fastest of the tilings and k-splits a library would choose from.
// Takes plain numbers so that convolutions can be costed as the products they are; knows nothing of operators.
#pragma once

#include <cstdint>

#include "base/units.h"
#include "cost/profile.h"
#include "spec/gpu_spec.h"

namespace precog {

struct GemmProblem {
  double batch = 1, m = 1, n = 1, k = 1;
  double element_bytes = 2;      // of one input element
  double bytes = 0;              // moved at least: both inputs and the output
  FlopsPerSecond peak;           // of the unit that runs it
  double efficiency = 1;         // of that peak, all factors in
  double k_latency_clocks = 0;
  bool may_split = true;         // the sum between several blocks
};

struct GemmTime {
  Seconds compute, memory, launch, total;  // launch: all that is fixed, a block's fill and split-K's extra pass too
  int tile_m = 0, tile_n = 0, split = 1;   // what was chosen
};

GemmTime gemm_time(const GemmProblem& problem, const GpuSpec& gpu, const GemmCoefficients& coefficients);

// (a^p + b^p)^(1/p): two resources that overlap in part. p = 1 adds, p -> infinity takes the larger.
double joined(double a, double b, double p);

}  // namespace precog
