#include "predict/fix_effects.h"

#include <algorithm>
#include <cstdlib>

namespace precog {
namespace {

// How much less is known of a choice from where that axis is set otherwise.
constexpr std::array<int, kFixAxes> kApart = [] {
  std::array<int, kFixAxes> out{};
  out.fill(1);
  for (FixAxis axis : {FixAxis::precision, FixAxis::sharding, FixAxis::offload, FixAxis::mode, FixAxis::recompute}) out[static_cast<std::size_t>(axis)] = 3;
  return out;
}();
constexpr int kApartShared = 4;

bool by_steps(std::size_t axis) { return is_degree(static_cast<FixAxis>(axis)) || static_cast<FixAxis>(axis) == FixAxis::batch; }

int distance(const FixSettings& a, const FixSettings& b) {
  int out = a[kFixAxes] != b[kFixAxes] ? kApartShared : 0;
  for (std::size_t i = 0; i < kFixAxes; ++i) out += kApart[i] * (by_steps(i) ? std::abs(a[i] - b[i]) : a[i] != b[i]);
  return out;
}

}  // namespace

FixSettings FixEffects::settings(const FixCombination& combination) const {
  FixSettings out{};
  for (std::size_t i : combination) {
    const FixChoice& choice = choices_[i];
    const auto axis = static_cast<std::size_t>(choice.axis);
    out[axis] = by_steps(axis) ? choice.steps : static_cast<std::int16_t>(i + 1);
    if (shards_weights(choice)) out[kFixAxes] = 1;
  }
  return out;
}

const FixEffects::Effect& FixEffects::nearest(std::size_t choice, const FixSettings& at) const {
  const auto& all = effects_[choice];
  return *std::min_element(all.begin(), all.end(), [&](const Effect& a, const Effect& b) { return distance(a.at, at) < distance(b.at, at); });
}

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

void FixEffects::learn(std::size_t choice, const FixNeed& without, const FixNeed& with, const FixSettings& at) {
  if (!without.known || !with.known) return;
  const FixEstimate before = from(without), after = from(with);
  effects_[choice].push_back({at, way(before, after), way(after, before)});
}

void FixEffects::apply(FixEstimate& estimate, const Way& way) {
  for (std::size_t i = 0; i < kFixParts; ++i) estimate.parts[i] = std::max(0.0, estimate.parts[i] * way.times[i] + way.plus[i]);
  estimate.outside += way.outside;
  estimate.time *= way.time;
}

}  // namespace precog
