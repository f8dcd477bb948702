// Features with the last of a memory-bound kernel's filled in: its own constant among a family's, which tells the trees what
// kind of a pattern's kernels it is (a sum or a variance, an exponential or a square root). For those who learn a correction
// and those who apply it; other kinds of kernels are told apart by their shapes and returned as they are.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "cost/features.h"

namespace precog {

std::vector<double> with_own_constant(std::vector<double> features, FeatureKind kind, const std::map<std::string, double, std::less<>>& constants,
                                      std::string_view dtype, std::string_view name);

}  // namespace precog
