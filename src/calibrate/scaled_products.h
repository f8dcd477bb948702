// Time of fp8 products as vLLM runs them on Ada: CUTLASS 2 kernels whose tile follows from the shape alone, never split, whatever the GPU
// (csrc/quantization/cutlass_w8a8/scaled_mm_c2x_sm89_fp8_dispatch.cuh), scaled by row and column as their results are stored, which is slow.
// The reference timings of fp8 on L40S are of these, not of torch._scaled_mm, which a training step calls: so the coefficients stand
// beside the physics of src/cost and serve to say how far they carry; no prediction uses them.
#pragma once

#include <array>
#include <cstddef>

#include "cost/gemm_cost.h"

namespace precog {

struct ScaledTile {
  int m, n;
  friend bool operator==(const ScaledTile&, const ScaledTile&) = default;
};
inline constexpr std::array<ScaledTile, 9> kScaledTiles = {{{16, 64}, {16, 128}, {32, 64}, {32, 128}, {64, 64}, {64, 128}, {128, 128}, {128, 64}, {256, 128}}};

std::size_t scaled_tile(double m, double n);  // which of them runs

struct ScaledProducts {
  double results_per_clock = 1;                           // that one SM scales and stores while all do ...
  std::array<double, kScaledTiles.size()> pace = {1, 1, 1, 1, 1, 1, 1, 1, 1};  // ... times what a tile's kernel makes of it
  double alone = 0.5;                                     // of that time, when hardly any other block stores
  Seconds row{2e-9};                                      // of activations, in the pass that quantises them: its scale
};

// `problem.bytes` are those that have to come from memory; no pass beside it.
double scaled_product_seconds(const GemmProblem& problem, const GpuSpec& gpu, const GemmCoefficients& coefficients, const ScaledProducts& scaled);

}  // namespace precog
