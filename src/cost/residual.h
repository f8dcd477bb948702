// What measurements add to the physics: per kernel family, the logarithm of measured over predicted time, learned by
// `precog calibrate` and kept in data/profiles/<gpu>.json. A correction is a sum of constants (of the family, of its
// arithmetic, of the very kernel) and of small decision trees over features.h, kept inside what was seen:
//   time = physics x exp(fade x clamp(constants + trees) + smooth part)
// the last where a short measurement corrects what is carried over (smooth_part.h).
// Not here: how it is learned (calibrate), and who asks (pricing.h).
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "cost/features.h"
#include "cost/smooth_part.h"
#include "cost/tree_text.h"

namespace precog {

double value_of(const Tree& tree, const std::vector<double>& features);

struct Range {
  double least = 0, most = 0;
};

struct CorrectedKernel {
  const Kernel* kernel;
  std::vector<double> features;
  double correction = 0;  // on the logarithm of the time
};

struct FamilyResidual {
  FeatureKind kind = FeatureKind::memory;
  std::map<std::string, double, std::less<>> constants;  // "" the family's; "bf16"; "bf16 linear"
  std::vector<Tree> trees;
  SmoothPart smooth;        // empty but for short measurements
  Range correction;         // least and most that was seen; nothing beyond is believed
  std::vector<Range> seen;  // of each feature
  Range ratio{1, 1};        // 10th and 90th percentile of measured over predicted, on shapes that were not fitted
  bool carried = false;     // from another GPU's profile, nothing of it measured here

  struct Quality {  // on shapes that were never fitted; errors as fractions
    std::int64_t rows = 0, shapes = 0;  // that were fitted
    std::int64_t held_out = 0;          // rows
    double median = 0, p95 = 0, bias = 0, physics_median = 0;
  } quality;

  // On the logarithm of the time.
  double correct(const Kernel& kernel, const std::vector<double>& features) const;
  void correct(std::span<CorrectedKernel> kernels) const;  // many at once, in a fraction of the time
};

struct MeasurementSource {
  std::string file, date, software;  // "PyTorch 2.11.0, CUDA 13.0, driver ..."
  std::int64_t rows = 0;
};

struct FittedProfile {  // one GPU's
  std::string gpu, architecture;
  std::string method;  // how, where it is not the usual way: what a short measurement was laid on
  std::vector<MeasurementSource> sources;
  std::map<std::string, FamilyResidual, std::less<>> families;

  const FamilyResidual* find(std::string_view family) const;
};

Result<FittedProfile> parse_fitted_profile(const Json& json, const std::string& where);
std::string to_json_text(const FittedProfile& profile);  // one line per family: a diff shows which moved

}  // namespace precog
