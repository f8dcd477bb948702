#include "calibrate/learn_family.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>

#include <fmt/format.h>

#include "cost/own_constant.h"

namespace precog {
namespace {

constexpr double kPriorShapes = 4;     // as many shapes say nothing against a constant
constexpr std::size_t kLeastForTrees = 40, kLeastShapesForTrees = 12;
constexpr unsigned kFolds = 5;
constexpr std::size_t kMany = 1500;    // samples from which one fold in five tells enough
constexpr std::size_t kManyOfEach = 10 * kMany;  // convolutions: of depthwise ones there are too few to learn them apart, in large trees
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

std::size_t place_of(FeatureKind kind, std::string_view feature) {
  const auto names = feature_names(kind);
  return static_cast<std::size_t>(std::find_if(names.begin(), names.end(), [&](const FeatureName& f) { return f.name == feature; }) - names.begin());
}

std::vector<Tree> learn_trees(const std::vector<const KernelSample*>& samples, const Constants& constants, FeatureKind kind, const BoostingOptions& options) {
  std::vector<Sample> rest;
  for (const KernelSample* s : samples) {
    rest.push_back({with_own_constant(s->features, kind, constants, s->dtype, s->name), s->target - constants_of(constants, *s), s->weight});
  }
  // Products and convolutions in fp32, in tf32, in 16 and in 8 bits are other kernels of their library's, chosen by other rules.
  static constexpr std::array kArithmetics = {2.5, 3.5, 5.5};
  static_assert(static_cast<int>(DType::fp32) == 2 && static_cast<int>(DType::tf32) == 3 && static_cast<int>(DType::bf16) == 4 && static_cast<int>(DType::fp16) == 5);
  static constexpr std::array kBackends = {1.5, 2.5, 3.5};  // flash, cuDNN's, the memory-efficient one in 16 and in 32 bits
  static_assert(static_cast<int>(AttentionBackend::flash) == 1 && static_cast<int>(AttentionBackend::cudnn) == 2 && static_cast<int>(AttentionBackend::memory_efficient) == 3);
  if ((kind == FeatureKind::gemm && samples.size() >= kMany) || (kind == FeatureKind::convolution && samples.size() >= kManyOfEach)) return boost_apart(rest, options, place_of(kind, "math"), kArithmetics);
  if (kind == FeatureKind::attention && samples.size() >= kMany) return boost_apart(rest, options, place_of(kind, "kernels"), kBackends);
  return boost(rest, options);
}

struct Tried {
  int trees = 0;
  double error = std::numeric_limits<double>::infinity();  // mean absolute, on shapes left out
  std::vector<std::pair<const KernelSample*, double>> left_out;  // predictions by what never saw the shape
};

// Over `folds` of the kFolds: all of them where samples are few.
Tried cross_validate(const std::vector<KernelSample>& samples, FeatureKind kind, const BoostingOptions& options, unsigned folds) {
  struct Fold {
    Constants constants;
    std::vector<Tree> trees;
    std::vector<const KernelSample*> judged;
    std::vector<std::vector<double>> features;
  };
  const bool any_cold = std::any_of(samples.begin(), samples.end(), [](const KernelSample& s) { return !s.warm; });  // then those count
  std::vector<Fold> made(folds);
  std::vector<double> errors(static_cast<std::size_t>(options.trees) + 1, 0);
  double weight = 0;
  for (unsigned fold = 0; fold < folds; ++fold) {
    Fold& one = made[fold];
    std::vector<const KernelSample*> kept;
    for (const KernelSample& s : samples) {
      if (s.shape % kFolds != fold) kept.push_back(&s);
      else if (any_cold != s.warm) one.judged.push_back(&s);
    }
    one.constants = learn_constants(kept);
    if (options.trees > 0) one.trees = learn_trees(kept, one.constants, kind, options);
    for (const KernelSample* s : one.judged) {
      one.features.push_back(with_own_constant(s->features, kind, one.constants, s->dtype, s->name));
      double left = s->target - constants_of(one.constants, *s);
      weight += s->weight;
      for (std::size_t t = 0; t < errors.size(); ++t) {
        if (t > 0 && t <= one.trees.size()) left -= value_of(one.trees[t - 1], one.features.back());
        errors[t] += s->weight * std::abs(left);
      }
    }
  }
  Tried out;
  for (std::size_t t = 0; t < errors.size(); ++t)
    if (weight > 0 && errors[t] / weight < out.error * 0.999) out.error = errors[t] / weight, out.trees = static_cast<int>(t);
  for (const Fold& one : made)
    for (std::size_t i = 0; i < one.judged.size(); ++i) {
      double sum = constants_of(one.constants, *one.judged[i]);
      for (std::size_t t = 0; t < static_cast<std::size_t>(out.trees) && t < one.trees.size(); ++t) sum += value_of(one.trees[t], one.features[i]);
      out.left_out.emplace_back(one.judged[i], sum);
    }
  return out;
}

// How large a model so many samples carry. Few: two depths are tried. Many: trees of many leaves, each on half of the features
// and four fifths of the samples, as many as the profile's size allows by how much of a step's time the kind takes.
std::vector<BoostingOptions> worth_trying(std::size_t samples, FeatureKind kind) {
  if (samples < kMany) return {{.trees = 200, .depth = 3}, {.trees = kind == FeatureKind::memory ? 80 : 200, .depth = 6, .leaves = 24}};
  BoostingOptions o;
  o.depth = 12, o.bins = 160, o.feature_share = 0.5, o.sample_share = 0.8, o.square_share = 0.9, o.least_leaf = 4;
  switch (kind) {
    case FeatureKind::gemm: o.trees = 1400, o.leaves = 127, o.depth = 15, o.shrinkage = 0.12, o.square_share = 0.7, o.feature_share = 0.35, o.bins = 250, o.always_kinds = true; break;
    case FeatureKind::convolution:
      o.depth = 15, o.least_leaf = 3, o.square_share = 0.6, o.always_kinds = true;
      if (samples >= kManyOfEach) o.trees = 1000, o.leaves = 127, o.shrinkage = 0.08;
      else o.trees = 400, o.leaves = 31, o.shrinkage = 0.1;
      break;
    case FeatureKind::attention: o.trees = 420, o.leaves = 20, o.shrinkage = 0.15, o.bins = 250, o.always_kinds = true; break;
    case FeatureKind::memory: o.trees = 110, o.leaves = 31, o.shrinkage = 0.17; break;
  }
  return {o};
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

LearnedFamily learn_family(const std::vector<KernelSample>& samples, FeatureKind kind) {
  LearnedFamily learned;
  FamilyResidual& family = learned.correction;
  family.kind = kind;
  std::vector<const KernelSample*> all;
  std::set<std::uint32_t> shapes;
  for (const KernelSample& s : samples) all.push_back(&s), shapes.insert(s.shape);
  family.quality.shapes = static_cast<std::int64_t>(shapes.size());

  BoostingOptions options;
  options.trees = 0;
  const unsigned folds = samples.size() < kMany ? kFolds : 1;
  Tried best = cross_validate(samples, kind, options, folds);
  if (samples.size() >= kLeastForTrees && shapes.size() >= kLeastShapesForTrees)
    for (const BoostingOptions& tried : worth_trying(samples.size(), kind)) {
      Tried one = cross_validate(samples, kind, tried, folds);
      if (one.error < best.error * 0.99) best = std::move(one), options = tried;
    }
  options.trees = best.trees;
  family.constants = learn_constants(all);
  if (options.trees > 0) family.trees = learn_trees(all, family.constants, kind, options);

  std::vector<std::pair<double, double>> errors, targets;
  double without = 0, with = 0;
  for (const auto& [sample, predicted] : best.left_out) {
    without += sample->weight * std::abs(sample->target), with += sample->weight * std::abs(sample->target - predicted);
    errors.emplace_back(std::exp(sample->target - predicted), sample->weight);
    targets.emplace_back(sample->target, sample->weight);
  }
  family.ratio = {quantile(errors, 0.1), quantile(errors, 0.9)};
  if (errors.size() < kLeastForTrees) family.ratio = {std::min(family.ratio.least, kUnknownRatio.least), std::max(family.ratio.most, kUnknownRatio.most)};
  const double rare = kind == FeatureKind::convolution ? 0.002 : 0.01;  // its tail is bad choices of the library, not bad rows
  family.correction = {std::min(0.0, quantile(targets, rare)), std::max(0.0, quantile(targets, 1 - rare))};
  for (std::size_t f = 0; f < feature_names(kind).size(); ++f) {
    Range seen{std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()};
    for (const KernelSample& s : samples) seen = {std::min(seen.least, s.features[f]), std::max(seen.most, s.features[f])};
    family.seen.push_back(seen);
  }
  learned.helps = best.left_out.empty() || with < without;
  return learned;
}

}  // namespace precog
