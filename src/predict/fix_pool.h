// All plans that were tried roughly for a job that does not fit, what was learnt from them of each change, and what they come to once
// as few layers as are enough recompute, or keep on the host, what they have for backward.
#pragma once

#include <map>
#include <mutex>
#include <set>

#include "predict/fix_effects.h"

namespace precog {

// A plan without what is done by layers, completed by the cheapest way to do that.
struct FixBest {
  double time = 1e300, memory = 1e300;  // times the job's; bytes of the device: of the cheapest that fits, or else of the smallest
  std::optional<std::size_t> layered;   // the choice
  bool tried = false, fits = false;     // else estimated
  double worth(double capacity) const { return fits ? time : time * (memory / capacity) * (memory / capacity); }  // estimates err: it may fit yet
};

struct FixNode {
  FixCombination bare;
  FixEstimate need;
  FixBest best;
};

struct FixCandidate {
  FixCombination choices;
  double time = 1, memory = 0;
};

class FixPool {
 public:
  FixPool(const FixRules& rules, const FixTrials& trials, const Report& base);

  double capacity() const { return capacity_; }
  const FixNeed& start() const { return start_; }  // the job itself
  const FixEffects& effects() const { return effects_; }
  bool contains(const FixCombination& combination) const { return rough_.contains(combination); }
  bool known(const FixCombination& combination) const { return rough_.contains(combination) && rough_.at(combination).known; }

  // Each choice alone; where weights and states alone are too much, on top of sharded ones, where other things are large.
  void try_alone();
  void try_all(const std::vector<FixCombination>& wanted);

  // Whether rough trials of plans that are laid out like it were wrong, by one at its own depth: they are right from then on. Each such plan is asked
  // for once. What is hidden behind the head of a shallow model may not be behind that of a deep one.
  bool put_right(const FixNode& node);

  // What may be worth more trials: it saved memory or time somewhere; nothing is known of it yet.
  bool useful(std::size_t choice) const { return useful_[choice]; }
  bool unknown(std::size_t choice) const { return !effects_.knows(choice) && !refused_[choice]; }

  FixBest completed(const FixCombination& bare, const FixEstimate& need, bool tried, std::size_t result) const;
  // Of one mode, and with results no farther than that: what is worth most first.
  std::vector<FixNode> nodes(std::size_t result, bool other_mode) const;
  std::vector<FixCandidate> fitting(double most) const;  // that need no more than so many bytes, the cheapest first

  FixNeed roughly(const FixCombination& combination) const;  // tried now, if need be; by several threads
  double device(const FixCombination& combination, double most, double outside) const;
  std::optional<FixCandidate> of(const FixCombination& combination) const;  // tried, of as few layers as are enough

 private:
  FixCombination laid_out(FixCombination combination, bool layered) const;  // what of it decides how far off a rough trial is
  static void multiply(FixNeed& need, double time, double memory);
  FixNeed tried_now(const FixCombination& combination) const;
  bool saves(const FixNeed& with, const FixNeed& without) const;
  void learn(const FixCombination& without, const FixCombination& with, std::size_t choice);
  void learn_from(const FixCombination& tried);
  double share_of_layers(double without, double with) const;

  const FixRules& rules_;
  const FixTrials& trials_;
  double capacity_, slack_ = 1;  // slack: segments over the peak
  FixNeed start_;
  FixEffects effects_;
  std::vector<char> useful_, refused_;
  std::map<FixCombination, FixNeed> rough_;
  std::map<FixCombination, double> times_, memories_;  // what rough trials are multiplied by, where plans are laid out so; of memory, with what is done by layers
  std::set<std::pair<FixCombination, std::size_t>> learnt_;
  mutable std::map<FixCombination, FixNeed> late_;
  mutable std::mutex mutex_;
};

}  // namespace precog
