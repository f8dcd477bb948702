// How well costs carry to a GPU that nobody measured: each GPU of the reference data is left out in turn, its coefficients are
// taken from its nearest relative and scaled by the datasheets, and what the formulae leave is corrected by trees that learned
// on the others. Then thirty of its timings are shown, and last, for comparison, all but a fifth of its shapes.
// Takes the folder of the reference data and the GPUs, returns errors per GPU, family and type, and what they look like in print.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "calibrate/physics_fit.h"

namespace precog {

struct CarriedError {  // of predicted over measured - 1, as fractions
  double median = 0, p95 = 0, bias = 0;
};

struct CarriedGroup {
  std::string gpu, family, dtype, relative;
  std::size_t rows = 0;
  CarriedError datasheet;  // the relative's coefficients, scaled: no trees
  CarriedError carried;    // with the trees of all the others
  CarriedError thirty;     // after thirty timings: the middle one of several draws
  double thirty_least = 0, thirty_most = 0;  // the medians of the best and the worst draw
  CarriedError held_out;   // a known GPU on shapes it was not fitted to
  double roughness = 0;    // how far a timing lies from its neighbours' line, in the median: what no smooth model can explain
};

struct CarryOverOptions {
  std::size_t rows = 2000;   // of each GPU and type, at most
  int trees = 120;
  int draws = 5;             // of thirty timings
  bool bf16_and_its_kin = false;  // no other types, but fp8 where its relative is bf16
};

Result<std::vector<CarriedGroup>> carry_over(const std::filesystem::path& measured_ops, const std::vector<GpuSpec>& gpus, const CostProfile& profile, const CarryOverOptions& options);

std::string carry_over_page(const std::vector<CarriedGroup>& groups, const CarryOverOptions& options);  // docs/carry_over.md

}  // namespace precog
