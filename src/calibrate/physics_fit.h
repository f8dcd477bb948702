// The coefficients of the physics from timings: least squares on logarithms, soft on outliers, each coefficient held to where
// it starts by a spring. With many rows the data decide; with thirty, the springs keep what the data say nothing about, so
// that the same function carries a relative's coefficients over to a GPU after a short measurement.
// Takes rows of reference_data.h and a start, returns coefficients. What no formula explains is left to residual.h.
#pragma once

#include <span>

#include "calibrate/paged_attention.h"
#include "calibrate/reference_data.h"
#include "calibrate/scaled_products.h"
#include "cost/profile.h"
#include "spec/gpu_spec.h"

namespace precog {

// What was in the timings beside the kernel: calls repeated on operands that the L2 cache may still hold, a clock that falls only
// once a product lasts, and a pass before the kernel. Fitted beside the physics, and dropped: a prediction has the operands in memory and the passes as kernels.
struct Timing {
  double residency = 0.75;         // share of the L2 cache that earlier calls' operands can be found in
  double l2_bytes_per_clock = 12;  // per SM, of operands found there
  double eviction = 3;             // how sharply weights that go round are lost when they no longer fit: the power of the fill
  double slower_later = 0;         // of a product that keeps the tensor cores busy for long: the clock falls to what the power allows
  Seconds later{2e-4};             // of work at the peak: half of that is seen
  Seconds pass_floor{2e-6};
  double pass_bytes = 5;           // moved per element of the pass
};

struct Physics {
  ArchitectureProfile profile;
  Timing timing;
  PagedAttention paged;  // of rows that are so
  ScaledProducts scaled;
};

struct Knob {
  double& (*of)(Physics& physics, DType math);
  double spread;  // standard deviation of its logarithm around the start
};

// Of products in the first type fitted, of a further type on top of that, of scaled products, of attention, of attention over pages.
std::span<const Knob> product_knobs();
std::span<const Knob> further_type_knobs();
std::span<const Knob> scaled_product_knobs();
std::span<const Knob> attention_knobs();
std::span<const Knob> paged_attention_knobs();

// The time of a row as its source took it.
double seconds_of(const ReferenceRow& row, const GpuSpec& gpu, const Physics& physics);

// `factors` (empty, or one per row) multiply what the physics say: corrections that stay as they are. `stiffness` divides the
// knobs' spreads.
Physics fit_physics(std::span<const ReferenceRow> rows, std::span<const double> factors, const GpuSpec& gpu, const Physics& start, std::span<const Knob> knobs,
                    double stiffness = 1);

}  // namespace precog
