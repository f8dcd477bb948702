// Which of the changes to a job go together, and what several are as a whole. Of choices alone: nothing is predicted here, and what the
// reader of requests refuses as well need not be known.
#pragma once

#include <optional>
#include <vector>

#include "predict/fix_choices.h"

namespace precog {

using FixCombination = std::vector<std::size_t>;  // of choices: places in the list of all, in order; at most one of an axis

FixCombination with_one(FixCombination combination, std::size_t one);
std::vector<FixCombination> one_less(const FixCombination& combination);  // each left out in turn

// Hardly any memory, or hardly any time: tried where little is missing.
inline bool saves_little(FixAxis axis) { return axis == FixAxis::allocator || axis == FixAxis::optimizer; }
class FixRules {
 public:
  // All outlive it. `parsed`, `base`: the job that choices change, and its report.
  FixRules(const std::vector<FixChoice>& choices, const Request& parsed, const Report& base) : choices_(choices), parsed_(parsed), base_(base) {}

  const std::vector<FixChoice>& choices() const { return choices_; }
  bool possible(const FixCombination& combination) const;
  bool exclude_each_other(std::size_t a, std::size_t b) const;  // whatever else is chosen
  std::optional<std::size_t> on(FixAxis axis, const FixCombination& combination) const;
  std::optional<std::size_t> by_layers(const FixCombination& combination) const;  // what is done by layers
  FixCombination bare(FixCombination combination) const;                         // without that
  std::size_t result(const FixCombination& combination) const;                   // a FixResult
  bool other_mode(const FixCombination& combination) const { return on(FixAxis::mode, combination).has_value(); }
  bool in_stages(const FixCombination& combination) const { return degrees(combination).pp > 1; }
  std::vector<std::size_t> axes(const FixCombination& combination) const;

 private:
  FixDegrees degrees(const FixCombination& combination) const;
  bool degrees_possible(const FixCombination& combination, const FixDegrees& degrees) const;

  const std::vector<FixChoice>& choices_;
  const Request& parsed_;
  const Report& base_;
};

}  // namespace precog
