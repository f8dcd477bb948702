#include "predict/fix_walk.h"

#include <algorithm>
#include <array>

namespace precog {
namespace {

// Plans of a kind that are tried at most, and since one was cheaper than all before; where trying roughly is no cheaper, a share of it.
constexpr std::size_t kTried = 160, kPatience = 32, kPatienceAgain = 16, kWholeShare = 2;
constexpr double kCheaper = 0.997;      // of the time
constexpr std::size_t kTogetherTried = 8;  // tried at a time, whatever the number of threads
constexpr std::size_t kAnchors = 4;     // around which two settings are changed at once
constexpr std::size_t kAround = 3;      // plans around which every setting is changed in turn
constexpr std::size_t kAfter = 16;      // plans that are tried for what those told
constexpr std::size_t kPutRight = 3;    // plans at a time that are tried at their own depth
constexpr double kLess = 0.997;         // of the memory
constexpr double kMayFit = 1.25;        // of the capacity, by a rough trial
constexpr std::size_t kOfLayout = 2;    // of a wave
constexpr double kOften = 0.01;         // of the time: what a layout promises less each time that it was tried
constexpr double kDoubtful = 1.3;       // of the time: estimates err by as much, and what they err of is worth trying
constexpr double kBetter = 0.995;       // of what a plan is worth: its neighbours are worth trying
constexpr double kNearly = 1.15;        // of the capacity: what saves little is tried
constexpr double kHopeful = 0.97;       // of the time: what a change may do of which nothing is known

class FixWalk {
 public:
  // `mode`: the choice of another mode, if there is one.
  FixWalk(FixPool& pool, const FixRules& rules, std::size_t result, std::optional<std::size_t> mode, bool other_mode)
      : pool_(pool), rules_(rules), choices_(rules.choices()), result_(result), mode_(mode), other_mode_(other_mode) {}

  void run(std::size_t most, std::size_t patience, std::size_t around) {
    begin();
    scan_layouts();
    double record = 1e300;
    for (std::size_t tried = 0, idle = 0; tried < most;) {
      const std::vector<FixNode> all = pool_.nodes(result_, other_mode_);
      double best = 1e300;
      for (const FixNode& node : all)
        if (node.best.tried && node.best.fits) best = std::min(best, kDoubtful * node.best.time);
      for (std::size_t i = 0; i < all.size(); ++i) {
        if (!all[i].best.tried && all[i].best.worth(pool_.capacity()) < best) continue;  // first what it is completed by
        if (once_.insert(all[i].bare).second || i == 0) look_around(all[i], false, best);
        if (i < kAnchors && twice_.insert(all[i].bare).second) look_around(all[i], true, best);
        if (i < kAnchors) hope(all[i]);
      }
      Promises wished = promises_;
      for (const FixNode& node : all)
        if (node.best.layered && !node.best.tried) wished[with_one(node.bare, *node.best.layered)] = {0, node.best.worth(pool_.capacity())};
      std::vector<FixCombination> wanted = best_of(wished, best, kTogetherTried);
      if ((wanted.empty() || idle >= patience) && put_right(all)) {
        record = 1e300;
        continue;
      }
      if (wanted.empty() || idle >= patience) wanted = around_next(best, around), idle = patience - std::min(patience, kAfter);
      if (wanted.empty()) return;
      pool_.try_all(wanted);
      tried += wanted.size();
      idle = best < kCheaper * record || best == 1e300 ? 0 : idle + std::min(wanted.size(), kTogetherTried);  // while nothing fits there is nothing to be content with
      record = std::min(record, best);
    }
  }

 private:
  struct Promise {
    int far = 0;  // changes from one that was tried: what is nearer is believed
    double worth = 0;
  };
  using Promises = std::map<FixCombination, Promise>;
  // From one setting to another.
  struct Turn {
    FixAxis axis = FixAxis::batch;
    std::optional<std::size_t> from, to;
  };

  bool allowed(std::size_t i) const { return static_cast<std::size_t>(choices_[i].result) <= result_; }
  bool may_turn(std::size_t i) const { return allowed(i) && !choices_[i].by_layers && choices_[i].axis != FixAxis::mode; }

  // The best plans so far of the other mode, in this one, and those of nearer results, with this one: nothing else tells what that does to them.
  void begin() {
    std::set<FixCombination> wanted;
    const auto add = [&](FixCombination one, std::optional<std::size_t> layered) {
      if (layered)
        if (FixCombination both = with_one(one, *layered); rules_.possible(both) && !pool_.contains(both)) wanted.insert(std::move(both));
      if (!one.empty() && rules_.possible(one) && !pool_.contains(one)) wanted.insert(std::move(one));
    };
    const auto with = [&](FixCombination one, std::size_t choice) {
      std::erase_if(one, [&](std::size_t other) { return rules_.exclude_each_other(other, choice); });
      return with_one(std::move(one), choice);
    };
    for (const FixNode& node : few_layouts(!other_mode_)) add(other_mode_ ? with(node.bare, *mode_) : without_mode(node.bare), node.best.layered);
    // What is done by layers does other things to memory there.
    for (std::size_t i = 0; other_mode_ && result_ == 0 && i < choices_.size(); ++i)
      if (choices_[i].by_layers) add(with({i}, *mode_), std::nullopt);
    for (std::size_t i = 0; result_ > 0 && i < choices_.size(); ++i) {
      if (static_cast<std::size_t>(choices_[i].result) != result_) continue;
      const std::vector<FixNode> best = few_layouts(other_mode_);
      for (const FixNode& node : best) {
        const FixCombination one = with(node.bare, i);
        add(one, node.best.layered);
        // How long states travel is a matter of their type.
        for (std::size_t o = 0; choices_[i].axis == FixAxis::states && &node == &best.front() && o < choices_.size(); ++o)
          if (choices_[o].axis == FixAxis::offload && !choices_[o].by_layers) add(with(one, o), node.best.layered);
      }
    }
    if (result_ == 0 && !other_mode_) frugal(add);
    pool_.try_all({wanted.begin(), wanted.end()});
  }
  // Every sharding with every degree, one sample at a time, all recomputed: what fits at all is among them, and they are far from each other.
  template <class Add>
  void frugal(Add add) const {
    const auto sparing = [&](std::size_t i) { return choices_[i].axis == FixAxis::batch && choices_[i].value == 1; };
    std::optional<std::size_t> one_sample, recomputed;
    std::vector<FixCombination> shared = {{}}, all;
    for (std::size_t i = 0; i < choices_.size(); ++i) {
      if (sparing(i)) one_sample = i;
      if (choices_[i].axis == FixAxis::recompute && choices_[i].by_layers && !choices_[i].moves) recomputed = i;  // the last is all
      if (choices_[i].axis == FixAxis::sharding) shared.push_back({i});
    }
    for (const FixCombination& sharding : shared) {
      all.push_back(sharding);
      for (std::size_t i = 0; i < choices_.size(); ++i)
        if (is_degree(choices_[i].axis)) all.push_back(with_one(sharding, i));
    }
    for (const FixCombination& layout : all) add(one_sample ? with_one(layout, *one_sample) : layout, recomputed);
  }
  FixCombination without_mode(FixCombination combination) const {
    std::erase_if(combination, [&](std::size_t i) { return choices_[i].axis == FixAxis::mode; });
    return combination;
  }
  // The best plan of each of the best layouts.
  std::vector<FixNode> few_layouts(bool other_mode) const {
    std::set<FixCombination> seen;
    std::vector<FixNode> out;
    for (const FixNode& node : pool_.nodes(result_, other_mode))
      if (out.size() < kAnchors && seen.insert(layout(node.bare)).second) out.push_back(node);
    return out;
  }
  FixCombination layout(FixCombination combination) const {
    std::erase_if(combination, [&](std::size_t i) { return !spreads(choices_[i]) && !is_degree(choices_[i].axis) && choices_[i].axis != FixAxis::precision; });
    return combination;
  }

  void promise(FixCombination bare, const FixEstimate& need, int far, double best) {
    if (bare.empty() || need.time / pool_.start().time >= best || pool_.contains(bare) || !rules_.possible(bare)) return;
    const Promise now{far, pool_.completed(bare, need, false, result_).worth(pool_.capacity())};
    if (now.worth >= best) return;
    const auto [place, fresh] = promises_.try_emplace(std::move(bare), now);
    if (!fresh && (now.far < place->second.far || (now.far == place->second.far && now.worth < place->second.worth))) place->second = now;
  }

  // Every setting in turn chosen otherwise, left alone, or changed too.
  std::vector<Turn> turns(const FixCombination& bare, bool useful) const {
    std::array<std::optional<std::size_t>, kFixAxes> now{};
    for (std::size_t i : bare) now[static_cast<std::size_t>(choices_[i].axis)] = i;
    std::vector<Turn> out;
    for (std::size_t a = 0; a < kFixAxes; ++a)
      if (now[a] && static_cast<FixAxis>(a) != FixAxis::mode) out.push_back({static_cast<FixAxis>(a), now[a], std::nullopt});
    for (std::size_t i = 0; i < choices_.size(); ++i)
      if (const auto axis = static_cast<std::size_t>(choices_[i].axis); may_turn(i) && (!useful || pool_.useful(i)) && now[axis] != i) out.push_back({choices_[i].axis, now[axis], i});
    return out;
  }
  FixEstimate turned(FixEstimate need, const Turn& one, const FixSettings& at) const {
    if (one.from) pool_.effects().take(need, *one.from, at);
    if (one.to) pool_.effects().put(need, *one.to, at);
    return need;
  }
  static FixCombination turned(FixCombination combination, const Turn& one) {
    if (one.from) std::erase(combination, *one.from);
    return one.to ? with_one(std::move(combination), *one.to) : combination;
  }
  // One setting turned, or two.
  void look_around(const FixNode& node, bool two, double best) {
    std::vector<Turn> all = turns(node.bare, true);
    const bool little = node.best.tried && (node.best.fits ? node.best.layered && node.best.time <= best : node.best.memory <= kNearly * pool_.capacity());
    if (two || !little) std::erase_if(all, [&](const Turn& one) { return saves_little(one.axis); });
    std::erase_if(all, [&](const Turn& one) { return one.from && !pool_.effects().knows(*one.from); });
    const FixSettings at = pool_.effects().settings(node.bare);
    const double better = std::min(best, kBetter * node.best.worth(pool_.capacity()));  // no steps aside, but from one layout to another
    std::vector<FixEstimate> after;
    for (const Turn& one : all) {
      after.push_back(turned(node.need, one, at));
      if (!two) promise(turned(node.bare, one), after.back(), 1, is_degree(one.axis) || one.axis == FixAxis::sharding ? best : better);
    }
    for (std::size_t i = 0; two && i < all.size(); ++i)
      for (std::size_t j = 0; j < i; ++j) {
        if (all[i].axis == all[j].axis) continue;
        if (better < 1e300 && after[i].time * after[j].time / node.need.time / pool_.start().time >= better) continue;
        promise(turned(turned(node.bare, all[i]), all[j]), turned(after[i], all[j], at), 2, better);
      }
  }
  // Does to every plan about what it did to another.
  static bool turns_little(FixAxis axis) { return saves_little(axis) || axis == FixAxis::states || axis == FixAxis::gradients || axis == FixAxis::loss || axis == FixAxis::exchange; }

  // The cheapest that fit or nearly do, at their own depth.
  bool put_right(std::vector<FixNode> all) {
    std::erase_if(all, [&](const FixNode& one) { return !one.best.tried || one.best.memory > kMayFit * pool_.capacity(); });
    std::stable_sort(all.begin(), all.end(), [](const FixNode& a, const FixNode& b) { return a.best.time < b.best.time; });
    bool out = false;
    for (std::size_t i = 0; i < std::min(kPutRight, all.size()); ++i) out = pool_.put_right(all[i]) || out;
    return out;
  }

  // Every setting of the best plan in turn chosen otherwise and tried, whatever it promises, but where it takes long even if it fits; then of
  // the best ones laid out otherwise.
  std::vector<FixCombination> around_next(double best, std::size_t most) {
    for (const FixNode& node : few_layouts(other_mode_)) {
      if (around_.size() >= most) break;
      if (!around_.insert(node.bare).second) continue;
      std::vector<FixCombination> out;
      const FixSettings at = pool_.effects().settings(node.bare);
      const auto add = [&](FixCombination one) {
        if (!one.empty() && rules_.possible(one) && !pool_.contains(one)) out.push_back(std::move(one));
      };
      for (std::size_t i = 0; i < choices_.size(); ++i)
        if (choices_[i].by_layers && allowed(i) && node.best.layered) add(with_one(node.bare, i));
      const auto known = [&](std::optional<std::size_t> choice) { return !choice || pool_.effects().knows(*choice); };
      for (const Turn& one : turns(node.bare, false)) {
        if (known(one.from) && known(one.to)) {
          const FixEstimate after = turned(node.need, one, at);
          if (after.time / pool_.start().time >= best || (turns_little(one.axis) && after.time > kCheaper * node.need.time && after.most() > kLess * node.need.most())) continue;
        }
        add(turned(node.bare, one));
      }
      if (!out.empty()) return out;
    }
    return {};
  }
  // What could not be had of the job as it is.
  void hope(const FixNode& node) {
    for (std::size_t i = 0; i < choices_.size(); ++i) {
      if (!allowed(i) || choices_[i].axis == FixAxis::mode || !pool_.unknown(i)) continue;
      const auto now = rules_.on(choices_[i].axis, node.bare);
      FixCombination one = turned(node.bare, {choices_[i].axis, now, i});
      if (!pool_.contains(one) && rules_.possible(one)) promises_.try_emplace(std::move(one), Promise{0, kHopeful * node.best.worth(pool_.capacity())});
    }
  }

  // Cheapest first; of a layout few at a time, and the more it was tried the less it promises.
  std::vector<FixCombination> best_of(const Promises& promises, double best, std::size_t most) {
    struct Place {
      double worth = 0;
      const FixCombination* bare = nullptr;
      std::size_t* tried = nullptr;
    };
    std::vector<Place> order;
    for (const auto& [bare, one] : promises) {
      if (one.worth >= best || pool_.contains(bare)) continue;
      std::size_t& tried = often_[layout(bare)];
      order.push_back({one.worth * (1 + kOften * static_cast<double>(tried)), &bare, &tried});
    }
    std::sort(order.begin(), order.end(), [](const Place& a, const Place& b) { return a.worth != b.worth ? a.worth < b.worth : *a.bare < *b.bare; });
    std::vector<FixCombination> out;
    std::map<std::size_t*, std::size_t> now;
    for (const Place& one : order) {
      if (out.size() == most) break;
      if (++now[one.tried] <= kOfLayout) ++*one.tried, out.push_back(*one.bare);
    }
    return out;
  }

  // What is shared out, and over which GPUs: every way, from the job as it is.
  void scan_layouts() {
    const FixCombination first = other_mode_ ? FixCombination{*mode_} : FixCombination{};
    if (!pool_.known(first)) return;
    std::vector<std::pair<FixCombination, FixEstimate>> all = {{first, FixEffects::from(pool_.roughly(first))}};
    for (FixAxis axis : {FixAxis::ep, FixAxis::tp, FixAxis::cp, FixAxis::pp, FixAxis::sharding, FixAxis::precision}) {
      const std::size_t before = all.size();
      for (std::size_t i = 0; i < choices_.size(); ++i) {
        if (choices_[i].axis != axis || !may_turn(i) || !pool_.useful(i)) continue;
        for (std::size_t n = 0; n < before; ++n) {
          all.emplace_back(with_one(all[n].first, i), all[n].second);
          pool_.effects().put(all.back().second, i, pool_.effects().settings(all[n].first));
        }
      }
      if (!is_degree(axis) || axis == FixAxis::pp) std::erase_if(all, [&](const auto& one) { return !rules_.possible(one.first); });
    }
    for (const auto& [bare, need] : all)
      if (rules_.result(bare) == result_) promise(bare, need, 3, 1e300);
  }

  FixPool& pool_;
  const FixRules& rules_;
  const std::vector<FixChoice>& choices_;
  std::size_t result_;
  std::optional<std::size_t> mode_;
  bool other_mode_;
  Promises promises_;
  std::set<FixCombination> once_, twice_, around_;
  std::map<FixCombination, std::size_t> often_;  // layouts
};

}  // namespace

void walk_plans(FixPool& pool, const FixRules& rules, const FixTrials& trials) {
  if (!pool.start().known) return;
  pool.try_alone();
  const std::vector<FixChoice>& choices = rules.choices();
  std::optional<std::size_t> mode;
  for (std::size_t i = 0; i < choices.size(); ++i)
    if (choices[i].axis == FixAxis::mode) mode = i;
  const std::size_t share = trials.shallow() && !trials.many_in_stages() ? 1 : kWholeShare;
  for (int pass = 0; pass < (mode ? 3 : 1); ++pass)  // in the job's own mode, in the other, and then from there
    for (std::size_t result = 0; result < kFixResults; ++result)
      if (result == 0 || std::any_of(choices.begin(), choices.end(), [&](const FixChoice& one) { return static_cast<std::size_t>(one.result) == result; }))
        FixWalk(pool, rules, result, mode, pass == 1).run(kTried / share, (pass == 2 ? kPatienceAgain : kPatience) / share, kAround / share);
}

}  // namespace precog
