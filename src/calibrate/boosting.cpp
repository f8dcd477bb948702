#include "calibrate/boosting.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace precog {
namespace {

// Feature values as bin numbers: limits are midpoints between values that occur, at equal counts of distinct values.
struct Bins {
  std::size_t features = 0, most = 1;
  std::vector<std::vector<double>> limits;  // of each feature, ascending: bin b holds values up to limits[b]
  std::vector<std::uint8_t> of_sample;      // [sample][feature]

  Bins(std::span<const Sample> samples, int count) : features(samples.empty() ? 0 : samples[0].features.size()) {
    limits.resize(features);
    of_sample.resize(features * samples.size());
    std::vector<double> values;
    for (std::size_t f = 0; f < features; ++f) {
      values.clear();
      for (const Sample& s : samples) values.push_back(s.features[f]);
      std::sort(values.begin(), values.end());
      values.erase(std::unique(values.begin(), values.end()), values.end());
      const std::size_t cuts = std::min<std::size_t>(values.size() - 1, static_cast<std::size_t>(count - 1));
      for (std::size_t i = 1; i <= cuts; ++i) {
        const std::size_t at = i * values.size() / (cuts + 1);
        limits[f].push_back((values[at - 1] + values[at]) / 2);
      }
      limits[f].erase(std::unique(limits[f].begin(), limits[f].end()), limits[f].end());
      most = std::max(most, limits[f].size() + 1);
      for (std::size_t i = 0; i < samples.size(); ++i)
        of_sample[i * features + f] =
            static_cast<std::uint8_t>(std::lower_bound(limits[f].begin(), limits[f].end(), samples[i].features[f]) - limits[f].begin());
    }
  }
  std::uint8_t of(std::size_t sample, std::size_t feature) const { return of_sample[sample * features + feature]; }
};

struct Sums {
  double weight = 0, residual = 0;  // the second: weight times what is left to explain
};

// The same numbers for the same arguments, evenly in [0, 1).
double scatter(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = a * 0x9E3779B97F4A7C15u + b * 0xC2B2AE3D27D4EB4Fu + 0x165667B19E3779F9u;
  x = (x ^ (x >> 29)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 32)) * 0x94D049BB133111EBu;
  return static_cast<double>((x ^ (x >> 31)) >> 11) * 0x1p-53;
}

class Booster {
 public:
  Booster(std::span<const Sample> samples, const BoostingOptions& options) : samples_(samples), options_(options), bins_(samples, options.bins) {
    for (const Sample& s : samples) left_.push_back(s.target);
  }

  Tree grow_one(std::size_t number) {
    choose(number);
    leaves_.clear();
    nodes_.clear();
    leaves_.push_back(first_leaf());
    const int depth = std::clamp(options_.depth, 0, 15), allowed = 1 << depth;
    const auto most = static_cast<std::size_t>(options_.leaves > 0 ? std::min(options_.leaves, allowed) : allowed);
    nodes_.push_back({});
    leaves_[0].node = 0;
    find_split(leaves_[0], depth);
    for (std::size_t count = 1; count < most; ++count) {
      std::size_t best = leaves_.size();
      for (std::size_t i = 0; i < leaves_.size(); ++i)
        if (leaves_[i].split.found && (best == leaves_.size() || leaves_[i].split.gain > leaves_[best].split.gain)) best = i;
      if (best == leaves_.size()) break;
      split(best);
    }
    for (const Leaf& leaf : leaves_) nodes_[leaf.node].value = options_.shrinkage * leaf.all.residual / (leaf.all.weight + options_.prior);
    subtract();
    Tree tree;
    write(tree, 0);
    return tree;
  }

 private:
  struct Split {
    double gain = 1e-9;
    std::size_t feature = 0, bin = 0;
    bool found = false;
  };
  struct Leaf {
    std::vector<std::uint32_t> samples;
    std::vector<Sums> histogram;  // [chosen feature][bin]
    Sums all;
    Split split;
    std::size_t node = 0;
    int depth = 0;  // that may still be grown
  };
  struct Node {
    std::int32_t feature = -1;
    std::size_t bin = 0, left = 0, right = 0;
    double value = 0;
  };

  // What this tree sees, and how much each sample still has to say.
  void choose(std::size_t number) {
    features_.clear();
    for (std::size_t f = 0; f < bins_.features; ++f)
      if (!bins_.limits[f].empty() && (options_.feature_share >= 1 || (options_.always_kinds && bins_.limits[f].size() <= 2) || scatter(number, f) < options_.feature_share))
        features_.push_back(f);
    double limit = std::numeric_limits<double>::infinity();
    if (options_.square_share < 1) {
      std::vector<double> sizes;
      for (double left : left_) sizes.push_back(std::abs(left));
      const auto at = sizes.begin() + static_cast<std::ptrdiff_t>(options_.square_share * static_cast<double>(sizes.size() - 1));
      std::nth_element(sizes.begin(), at, sizes.end());
      limit = *at;
    }
    clipped_.resize(left_.size());
    for (std::size_t i = 0; i < left_.size(); ++i) clipped_[i] = std::clamp(left_[i], -limit, limit) * samples_[i].weight;
  }

  Leaf first_leaf() {
    Leaf leaf;
    for (std::size_t i = 0; i < samples_.size(); ++i)
      if (options_.sample_share >= 1 || scatter(~tree_, i) < options_.sample_share) leaf.samples.push_back(static_cast<std::uint32_t>(i));
    ++tree_;
    leaf.depth = std::clamp(options_.depth, 0, 15);
    count(leaf);
    return leaf;
  }
  void count(Leaf& leaf) const {
    leaf.histogram.assign(features_.size() * bins_.most, {});
    leaf.all = {};
    for (std::uint32_t sample : leaf.samples) {
      const double weight = samples_[sample].weight, residual = clipped_[sample];
      leaf.all.weight += weight;
      leaf.all.residual += residual;
      const std::uint8_t* row = &bins_.of_sample[sample * bins_.features];
      Sums* bin = leaf.histogram.data();
      for (std::size_t f : features_) {
        Sums& sums = bin[row[f]];
        sums.weight += weight;
        sums.residual += residual;
        bin += bins_.most;
      }
    }
  }
  double score(const Sums& s) const { return s.residual * s.residual / (s.weight + options_.prior); }

  void find_split(Leaf& leaf, int depth) const {
    leaf.split = {};
    leaf.depth = depth;
    if (depth <= 0) return;
    const double whole = score(leaf.all);
    for (std::size_t at = 0; at < features_.size(); ++at) {
      const std::size_t f = features_[at];
      const Sums* histogram = &leaf.histogram[at * bins_.most];
      Sums low;
      for (std::size_t b = 0; b < bins_.limits[f].size(); ++b) {
        low.weight += histogram[b].weight;
        low.residual += histogram[b].residual;
        const Sums high{leaf.all.weight - low.weight, leaf.all.residual - low.residual};
        if (low.weight < options_.least_leaf || high.weight < options_.least_leaf) continue;
        const double gain = score(low) + score(high) - whole;
        if (gain > leaf.split.gain) leaf.split = {gain, f, b, true};
      }
    }
  }

  void split(std::size_t index) {
    Leaf parent = std::move(leaves_[index]);
    Leaf low, high;
    for (std::uint32_t sample : parent.samples) (bins_.of(sample, parent.split.feature) <= parent.split.bin ? low : high).samples.push_back(sample);
    // The smaller half is counted, the other is what is left of the whole.
    Leaf& counted = low.samples.size() <= high.samples.size() ? low : high;
    Leaf& other = &counted == &low ? high : low;
    count(counted);
    other.histogram = std::move(parent.histogram);
    for (std::size_t i = 0; i < other.histogram.size(); ++i) {
      other.histogram[i].weight -= counted.histogram[i].weight;
      other.histogram[i].residual -= counted.histogram[i].residual;
    }
    other.all = {parent.all.weight - counted.all.weight, parent.all.residual - counted.all.residual};
    Node& node = nodes_[parent.node];
    node.feature = static_cast<std::int32_t>(parent.split.feature);
    node.bin = parent.split.bin;
    low.node = node.left = nodes_.size();
    high.node = node.right = nodes_.size() + 1;
    nodes_.resize(nodes_.size() + 2);
    find_split(low, parent.depth - 1);
    find_split(high, parent.depth - 1);
    leaves_[index] = std::move(low);
    leaves_.push_back(std::move(high));
  }

  void subtract() {
    for (std::size_t i = 0; i < samples_.size(); ++i) {
      std::size_t at = 0;
      while (nodes_[at].feature >= 0) at = bins_.of(i, static_cast<std::size_t>(nodes_[at].feature)) <= nodes_[at].bin ? nodes_[at].left : nodes_[at].right;
      left_[i] -= nodes_[at].value;
    }
  }

  void write(Tree& tree, std::size_t at) const {
    const Node& node = nodes_[at];
    const std::size_t here = tree.size();
    if (node.feature < 0) {
      tree.push_back({-1, 0, node.value});
      return;
    }
    tree.push_back({node.feature, 0, bins_.limits[static_cast<std::size_t>(node.feature)][node.bin]});
    write(tree, node.left);
    tree[here].right = static_cast<std::int32_t>(tree.size());
    write(tree, node.right);
  }

  std::span<const Sample> samples_;
  const BoostingOptions& options_;
  Bins bins_;
  std::vector<double> left_, clipped_;
  std::vector<std::size_t> features_;
  std::vector<Leaf> leaves_;
  std::vector<Node> nodes_;
  std::uint64_t tree_ = 0;
};

}  // namespace

std::vector<Tree> boost(std::span<const Sample> samples, const BoostingOptions& options) {
  std::vector<Tree> trees;
  if (samples.empty()) return trees;
  Booster booster(samples, options);
  for (int i = 0; i < options.trees; ++i) trees.push_back(booster.grow_one(static_cast<std::size_t>(i)));
  return trees;
}

namespace {

// A tree that is asked of values above `low` and up to `high` alone; elsewhere it adds nothing.
Tree only_between(Tree tree, std::int32_t feature, double low, double high) {
  const auto within = [&](double limit, bool above) {
    Tree out{{feature, 0, limit}};
    const auto append = [&](const Tree& part) {
      const auto shift = static_cast<std::int32_t>(out.size());
      for (TreeNode node : part) node.right += node.feature >= 0 ? shift : 0, out.push_back(node);
    };
    const Tree nothing{{-1, 0, 0}};
    append(above ? nothing : tree);
    out[0].right = static_cast<std::int32_t>(out.size());
    append(above ? tree : nothing);
    tree = std::move(out);
  };
  if (std::isfinite(high)) within(high, false);
  if (std::isfinite(low)) within(low, true);
  return tree;
}

}  // namespace

std::vector<Tree> boost_apart(std::span<const Sample> samples, const BoostingOptions& options, std::size_t feature, std::span<const double> limits) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  std::vector<std::pair<double, Tree>> mixed;  // by how far along its kind's a tree is
  for (std::size_t kind = 0; kind <= limits.size(); ++kind) {
    const double low = kind == 0 ? -kInfinity : limits[kind - 1], high = kind == limits.size() ? kInfinity : limits[kind];
    std::vector<Sample> own;
    for (const Sample& s : samples)
      if (s.features[feature] > low && s.features[feature] <= high) own.push_back(s);
    BoostingOptions part = options;
    part.trees = static_cast<int>(std::lround(options.trees * static_cast<double>(own.size()) / static_cast<double>(samples.size())));
    std::vector<Tree> trees = boost(own, part);
    for (std::size_t i = 0; i < trees.size(); ++i)
      mixed.emplace_back((static_cast<double>(i) + 0.5) / static_cast<double>(trees.size()), only_between(std::move(trees[i]), static_cast<std::int32_t>(feature), low, high));
  }
  std::stable_sort(mixed.begin(), mixed.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Tree> out;
  for (auto& [place, tree] : mixed) out.push_back(std::move(tree));
  return out;
}

}  // namespace precog
