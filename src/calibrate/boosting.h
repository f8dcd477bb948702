// Gradient-boosted regression trees: squared loss, histogram splits, shallow trees, shrinkage. Deterministic: no random
// numbers, ties go to the first feature and the lowest limit. Knows nothing of kernels: rows of numbers in, trees out.
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
  double shrinkage = 0.1;
  double least_leaf = 3;    // weight of the samples in a leaf, at least
  double prior = 1;         // a leaf's value is its sum over weight + this: few samples say little
  int bins = 48;
};

// Trees that sum up to the targets.
std::vector<Tree> boost(std::span<const Sample> samples, const BoostingOptions& options);

}  // namespace precog
