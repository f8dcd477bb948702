#include "calibrate/boosting.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace precog {
namespace {

// Feature values as bin numbers: limits are midpoints between values that occur, at equal counts of distinct values.
struct Bins {
  std::vector<std::vector<double>> limits;          // of each feature, ascending: bin b holds values up to limits[b]
  std::vector<std::vector<std::uint8_t>> of_sample;  // [feature][sample]

  Bins(std::span<const Sample> samples, int most) {
    const std::size_t features = samples.empty() ? 0 : samples[0].features.size();
    limits.resize(features);
    of_sample.resize(features);
    std::vector<double> values;
    for (std::size_t f = 0; f < features; ++f) {
      values.clear();
      for (const Sample& s : samples) values.push_back(s.features[f]);
      std::sort(values.begin(), values.end());
      values.erase(std::unique(values.begin(), values.end()), values.end());
      const std::size_t cuts = std::min<std::size_t>(values.size() - 1, static_cast<std::size_t>(most - 1));
      for (std::size_t i = 1; i <= cuts; ++i) {
        const std::size_t at = i * values.size() / (cuts + 1);
        limits[f].push_back((values[at - 1] + values[at]) / 2);
      }
      limits[f].erase(std::unique(limits[f].begin(), limits[f].end()), limits[f].end());
      for (const Sample& s : samples)
        of_sample[f].push_back(static_cast<std::uint8_t>(std::lower_bound(limits[f].begin(), limits[f].end(), s.features[f]) - limits[f].begin()));
    }
  }
};

struct Sums {
  double weight = 0, residual = 0;  // the second: weight times what is left to explain
};

class Booster {
 public:
  Booster(std::span<const Sample> samples, const BoostingOptions& options) : samples_(samples), options_(options), bins_(samples, options.bins) {
    for (const Sample& s : samples) left_.push_back(s.target);
    order_.resize(samples.size());
  }

  Tree grow_one() {
    for (std::size_t i = 0; i < order_.size(); ++i) order_[i] = static_cast<std::uint32_t>(i);
    Tree tree;
    grow(tree, 0, order_.size(), options_.depth);
    return tree;
  }

 private:
  struct Split {
    double gain = 1e-9;
    std::size_t feature = 0, bin = 0;
    bool found = false;
  };

  Sums total(std::size_t begin, std::size_t end) const {
    Sums sums;
    for (std::size_t i = begin; i < end; ++i) {
      const double w = samples_[order_[i]].weight;
      sums.weight += w;
      sums.residual += w * left_[order_[i]];
    }
    return sums;
  }
  double score(const Sums& s) const { return s.residual * s.residual / (s.weight + options_.prior); }

  Split best_split(std::size_t begin, std::size_t end, const Sums& all) const {
    Split best;
    std::vector<Sums> histogram;
    for (std::size_t f = 0; f < bins_.limits.size(); ++f) {
      histogram.assign(bins_.limits[f].size() + 1, {});
      for (std::size_t i = begin; i < end; ++i) {
        const std::uint32_t sample = order_[i];
        Sums& bin = histogram[bins_.of_sample[f][sample]];
        bin.weight += samples_[sample].weight;
        bin.residual += samples_[sample].weight * left_[sample];
      }
      Sums low;
      for (std::size_t b = 0; b < bins_.limits[f].size(); ++b) {
        low.weight += histogram[b].weight;
        low.residual += histogram[b].residual;
        const Sums high{all.weight - low.weight, all.residual - low.residual};
        if (low.weight < options_.least_leaf || high.weight < options_.least_leaf) continue;
        const double gain = score(low) + score(high) - score(all);
        if (gain > best.gain) best = {gain, f, b, true};
      }
    }
    return best;
  }

  void grow(Tree& tree, std::size_t begin, std::size_t end, int depth) {
    const Sums all = total(begin, end);
    const Split split = depth > 0 ? best_split(begin, end, all) : Split{};
    const std::size_t here = tree.size();
    if (!split.found) {
      const double value = options_.shrinkage * all.residual / (all.weight + options_.prior);
      tree.push_back({-1, 0, value});
      for (std::size_t i = begin; i < end; ++i) left_[order_[i]] -= value;
      return;
    }
    tree.push_back({static_cast<std::int32_t>(split.feature), 0, bins_.limits[split.feature][split.bin]});
    const auto middle = std::stable_partition(order_.begin() + static_cast<std::ptrdiff_t>(begin), order_.begin() + static_cast<std::ptrdiff_t>(end),
                                              [&](std::uint32_t sample) { return bins_.of_sample[split.feature][sample] <= split.bin; });
    const auto cut = static_cast<std::size_t>(middle - order_.begin());
    grow(tree, begin, cut, depth - 1);
    tree[here].right = static_cast<std::int32_t>(tree.size());
    grow(tree, cut, end, depth - 1);
  }

  std::span<const Sample> samples_;
  const BoostingOptions& options_;
  Bins bins_;
  std::vector<double> left_;
  std::vector<std::uint32_t> order_;
};

}  // namespace

std::vector<Tree> boost(std::span<const Sample> samples, const BoostingOptions& options) {
  std::vector<Tree> trees;
  if (samples.empty()) return trees;
  Booster booster(samples, options);
  for (int i = 0; i < options.trees; ++i) trees.push_back(booster.grow_one());
  return trees;
}

}  // namespace precog
