// Measured operators -> a fitted profile of one GPU, and how well it does on shapes it has never seen. A fifth of the shapes,
// chosen by a hash of the shape (all types, layouts and directions of one together), is held out: never fitted, only judged.
// A short measurement corrects what is carried over from a relative (short_measurement.h); there a fit without the held-out fifth
// is judged, and the profile is then fitted to all rows, which are too few to leave any out.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "calibrate/measurements.h"

namespace precog {

struct CalibrationRow {  // one group of the report, on held-out shapes; errors as fractions
  std::string family, dtype;  // dtype "all": the family's sum
  std::size_t rows = 0;
  double median = 0, p95 = 0, bias = 0;
  double physics_median = 0, physics_p95 = 0, physics_bias = 0;
  double covered = 0;  // share inside the profile's 80% interval
};

struct Calibration {
  FittedProfile profile;
  std::vector<CalibrationRow> groups;    // products, convolutions, attention, what is bound by memory, the rest
  std::vector<CalibrationRow> families;  // by family and dtype
  std::size_t fitted = 0, held_out = 0;
  std::size_t warm = 0;                  // of the fitted: timed on operands that stayed in the L2 cache; told apart, predictions are of the others
  bool from_few = false;                 // a short measurement: the profile is fitted to the held-out rows, too, after they have judged
  std::size_t chilled = 0;               // not used: kept out of the cache, but so few that in a step they would be in it
};

struct CalibrateOptions {
  const FittedProfile* base = nullptr;  // what is fitted comes on top of this: of trees, where the measurement is short
  std::optional<bool> from_few;         // whether that is so: by default, as is_short says
  std::function<void(std::size_t done, std::size_t all)> progress;
};

// Too few rows for a profile of its own: what is carried over is corrected. Two minutes of precog.profile are 1,600 rows, ten 8,700.
bool is_short(const Measurements& measurements);

// A measured shape is held out: the same on every machine, whatever else is in the files.
bool is_held_out(std::uint32_t shape);

Calibration calibrate(const Measurements& measurements, const GpuSpec& gpu, const ArchitectureProfile& physics, const CalibrateOptions& options = {});

std::string to_text(const Calibration& calibration, const Measurements& measurements);
Json to_json(const Calibration& calibration, const Measurements& measurements);
std::string to_markdown(const Calibration& calibration, const Measurements& measurements, const GpuSpec& gpu);

}  // namespace precog
