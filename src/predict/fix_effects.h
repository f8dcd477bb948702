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

class FixEffects {
 public:
  // `large`: bytes from which on a part that shrinks is multiplied; to others the change is added.
  FixEffects(std::size_t choices, double large) : alone_(choices), sharded_(choices), large_(large) {}

  // Of a choice: from `without` to `with`; `sharded`: both with parameters shared out.
  void learn(std::size_t choice, const FixNeed& without, const FixNeed& with, bool sharded);
  bool knows(std::size_t choice) const { return alone_[choice].known || sharded_[choice].known; }

  static FixEstimate from(const FixNeed& need);
  void put(FixEstimate& estimate, std::size_t choice, bool sharded) const { apply(estimate, of(choice, sharded).put); }
  void take(FixEstimate& estimate, std::size_t choice, bool sharded) const { apply(estimate, of(choice, sharded).take); }

 private:
  struct Way {
    std::array<double, kFixParts> times{}, plus{};
    double outside = 0, time = 1;
  };
  struct Effect {
    bool known = false;
    Way put, take;
  };
  static void apply(FixEstimate& estimate, const Way& way);
  Way way(const FixEstimate& before, const FixEstimate& after) const;
  const Effect& of(std::size_t choice, bool sharded) const {
    return (sharded && sharded_[choice].known) || !alone_[choice].known ? sharded_[choice] : alone_[choice];
  }

  std::vector<Effect> alone_, sharded_;
  double large_;
};

}  // namespace precog
