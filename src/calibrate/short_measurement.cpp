#include "calibrate/short_measurement.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>

#include "calibrate/cholesky.h"

namespace precog {
namespace {

constexpr double kLeastWeight = 0.05;    // of a kernel that takes little of its row's time
constexpr double kFreedom = 4;           // of Student's distribution: how soon a row counts as an exception
constexpr double kLeastScale = 0.02;     // of errors: what repeating a measurement gives
constexpr unsigned kShortFolds = 5;
constexpr std::size_t kEnoughForRatio = 40;
constexpr Range kShortUnknownRatio{0.85, 1.18};  // of families too small to tell: no interval is narrower

struct Choice {
  Likeness likeness{.constant = 0.15, .by_type = 0.06, .by_kernel = 0.08, .warm = 0.2, .spread = 0.12, .length = 4, .across_types = 0.8};
  double noise = 0.05;
};
struct Setting {
  double& (*of)(Choice& choice);
  std::array<double, 5> values;  // repeated at the end where there are fewer
};
constexpr Setting kSettings[] = {
    {[](Choice& c) -> double& { return c.likeness.constant; }, {0.02, 0.05, 0.15, 0.3, 0.3}},
    {[](Choice& c) -> double& { return c.likeness.by_type; }, {0.02, 0.06, 0.15, 0.15, 0.15}},
    {[](Choice& c) -> double& { return c.likeness.by_kernel; }, {0.02, 0.08, 0.2, 0.2, 0.2}},
    {[](Choice& c) -> double& { return c.likeness.spread; }, {0, 0.06, 0.12, 0.25, 0.5}},
    {[](Choice& c) -> double& { return c.likeness.length; }, {2, 4, 8, 16, 16}},
    {[](Choice& c) -> double& { return c.likeness.across_types; }, {0.3, 0.8, 0.8, 0.8, 0.8}},
    {[](Choice& c) -> double& { return c.noise; }, {0.02, 0.05, 0.1, 0.2, 0.2}},
    {[](Choice& c) -> double& { return c.likeness.warm; }, {0.03, 0.1, 0.2, 0.4, 0.4}},
};

struct Process {
  std::vector<SmoothPoint> points;
  std::vector<double> targets, weights;

  std::vector<double> matrix(const Choice& choice) const {
    const std::size_t n = points.size();
    std::vector<double> out(n * n);
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < i; ++j) out[i * n + j] = out[j * n + i] = alike(choice.likeness, points[i], points[j]);
      out[i * n + i] = alike(choice.likeness, points[i], points[i]) + choice.noise * choice.noise / weights[i];
    }
    return out;
  }
  double likelihood(const Choice& choice) const {
    const auto solved = Cholesky::of(matrix(choice), points.size());
    if (!solved) return -std::numeric_limits<double>::infinity();
    const std::vector<double> w = solved->solve(targets);
    double fit = solved->log_determinant();
    for (std::size_t i = 0; i < w.size(); ++i) fit += w[i] * targets[i];
    return -0.5 * fit;
  }
  // One setting after the other, until none helps.
  Choice chosen(Choice choice) const {
    double best = likelihood(choice);
    bool better = true;
    for (int round = 0; round < 3 && better; ++round) {
      better = false;
      for (const Setting& setting : kSettings)
        for (double value : setting.values) {
          Choice tried = choice;
          if (setting.of(tried) == value) continue;
          setting.of(tried) = value;
          if (const double now = likelihood(tried); now > best + 1e-9) best = now, choice = tried, better = true;
        }
    }
    return choice;
  }
  // Rows that the others say something else of count for less.
  void doubt(const Choice& choice) {
    const auto solved = Cholesky::of(matrix(choice), points.size());
    if (!solved) return;
    std::vector<double> errors = solved->solve(targets);
    const std::vector<double> diagonal = solved->inverse_diagonal();
    for (std::size_t i = 0; i < errors.size(); ++i) errors[i] /= diagonal[i];  // of each row, predicted by the others
    std::vector<double> sizes;
    for (double e : errors) sizes.push_back(std::abs(e));
    std::nth_element(sizes.begin(), sizes.begin() + static_cast<std::ptrdiff_t>(sizes.size() / 2), sizes.end());
    const double scale = std::max(kLeastScale, 1.48 * sizes[sizes.size() / 2]);
    for (std::size_t i = 0; i < errors.size(); ++i)
      weights[i] *= std::min(1.0, (kFreedom + 1) / (kFreedom + errors[i] * errors[i] / (scale * scale)));
  }
  SmoothPart solved(const Choice& choice) const {
    SmoothPart out;
    const auto apart = Cholesky::of(matrix(choice), points.size());
    if (!apart) return out;
    out.likeness = choice.likeness;
    out.points = points;
    out.weights = apart->solve(targets);
    out.least = std::min(0.0, *std::min_element(targets.begin(), targets.end()));
    out.most = std::max(0.0, *std::max_element(targets.begin(), targets.end()));
    return out;
  }
};

struct Trusted {
  double share = 1;  // of the process: all, or nothing
  Range ratio = kShortUnknownRatio;
};

// Each shape predicted by what the others say: whether to believe that, and how far off measured over predicted then is. Rows
// on operands in the cache say nothing of a step here, unless there are no others.
// A relative's learned correction gives way only to what serves shapes that were left out better; physics always do.
Trusted trusted(const Process& all, const Choice& choice, const std::vector<KernelSample>& samples, bool learned_below) {
  const bool any_cold = std::any_of(samples.begin(), samples.end(), [](const KernelSample& s) { return !s.warm; });
  std::vector<std::pair<double, double>> found;  // target, predicted
  for (unsigned fold = 0; fold < kShortFolds; ++fold) {
    Process kept;
    for (std::size_t i = 0; i < samples.size(); ++i)
      if (samples[i].shape % kShortFolds != fold) kept.points.push_back(all.points[i]), kept.targets.push_back(all.targets[i]), kept.weights.push_back(all.weights[i]);
    if (kept.points.empty()) continue;
    const SmoothPart part = kept.solved(choice);
    for (std::size_t i = 0; i < samples.size(); ++i)
      if (samples[i].shape % kShortFolds == fold && samples[i].warm != any_cold) found.emplace_back(samples[i].target, part(all.points[i]));
  }
  Trusted out;
  if (found.empty()) return out;  // of one shape: its constants, which are shrunken as they are
  double without = 0, with = 0;
  for (const auto& [target, predicted] : found) without += std::abs(target), with += std::abs(target - predicted);
  if (learned_below && with >= without) out.share = 0;
  std::vector<double> ratios;
  for (const auto& [target, predicted] : found) ratios.push_back(std::exp(target - out.share * predicted));
  std::sort(ratios.begin(), ratios.end());
  out.ratio = {ratios[ratios.size() / 10], ratios[ratios.size() * 9 / 10]};
  if (ratios.size() < kEnoughForRatio) out.ratio = {std::min(out.ratio.least, kShortUnknownRatio.least), std::max(out.ratio.most, kShortUnknownRatio.most)};
  return out;
}

}  // namespace

FamilyResidual learn_short(const std::vector<KernelSample>& samples, FeatureKind kind, const FamilyResidual* carried) {
  Process process;
  std::set<std::uint32_t> shapes;
  for (const KernelSample& s : samples) {
    process.points.push_back(smooth_point(kind, s.dtype, s.name, s.features));
    process.targets.push_back(s.target);
    process.weights.push_back(std::max(kLeastWeight, s.weight));
    shapes.insert(s.shape);
  }
  const Choice first = process.chosen({});
  process.doubt(first);
  const Choice choice = process.chosen(first);

  FamilyResidual family;
  family.kind = kind;
  if (carried && carried->kind == kind) family = *carried;
  else
    for (std::size_t f = 0; f < feature_names(kind).size(); ++f) {
      Range seen{std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()};
      for (const KernelSample& s : samples) seen = {std::min(seen.least, s.features[f]), std::max(seen.most, s.features[f])};
      family.seen.push_back(seen);
    }
  family.carried = false;
  family.quality = {};
  family.quality.shapes = static_cast<std::int64_t>(shapes.size());
  const Trusted trust = trusted(process, choice, samples, carried && carried->kind == kind);
  family.ratio = trust.ratio;
  family.smooth = process.solved(choice);
  for (double& weight : family.smooth.weights) weight *= trust.share;
  return family;
}

}  // namespace precog
