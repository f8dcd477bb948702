#include "predict/fix_pool.h"

#include <algorithm>
#include <cmath>

#include "predict/in_parallel.h"

namespace precog {
namespace {

constexpr double kHeavy = 0.8;      // of the capacity: weights and states that must be spread or narrowed, whatever else is done
constexpr double kLarge = 0.01;     // of the capacity: parts that choices multiply; they add to smaller ones
constexpr double kNothing = 0.002;  // of the capacity: a change that saves less is none
constexpr double kRight = 0.02;     // how far rough trials may be off
constexpr double kFull = 0.99;      // of the capacity: what layers are left as they are for

double resident(const FixNeed& need) {
  using enum MemoryCategory;
  double out = 0;
  for (MemoryCategory category : {parameters, gradients, gradient_buckets, optimizer_states, master_weights})
    out += static_cast<double>(need.moments.back()[static_cast<std::size_t>(category)].value);
  return out;
}

}  // namespace

FixPool::FixPool(const FixRules& rules, const FixTrials& trials, const Report& base)
    : rules_(rules), trials_(trials), capacity_(static_cast<double>(base.memory.capacity.value)), start_(trials.rough({})), effects_(rules.choices(), kLarge * capacity_),
      useful_(rules.choices().size(), 0), refused_(rules.choices().size(), 0) {
  if (base.memory.peak.value > 0) slack_ = static_cast<double>(base.memory.device_pinned.value) / static_cast<double>(base.memory.peak.value);
  rough_[{}] = start_;
}

void FixPool::try_alone() {
  const auto& choices = rules_.choices();
  const auto full = std::find_if(choices.begin(), choices.end(), [](const FixChoice& one) { return one.axis == FixAxis::sharding && one.flags == "--fsdp full"; });
  const auto precision = std::find_if(choices.begin(), choices.end(), [](const FixChoice& one) { return one.axis == FixAxis::precision && !one.shards; });
  const bool heavy = full != choices.end() && resident(start_) > kHeavy * capacity_;
  std::vector<FixCombination> wanted;
  // With something else where it is nothing by itself: weights sharded, other degrees, a batch that replicas can have.
  const auto with_another = [&](std::size_t i) {
    std::vector<std::size_t> others;
    if (full != choices.end()) others.push_back(static_cast<std::size_t>(full - choices.begin()));
    for (std::size_t j = choices.size(); j-- > 0;)
      if (choices[j].axis == FixAxis::batch || is_degree(choices[j].axis)) others.push_back(j);
    for (std::size_t j : others)
      if (j != i && rules_.possible({j}) && rules_.possible(with_one({i}, j))) return wanted.push_back(with_one({i}, j));
  };
  for (std::size_t i = 0; i < choices.size(); ++i) {
    const bool layout = spreads(choices[i]) || is_degree(choices[i].axis);
    if ((layout || !heavy) && rules_.possible({i})) wanted.push_back({i});
    else with_another(i);
    // Tensor cores want the other memory format; in fp32 it may make no difference.
    if (choices[i].axis == FixAxis::format && precision != choices.end()) wanted.push_back(with_one({i}, static_cast<std::size_t>(precision - choices.begin())));
  }
  try_all(wanted);
  for (const FixCombination& one : wanted)
    if (one.size() == 1 && !rough_[one].known) refused_[one[0]] = 1;
}

void FixPool::try_all(const std::vector<FixCombination>& wanted) {
  std::vector<FixNeed> needs(wanted.size());
  in_parallel(wanted.size(), [&](std::size_t i) { needs[i] = tried_now(wanted[i]); });
  for (std::size_t i = 0; i < wanted.size(); ++i) rough_[wanted[i]] = needs[i];
  for (const FixCombination& one : wanted) learn_from(one);
}

FixCombination FixPool::laid_out(FixCombination combination, bool layered) const {
  std::erase_if(combination, [&](std::size_t i) {
    const FixChoice& one = rules_.choices()[i];
    if (one.by_layers) return !layered;
    return !is_degree(one.axis) && one.axis != FixAxis::precision && one.axis != FixAxis::mode && one.axis != FixAxis::sharding && one.axis != FixAxis::batch && one.axis != FixAxis::offload;
  });
  return combination;
}

void FixPool::multiply(FixNeed& need, double time, double memory) {
  need.time *= time;
  for (BytesByCategory& moment : need.moments)
    for (Bytes& bytes : moment) bytes.value = std::llround(memory * static_cast<double>(bytes.value));
}

FixNeed FixPool::tried_now(const FixCombination& combination) const {
  FixNeed out = trials_.rough(combination);
  const auto time = times_.find(laid_out(combination, false)), memory = memories_.find(laid_out(combination, true));
  multiply(out, time != times_.end() ? time->second : 1, memory != memories_.end() ? memory->second : 1);
  return out;
}

bool FixPool::put_right(const FixNode& node) {
  const FixCombination plan = node.best.layered ? with_one(node.bare, *node.best.layered) : node.bare, alike = laid_out(plan, true), laid = laid_out(plan, false);
  const auto rough = rough_.find(plan);
  if (rough == rough_.end() || rough->second.whole || !memories_.try_emplace(alike, 1).second) return false;
  const auto report = trials_.whole(plan);
  if (!report || report->samples_per_s <= 0) return false;
  const FixNeed& need = rough->second;
  const double time = 1 / report->samples_per_s / need.time, memory = (static_cast<double>(report->memory.device.value) - need.outside) / device(plan, need.most(), 0);
  if (std::abs(time - 1) < kRight && std::abs(memory - 1) < kRight) return false;
  memories_[alike] = memory;
  times_.try_emplace(laid, 1).first->second *= time;
  for (auto& [combination, one] : rough_)
    if (laid_out(combination, false) == laid) multiply(one, time, laid_out(combination, true) == alike ? memory : 1);
  return true;
}

void FixPool::learn(const FixCombination& without, const FixCombination& with, std::size_t choice) {
  const auto before = rough_.find(without), after = rough_.find(with);
  if (before == rough_.end() || after == rough_.end() || !before->second.known || !after->second.known || !learnt_.insert({with, choice}).second) return;
  effects_.learn(choice, before->second, after->second, effects_.settings(without));
  const FixAxis axis = rules_.choices()[choice].axis;
  if (is_degree(axis) || axis == FixAxis::sharding || axis == FixAxis::batch || axis == FixAxis::allocator || saves(after->second, before->second) || after->second.time < kFixFaster * before->second.time) useful_[choice] = 1;
}
// What every choice of it does where the others are taken, and every other choice that was tried on top.
void FixPool::learn_from(const FixCombination& tried) {
  const std::vector<FixCombination> fewer = one_less(tried);
  for (std::size_t i = 0; i < tried.size(); ++i) learn(fewer[i], tried, tried[i]);
  for (std::size_t i = 0; i < rules_.choices().size(); ++i)
    if (!std::binary_search(tried.begin(), tried.end(), i)) learn(tried, with_one(tried, i), i);
}
bool FixPool::saves(const FixNeed& with, const FixNeed& without) const {
  for (std::size_t m = 0; m < kStepParts; ++m) {
    double less = 0;
    for (std::size_t c = 0; c < kMemoryCategories; ++c) less += static_cast<double>((without.moments[m][c] - with.moments[m][c]).value);
    if (less > kNothing * capacity_) return true;
  }
  return false;
}

double FixPool::device(const FixCombination& combination, double most, double outside) const {
  return most * (rules_.on(FixAxis::allocator, combination) ? 1 : slack_) + outside;
}
double FixPool::share_of_layers(double without, double with) const { return std::clamp((without - kFull * capacity_) / std::max(1.0, without - with), 0.0, 1.0); }

FixBest FixPool::completed(const FixCombination& bare, const FixEstimate& need, bool tried, std::size_t result) const {
  const double without = device(bare, need.most(), need.outside), base = need.time / start_.time;
  if (tried && need.host_full) return {};
  FixBest out{base, without, std::nullopt, tried, without <= capacity_};
  if (out.fits) return out;
  const FixSettings at = effects_.settings(bare);
  for (std::size_t i = 0; i < rules_.choices().size(); ++i) {
    const FixChoice& choice = rules_.choices()[i];
    if (!choice.by_layers || !useful_[i] || static_cast<std::size_t>(choice.result) > result) continue;
    const FixCombination both = with_one(bare, i);
    if (!rules_.possible(both)) continue;
    const auto known = rough_.find(both);
    const bool was_tried = tried && known != rough_.end();
    if (was_tried && (!known->second.known || known->second.host_full)) continue;
    FixEstimate with = was_tried ? FixEffects::from(known->second) : need;
    if (!was_tried) effects_.put(with, i, at);
    FixBest now{with.time / start_.time, device(bare, with.most(), with.outside), i, was_tried, false};
    now.fits = now.memory <= capacity_;
    if (now.fits) now.time = base + share_of_layers(without, now.memory) * (now.time - base);
    if (now.fits != out.fits ? now.fits : now.worth(capacity_) < out.worth(capacity_)) out = now;
  }
  return out;
}

std::vector<FixNode> FixPool::nodes(std::size_t result, bool other_mode) const {
  std::vector<FixNode> out;
  for (const auto& [combination, need] : rough_) {
    if (!need.known || rules_.other_mode(combination) != other_mode || rules_.result(combination) > result || rules_.by_layers(combination)) continue;
    FixNode node{combination, FixEffects::from(need), {}};
    node.best = completed(combination, node.need, true, result);
    out.push_back(std::move(node));
  }
  std::stable_sort(out.begin(), out.end(), [&](const FixNode& a, const FixNode& b) { return a.best.worth(capacity_) < b.best.worth(capacity_); });
  return out;
}

std::optional<FixCandidate> FixPool::of(const FixCombination& combination) const {
  const auto tried = rough_.find(combination);
  if (tried == rough_.end() || !tried->second.known || tried->second.host_full) return std::nullopt;
  FixCandidate out{combination, tried->second.time / start_.time, device(combination, tried->second.most(), tried->second.outside)};
  if (!rules_.by_layers(combination)) return out;
  if (const auto without = of(rules_.bare(combination))) out.time = without->time + share_of_layers(without->memory, out.memory) * (out.time - without->time);
  return out;
}

std::vector<FixCandidate> FixPool::fitting(double most) const {
  std::vector<FixCandidate> out;
  for (const auto& [combination, need] : rough_)
    if (const auto one = of(combination); one && one->memory <= most && !combination.empty()) out.push_back(*one);
  std::stable_sort(out.begin(), out.end(), [](const FixCandidate& a, const FixCandidate& b) { return a.time < b.time; });
  return out;
}

FixNeed FixPool::roughly(const FixCombination& combination) const {
  if (const auto tried = rough_.find(combination); tried != rough_.end()) return tried->second;
  {
    const std::lock_guard lock(mutex_);
    if (const auto tried = late_.find(combination); tried != late_.end()) return tried->second;
  }
  const FixNeed need = tried_now(combination);
  const std::lock_guard lock(mutex_);
  return late_[combination] = need;
}

}  // namespace precog
