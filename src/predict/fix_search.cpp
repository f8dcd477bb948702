#include "predict/fix_search.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <exception>
#include <map>
#include <numeric>
#include <set>
#include <thread>

#include "import/import.h"
#include "predict/fix_trials.h"

namespace precog {
namespace {

constexpr unsigned kMostThreads = 4;
constexpr std::size_t kTogether = 4;   // changes in one fix, but where all that saves most is needed
constexpr std::size_t kTriedRoughly = 20, kPromisingRoughly = 64;  // combinations with the same result, and as many with another; the second: while cheaper ones than all so far are promised
constexpr std::size_t kTriedWhole = 12, kPromisingWhole = 32;       // the same where trying roughly is no cheaper
constexpr std::size_t kHopefulKept = 12;
constexpr std::size_t kFound = 6, kFoundOthers = 3;  // that fit and are predicted: with the same result, and of each other kind
constexpr std::size_t kWave = 8;       // tried at a time, whatever the number of threads
// Of the capacity: an estimate up to the first is tried roughly, up to the second for its memory; beyond the third it is believed, and
// beyond the last that it surely fits.
constexpr double kWorthTrying = 1.1, kWorthAsking = 1.04, kHopeless = 1.12, kSure = 0.94;
constexpr double kBeyondDoubt = 1.6;   // of the capacity: whoever leaves a change out and is estimated so is not asked
constexpr double kTimesAlike = 1.04;   // how far estimates of time are off
constexpr double kHeavy = 0.8;         // of the capacity: weights and states that must be spread or narrowed, whatever else is done
constexpr double kLarge = 0.01;         // of the capacity: parts that choices multiply; they add to smaller ones
constexpr double kNothing = 0.002;     // of the capacity: a change that saves less is none
constexpr int kLayerTries = 4, kMostLayersAsked = 256;
constexpr double kFaster = 0.97;        // of the time: a change is worth trying for that alone
constexpr double kHardly = 1.004, kTooDear = 4;  // times the time: more changes are not worth less than the first; dearer than the second is left out
constexpr std::size_t kBetter = 4;     // neighbours predicted in a round
constexpr int kRounds = 4;             // from the cheapest to its neighbours
constexpr double kNearTime = 1.03, kNearMemory = 1.2;  // of the cheapest's time, and of the capacity: neighbours that are estimated so are tried

template <class Work>
void in_parallel(std::size_t count, Work work) {
  std::atomic<std::size_t> next{0};
  std::vector<std::exception_ptr> broken(count);
  const auto loop = [&] {
    for (std::size_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {
        broken[i] = std::current_exception();
      }
    }
  };
  {
    std::vector<std::jthread> helpers;
    const unsigned threads = std::min(kMostThreads, std::max(1u, std::thread::hardware_concurrency()));
    for (unsigned i = 1; i < threads && i < count; ++i) helpers.emplace_back(loop);
    loop();
  }
  for (const std::exception_ptr& one : broken)
    if (one) std::rethrow_exception(one);
}

bool includes_all(const FixCombination& all, const FixCombination& some) { return std::includes(all.begin(), all.end(), some.begin(), some.end()); }

FixCombination in_order(FixCombination choices) {
  std::sort(choices.begin(), choices.end());
  return choices;
}

std::vector<FixCombination> one_less(const FixCombination& combination) {
  std::vector<FixCombination> out(combination.size(), combination);
  for (std::size_t i = 0; i < out.size(); ++i) out[i].erase(out[i].begin() + static_cast<std::ptrdiff_t>(i));
  return out;
}

bool spreads(const FixChoice& choice) { return choice.axis == FixAxis::sharding || choice.shards; }
// Both share weights out, or what the one saves the other has taken already.
bool exclude_each_other(const FixChoice& a, const FixChoice& b) {
  const auto moves = [](const FixChoice& one) { return one.axis == FixAxis::offload && one.by_layers; };
  const auto keeps_less = [](const FixChoice& one) { return one.axis == FixAxis::recompute || one.axis == FixAxis::mode; };
  return (spreads(a) && spreads(b)) || (moves(a) && keeps_less(b)) || (moves(b) && keeps_less(a));
}

class FixSearch {
 public:
  FixSearch(const Json& request, const Request& parsed, const Report& base, const Catalog& catalog, const std::filesystem::path& folder)
      : base_(base), capacity_(static_cast<double>(base.memory.capacity.value)), choices_(fix_choices(request, base, parsed, catalog)),
        trials_(request, parsed, base, catalog, folder, choices_) {}

  std::vector<Fix> run(std::size_t most) {
    try_alone();
    try_roughly(candidates());
    ask_hopeful();
    if (found_of(0) == 0) all_that_saves(false);
    if (found_.empty()) all_that_saves(true);
    in_parallel(found_.size(), [&](std::size_t i) { predict_whole(found_[i]); });
    for (std::size_t kind = 0; kind < kFixResults; ++kind) improve(kind);
    return listed(most);
  }

 private:
  struct Candidate {
    FixCombination choices;
    double time = 1, memory = 0;  // times the base's per sample; bytes of the device
    double cost = 1;              // the time without what choices save of it: no less than that of fewer of them
  };
  struct Found {
    FixCombination choices;
    double time = 1;
    int layers = 0;
    std::optional<Fix> fix;
  };

  // Every choice alone; where weights and states alone are too much, on top of sharded ones, where other things are large.
  void try_alone() {
    start_ = trials_.rough({});
    if (base_.memory.peak.value > 0) slack_ = static_cast<double>(base_.memory.device_pinned.value) / static_cast<double>(base_.memory.peak.value);
    for (std::size_t i = 0; i < choices_.size(); ++i)
      if (choices_[i].axis == FixAxis::sharding && choices_[i].flags == "--fsdp full") full_ = i;
    alone_.resize(choices_.size());
    with_full_.resize(choices_.size());
    const bool heavy = full_ && resident() > kHeavy * capacity_;
    std::vector<std::pair<FixCombination, FixNeed*>> wanted;
    for (std::size_t i = 0; i < choices_.size(); ++i) {
      if (spreads(choices_[i]) || choices_[i].axis == FixAxis::split || !(full_ && (heavy || choices_[i].needs_full))) wanted.push_back({{i}, &alone_[i]});
      else wanted.push_back({in_order({i, *full_}), &with_full_[i]});
    }
    in_parallel(wanted.size(), [&](std::size_t i) { *wanted[i].second = trials_.rough(wanted[i].first); });
    for (const auto& [combination, need] : wanted) rough_[combination] = *need;
    const FixNeed& full = full_ ? alone_[*full_] : start_;
    useful_.assign(choices_.size(), 0);
    for (std::size_t i = 0; i < choices_.size(); ++i) useful_[i] = choices_[i].axis == FixAxis::allocator ? slack_ > 1 : saves(alone_[i], start_) || saves(with_full_[i], full) || hurries(alone_[i], start_);
  }
  double resident() const {
    using enum MemoryCategory;
    double out = 0;
    for (MemoryCategory category : {parameters, gradients, gradient_buckets, optimizer_states, master_weights})
      out += static_cast<double>(start_.moments.back()[static_cast<std::size_t>(category)].value);
    return out;
  }
  bool saves(const FixNeed& with, const FixNeed& without) const {
    if (!with.known || !without.known) return false;
    for (std::size_t m = 0; m < kStepParts; ++m) {
      double less = 0;
      for (std::size_t c = 0; c < kMemoryCategories; ++c) less += static_cast<double>((without.moments[m][c] - with.moments[m][c]).value);
      if (less > kNothing * capacity_) return true;
    }
    return false;
  }

  // What takes no less memory may still leave time for what does.
  static bool hurries(const FixNeed& with, const FixNeed& without) { return with.known && without.known && with.time < kFaster * without.time; }

  // Combinations that promise to fit, cheapest first.
  std::vector<Candidate> candidates() const {
    std::vector<Candidate> out;
    FixCombination now;
    if (start_.known) extend(now, 0, out);
    std::stable_sort(out.begin(), out.end(), [](const Candidate& a, const Candidate& b) { return a.cost != b.cost ? a.cost < b.cost : a.choices.size() < b.choices.size(); });
    return out;
  }
  void extend(FixCombination& now, std::size_t from, std::vector<Candidate>& out) const {
    if (!now.empty())
      if (auto one = estimated(now); one && one->memory <= kWorthTrying * capacity_) out.push_back(std::move(*one));
    if (now.size() == kTogether) return;
    for (std::size_t i = from; i < choices_.size(); ++i) {
      if (!useful_[i] || (!now.empty() && choices_[now.back()].axis == choices_[i].axis)) continue;
      if (std::any_of(now.begin(), now.end(), [&](std::size_t other) { return exclude_each_other(choices_[other], choices_[i]); })) continue;
      now.push_back(i);
      extend(now, i + 1, out);
      now.pop_back();
    }
  }

  double device_of(const FixCombination& combination, double most, double outside) const {
    const bool expandable = std::any_of(combination.begin(), combination.end(), [&](std::size_t i) { return choices_[i].axis == FixAxis::allocator; });
    return most * (expandable ? 1 : slack_) + outside;
  }

  // Parts of memory and time are multiplied by what each choice multiplies them by alone; parts that only appear are added.
  std::optional<Candidate> estimated(const FixCombination& combination) const {
    const FixNeed* from = &start_;
    bool whole_weights = true;
    for (std::size_t i : combination)
      if (spreads(choices_[i])) {
        from = &alone_[i];
        whole_weights = !choices_[i].shards && choices_[i].flags != "--fsdp full" && choices_[i].flags != "--fsdp hybrid";
      }
    if (!from->known) return std::nullopt;
    double time = from->time / start_.time, cost = std::max(1.0, time), without = 0, ratio = 1;
    FixNeed now = *from;
    bool layered = false;
    for (const bool by_layers : {false, true})  // those last
      for (std::size_t i : combination) {
        const FixChoice& choice = choices_[i];
        if (spreads(choice) || (choice.by_layers != nullptr) != by_layers) continue;
        if (choice.needs_full && whole_weights) return std::nullopt;
        const bool by_full = with_full_[i].known && (!whole_weights || !alone_[i].known);
        const FixNeed &with = by_full ? with_full_[i] : alone_[i], &base = by_full ? alone_[*full_] : start_;
        if (!with.known || !base.known) return std::nullopt;
        if (by_layers) layered = true, without = device_of(combination, now.most(), from->outside), ratio = with.time / base.time;
        else time *= with.time / base.time, cost *= std::max(1.0, with.time / base.time);
        for (std::size_t m = 0; m < kStepParts; ++m)
          for (std::size_t c = 0; c < kMemoryCategories; ++c) {
            const auto before = static_cast<double>(base.moments[m][c].value), after = static_cast<double>(with.moments[m][c].value);
            const auto value = static_cast<double>(now.moments[m][c].value);
            now.moments[m][c] = Bytes{static_cast<std::int64_t>(before > kLarge * capacity_ ? value * (after / before) : std::max(0.0, value + after - before))};
          }
      }
    Candidate out{combination, time, device_of(combination, now.most(), from->outside), cost};
    if (!layered) return out;
    if (without <= kSure * capacity_) return std::nullopt;  // nothing is left to do for it
    const double more = share_of_layers(without, out.memory) * (ratio - 1);
    out.time *= 1 + more;
    out.cost *= 1 + std::max(0.0, more);
    return out;
  }
  double share_of_layers(double without, double with) const {
    if (trials_.layers({}) == 0) return 1;
    return std::clamp((without - 0.99 * capacity_) / std::max(1.0, without - with), 0.0, 1.0);
  }

  // The estimate, or what a rough trial said.
  std::optional<Candidate> best_known(const FixCombination& combination) const {
    const auto tried = rough_.find(combination);
    if (tried == rough_.end()) return estimated(combination);
    if (!tried->second.known) return std::nullopt;
    Candidate out{combination, tried->second.time / start_.time, device_of(combination, tried->second.most(), tried->second.outside)};
    for (std::size_t i = 0; i < combination.size(); ++i) {
      if (!choices_[combination[i]].by_layers) continue;
      FixCombination fewer = combination;
      fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
      const auto without = fewer.empty() ? std::optional(Candidate{{}, 1, device_of({}, start_.most(), start_.outside)}) : best_known(fewer);
      if (without) out.time = without->time + share_of_layers(without->memory, out.memory) * (out.time - without->time);
    }
    return out;
  }

  void try_roughly(const std::vector<Candidate>& all) {
    const std::size_t usual = trials_.shallow() ? kTriedRoughly : kTriedWhole, promising = trials_.shallow() ? kPromisingRoughly : kPromisingWhole;
    std::array<double, kFixResults> cheapest;  // of those that look as if they fit, by how far from the same result
    cheapest.fill(1e300);
    std::vector<FixCombination> failing;
    std::vector<Candidate> fitting;
    std::vector<char> gone(all.size(), 0);
    std::array<std::size_t, kFixResults> count{}, dear{}, hopeful{};  // tried; though not promising; promising to fit
    for (;;) {
      std::vector<std::size_t> wave;
      for (std::size_t i = 0; i < all.size() && wave.size() < kWave; ++i) {
        if (gone[i]) continue;
        const FixCombination& choices = all[i].choices;
        const bool needless = std::any_of(fitting.begin(), fitting.end(), [&](const Candidate& less) { return needs_no_more(less.choices, less.time, choices, all[i].time); }) ||
                              std::any_of(failing.begin(), failing.end(), [&](const FixCombination& more) { return includes_all(more, choices); });
        const std::size_t kind = result_of(choices);
        const bool promises = all[i].time < kTimesAlike * *std::min_element(cheapest.begin(), cheapest.begin() + static_cast<std::ptrdiff_t>(kind) + 1);
        const bool enough = promises ? count[kind] >= (kind == 0 ? promising : promising / 2) : dear[kind] >= (kind == 0 ? usual : usual / 2) || hopeful[kind] >= kHopefulKept;
        gone[i] = 1;
        if (needless || (enough && choices.size() > 1)) continue;
        wave.push_back(i);
        if (rough_.contains(choices)) continue;  // it costs nothing
        ++count[kind];
        if (!promises) ++dear[kind];
      }
      if (wave.empty()) return;
      std::vector<FixNeed> needs(wave.size());
      in_parallel(wave.size(), [&](std::size_t i) {
        const auto known = rough_.find(all[wave[i]].choices);
        needs[i] = known != rough_.end() ? known->second : trials_.rough(all[wave[i]].choices);
      });
      for (std::size_t i = 0; i < wave.size(); ++i) rough_[all[wave[i]].choices] = needs[i];
      for (std::size_t i : wave) {
        const auto now = best_known(all[i].choices);
        if (!now) continue;
        if (now->memory > kHopeless * capacity_) failing.push_back(now->choices);
        if (now->memory > kWorthAsking * capacity_) continue;
        const std::size_t kind = result_of(now->choices);
        if (!alike(*now, hopeful_)) ++hopeful[kind];
        hopeful_.push_back(*now);
        if (now->memory > kSure * capacity_) continue;
        fitting.push_back(*now);
        double& least = cheapest[kind];
        least = std::min(least, now->time);
      }
    }
  }

  bool fits(const FixCombination& combination, int layers = 0) {
    const auto [place, fresh] = asked_.try_emplace({combination, layers});
    if (fresh)
      if (const auto use = trials_.memory(combination, layers)) place->second = {use->fits, static_cast<double>(use->device.value)};
    return place->second.fits;
  }
  void ask(const std::vector<FixCombination>& wanted) {
    std::vector<FixCombination> fresh;
    for (const FixCombination& one : wanted)
      if (!asked_.contains({one, 0}) && std::find(fresh.begin(), fresh.end(), one) == fresh.end()) fresh.push_back(one);
    std::vector<std::optional<MemoryUse>> uses(fresh.size());
    in_parallel(fresh.size(), [&](std::size_t i) { uses[i] = trials_.memory(fresh[i]); });
    for (std::size_t i = 0; i < fresh.size(); ++i) asked_[{fresh[i], 0}] = uses[i] ? Asked{uses[i]->fits, static_cast<double>(uses[i]->device.value)} : Asked{};
  }

  // For their memory, cheapest first.
  void ask_hopeful() {
    std::stable_sort(hopeful_.begin(), hopeful_.end(), [](const Candidate& a, const Candidate& b) { return a.time < b.time; });
    for (std::size_t next = 0; next < hopeful_.size();) {
      std::vector<const Candidate*> wave;
      std::vector<FixCombination> wanted;
      for (; next < hopeful_.size() && wave.size() < kWave / 2; ++next)
        if (!superfluous(hopeful_[next]) && !beaten(hopeful_[next]) && found_of(result_of(hopeful_[next].choices)) < (result_of(hopeful_[next].choices) == 0 ? kFound : kFoundOthers)) wave.push_back(&hopeful_[next]), wanted.push_back(hopeful_[next].choices);
      ask(wanted);
      std::vector<const Candidate*> fitting;
      for (const Candidate* one : wave)
        if (asked_[{one->choices, 0}].fits) fitting.push_back(one);
      keep_all(fitting);
    }
  }
  std::size_t found_of(std::size_t kind) const {
    return static_cast<std::size_t>(std::count_if(found_.begin(), found_.end(), [&](const Found& one) { return result_of(one.choices) == kind; }));
  }
  bool hopeless(const FixCombination& combination, double limit = kHopeless) const {
    const auto known = best_known(combination);
    return known && known->memory > limit * capacity_;
  }
  // Whether so many layers are estimated not to be enough.
  bool too_few(const FixCombination& combination, int layers) const {
    const int count = trials_.layers(combination);
    if (layers == 0 || count == 0) return false;
    FixCombination without = combination;
    std::erase_if(without, [&](std::size_t i) { return choices_[i].by_layers != nullptr; });
    const auto all = best_known(combination);
    const auto none = without.empty() ? std::optional(Candidate{{}, 1, device_of({}, start_.most(), start_.outside)}) : best_known(without);
    return all && none && none->memory + (all->memory - none->memory) * layers / count > kHopeless * capacity_;
  }
  // Of as few layers as are enough; without those of its changes that it fits without.
  void keep_all(const std::vector<const Candidate*>& fitting) {
    std::vector<std::optional<Found>> made(fitting.size());
    in_parallel(fitting.size(), [&](std::size_t i) { made[i] = reduced(fitting[i]->choices, fitting[i]->time); });
    for (std::optional<Found>& one : made)
      if (one) keep(std::move(*one));
  }
  std::optional<Found> reduced(FixCombination combination, double time) const {
    std::map<std::pair<FixCombination, int>, bool> known;
    const auto enough = [&](const FixCombination& less, int layers) {
      const auto asked = asked_.find({less, layers});
      if (asked != asked_.end()) return asked->second.fits;
      const auto [place, fresh] = known.try_emplace({less, layers});
      if (fresh)
        if (const auto use = trials_.memory(less, layers)) place->second = use->fits;
      return place->second;
    };
    Found out{std::move(combination), time, 0, std::nullopt};
    fewest_layers(out);
    for (bool again = out.choices.size() > 1; again;) {
      again = false;
      for (FixCombination& less : one_less(out.choices)) {
        const int layers = layered(less) ? out.layers : 0;
        if (less.empty() || hopeless(less, kBeyondDoubt) || too_few(less, layers) || !enough(less, layers)) continue;
        out.choices = std::move(less);
        out.layers = 0;
        fewest_layers(out);
        again = out.choices.size() > 1;
        break;
      }
    }
    if (const auto rough = best_known(out.choices)) out.time = rough->time;
    return out;
  }
  void keep(Found found) {
    if (superfluous({found.choices, found.time})) return;
    std::erase_if(found_, [&](const Found& one) { return needs_no_more(found.choices, found.time, one.choices, one.time); });
    found_.push_back(std::move(found));
  }
  bool layered(const FixCombination& combination) const {
    return std::any_of(combination.begin(), combination.end(), [&](std::size_t i) { return choices_[i].by_layers != nullptr; });
  }
  // Whoever has all of the changes of one that fits needs no others, unless they leave fewer layers to do something to, at less cost.
  bool needs_no_more(const FixCombination& fitting, double time, const FixCombination& more, double with_more) const {
    return includes_all(more, fitting) && (!layered(fitting) || with_more >= time || more == fitting);
  }
  bool superfluous(const Candidate& candidate) const {
    return std::any_of(found_.begin(), found_.end(), [&](const Found& one) { return needs_no_more(one.choices, one.time, candidate.choices, candidate.time); });
  }
  // One that was found changes no more settings and costs less, or fewer and hardly more.
  bool beaten(const Candidate& candidate) const {
    return std::any_of(found_.begin(), found_.end(), [&](const Found& one) {
      const bool fewer = one.choices.size() < candidate.choices.size();
      return one.time < (fewer ? kHardly : 1 / kTimesAlike) * candidate.time && result_of(one.choices) <= result_of(candidate.choices) && includes_all(axes_of(candidate.choices), axes_of(one.choices));
    });
  }
  // One of them changes fewer settings at hardly more cost, or none that this does not.
  bool alike(const Candidate& candidate, const std::vector<Candidate>& others) const {
    return std::any_of(others.begin(), others.end(), [&](const Candidate& one) {
      return one.time < kHardly * candidate.time && result_of(one.choices) <= result_of(candidate.choices) && includes_all(axes_of(candidate.choices), axes_of(one.choices));
    });
  }
  FixCombination axes_of(const FixCombination& combination) const {
    FixCombination out;
    for (std::size_t i : combination) out.push_back(static_cast<std::size_t>(choices_[i].axis));
    return out;
  }
  std::size_t result_of(const FixCombination& combination) const {
    std::size_t out = 0;
    for (std::size_t i : combination) out = std::max(out, static_cast<std::size_t>(choices_[i].result));
    return out;
  }

  // From the cheapest of a kind: every setting in turn chosen otherwise, left alone, or changed too, as long as that makes it cheaper.
  void improve(std::size_t kind) {
    for (int round = 0; round < kRounds; ++round) {
      const Found* best = nullptr;
      for (const Found& one : found_)
        if (one.fix && result_of(one.choices) <= kind && (!best || one.fix->time_cost < best->fix->time_cost)) best = &one;
      if (!best || !improved_.insert(best->choices).second) return;
      const FixCombination from = best->choices;
      const double cost = best->fix->time_cost;
      const auto known = best_known(from);
      if (!known) return;
      std::vector<FixCombination> wanted;
      std::vector<Candidate> hopeful;
      for (FixCombination& one : neighbours(from)) {
        if (result_of(one) > kind || tried_near_.contains(one)) continue;
        const auto guess = best_known(one);
        if (!guess || guess->time > kNearTime * known->time || guess->memory > kNearMemory * capacity_) continue;
        tried_near_.insert(one);
        wanted.push_back(std::move(one));
      }
      std::vector<FixNeed> needs(wanted.size());
      in_parallel(wanted.size(), [&](std::size_t i) {
        const auto before = rough_.find(wanted[i]);
        needs[i] = before != rough_.end() ? before->second : trials_.rough(wanted[i]);
      });
      for (std::size_t i = 0; i < wanted.size(); ++i) rough_[wanted[i]] = needs[i];
      for (const FixCombination& one : wanted)
        if (const auto now = best_known(one); now && now->memory <= kWorthAsking * capacity_ && now->time < known->time && !superfluous(*now) && !beaten(*now)) hopeful.push_back(*now);
      std::stable_sort(hopeful.begin(), hopeful.end(), [](const Candidate& a, const Candidate& b) { return a.time < b.time; });
      if (hopeful.size() > kBetter) hopeful.resize(kBetter);
      std::vector<std::optional<Found>> made(hopeful.size());
      in_parallel(hopeful.size(), [&](std::size_t i) {
        const auto use = trials_.memory(hopeful[i].choices);
        if (!use || !use->fits) return;
        made[i] = reduced(hopeful[i].choices, hopeful[i].time);
        if (made[i]) predict_whole(*made[i]);
      });
      bool cheaper = false;
      for (std::optional<Found>& one : made) {
        if (!one || !one->fix) continue;
        cheaper = cheaper || one->fix->time_cost < cost;
        keep(std::move(*one));
      }
      if (!cheaper) return;
    }
  }
  std::vector<FixCombination> neighbours(const FixCombination& from) const {
    std::vector<FixCombination> out;
    for (std::size_t i = 0; i < choices_.size(); ++i) {
      if (!useful_[i] || std::find(from.begin(), from.end(), i) != from.end()) continue;
      FixCombination with{i};
      for (std::size_t other : from)
        if (choices_[other].axis != choices_[i].axis && !exclude_each_other(choices_[other], choices_[i])) with.push_back(other);
      for (FixCombination& less : one_less(with))  // and without one of the others
        if (std::find(less.begin(), less.end(), i) != less.end() && less.size() > 0) out.push_back(in_order(std::move(less)));
      if (with.size() <= kTogether + 1) out.push_back(in_order(std::move(with)));
    }
    return out;
  }

  // Where the batch has no divisor near to it: the largest that fits by itself.
  std::optional<Fix> largest_batch() const {
    std::int64_t low = 0, high = base_.batch;
    if (high < 2 || trials_.fixed_batch()) return std::nullopt;
    double low_device = 0, high_device = static_cast<double>(base_.memory.device.value);
    for (int i = 0; high - low > 1; ++i) {
      std::int64_t next = low + (high - low) / 2;
      if (low == 0) next = 1;
      else if (i % 3 != 0 && high_device > capacity_) next = low + static_cast<std::int64_t>(static_cast<double>(high - low) * (capacity_ - low_device) / std::max(1.0, high_device - low_device));
      next = std::clamp(next, low + 1, high - 1);
      const auto use = trials_.memory_of_batch(next);
      if (!use || (next == 1 && !use->fits)) return std::nullopt;
      (use->fits ? low : high) = next;
      (use->fits ? low_device : high_device) = static_cast<double>(use->device.value);
    }
    const std::int64_t each = base_.batch * base_.micro_batches;
    for (std::int64_t batch = low; 2 * batch > low; --batch)
      if (each % batch == 0) return std::nullopt;
    const auto report = trials_.whole_batch(low);
    if (!report || !report->memory.fits || report->samples_per_s <= 0) return std::nullopt;
    return filled(trials_.smaller(low), *report);
  }

  // Nothing that was tried is enough: of every setting what saves most, and then what can be left out again; on as many GPUs per
  // replica as now, if that will do.
  void all_that_saves(bool numerics) {
    for (const bool split : {false, true})
      if (const FixCombination all = saving_most(numerics, split); !all.empty() && fits(all)) {
        if (auto found = reduced(all, 1)) keep(std::move(*found));
        return;
      }
  }
  FixCombination saving_most(bool numerics, bool split) const {
    const auto left = [&](std::size_t i) { return with_full_[i].known ? with_full_[i].most() : alone_[i].known ? alone_[i].most() : 1e300; };
    FixCombination all;
    for (std::size_t axis = 0; axis < kFixAxes; ++axis) {
      std::optional<std::size_t> best;
      for (std::size_t i = 0; i < choices_.size(); ++i) {
        const FixChoice& choice = choices_[i];
        if (choice.axis != static_cast<FixAxis>(axis) || !useful_[i] || left(i) >= 1e300 || (best && left(i) >= left(*best))) continue;
        if ((!numerics && !choice.numerics.empty()) || (!split && choice.axis == FixAxis::split) || choice.axis == FixAxis::mode) continue;
        if (choice.axis == FixAxis::offload && choice.by_layers) continue;  // recomputing saves as much
        if (std::any_of(all.begin(), all.end(), [&](std::size_t other) { return exclude_each_other(choices_[other], choice); })) continue;
        best = i;
      }
      if (best) all.push_back(*best);
    }
    return all;
  }

  // Of what is done to some layers only: how few are enough. Memory grows by about the same with each layer that it is not done to.
  void fewest_layers(Found& found) const {
    const auto some = std::find_if(found.choices.begin(), found.choices.end(), [&](std::size_t i) { return choices_[i].by_layers != nullptr; });
    if (some == found.choices.end()) return;
    FixCombination without = found.choices;
    without.erase(without.begin() + (some - found.choices.begin()));
    const auto none = asked_.find({without, 0});
    const auto estimate = without.empty() ? std::nullopt : best_known(without);
    double low_device = without.empty() ? static_cast<double>(base_.memory.device.value) : none != asked_.end() && none->second.device > 0 ? none->second.device : estimate ? estimate->memory : 0;
    const auto all = asked_.find({found.choices, 0});
    double high_device = all != asked_.end() ? all->second.device : 0;
    const int count = trials_.layers(found.choices);
    int low = 0, high = count > 0 ? count : kMostLayersAsked;  // too few, enough
    bool enough = false;
    const int tries = count > 0 ? kLayerTries : 2 * kLayerTries;
    for (int i = 0; high - low > 1 && i < tries; ++i) {
      int next = low + (high - low) / 2;
      if (count == 0 && !enough) next = 1 << i;  // how many there are is not known
      else if (low_device > capacity_ && high_device < capacity_) next = low + static_cast<int>(std::ceil((high - low) * (low_device - capacity_) / (low_device - high_device)));
      next = std::clamp(next, low + 1, high - 1);
      const auto use = trials_.memory(found.choices, next);
      if (use && use->fits) high = next, high_device = static_cast<double>(use->device.value), enough = true;
      else if (use) low = next, low_device = static_cast<double>(use->device.value);
      else break;
    }
    if (enough) found.layers = high;
  }

  void predict_whole(Found& found) const {
    const auto report = trials_.whole(found.choices, found.layers);
    if (!report || !report->memory.fits || report->samples_per_s <= 0) return;
    found.fix = filled(trials_.described(found.choices, found.layers), *report);
    found.time = 1 + found.fix->time_cost;
  }
  Fix filled(Fix fix, const Report& report) const {
    fix.step = report.step;
    fix.samples_per_s = report.samples_per_s;
    fix.time_cost = base_.samples_per_s / report.samples_per_s - 1;
    fix.peak = report.memory.peak;
    fix.device = report.memory.device;
    fix.certain = report.memory.verdict == Certainty::certain;
    fix.host_of_node = report.memory.host_of_node;
    fix.host_capacity = report.memory.host_capacity;
    return fix;
  }

  // Cheapest first. None that changes all that another changes, is no nearer to the same result, and is hardly cheaper; none many times
  // dearer than another that is as near. Where there are too many, no more than half of them with another result, and of those the
  // cheapest of each kind before all others.
  std::vector<Fix> listed(std::size_t most) {
    std::vector<Fix> all, kept, out;
    for (Found& found : found_)
      if (found.fix) all.push_back(std::move(*found.fix));
    std::stable_sort(all.begin(), all.end(), [](const Fix& a, const Fix& b) { return a.time_cost < b.time_cost; });
    for (const Fix& fix : all) {
      const bool needless = std::any_of(all.begin(), all.end(), [&](const Fix& other) {
        if (&other == &fix || other.result > fix.result) return false;
        if (1 + fix.time_cost > kTooDear * (1 + other.time_cost)) return true;
        const bool fewer = other.axes.size() < fix.axes.size(), before = &other < &fix;
        return std::includes(fix.axes.begin(), fix.axes.end(), other.axes.begin(), other.axes.end()) && other.host_of_node <= fix.host_of_node &&
               1 + other.time_cost <= (fewer ? kHardly : 1) * (1 + fix.time_cost) && (fewer || before);
      });
      if (!needless) kept.push_back(fix);
    }
    if (auto smaller = largest_batch()) {  // in its place, and shown as the nearest to the same result
      const auto place = std::find_if(kept.begin(), kept.end(), [&](const Fix& fix) { return fix.time_cost > smaller->time_cost; });
      kept.insert(place, std::move(*smaller));
    }
    const auto same = static_cast<std::size_t>(std::count_if(kept.begin(), kept.end(), [](const Fix& fix) { return fix.result == 0; }));
    const std::size_t others = most - std::min(most - most / 2, same), equals = most - std::min(others, kept.size() - same);
    std::vector<std::size_t> order;  // who is shown first
    std::set<std::pair<std::size_t, bool>> shown;
    const auto kind = [&](std::size_t i) { return std::pair<std::size_t, bool>(kept[i].result, kept[i].smaller_step); };
    for (std::size_t i = 0; i < kept.size(); ++i)
      if (shown.insert(kind(i)).second) order.push_back(i);
    for (std::size_t i = 0; i < kept.size(); ++i)
      if (std::find(order.begin(), order.end(), i) == order.end()) order.push_back(i);
    std::vector<char> chosen(kept.size(), 0);
    std::size_t left[2] = {equals, others};
    for (std::size_t i : order)
      if (std::size_t& some = left[kept[i].result == 0 ? 0 : 1]; some > 0) --some, chosen[i] = 1;
    for (std::size_t i = 0; i < kept.size(); ++i)
      if (chosen[i]) out.push_back(std::move(kept[i]));
    return out;
  }

  struct Asked {
    bool fits = false;
    double device = 0;
  };

  const Report& base_;
  double capacity_, slack_ = 1;            // slack: segments over the peak
  std::vector<FixChoice> choices_;
  FixTrials trials_;
  std::vector<char> useful_;
  FixNeed start_;
  std::optional<std::size_t> full_;        // the choice that shards parameters
  std::vector<FixNeed> alone_, with_full_; // of each choice
  std::map<FixCombination, FixNeed> rough_;
  std::map<std::pair<FixCombination, int>, Asked> asked_;  // of so many layers; 0: of all
  std::vector<Candidate> hopeful_;
  std::vector<Found> found_;
  std::set<FixCombination> improved_, tried_near_;
};

}  // namespace

std::vector<Fix> search_fixes(const Json& request, const Report& base, const Catalog& catalog, const std::string& where,
                              const std::filesystem::path& folder, std::size_t most) {
  const auto whole = request.is_object() && request.contains("from") ? with_imports(request, where, folder) : Result<Json>(request);
  if (!whole) return {};
  const auto parsed = parse_request(*whole, catalog, where, folder, base.batch);
  if (!parsed) return {};
  return FixSearch(*whole, *parsed, base, catalog, folder).run(most);
}

}  // namespace precog
