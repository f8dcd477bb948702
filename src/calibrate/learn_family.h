// One family's correction from its samples: shrunken constants, then boosted trees on what they leave, as many as help on
// shapes that were left out. Few samples give constants and little else:
//   - a constant is a mean times n/(n+4), n being how many shapes it rests on: of the family, then of its arithmetic on what is
//     left, then of the very kernel;
//   - trees are tried from 40 samples of 12 shapes on, and kept where they lower the error on shapes left out (cross-validation).
#pragma once

#include <vector>

#include "calibrate/boosting.h"

namespace precog {

struct KernelSample : Sample {
  std::string dtype;      // residual_dtype
  std::string name;       // the kernel's
  std::uint32_t shape = 0;  // samples of one shape are never on both sides of a split
  bool warm = false;      // timed on operands in the cache: a feature tells trees, constants and the interval come from the others
};

struct LearnedFamily {
  FamilyResidual correction;  // not filled in: quality
  bool helps = true;          // on shapes left out, against none
};

// The targets are logarithms of measured over predicted time.
LearnedFamily learn_family(const std::vector<KernelSample>& samples, FeatureKind kind);

}  // namespace precog
