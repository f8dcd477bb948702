// What a short measurement says on top of what is carried over: of each family a Gaussian process over the measured kernels
// (cost/smooth_part.h). How alike kernels are is chosen from a small grid by marginal likelihood, so that few or contradicting
// rows move little; a row far off what the others say of it counts for little, too; and what a
// relative's measurements taught gives way only where that serves shapes that were left out.
// Where hundreds of rows were measured trees say more (learn_family.h).
#pragma once

#include "calibrate/learn_family.h"

namespace precog {

// So few rows of a family are taken for a short measurement of it: of more, trees say more, on shapes that neither had seen (decision 23). Trees of
// what moves memory look at the family's constants (own_constant.h), so that none can be put on top of a relative's: there the process stays, as
// long as its dense system is solved in seconds.
inline constexpr std::size_t kShortFamily = 150, kShortOnTop = 400;

// `carried` is what the samples' targets are on top of; nullptr: of the physics. Not filled in: quality but for its shapes.
FamilyResidual learn_short(const std::vector<KernelSample>& samples, FeatureKind kind, const FamilyResidual* carried);

}  // namespace precog
