#include "predict/fix_effects.h"

#include <algorithm>

namespace precog {

double FixEstimate::most() const {
  double out = 0;
  for (std::size_t m = 0; m < kStepParts; ++m) {
    double all = 0;
    for (std::size_t c = 0; c < kMemoryCategories; ++c) all += parts[m * kMemoryCategories + c];
    out = std::max(out, all);
  }
  return out;
}

FixEstimate FixEffects::from(const FixNeed& need) {
  FixEstimate out;
  for (std::size_t m = 0; m < kStepParts; ++m)
    for (std::size_t c = 0; c < kMemoryCategories; ++c) out.parts[m * kMemoryCategories + c] = static_cast<double>(need.moments[m][c].value);
  out.outside = need.outside;
  out.time = need.time;
  out.host_full = need.host_full;
  return out;
}

FixEffects::Way FixEffects::way(const FixEstimate& before, const FixEstimate& after) const {
  Way out;
  for (std::size_t i = 0; i < kFixParts; ++i) {
    const bool large = before.parts[i] > large_ && after.parts[i] < before.parts[i];
    out.times[i] = large ? after.parts[i] / before.parts[i] : 1;
    out.plus[i] = large ? 0 : after.parts[i] - before.parts[i];
  }
  out.outside = after.outside - before.outside;
  out.time = before.time > 0 ? after.time / before.time : 1;
  return out;
}

void FixEffects::learn(std::size_t choice, const FixNeed& without, const FixNeed& with, bool sharded) {
  if (!without.known || !with.known) return;
  const FixEstimate before = from(without), after = from(with);
  (sharded ? sharded_ : alone_)[choice] = {true, way(before, after), way(after, before)};
}

void FixEffects::apply(FixEstimate& estimate, const Way& way) {
  for (std::size_t i = 0; i < kFixParts; ++i) estimate.parts[i] = std::max(0.0, estimate.parts[i] * way.times[i] + way.plus[i]);
  estimate.outside += way.outside;
  estimate.time *= way.time;
}

}  // namespace precog
