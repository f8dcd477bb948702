// What each choice multiplies the parts of a job's memory and its time by, and what plans near one that was tried are estimated to need
// from that. For who searches (fix_search.h): tens of thousands of estimates cost less than one trial.
#pragma once

#include <optional>

#include "predict/fix_trials.h"

namespace precog {

inline constexpr std::size_t kFixParts = kStepParts * kMemoryCategories;

// As a FixNeed, to be reckoned with.
struct FixEstimate {
  std::array<double, kFixParts> parts{};
  double outside = 0, time = 0;
  bool host_full = false;  // as tried; not reckoned
  double most() const;  // of the moments
};

// How a plan is set, as far as that decides what a change does to it: the choice of each axis (plus 1; 0: as the job is), of a degree or
// a batch how many times the job's (as a logarithm); whether weights are shared out.
using FixSettings = std::array<std::int16_t, kFixAxes + 1>;

class FixEffects {
 public:
  // `choices` outlives it. `large`: bytes from which on a part that shrinks is multiplied; to others the change is added.
  FixEffects(const std::vector<FixChoice>& choices, double large) : choices_(choices), effects_(choices.size()), large_(large) {}

  FixSettings settings(const FixCombination& combination) const;

  // Of a choice: from `without` to `with`, in a plan of these settings; what is known of the nearest one is believed of others.
  void learn(std::size_t choice, const FixNeed& without, const FixNeed& with, const FixSettings& at);
  bool knows(std::size_t choice) const { return !effects_[choice].empty(); }

  static FixEstimate from(const FixNeed& need);
  void put(FixEstimate& estimate, std::size_t choice, const FixSettings& at) const { apply(estimate, nearest(choice, at).put); }
  void take(FixEstimate& estimate, std::size_t choice, const FixSettings& at) const { apply(estimate, nearest(choice, at).take); }

 private:
  struct Way {
    std::array<double, kFixParts> times{}, plus{};
    double outside = 0, time = 1;
  };
  struct Effect {
    FixSettings at{};
    Way put, take;
  };
  static void apply(FixEstimate& estimate, const Way& way);
  Way way(const FixEstimate& before, const FixEstimate& after) const;
  const Effect& nearest(std::size_t choice, const FixSettings& at) const;

  const std::vector<FixChoice>& choices_;
  std::vector<std::vector<Effect>> effects_;
  double large_;
};

}  // namespace precog
