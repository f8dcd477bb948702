#include "predict/fix_rules.h"

#include <algorithm>

namespace precog {
namespace {

constexpr std::int64_t kTokensLeft = 256;     // of a sequence that GPUs share, for each

// What layers keep goes to the host, or there is less of it.
bool moves(const FixChoice& one) { return (one.axis == FixAxis::offload && one.by_layers) || one.moves; }
bool keeps_less(const FixChoice& one) { return one.axis == FixAxis::recompute || one.axis == FixAxis::mode; }

}  // namespace

FixCombination with_one(FixCombination combination, std::size_t one) {
  combination.insert(std::upper_bound(combination.begin(), combination.end(), one), one);
  return combination;
}

std::vector<FixCombination> one_less(const FixCombination& combination) {
  std::vector<FixCombination> out(combination.size(), combination);
  for (std::size_t i = 0; i < out.size(); ++i) out[i].erase(out[i].begin() + static_cast<std::ptrdiff_t>(i));
  return out;
}

FixDegrees FixRules::degrees(const FixCombination& combination) const {
  std::vector<const FixChoice*> chosen;
  for (std::size_t i : combination)
    if (is_degree(choices_[i].axis)) chosen.push_back(&choices_[i]);
  return {parsed_.plan, chosen};
}

bool FixRules::exclude_each_other(std::size_t first, std::size_t second) const {
  const FixChoice &a = choices_[first], &b = choices_[second];
  if (a.axis == b.axis || (spreads(a) && spreads(b))) return true;
  if ((a.axis == FixAxis::gradients && !b.recipe.empty()) || (b.axis == FixAxis::gradients && !a.recipe.empty())) return true;  // another recipe's are its own
  if ((a.axis == FixAxis::optimizer && b.patch.contains("optimizer_impl")) || (b.axis == FixAxis::optimizer && a.patch.contains("optimizer_impl"))) return true;
  if ((a.moves && b.axis == FixAxis::offload) || (b.moves && a.axis == FixAxis::offload)) return true;
  return (moves(a) && keeps_less(b)) || (moves(b) && keeps_less(a));
}

// The GPUs can be shared out so, and every replica has whole micro-batches.
bool FixRules::degrees_possible(const FixCombination& combination, const FixDegrees& now) const {
  const Plan& plan = parsed_.plan;
  const auto batch = on(FixAxis::batch, combination);
  if (!now.valid || base_.global_batch % (now.dp * (batch ? choices_[*batch].value : base_.batch)) != 0) return false;
  return now.tp <= std::max(parsed_.cluster.gpus_per_node, plan.tp) && (now.cp <= plan.cp || base_.seq / now.cp >= kTokensLeft);
}

bool FixRules::possible(const FixCombination& combination) const {
  const FixDegrees now = degrees(combination);
  if (!degrees_possible(combination, now)) return false;
  const bool shares_weights = std::any_of(combination.begin(), combination.end(), [&](std::size_t i) { return shards_weights(choices_[i]); });
  for (std::size_t i = 0; i < combination.size(); ++i) {
    const FixChoice& choice = choices_[combination[i]];
    for (std::size_t j = 0; j < i; ++j)
      if (exclude_each_other(combination[i], combination[j])) return false;
    if (spreads(choice) && now.alone()) return false;
    if (choice.needs_full && !shares_weights && !now.alone()) return false;
    if (moves(choice) && now.pp > 1) return false;  // of all layers only
    if (choice.axis == FixAxis::exchange && now.cp == 1) return false;
    if (choice.axis == FixAxis::stages && (now.pp != parsed_.plan.pp || now.tp != parsed_.plan.tp)) return false;
  }
  return true;
}

std::optional<std::size_t> FixRules::on(FixAxis axis, const FixCombination& combination) const {
  for (std::size_t i : combination)
    if (choices_[i].axis == axis) return i;
  return std::nullopt;
}

std::optional<std::size_t> FixRules::by_layers(const FixCombination& combination) const {
  for (std::size_t i : combination)
    if (choices_[i].by_layers) return i;
  return std::nullopt;
}

FixCombination FixRules::bare(FixCombination combination) const {
  std::erase_if(combination, [&](std::size_t i) { return choices_[i].by_layers != nullptr; });
  return combination;
}

std::size_t FixRules::result(const FixCombination& combination) const {
  std::size_t out = 0;
  for (std::size_t i : combination) out = std::max(out, static_cast<std::size_t>(choices_[i].result));
  return out;
}

std::vector<std::size_t> FixRules::axes(const FixCombination& combination) const {
  std::vector<std::size_t> out;
  for (std::size_t i : combination) out.push_back(static_cast<std::size_t>(choices_[i].axis));
  return out;
}

}  // namespace precog
