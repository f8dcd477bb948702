// Gradient-boosted regression trees: histogram splits, the leaf that gains most is split first, shrinkage; a loss that is
// square for most samples and linear for the few that are far off, of which timings have some. Each tree sees some of the
// samples and of the features. Deterministic: what a tree sees follows from its number, ties go to the first feature and the
// lowest limit. Knows nothing of kernels: rows of numbers in, trees out.
#pragma once

#include <span>
#include <vector>

#include "cost/residual.h"

namespace precog {

struct Sample {
  std::vector<double> features;
  double target = 0, weight = 1;
};

struct BoostingOptions {
  int trees = 200, depth = 4;
  int leaves = 0;           // of a tree at most; 0: as many as the depth allows
  double shrinkage = 0.1;
  double least_leaf = 3;    // weight of the samples in a leaf, at least
  double prior = 1;         // a leaf's value is its sum over weight + this: few samples say little
  int bins = 48;
  double feature_share = 1, sample_share = 1;  // that a tree sees
  bool always_kinds = false;  // features of two or three values, which tell kinds apart, are in every tree's share
  double square_share = 1;  // of the samples, the nearest: the others count as if they were as far off as the last of these
};

// Trees that sum up to the targets.
std::vector<Tree> boost(std::span<const Sample> samples, const BoostingOptions& options);

// The same, but each tree is of the samples between two neighbouring `limits` of one feature, and says nothing of others: for
// kinds of kernels that have nothing in common. Each has trees by its share of the samples, mixed evenly.
std::vector<Tree> boost_apart(std::span<const Sample> samples, const BoostingOptions& options, std::size_t feature, std::span<const double> limits);

}  // namespace precog
