// What a short measurement adds to a correction that is carried over: a smooth function of the kernel, a sum over some dozens to
// hundreds of measured ones by how alike they are (the mean of a Gaussian process). Far from all that was measured, constants are
// left: of all of the family, of its arithmetic, of the very kernel.
// Not here: how likeness and weights are chosen (calibrate/short_measurement.h). Not for thousands of points: each is visited.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "cost/features.h"

namespace precog {

struct Likeness {  // standard deviations of logarithms of time, but for the last two
  double constant = 0, by_type = 0, by_kernel = 0;  // of what all, those of one arithmetic, those of one kernel have in common
  double warm = 0;           // of what those on operands in the L2 cache have, the more the more memory counts
  double spread = 0;         // of what near ones have
  double length = 1;         // how far near is, in octaves or as many tenths of a share
  double across_types = 0;   // how much of that another arithmetic shares: 0 to 1
};

struct SmoothPoint {
  std::string dtype, name;  // residual_dtype, the kernel's
  bool warm = false;
  double memory_share = 0;
  std::vector<double> at;   // place_of
};

struct SmoothPart {
  Likeness likeness;
  std::vector<SmoothPoint> points;
  std::vector<double> weights;  // of each
  double least = 0, most = 0;   // nothing beyond is believed

  bool empty() const { return points.empty(); }
  double operator()(const SmoothPoint& kernel) const;
};

SmoothPoint smooth_point(FeatureKind kind, std::string dtype, std::string name, const std::vector<double>& features);
double alike(const Likeness& likeness, const SmoothPoint& a, const SmoothPoint& b);

SmoothPart read_smooth_part(JsonReader& reader, FeatureKind kind);
std::string smooth_text(const SmoothPart& part, FeatureKind kind);  // JSON, on one line

}  // namespace precog
