#include "predict/fix_search.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <map>
#include <numeric>
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
constexpr std::size_t kFound = 5;      // that fit and are predicted: with the same result, and as many with another
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
    if (found_of(false) == 0) all_that_saves(false);
    if (found_.empty()) all_that_saves(true);
    in_parallel(found_.size(), [&](std::size_t i) { fewest_layers(found_[i]); });
    in_parallel(found_.size(), [&](std::size_t i) { predict_whole(found_[i]); });
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
    for (std::size_t i = 0; i < choices_.size(); ++i) useful_[i] = choices_[i].axis == FixAxis::allocator ? slack_ > 1 : saves(alone_[i], start_) || saves(with_full_[i], full);
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
    if (trials_.layers() == 0) return 1;
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
    double cheapest[2] = {1e300, 1e300};  // of those that look as if they fit: with the same result, with another
    std::vector<FixCombination> fitting, failing;
    std::vector<char> gone(all.size(), 0);
    std::size_t dear[2] = {0, 0}, hopeful[2] = {0, 0};  // tried though not promising; promising to fit
    for (std::size_t count = 0;;) {
      std::vector<std::size_t> wave;
      for (std::size_t i = 0; i < all.size() && wave.size() < kWave; ++i) {
        if (gone[i]) continue;
        const FixCombination& choices = all[i].choices;
        const bool needless = std::any_of(fitting.begin(), fitting.end(), [&](const FixCombination& less) { return includes_all(choices, less); }) ||
                              std::any_of(failing.begin(), failing.end(), [&](const FixCombination& more) { return includes_all(more, choices); });
        const std::size_t kind = changes_numerics(choices) ? 1 : 0;
        const bool promises = all[i].time < kTimesAlike * (kind == 1 ? std::min(cheapest[0], cheapest[1]) : cheapest[0]);
        const bool enough = promises ? count >= promising : dear[kind] >= usual || hopeful[kind] >= kHopefulKept;
        gone[i] = 1;
        if (needless || (enough && choices.size() > 1)) continue;
        wave.push_back(i);
        if (rough_.contains(choices)) continue;  // it costs nothing
        ++count;
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
        const std::size_t kind = changes_numerics(now->choices) ? 1 : 0;
        hopeful_.push_back(*now);
        ++hopeful[kind];
        if (now->memory > kSure * capacity_) continue;
        fitting.push_back(now->choices);
        double& least = cheapest[kind];
        least = std::min(least, now->time);
      }
    }
  }

  bool fits(const FixCombination& combination) {
    const auto [place, fresh] = asked_.try_emplace(combination);
    if (fresh)
      if (const auto use = trials_.memory(combination)) place->second = {use->fits, static_cast<double>(use->device.value)};
    return place->second.fits;
  }
  void ask(const std::vector<FixCombination>& wanted) {
    std::vector<FixCombination> fresh;
    for (const FixCombination& one : wanted)
      if (!asked_.contains(one) && std::find(fresh.begin(), fresh.end(), one) == fresh.end()) fresh.push_back(one);
    std::vector<std::optional<MemoryUse>> uses(fresh.size());
    in_parallel(fresh.size(), [&](std::size_t i) { uses[i] = trials_.memory(fresh[i]); });
    for (std::size_t i = 0; i < fresh.size(); ++i) asked_[fresh[i]] = uses[i] ? Asked{uses[i]->fits, static_cast<double>(uses[i]->device.value)} : Asked{};
  }

  // For their memory, cheapest first.
  void ask_hopeful() {
    std::stable_sort(hopeful_.begin(), hopeful_.end(), [](const Candidate& a, const Candidate& b) { return a.time < b.time; });
    for (std::size_t next = 0; next < hopeful_.size();) {
      std::vector<const Candidate*> wave;
      std::vector<FixCombination> wanted, fewer;
      for (; next < hopeful_.size() && wave.size() < kWave / 2; ++next)
        if (!superfluous(hopeful_[next].choices) && !beaten(hopeful_[next]) && found_of(changes_numerics(hopeful_[next].choices)) < kFound) wave.push_back(&hopeful_[next]), wanted.push_back(hopeful_[next].choices);
      ask(wanted);
      for (const Candidate* one : wave)
        if (asked_[one->choices].fits)
          for (FixCombination& less : one_less(one->choices))
            if (!less.empty() && !hopeless(less)) fewer.push_back(std::move(less));
      ask(fewer);
      for (const Candidate* one : wave)
        if (asked_[one->choices].fits && !superfluous(one->choices)) keep(one->choices, one->time);
    }
  }
  std::size_t found_of(bool numerics) const {
    return static_cast<std::size_t>(std::count_if(found_.begin(), found_.end(), [&](const Found& one) { return changes_numerics(one.choices) == numerics; }));
  }
  bool hopeless(const FixCombination& combination, double limit = kHopeless) const {
    const auto known = best_known(combination);
    return known && known->memory > limit * capacity_;
  }
  // Without one of its changes it may fit too: then that one is not among them.
  void keep(FixCombination combination, double time) {
    for (bool again = combination.size() > 1; again;) {
      again = false;
      for (FixCombination& less : one_less(combination))
        if (!less.empty() && !hopeless(less, kBeyondDoubt) && fits(less)) {
          combination = std::move(less);
          again = combination.size() > 1;
          break;
        }
    }
    if (superfluous(combination)) return;
    if (const auto known = best_known(combination)) time = known->time;
    std::erase_if(found_, [&](const Found& one) { return includes_all(one.choices, combination); });
    found_.push_back({std::move(combination), time, 0, std::nullopt});
  }
  bool superfluous(const FixCombination& combination) const {
    return std::any_of(found_.begin(), found_.end(), [&](const Found& one) { return includes_all(combination, one.choices); });
  }
  // One that was found changes no more settings and costs less.
  bool beaten(const Candidate& candidate) const {
    return std::any_of(found_.begin(), found_.end(), [&](const Found& one) {
      return kTimesAlike * one.time < candidate.time && (changes_numerics(candidate.choices) || !changes_numerics(one.choices)) && includes_all(axes_of(candidate.choices), axes_of(one.choices));
    });
  }
  FixCombination axes_of(const FixCombination& combination) const {
    FixCombination out;
    for (std::size_t i : combination) out.push_back(static_cast<std::size_t>(choices_[i].axis));
    return out;
  }
  bool changes_numerics(const FixCombination& combination) const {
    return std::any_of(combination.begin(), combination.end(), [&](std::size_t i) { return !choices_[i].numerics.empty(); });
  }

  // Nothing that was tried is enough: of every setting what saves most, and then what can be left out again; on as many GPUs per
  // replica as now, if that will do.
  void all_that_saves(bool numerics) {
    for (const bool split : {false, true})
      if (const FixCombination all = saving_most(numerics, split); !all.empty() && fits(all)) return keep(all, 1);
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
    const auto layered = std::find_if(found.choices.begin(), found.choices.end(), [&](std::size_t i) { return choices_[i].by_layers != nullptr; });
    if (layered == found.choices.end()) return;
    FixCombination without = found.choices;
    without.erase(without.begin() + (layered - found.choices.begin()));
    const auto none = asked_.find(without);
    const auto estimate = without.empty() ? std::nullopt : best_known(without);
    double low_device = without.empty() ? static_cast<double>(base_.memory.device.value) : none != asked_.end() && none->second.device > 0 ? none->second.device : estimate ? estimate->memory : 0;
    const auto all = asked_.find(found.choices);
    double high_device = all != asked_.end() ? all->second.device : 0;
    const int count = trials_.layers();
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
    Fix fix = trials_.described(found.choices, found.layers);
    fix.step = report->step;
    fix.samples_per_s = report->samples_per_s;
    fix.time_cost = base_.samples_per_s / report->samples_per_s - 1;
    fix.peak = report->memory.peak;
    fix.device = report->memory.device;
    fix.certain = report->memory.verdict == Certainty::certain;
    fix.host_of_node = report->memory.host_of_node;
    fix.host_capacity = report->memory.host_capacity;
    found.fix = std::move(fix);
  }

  // Cheapest first; none that changes all that another changes and costs more. Where there are too many, no more than half of them
  // with another result.
  std::vector<Fix> listed(std::size_t most) {
    std::vector<Fix> all, kept, out;
    for (Found& found : found_)
      if (found.fix) all.push_back(std::move(*found.fix));
    std::stable_sort(all.begin(), all.end(), [](const Fix& a, const Fix& b) { return a.time_cost < b.time_cost; });
    for (Fix& fix : all) {
      const bool dearer = std::any_of(kept.begin(), kept.end(), [&](const Fix& other) {
        return std::includes(fix.axes.begin(), fix.axes.end(), other.axes.begin(), other.axes.end()) && (other.numerics.empty() || !fix.numerics.empty()) && other.host_of_node <= fix.host_of_node;
      });
      if (!dearer) kept.push_back(std::move(fix));
    }
    const auto same = static_cast<std::size_t>(std::count_if(kept.begin(), kept.end(), [](const Fix& fix) { return fix.numerics.empty(); }));
    std::size_t others = most - std::min(most - most / 2, same);
    std::size_t equals = most - std::min(others, kept.size() - same);
    for (Fix& fix : kept) {
      std::size_t& left = fix.numerics.empty() ? equals : others;
      if (left == 0) continue;
      --left;
      out.push_back(std::move(fix));
    }
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
  std::map<FixCombination, Asked> asked_;  // of all layers
  std::vector<Candidate> hopeful_;
  std::vector<Found> found_;
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
