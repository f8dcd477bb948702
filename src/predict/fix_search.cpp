#include "predict/fix_search.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <map>
#include <numeric>
#include <thread>

#include <fmt/format.h>

#include "import/import.h"

namespace precog {
namespace {

constexpr unsigned kMostThreads = 4;
constexpr std::size_t kTogether = 4;       // changes in one fix, but where all that saves most is needed
constexpr std::size_t kAtOnce = 8;         // combinations asked for their memory at a time, whatever the number of threads
constexpr std::size_t kMemoryAsked = 64;   // combinations asked for their memory
constexpr std::size_t kMorePromising = 112;  // and of those that promise to be cheaper than all that was found
constexpr std::size_t kPredicted = 16;     // combinations predicted whole
constexpr double kHope = 1.06;             // estimates of memory this far above the capacity are asked for
constexpr double kHeavy = 0.8;             // of the device: weights and states that must be spread or narrowed, whatever else is done
constexpr double kHopeless = 1.2;          // estimates this far above the capacity are believed
constexpr double kNothing = 0.002;         // of the device: a change that saves less is none
constexpr int kMostLayersAsked = 256;

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

// What an estimate needs to know of a prediction.
struct Need {
  bool known = false, fits = false;
  BytesByCategory moments[2]{};  // at work, in the update
  double slack = 1;              // segments over the peak
  double outside = 0, device = 0;
  double time = 0;               // per sample; 0: memory alone is known
};

double all_bytes(const BytesByCategory& bytes) {
  double out = 0;
  for (Bytes one : bytes) out += static_cast<double>(one.value);
  return out;
}

Need need_of(const MemoryUse& use) {
  Need out;
  out.known = true;
  out.fits = use.fits;
  out.moments[0] = use.at_work, out.moments[1] = use.in_update;
  out.slack = use.peak.value > 0 ? static_cast<double>(use.device_pinned.value) / static_cast<double>(use.peak.value) : 1;
  out.outside = static_cast<double>((use.device - use.device_pinned).value);
  out.device = static_cast<double>(use.device.value);
  return out;
}

using Combination = std::vector<std::size_t>;  // of choices, in order

bool contains(const Combination& all, const Combination& some) { return std::includes(all.begin(), all.end(), some.begin(), some.end()); }

class FixSearch {
 public:
  FixSearch(const Json& request, const Report& base, const Catalog& catalog, const std::string& where, const std::filesystem::path& folder)
      : request_(request), base_(base), catalog_(catalog), where_(where), folder_(folder), capacity_(static_cast<double>(base.memory.capacity.value)) {}

  std::vector<Fix> run(std::size_t most) {
    auto parsed = parse_request(request_, catalog_, where_, folder_, base_.batch);
    if (!parsed) return {};
    layers_ = static_cast<int>(parsed->inputs.layers.value_or(parsed->model->layers)) * (parsed->model->encoder_decoder ? 2 : 1);
    layers_ /= parsed->plan.pp;  // of a stage
    choices_ = fix_choices(request_, base_, *parsed, catalog_);
    measure_alone();
    ask_for_memory(candidates());
    if (found_.empty()) all_that_saves();
    fewest_layers();
    predict_found();
    return listed(most);
  }

 private:
  struct Candidate {
    Combination choices;
    double time = 1, memory = 0;
  };
  struct Found {
    Combination choices;
    int layers = 0;
    double estimate = 1;
    std::optional<Fix> fix;
  };

  Fix described(const Combination& combination, int layers = 0) const {
    std::vector<const FixChoice*> chosen;
    for (std::size_t i : combination) chosen.push_back(&choices_[i]);
    return fix_of_choices(chosen, layers, request_, base_);
  }
  std::optional<Request> changed(const Combination& combination, int layers = 0) const {
    Json changed = request_;
    changed.merge_patch(described(combination, layers).request);
    auto parsed = parse_request(changed, catalog_, where_, folder_, base_.batch);
    if (!parsed) return std::nullopt;
    return std::move(*parsed);
  }
  std::optional<Report> predicted(const Combination& combination, int layers = 0) const {
    const auto request = changed(combination, layers);
    if (!request) return std::nullopt;
    auto prediction = predict(*request, catalog_);
    if (!prediction) return std::nullopt;
    return std::move(prediction->report);
  }
  Need whole(const Combination& combination) const {
    const auto report = predicted(combination);
    if (!report || report->samples_per_s <= 0) return {};
    Need out = need_of(report->memory);
    out.time = 1 / report->samples_per_s;
    return out;
  }
  Need memory_of(const Combination& combination, int layers = 0) const {
    const auto request = changed(combination, layers);
    if (!request) return {};
    auto use = predict_memory(*request);
    return use ? need_of(*use) : Need{};
  }

  // Every choice alone; where weights and states alone are too much, on top of sharded ones, where other things are large.
  void measure_alone() {
    start_ = need_of(base_.memory);
    start_.time = base_.samples_per_s > 0 ? 1 / base_.samples_per_s : 0;
    for (std::size_t i = 0; i < choices_.size(); ++i)
      if (choices_[i].axis == FixAxis::sharding && choices_[i].flags == "--fsdp full") full_ = i;
    alone_.resize(choices_.size());
    with_full_.resize(choices_.size());
    std::vector<std::pair<Combination, Need*>> wanted;
    const bool heavy = full_ && resident() > kHeavy * capacity_;
    for (std::size_t i = 0; i < choices_.size(); ++i) {
      const bool spreads = choices_[i].axis == FixAxis::sharding || choices_[i].axis == FixAxis::split;
      if (spreads || !(heavy || (full_ && choices_[i].needs_full))) wanted.push_back({{i}, &alone_[i]});
      else wanted.push_back({sorted({i, *full_}), &with_full_[i]});
    }
    in_parallel(wanted.size(), [&](std::size_t i) { *wanted[i].second = whole(wanted[i].first); });
    for (const auto& [combination, need] : wanted)
      if (need->known) asked_[combination] = *need;
  }
  // What is there all along, in bytes.
  double resident() const {
    using enum MemoryCategory;
    double out = 0;
    for (MemoryCategory category : {parameters, gradients, gradient_buckets, optimizer_states, master_weights}) out += static_cast<double>(start_.moments[1][static_cast<std::size_t>(category)].value);
    return out;
  }
  static Combination sorted(Combination choices) {
    std::sort(choices.begin(), choices.end());
    return choices;
  }

  bool saves(const Need& with, const Need& without) const {
    if (!with.known || !without.known) return false;
    return with.device < without.device - kNothing * capacity_ || (std::max(all_bytes(with.moments[0]), all_bytes(with.moments[1])) < std::max(all_bytes(without.moments[0]), all_bytes(without.moments[1])) - kNothing * capacity_) ||
           all_bytes(with.moments[0]) < all_bytes(without.moments[0]) - kNothing * capacity_;
  }

  // Combinations that promise to fit, cheapest first.
  std::vector<Candidate> candidates() {
    const Need& full = full_ ? alone_[*full_] : start_;
    useful_.assign(choices_.size(), 0);
    for (std::size_t i = 0; i < choices_.size(); ++i) useful_[i] = saves(alone_[i], start_) || saves(with_full_[i], full) ? 1 : 0;
    std::vector<Candidate> out;
    Combination now;
    extend(now, 0, out);
    std::stable_sort(out.begin(), out.end(), [](const Candidate& a, const Candidate& b) { return a.time < b.time; });
    return out;
  }
  void extend(Combination& now, std::size_t from, std::vector<Candidate>& out) const {
    if (!now.empty())
      if (auto one = estimated(now); one && one->memory <= kHope * capacity_) out.push_back(std::move(*one));
    if (now.size() == kTogether) return;
    for (std::size_t i = from; i < choices_.size(); ++i) {
      if (!useful_[i] || (!now.empty() && choices_[now.back()].axis == choices_[i].axis)) continue;
      if (std::any_of(now.begin(), now.end(), [&](std::size_t other) { return excludes(choices_[other], choices_[i]); })) continue;
      now.push_back(i);
      extend(now, i + 1, out);
      now.pop_back();
    }
  }
  // Both say of how many layers, or what the one saves the other has taken already.
  static bool excludes(const FixChoice& a, const FixChoice& b) {
    return (a.axis == FixAxis::offload && a.by_layers && (b.axis == FixAxis::recompute || b.axis == FixAxis::mode)) ||
           (b.axis == FixAxis::offload && b.by_layers && (a.axis == FixAxis::recompute || a.axis == FixAxis::mode));
  }

  // Parts of memory and time are multiplied by what each choice multiplies them by alone; parts that only appear are added.
  std::optional<Candidate> estimated(const Combination& combination) const {
    const auto found = asked_.find(combination);
    const Need* from = &start_;
    bool whole_weights = true;
    for (std::size_t i : combination)
      if (choices_[i].axis == FixAxis::sharding) {
        from = &alone_[i];
        whole_weights = choices_[i].flags != "--fsdp full" && choices_[i].flags != "--fsdp hybrid";
      }
    if (!from->known) return std::nullopt;
    double time = from->time / start_.time, slack = from->slack;
    std::array<std::array<double, kMemoryCategories>, 2> parts;
    for (std::size_t m = 0; m < 2; ++m)
      for (std::size_t c = 0; c < kMemoryCategories; ++c) parts[m][c] = static_cast<double>(from->moments[m][c].value);
    const auto device = [&] {
      double most = 0;
      for (const auto& moment : parts) most = std::max(most, std::accumulate(moment.begin(), moment.end(), 0.0));
      return most * slack + from->outside;
    };
    const FixChoice* layered = nullptr;
    double without = 0, ratio = 1;
    for (int round = 0; round < 2; ++round)  // what can be had by layers last
      for (std::size_t i : combination) {
        const FixChoice& choice = choices_[i];
        if (choice.axis == FixAxis::sharding || (choice.by_layers != nullptr) != (round == 1)) continue;
        const bool by_full = full_ && with_full_[i].known && (!whole_weights || !alone_[i].known);
        if (choice.needs_full && full_ && whole_weights) return std::nullopt;
        const Need &with = by_full ? with_full_[i] : alone_[i], &base = by_full ? alone_[*full_] : start_;
        if (!with.known || !base.known) return std::nullopt;
        if (choice.by_layers) layered = &choice, without = device(), ratio = with.time / base.time;
        else time *= with.time / base.time;
        for (std::size_t m = 0; m < 2; ++m)
          for (std::size_t c = 0; c < kMemoryCategories; ++c) {
            const auto before = static_cast<double>(base.moments[m][c].value), after = static_cast<double>(with.moments[m][c].value);
            if (before > 1e6) parts[m][c] *= after / before;
            else parts[m][c] += after - before;
          }
        if (choice.axis == FixAxis::allocator) slack = with.slack;
      }
    Candidate out{combination, time, device()};
    if (found != asked_.end()) out.memory = found->second.device;
    if (layered) {  // as many layers as it takes
      if (without <= 0.9 * capacity_) return std::nullopt;  // none
      const double share = std::clamp((without - 0.99 * capacity_) / std::max(1.0, without - out.memory), 0.0, 1.0);
      out.time *= 1 + (layers_ > 0 ? share : 1) * (ratio - 1);
    }
    return out;
  }

  const Need& asked(const Combination& combination) {
    const auto [place, fresh] = asked_.try_emplace(combination);
    if (fresh) place->second = memory_of(combination);
    return place->second;
  }

  void ask_for_memory(const std::vector<Candidate>& all) {
    std::size_t count = 0;
    std::vector<char> gone(all.size(), 0);
    while (true) {
      std::vector<std::size_t> wave;
      for (std::size_t i = 0; i < all.size() && wave.size() < kAtOnce; ++i) {
        if (gone[i]) continue;
        if (superfluous(all[i].choices)) {
          gone[i] = 1;
          continue;
        }
        const bool promising = all[i].time < (changes_numerics(all[i].choices) ? std::min(cheapest_[0], cheapest_[1]) : cheapest_[0]);
        if (count + wave.size() >= (promising ? kMorePromising : kMemoryAsked)) continue;
        if (!promising && found_.size() >= kPredicted) continue;
        gone[i] = 1;
        wave.push_back(i);
      }
      if (wave.empty()) return;
      count += wave.size();
      std::vector<Need> needs(wave.size());
      in_parallel(wave.size(), [&](std::size_t i) {
        const auto known = asked_.find(all[wave[i]].choices);
        needs[i] = known != asked_.end() ? known->second : memory_of(all[wave[i]].choices);
      });
      for (std::size_t i = 0; i < wave.size(); ++i) asked_[all[wave[i]].choices] = needs[i];
      ask_for_fewer(all, wave);
      for (std::size_t i : wave)
        if (asked_[all[i].choices].fits && !superfluous(all[i].choices)) keep(all[i].choices, all[i].time);
    }
  }
  void ask_for_fewer(const std::vector<Candidate>& all, const std::vector<std::size_t>& wave) {
    std::vector<Combination> wanted;
    for (std::size_t i : wave) {
      if (!asked_[all[i].choices].fits || superfluous(all[i].choices)) continue;
      for (const Combination& fewer : one_less(all[i].choices))
        if (!fewer.empty() && !asked_.contains(fewer) && !hopeless(fewer) && std::find(wanted.begin(), wanted.end(), fewer) == wanted.end()) wanted.push_back(fewer);
    }
    std::vector<Need> needs(wanted.size());
    in_parallel(wanted.size(), [&](std::size_t i) { needs[i] = memory_of(wanted[i]); });
    for (std::size_t i = 0; i < wanted.size(); ++i) asked_[wanted[i]] = needs[i];
  }
  static std::vector<Combination> one_less(const Combination& combination) {
    std::vector<Combination> out(combination.size(), combination);
    for (std::size_t i = 0; i < out.size(); ++i) out[i].erase(out[i].begin() + static_cast<std::ptrdiff_t>(i));
    return out;
  }
  bool hopeless(const Combination& combination) const {
    const auto estimate = estimated(combination);
    return estimate && estimate->memory > kHopeless * capacity_;
  }

  // Without one of its changes it may fit too: then that one is not among them.
  void keep(Combination combination, double time) {
    for (bool again = combination.size() > 1; again;) {
      again = false;
      for (Combination& fewer : one_less(combination))
        if (!fewer.empty() && !hopeless(fewer) && asked(fewer).fits) {
          combination = std::move(fewer);
          again = combination.size() > 1;
          break;
        }
    }
    if (superfluous(combination)) return;
    if (const auto better = estimated(combination)) time = better->time;
    std::erase_if(found_, [&](const Found& one) { return contains(one.choices, combination); });
    double& cheapest = cheapest_[changes_numerics(combination) ? 1 : 0];
    cheapest = std::min(cheapest, time);
    found_.push_back({std::move(combination), 0, time, std::nullopt});
  }
  bool superfluous(const Combination& combination) const {
    return std::any_of(found_.begin(), found_.end(), [&](const Found& one) { return contains(combination, one.choices); });
  }
  bool changes_numerics(const Combination& combination) const {
    return std::any_of(combination.begin(), combination.end(), [&](std::size_t i) { return !choices_[i].numerics.empty(); });
  }

  // Nothing that was tried is enough: of every setting what saves most, and then what can be left out again. What trains the same
  // first, on as many GPUs per replica as now.
  void all_that_saves() {
    for (const bool numerics : {false, true})
      for (const bool split : {false, true}) {
        const Combination all = saving_most(numerics, split);
        if (!all.empty() && asked(all).fits) return keep(all, 1);
      }
  }
  Combination saving_most(bool numerics, bool split) const {
    const auto left = [&](std::size_t i) { return with_full_[i].known ? with_full_[i].device : alone_[i].known ? alone_[i].device : 1e300; };
    Combination all;
    for (std::size_t axis = 0; axis < kFixAxes; ++axis) {
      std::optional<std::size_t> best;
      for (std::size_t i = 0; i < choices_.size(); ++i) {
        const FixChoice& choice = choices_[i];
        if (choice.axis != static_cast<FixAxis>(axis) || !useful_[i] || left(i) >= 1e300 || (best && left(i) >= left(*best))) continue;
        if ((!numerics && !choice.numerics.empty()) || (!split && choice.axis == FixAxis::split) || choice.axis == FixAxis::mode) continue;
        if (choice.axis == FixAxis::offload && choice.by_layers) continue;  // recomputing saves as much
        best = i;
      }
      if (best) all.push_back(*best);
    }
    return all;
  }

  // Of what is done to some layers only: how few are enough.
  void fewest_layers() {
    in_parallel(found_.size(), [&](std::size_t i) { few(found_[i]); });
  }
  void few(Found& found) const {
    const auto layered = std::find_if(found.choices.begin(), found.choices.end(), [&](std::size_t i) { return choices_[i].by_layers != nullptr; });
    if (layered == found.choices.end()) return;
    Combination without = found.choices;
    without.erase(without.begin() + (layered - found.choices.begin()));
    const auto all = asked_.find(found.choices), none = without.empty() ? asked_.end() : asked_.find(without);
    const Need& before = without.empty() ? start_ : none != asked_.end() ? none->second : start_;
    int low = 0, high = layers_ > 0 ? layers_ : kMostLayersAsked;  // too few, enough
    double low_device = before.device, high_device = all->second.device;
    bool asked_any = false;
    for (int tries = 0; high - low > 1 && tries < 12; ++tries) {
      int next = low + (high - low) / 2;
      if (layers_ == 0 && !asked_any && tries < 9) next = std::min(high - 1, 1 << tries);  // how many there are is not known
      else if (tries < 5 && low_device > high_device)
        next = low + static_cast<int>(std::ceil((high - low) * (low_device - capacity_) / (low_device - high_device)));
      next = std::clamp(next, low + 1, high - 1);
      const Need need = memory_of(found.choices, next);
      if (need.known && need.fits) high = next, high_device = need.device, asked_any = true;
      else low = next, low_device = need.known ? need.device : low_device;
    }
    if (layers_ > 0 ? high < layers_ : asked_any) found.layers = high;
  }

  void predict_found() {
    std::stable_sort(found_.begin(), found_.end(), [](const Found& a, const Found& b) { return a.estimate < b.estimate; });
    in_parallel(found_.size(), [&](std::size_t i) {
      Found& found = found_[i];
      const auto report = predicted(found.choices, found.layers);
      if (!report || !report->memory.fits || report->samples_per_s <= 0) return;
      Fix fix = described(found.choices, found.layers);
      fix.step = report->step;
      fix.samples_per_s = report->samples_per_s;
      fix.time_cost = base_.samples_per_s / report->samples_per_s - 1;
      fix.peak = report->memory.peak;
      fix.device = report->memory.device;
      fix.certain = report->memory.verdict == Certainty::certain;
      fix.host_of_node = report->memory.host_of_node;
      fix.host_capacity = report->memory.host_capacity;
      found.fix = std::move(fix);
    });
  }

  // Cheapest first; none that changes what another changes and costs more; the cheapest that trains the same stays.
  std::vector<Fix> listed(std::size_t most) {
    std::vector<Fix> all, out;
    for (Found& found : found_)
      if (found.fix) all.push_back(std::move(*found.fix));
    std::stable_sort(all.begin(), all.end(), [](const Fix& a, const Fix& b) { return a.time_cost < b.time_cost; });
    bool same_result = false;
    for (Fix& fix : all) {
      const bool beaten = std::any_of(out.begin(), out.end(), [&](const Fix& other) {
        return std::includes(fix.axes.begin(), fix.axes.end(), other.axes.begin(), other.axes.end()) && (other.numerics.empty() || !fix.numerics.empty()) && other.host_of_node <= fix.host_of_node;
      });
      if (beaten) continue;
      if (out.size() == most) {
        if (same_result || !fix.numerics.empty()) continue;
        out.pop_back();
      }
      same_result = same_result || fix.numerics.empty();
      out.push_back(std::move(fix));
    }
    return out;
  }

  const Json& request_;
  const Report& base_;
  const Catalog& catalog_;
  const std::string& where_;
  const std::filesystem::path& folder_;
  double capacity_;
  int layers_ = 0;  // 0: not known
  std::vector<FixChoice> choices_;
  std::vector<char> useful_;
  Need start_;
  std::optional<std::size_t> full_;        // the choice that shards parameters
  std::vector<Need> alone_, with_full_;    // of each choice
  std::map<Combination, Need> asked_;      // all layers
  std::vector<Found> found_;
  double cheapest_[2] = {1e300, 1e300};    // of those found: with the same result, with another
};

}  // namespace

std::vector<Fix> search_fixes(const Json& request, const Report& base, const Catalog& catalog, const std::string& where,
                              const std::filesystem::path& folder, std::size_t most) {
  const auto whole = request.is_object() && request.contains("from") ? with_imports(request, where, folder) : Result<Json>(request);
  if (!whole) return {};
  return FixSearch(*whole, base, catalog, where, folder).run(most);
}

}  // namespace precog
