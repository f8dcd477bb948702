#include "calibrate/learn_family.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include <fmt/format.h>

namespace precog {
namespace {

constexpr double kPriorShapes = 4;     // as many shapes say nothing against a constant
constexpr std::size_t kLeastForTrees = 40, kLeastShapesForTrees = 12;
constexpr unsigned kFolds = 5;
constexpr Range kUnknownRatio{0.85, 1.18};  // of families too small to tell: no interval is narrower

using Constants = std::map<std::string, double, std::less<>>;

double constants_of(const Constants& constants, const KernelSample& s) {
  double sum = 0;
  for (const std::string& key : {std::string(), s.dtype, fmt::format("{} {}", s.dtype, s.name)})
    if (auto it = constants.find(key); it != constants.end()) sum += it->second;
  return sum;
}

// Of what a step would see; where nothing of that was measured, of all there is.
std::vector<const KernelSample*> telling(const std::vector<const KernelSample*>& samples) {
  std::vector<const KernelSample*> cold;
  for (const KernelSample* s : samples)
    if (!s->warm) cold.push_back(s);
  return cold.empty() ? samples : cold;
}

Constants learn_constants(const std::vector<const KernelSample*>& all) {
  const std::vector<const KernelSample*> samples = telling(all);
  Constants constants;
  std::vector<double> left;
  for (const KernelSample* s : samples) left.push_back(s->target);
  for (int level = 0; level < 3; ++level) {
    struct Mean {
      double sum = 0, weight = 0;
      std::set<std::uint32_t> shapes;
    };
    std::map<std::string, Mean> means;
    const auto key = [&](const KernelSample& s) { return level == 0 ? std::string() : level == 1 ? s.dtype : fmt::format("{} {}", s.dtype, s.name); };
    for (std::size_t i = 0; i < samples.size(); ++i) {
      Mean& mean = means[key(*samples[i])];
      mean.sum += samples[i]->weight * left[i];
      mean.weight += samples[i]->weight;
      mean.shapes.insert(samples[i]->shape);
    }
    for (const auto& [name, mean] : means) {
      const auto n = static_cast<double>(mean.shapes.size());
      if (mean.weight > 0) constants[name] = mean.sum / mean.weight * n / (n + kPriorShapes);
    }
    for (std::size_t i = 0; i < samples.size(); ++i) left[i] -= constants[key(*samples[i])];
  }
  return constants;
}

std::vector<Tree> learn_trees(const std::vector<const KernelSample*>& samples, const Constants& constants, const BoostingOptions& options) {
  std::vector<Sample> rest;
  for (const KernelSample* s : samples) {
    rest.push_back(*s);
    rest.back().target -= constants_of(constants, *s);
  }
  return boost(rest, options);
}

struct Tried {
  int trees = 0;
  double error = 0;                 // mean absolute, on shapes left out
  std::vector<double> left_out;     // each sample's prediction by what never saw its shape
};

Tried cross_validate(const std::vector<KernelSample>& samples, const BoostingOptions& options) {
  const auto steps = static_cast<std::size_t>(options.trees) + 1;
  std::vector<std::vector<double>> after(samples.size(), std::vector<double>(steps, 0));
  for (unsigned fold = 0; fold < kFolds; ++fold) {
    std::vector<const KernelSample*> kept;
    for (const KernelSample& s : samples)
      if (s.shape % kFolds != fold) kept.push_back(&s);
    const Constants constants = learn_constants(kept);
    const std::vector<Tree> trees = options.trees > 0 ? learn_trees(kept, constants, options) : std::vector<Tree>();
    for (std::size_t i = 0; i < samples.size(); ++i) {
      if (samples[i].shape % kFolds != fold) continue;
      after[i][0] = constants_of(constants, samples[i]);
      for (std::size_t t = 0; t + 1 < steps; ++t) after[i][t + 1] = after[i][t] + (t < trees.size() ? value_of(trees[t], samples[i].features) : 0);
    }
  }
  Tried out;
  out.error = std::numeric_limits<double>::infinity();
  double weight = 0;
  const bool any_cold = std::any_of(samples.begin(), samples.end(), [](const KernelSample& s) { return !s.warm; });  // then those count
  for (const KernelSample& s : samples)
    if (any_cold != s.warm) weight += s.weight;
  for (std::size_t t = 0; t < steps; ++t) {
    double error = 0;
    for (std::size_t i = 0; i < samples.size(); ++i)
      if (any_cold != samples[i].warm) error += samples[i].weight * std::abs(samples[i].target - after[i][t]);
    error /= weight;
    if (error < out.error * 0.999) out.error = error, out.trees = static_cast<int>(t);
  }
  for (const std::vector<double>& predictions : after) out.left_out.push_back(predictions[static_cast<std::size_t>(out.trees)]);
  return out;
}

// The value below which a share of the weight lies.
double quantile(std::vector<std::pair<double, double>> values, double share) {
  std::sort(values.begin(), values.end());
  double all = 0, so_far = 0;
  for (const auto& [value, weight] : values) all += weight;
  for (const auto& [value, weight] : values) {
    so_far += weight;
    if (so_far >= share * all) return value;
  }
  return values.empty() ? 0 : values.back().first;
}

}  // namespace

FamilyResidual learn_family(const std::vector<KernelSample>& samples, FeatureKind kind) {
  FamilyResidual family;
  family.kind = kind;
  std::vector<const KernelSample*> all;
  std::set<std::uint32_t> shapes;
  for (const KernelSample& s : samples) all.push_back(&s), shapes.insert(s.shape);
  family.quality.shapes = static_cast<std::int64_t>(shapes.size());

  BoostingOptions options;
  options.trees = 0;
  Tried best = cross_validate(samples, options);
  if (samples.size() >= kLeastForTrees && shapes.size() >= kLeastShapesForTrees)
    for (int depth : {3, 6}) {
      BoostingOptions tried;
      tried.depth = depth;
      tried.trees = 250;
      const Tried one = cross_validate(samples, tried);
      if (one.error < best.error * 0.99) best = one, options = tried;
    }
  options.trees = best.trees;
  family.constants = learn_constants(all);
  if (options.trees > 0) family.trees = learn_trees(all, family.constants, options);

  std::vector<std::pair<double, double>> errors, targets;
  const bool any_cold = std::any_of(samples.begin(), samples.end(), [](const KernelSample& s) { return !s.warm; });
  for (std::size_t i = 0; i < samples.size(); ++i) {
    if (any_cold == samples[i].warm) continue;
    errors.emplace_back(std::exp(samples[i].target - best.left_out[i]), samples[i].weight);
    targets.emplace_back(samples[i].target, samples[i].weight);
  }
  family.ratio = {quantile(errors, 0.1), quantile(errors, 0.9)};
  if (errors.size() < kLeastForTrees) family.ratio = {std::min(family.ratio.least, kUnknownRatio.least), std::max(family.ratio.most, kUnknownRatio.most)};
  family.correction = {std::min(0.0, quantile(targets, 0.01)), std::max(0.0, quantile(targets, 0.99))};
  for (std::size_t f = 0; f < feature_names(kind).size(); ++f) {
    Range seen{std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()};
    for (const KernelSample& s : samples) seen = {std::min(seen.least, s.features[f]), std::max(seen.most, s.features[f])};
    family.seen.push_back(seen);
  }
  return family;
}

}  // namespace precog
