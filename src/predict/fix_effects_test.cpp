#include <doctest/doctest.h>

#include "predict/fix_effects.h"

using namespace precog;

namespace {

FixNeed need_of_parts(double activations, double states, double time) {
  FixNeed out;
  out.known = true;
  out.time = time;
  for (BytesByCategory& moment : out.moments) {
    moment[static_cast<std::size_t>(MemoryCategory::activations)] = Bytes{static_cast<std::int64_t>(activations)};
    moment[static_cast<std::size_t>(MemoryCategory::optimizer_states)] = Bytes{static_cast<std::int64_t>(states)};
  }
  return out;
}

}  // namespace

TEST_CASE("AFixMultipliesWhatShrinksAndAddsWhatGrows") {
  FixEffects effects(2, 10);
  const FixNeed base = need_of_parts(1000, 100, 1);
  effects.learn(0, base, need_of_parts(250, 100, 1.2), false);  // recomputes
  effects.learn(1, base, need_of_parts(1000, 130, 0.5), false);
  CHECK(effects.knows(0));

  FixEstimate estimate = FixEffects::from(need_of_parts(400, 50, 2));
  CHECK(estimate.most() == doctest::Approx(450));
  effects.put(estimate, 0, false);
  CHECK(estimate.most() == doctest::Approx(150));
  CHECK(estimate.time == doctest::Approx(2.4));
  effects.put(estimate, 1, false);
  CHECK(estimate.most() == doctest::Approx(180));
  CHECK(estimate.time == doctest::Approx(1.2));
  effects.take(estimate, 1, true);  // not known of sharded weights: as without
  CHECK(estimate.time == doctest::Approx(2.4));
}

TEST_CASE("AFixIsKnownOfShardedWeightsWhereThatWasTried") {
  FixEffects effects(1, 10);
  effects.learn(0, need_of_parts(1000, 100, 1), need_of_parts(500, 100, 1.5), true);
  effects.learn(0, need_of_parts(1000, 100, 1), need_of_parts(500, 100, 1.1), false);
  FixEstimate whole = FixEffects::from(need_of_parts(1000, 100, 1)), sharded = whole;
  effects.put(whole, 0, false);
  effects.put(sharded, 0, true);
  CHECK(whole.time == doctest::Approx(1.1));
  CHECK(sharded.time == doctest::Approx(1.5));
}
