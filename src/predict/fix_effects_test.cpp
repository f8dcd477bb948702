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

std::vector<FixChoice> some_choices() {
  std::vector<FixChoice> out(4);
  out[0].axis = FixAxis::recompute;
  out[1].axis = FixAxis::states;
  out[2].axis = FixAxis::sharding;
  out[2].flags = "--fsdp full";
  out[3].axis = FixAxis::tp;
  out[3].steps = 3;
  return out;
}

}  // namespace

TEST_CASE("AFixMultipliesWhatShrinksAndAddsWhatGrows") {
  const std::vector<FixChoice> choices = some_choices();
  FixEffects effects(choices, 10);
  const FixNeed base = need_of_parts(1000, 100, 1);
  const FixSettings as_it_is = effects.settings({});
  effects.learn(0, base, need_of_parts(250, 100, 1.2), as_it_is);  // recomputes
  effects.learn(1, base, need_of_parts(1000, 130, 0.5), as_it_is);
  CHECK(effects.knows(0));
  CHECK(!effects.knows(2));

  FixEstimate estimate = FixEffects::from(need_of_parts(400, 50, 2));
  CHECK(estimate.most() == doctest::Approx(450));
  effects.put(estimate, 0, as_it_is);
  CHECK(estimate.most() == doctest::Approx(150));
  CHECK(estimate.time == doctest::Approx(2.4));
  effects.put(estimate, 1, as_it_is);
  CHECK(estimate.most() == doctest::Approx(180));
  CHECK(estimate.time == doctest::Approx(1.2));
  effects.take(estimate, 1, effects.settings({2}));  // not known of sharded weights: as without
  CHECK(estimate.time == doctest::Approx(2.4));
}

TEST_CASE("AFixIsBelievedToDoWhatItDidInTheNearestPlan") {
  const std::vector<FixChoice> choices = some_choices();
  FixEffects effects(choices, 10);
  const auto learn = [&](double time, const FixCombination& at) { effects.learn(0, need_of_parts(1000, 100, 1), need_of_parts(500, 100, time), effects.settings(at)); };
  const auto time_with = [&](const FixCombination& at) {
    FixEstimate out = FixEffects::from(need_of_parts(1000, 100, 1));
    effects.put(out, 0, effects.settings(at));
    return out.time;
  };
  learn(1.1, {});
  learn(1.5, {2});
  CHECK(time_with({1}) == doctest::Approx(1.1));
  CHECK(time_with({2}) == doctest::Approx(1.5));
  CHECK(time_with({1, 2}) == doctest::Approx(1.5));
  CHECK(time_with({2, 3}) == doctest::Approx(1.5));
  learn(1.3, {2, 3});
  CHECK(time_with({1, 2, 3}) == doctest::Approx(1.3));
  CHECK(time_with({3}) == doctest::Approx(1.1));
}
