// A plan that a rough trial says will fit, as it is listed: predicted at its own depth, of as few layers as are enough, without a change
// that it fits without, and with what would make it faster yet.
#pragma once

#include "predict/fix_pool.h"

namespace precog {

struct FoundFix {
  FixCombination choices;
  int layers = 0;    // of so many, where something is done by layers; 0: of all
  double time = 1;   // times the job's, per sample
  Fix fix;
};

// What a prediction with the fix says of it, against the job as asked for.
void fill_in(Fix& fix, const Report& report, const Report& job, int gpus_of_node);
FasterFix faster_fix(std::string flags, Json request, const Report& report, const Report& job);

class FixFinish {
 public:
  // All outlive it. `job`: the report of the job as asked for.
  FixFinish(const FixPool& pool, const FixRules& rules, const FixTrials& trials, const Report& job) : pool_(pool), rules_(rules), trials_(trials), choices_(rules.choices()), job_(job) {}

  // None where it does not fit after all. By several threads.
  std::optional<FoundFix> finished(const FixCombination& combination) const;
  bool nearly_fits(const FixCombination& combination) const;  // that was asked for: with less waste between blocks it might
  Fix filled(Fix fix, const Report& report) const;
  void hurry(Fix& fix, const FixCombination& choices) const;  // what may make it faster yet

 private:
  struct Asked {
    bool known = false, fits = false;
    double device = 0;
  };
  struct Plan {
    FixCombination choices;
    int layers = 0;
  };
  Asked ask(const Plan& plan) const;
  std::optional<double> reckoned(const Plan& plan) const;
  void fewest_layers(Plan& plan) const;
  bool surely_short(const Plan& less, const Plan& plan) const;
  std::vector<FixCombination> simpler(const FixCombination& combination) const;
  bool simplify(Plan& plan, Report& report) const;

  const FixPool& pool_;
  const FixRules& rules_;
  const FixTrials& trials_;
  const std::vector<FixChoice>& choices_;
  const Report& job_;
  mutable std::map<std::pair<FixCombination, int>, Asked> asked_;
  mutable std::mutex mutex_;
};

}  // namespace precog
