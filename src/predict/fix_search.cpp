#include "predict/fix_search.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <exception>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <thread>

#include "import/import.h"
#include "predict/fix_effects.h"
#include "predict/fix_trials.h"

namespace precog {
namespace {

constexpr unsigned kMostThreads = 4;
constexpr std::size_t kTogether = 4;   // changes in one fix, but where all that saves most is needed
constexpr std::size_t kTriedRoughly = 10, kPromisingRoughly = 20;  // combinations with the same result, and as many with another; the second: while cheaper ones than all so far are promised
constexpr std::size_t kTriedWhole = 12, kPromisingWhole = 20;       // the same where trying roughly is no cheaper
constexpr std::size_t kHopefulKept = 12;
constexpr std::size_t kFound = 6, kFoundOthers = 3;  // that fit and are predicted: with the same result, and of each other kind
constexpr std::size_t kWave = 8;       // tried at a time, whatever the number of threads
// Of the capacity: an estimate up to the first is tried roughly, up to the second for its memory; beyond the third it is believed, and
// beyond the last that it surely fits.
constexpr double kWorthTrying = 1.1, kWorthAsking = 1.04, kHopeless = 1.12, kSure = 0.94;
constexpr double kHopelessTried = 1.12; // the same of one that was tried roughly
constexpr double kBeyondDoubt = 1.6;   // of the capacity: whoever leaves a change out and is estimated so is not asked
constexpr double kTooFew = 1.15;       // the same of so many layers
constexpr double kTimesAlike = 1.04;   // how far estimates of time are off
constexpr double kHeavy = 0.8;         // of the capacity: weights and states that must be spread or narrowed, whatever else is done
constexpr double kLarge = 0.01;         // of the capacity: parts that choices multiply; they add to smaller ones
constexpr double kNothing = 0.002;     // of the capacity: a change that saves less is none
constexpr int kLayerTries = 5, kHalved = 2, kMostLayersAsked = 256;  // the second: this one in the middle of what is left
constexpr double kSurelyShort = 1.02;   // of the capacity, by such a trial brought to one that was asked
constexpr double kSurely = 0.9, kSurelySome = 0.82;  // of the capacity: no doubt below, nor above its inverse; the second: of some layers
constexpr double kOneMore = 1.005;      // of the capacity
constexpr int kMoreTries = 2;           // of what is listed
constexpr double kFewAtFirst = 0.01, kFewEnough = 0.002;  // of the time: what fewer layers yet could save; the second: of what is listed
constexpr double kFaster = 0.97;        // of the time: a change is worth trying for that alone
constexpr std::size_t kAsked = 16;      // of each kind and mode; half of them of a deep model
constexpr double kEarned = 1.02;        // of the time: what a change saves that is not needed otherwise
constexpr double kSegments = 1.05;      // of the capacity: what expandable segments may save
constexpr double kHardly = 1.01, kTooDear = 4;  // times the time: more changes are not worth less than the first; dearer than the second is left out
constexpr double kHostOfGpu = 256e9;   // bytes that a node has for each GPU, where nobody says: DGX H100's 2 TB for 8, a cloud's largest machine with one L4
constexpr int kDeep = 60;              // layers
constexpr std::size_t kTriedNear = 144;  // plans near others, with the same result, and a third where trying roughly is no cheaper; half as many with another, and half of that in another mode
constexpr int kRounds = 60;             // of waves
constexpr std::size_t kOfLayout = 2;    // of a wave
constexpr double kOften = 0.005;
constexpr std::size_t kAnchors = 4;     // whose neighbours are looked at
constexpr std::ptrdiff_t kTogetherNear = 5;  // changes, without what is done by layers and what saves little
constexpr double kBetter = 0.995;       // of what a plan is worth: its neighbours are worth trying
constexpr double kDoubtful = 1.08;      // of the time: worth trying when nothing promises more
constexpr double kNearly = 1.15;        // of the capacity: what saves little is tried
constexpr double kEnough = 1.0;         // of the capacity, by a rough trial

constexpr const char* kCompiled = "--mode compile";

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

bool saves_little(FixAxis axis) { return axis == FixAxis::allocator || axis == FixAxis::optimizer; }

std::vector<FixCombination> one_less(const FixCombination& combination) {
  std::vector<FixCombination> out(combination.size(), combination);
  for (std::size_t i = 0; i < out.size(); ++i) out[i].erase(out[i].begin() + static_cast<std::ptrdiff_t>(i));
  return out;
}

// Both share weights out, or what the one saves the other has taken already.
bool exclude_each_other(const FixChoice& a, const FixChoice& b) {
  const auto moves = [](const FixChoice& one) { return (one.axis == FixAxis::offload && one.by_layers) || one.moves; };
  const auto keeps_less = [](const FixChoice& one) { return one.axis == FixAxis::recompute || one.axis == FixAxis::mode; };
  const auto refused = [](const FixChoice& one, const FixChoice& other) {  // by this version
    const auto plan = one.patch.find("plan");
    if (one.axis != FixAxis::split || plan == one.patch.end()) return false;
    const bool experts = plan->value("ep", 1) > 1, stages = plan->value("pp", 1) > 1;
    return (experts && shards_weights(other)) || ((experts || stages) && (other.axis == FixAxis::offload || other.moves));
  };
  if (a.axis == b.axis || (a.single && spreads(b)) || (b.single && spreads(a))) return true;
  if ((a.moves && b.axis == FixAxis::offload) || (b.moves && a.axis == FixAxis::offload)) return true;
  return (spreads(a) && spreads(b)) || (moves(a) && keeps_less(b)) || (moves(b) && keeps_less(a)) || refused(a, b) || refused(b, a);
}

class FixSearch {
 public:
  // `asked`: the report of the job itself; `base`: of it without what is undone.
  FixSearch(const Json& request, const FixUndone& undone, const Request& parsed, const Report& asked, const Report& base, const Catalog& catalog, const std::filesystem::path& folder)
      : job_(asked), base_(base), capacity_(static_cast<double>(base.memory.capacity.value)), choices_(fix_choices(without(undone, request), base, parsed, catalog)),
        trials_(request, undone, parsed, base, catalog, folder, choices_), effects_(choices_, kLarge * capacity_) {}

  std::vector<Fix> run() {
    if (base_.memory.fits) found_.push_back({});  // without what is undone
    else seek();
    in_parallel(found_.size(), [&](std::size_t i) { predict_whole(found_[i]); });
    std::vector<Fix> out;
    for (Found& found : found_)
      if (found.fix && !found.fix->flags.empty()) out.push_back(std::move(*found.fix));
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
    Fix fix = trials_.smaller(low);
    const auto report = trials_.whole_of(fix.request);
    if (!report || !report->memory.fits || report->samples_per_s <= 0) return std::nullopt;
    fix = filled(std::move(fix), *report);
    hurry(fix, {});
    return fix;
  }

 private:
  void seek() {
    try_alone();
    try_roughly(candidates());
    for (const bool otherwise : {false, true})
      for (std::size_t kind = 0; kind < kFixResults; ++kind) descend(kind, otherwise);
    ask_hopeful();
    if (found_of(0, false) + found_of(0, true) == 0) all_that_saves(false);
    if (found_.empty()) all_that_saves(true);
  }

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

  struct Asked {
    bool known = false, fits = false;
    double device = 0;
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
      if (!choices_[i].parts.empty() && !choices_[i].first) continue;
      if (spreads(choices_[i]) || choices_[i].axis == FixAxis::split || !(full_ && (heavy || choices_[i].needs_full))) wanted.push_back({{i}, &alone_[i]});
      else wanted.push_back({in_order({i, *full_}), &with_full_[i]});
    }
    in_parallel(wanted.size(), [&](std::size_t i) { *wanted[i].second = trials_.rough(wanted[i].first); });
    for (const auto& [combination, need] : wanted) rough_[combination] = *need;
    const FixNeed& full = full_ ? alone_[*full_] : start_;
    for (std::size_t i = 0; i < choices_.size(); ++i) {
      effects_.learn(i, start_, alone_[i], effects_.settings({}));
      if (full_) effects_.learn(i, full, with_full_[i], effects_.settings({*full_}));
    }
    useful_.assign(choices_.size(), 0);
    for (std::size_t i = 0; i < choices_.size(); ++i) useful_[i] = choices_[i].axis == FixAxis::allocator ? slack_ > 1 : saves(alone_[i], start_) || saves(with_full_[i], full) || hurries(alone_[i], start_);
    formats_in_16_bits();
    near_.assign(choices_.size(), 0);
    for (std::size_t i = 0; i < choices_.size(); ++i) {
      const FixChoice& choice = choices_[i];
      const bool known = effects_.knows(i) || (!choice.parts.empty() && std::all_of(choice.parts.begin(), choice.parts.end(), [&](std::size_t part) { return effects_.knows(part); }));
      if (!known || choice.axis == FixAxis::mode) continue;
      if (choice.by_layers && useful_[i]) by_layers_.push_back(i);
      else if (!choice.by_layers && (useful_[i] || choice.axis == FixAxis::split) && !(choice.axis == FixAxis::offload && choice.patch.contains("optimizer_impl"))) near_[i] = 1;
    }
  }
  // Tensor cores want the other memory format; in fp32 it may make no difference.
  void formats_in_16_bits() {
    const auto narrow = std::find_if(choices_.begin(), choices_.end(), [](const FixChoice& one) { return one.axis == FixAxis::precision && !one.shards; });
    if (narrow == choices_.end()) return;
    const auto precision = static_cast<std::size_t>(narrow - choices_.begin());
    for (std::size_t i = 0; i < choices_.size(); ++i) {
      if (choices_[i].axis != FixAxis::format || !alone_[i].known || !alone_[precision].known || hurries(alone_[i], start_)) continue;
      const FixCombination both = in_order({precision, i});
      const FixNeed need = rough_[both] = trials_.rough(both);
      if (!hurries(need, alone_[precision])) continue;
      useful_[i] = 1;
      effects_.learn(i, alone_[precision], need, effects_.settings({precision}));
      alone_[i].time = start_.time * need.time / alone_[precision].time;
    }
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
      if (!useful_[i] || !choices_[i].first || (!now.empty() && choices_[now.back()].axis == choices_[i].axis)) continue;
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
        whole_weights = !shards_weights(choices_[i]);
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
    if (!tried->second.known || tried->second.host_full) return std::nullopt;
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
      for (std::size_t i : wave) learn_from(all[i].choices);
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

  // What memory a plan needs at its own depth; by several threads, each plan once but where two ask at the same time.
  Asked need_of_device(const FixCombination& combination, int layers = 0) const {
    {
      const std::lock_guard lock(asking_);
      if (const auto known = asked_.find({combination, layers}); known != asked_.end()) return known->second;
    }
    Asked out = foreseen(combination, layers);
    if (!out.known)
      if (const auto use = trials_.memory(combination, layers)) out = {true, use->fits, static_cast<double>(use->device.value)};
    const std::lock_guard lock(asking_);
    return asked_[{combination, layers}] = out;
  }
  // Where trials leave no doubt: whole ones, or rough ones far from the capacity. What is listed is predicted whole.
  Asked foreseen(const FixCombination& combination, int layers) const {
    if (layers == 0)
      if (const auto tried = rough_.find(combination); tried != rough_.end() && tried->second.whole) return {true, tried->second.fits, tried->second.device};
    const auto device = reckoned(combination, layers);
    const double surely = layers > 0 ? kSurelySome : kSurely;
    if (!device || (*device > surely * capacity_ && *device < capacity_ / surely)) return {};
    return {true, *device < capacity_, *device};
  }
  // From rough trials with all layers and with none.
  std::optional<double> reckoned(const FixCombination& combination, int layers) const {
    const int count = trials_.layers(combination);
    if (!trials_.shallow() || in_stages(combination) || (layers > 0 && count == 0)) return std::nullopt;
    const FixNeed all = roughly(combination);
    if (!all.known) return std::nullopt;
    const double device = device_of(combination, all.most(), all.outside);
    if (layers == 0) return device;
    FixCombination bare = combination;
    std::erase_if(bare, [&](std::size_t i) { return choices_[i].by_layers != nullptr; });
    const FixNeed none = bare.empty() ? start_ : roughly(bare);
    if (!none.known) return std::nullopt;
    const double without = device_of(bare, none.most(), none.outside);
    return without + (device - without) * layers / count;
  }
  // Whether one change less is too much, by trials of both that are as far off as that of the one whose need is known.
  bool surely_short(const FixCombination& less, int layers, const Found& known) const {
    const auto short_one = reckoned(less, layers), whole_one = reckoned(known.choices, known.layers);
    const Asked asked = need_of_device(known.choices, known.layers);
    return short_one && whole_one && asked.known && *short_one * asked.device / *whole_one > kSurelyShort * capacity_;
  }
  bool fits(const FixCombination& combination) const { return need_of_device(combination).fits; }
  void ask(const std::vector<FixCombination>& wanted) const {
    in_parallel(wanted.size(), [&](std::size_t i) { need_of_device(wanted[i]); });
  }

  // For their memory, cheapest first; what is over by what segments cost, with expandable ones.
  void ask_hopeful() {
    hopeful_.clear();
    for (const auto& [combination, need] : rough_)
      if (const auto one = best_known(combination); one && one->memory <= kWorthAsking * capacity_) hopeful_.push_back(*one);
    const auto cheaper = [](const Candidate& a, const Candidate& b) { return a.time < b.time; };
    std::stable_sort(hopeful_.begin(), hopeful_.end(), cheaper);
    const auto allocator = std::find_if(choices_.begin(), choices_.end(), [](const FixChoice& one) { return one.axis == FixAxis::allocator; });
    std::map<std::pair<std::size_t, bool>, std::size_t> asked_of;
    for (std::size_t next = 0; next < hopeful_.size();) {
      std::vector<Candidate> wave;
      std::vector<FixCombination> wanted;
      for (; next < hopeful_.size() && wave.size() < kWave / 2; ++next) {
        const Candidate& one = hopeful_[next];
        const std::size_t kind = result_of(one.choices);
        if (superfluous(one) || beaten(one) || told(one, found_) || found_of(kind, otherwise(one.choices)) >= most_found(kind, otherwise(one.choices))) continue;
        if (told(one, wave)) break;  // that one may not fit
        if (one.choices.size() > 1 && asked_of[{kind, otherwise(one.choices)}]++ >= (deep() ? kAsked / 2 : kAsked)) continue;
        wave.push_back(one), wanted.push_back(one.choices);
      }
      ask(wanted);
      std::vector<const Candidate*> fitting;
      for (const Candidate& one : wave) {
        const Asked asked = need_of_device(one.choices);
        if (asked.fits) fitting.push_back(&one);
        if (asked.fits || allocator == choices_.end() || asked.device > kSegments * capacity_) continue;
        const auto place = static_cast<std::size_t>(allocator - choices_.begin());
        Candidate more = one;
        more.choices = with_one(one.choices, place);
        if (std::find(one.choices.begin(), one.choices.end(), place) == one.choices.end() && !rough_.contains(more.choices))
          hopeful_.insert(std::upper_bound(hopeful_.begin() + static_cast<std::ptrdiff_t>(next), hopeful_.end(), more, cheaper), more);
      }
      keep_all(fitting);
    }
  }
  // Every question to a deep model takes long.
  bool deep() const { return trials_.layers({}) > kDeep; }
  std::size_t most_found(std::size_t kind, bool other_mode) const { return std::max<std::size_t>(1, (kind == 0 ? kFound : kFoundOthers) / (deep() || other_mode ? 2 : 1)); }
  std::size_t found_of(std::size_t kind, bool other_mode) const {
    return static_cast<std::size_t>(std::count_if(found_.begin(), found_.end(), [&](const Found& one) { return result_of(one.choices) == kind && otherwise(one.choices) == other_mode; }));
  }
  // By several threads.
  FixNeed roughly(const FixCombination& combination) const {
    if (const auto tried = rough_.find(combination); tried != rough_.end()) return tried->second;
    {
      const std::lock_guard lock(asking_);
      if (const auto tried = rough_late_.find(combination); tried != rough_late_.end()) return tried->second;
    }
    const FixNeed need = trials_.rough(combination);
    const std::lock_guard lock(asking_);
    return rough_late_[combination] = need;
  }
  bool hopeless(const FixCombination& combination, double limit = kHopeless) const {
    const auto known = best_known(combination);
    if (!known || known->memory <= kHopelessTried * capacity_) return false;
    if (rough_.contains(combination) || known->memory > limit * capacity_) return true;
    if (!trials_.shallow() || in_stages(combination)) return false;
    const FixNeed need = roughly(combination);  // a tenth of the work of asking at its own depth
    return need.known && device_of(combination, need.most(), need.outside) > kHopelessTried * capacity_;
  }
  bool in_stages(const FixCombination& combination) const {
    return std::any_of(combination.begin(), combination.end(), [&](std::size_t i) { return choices_[i].patch.contains("plan") && choices_[i].patch["plan"].value("pp", 1) > 1; });
  }
  // Whether so many layers are estimated not to be enough.
  bool too_few(const FixCombination& combination, int layers) const {
    const int count = trials_.layers(combination);
    if (layers == 0 || count == 0) return false;
    FixCombination without = combination;
    std::erase_if(without, [&](std::size_t i) { return choices_[i].by_layers != nullptr; });
    const auto all = best_known(combination);
    const auto none = without.empty() ? std::optional(Candidate{{}, 1, device_of({}, start_.most(), start_.outside)}) : best_known(without);
    return all && none && none->memory + (all->memory - none->memory) * layers / count > kTooFew * capacity_;
  }
  // Of as few layers as are enough; without those of its changes that it fits without.
  void keep_all(const std::vector<const Candidate*>& fitting) {
    std::vector<std::optional<Found>> made(fitting.size());
    in_parallel(fitting.size(), [&](std::size_t i) { made[i] = reduced(fitting[i]->choices, fitting[i]->time); });
    for (std::optional<Found>& one : made)
      if (one) keep(std::move(*one));
  }
  // One change left out; states on the host with a fused optimizer: with the optimizer as it is.
  std::vector<FixCombination> simpler(const FixCombination& combination) const {
    std::vector<FixCombination> out = one_less(combination);
    for (std::size_t i = 0; i < combination.size(); ++i)
      if (const std::size_t one = combination[i]; one > 0 && choices_[one].axis == FixAxis::offload && choices_[one].patch.contains("optimizer_impl"))
        out.push_back(combination), out.back()[i] = one - 1;
    // What layers keep goes to the host without recomputing any of it.
    const auto moved = std::find_if(choices_.begin(), choices_.end(), [](const FixChoice& one) { return one.axis == FixAxis::offload && one.by_layers; });
    for (std::size_t i = 0; i < combination.size() && moved != choices_.end(); ++i)
      if (choices_[combination[i]].moves) out.push_back(in_order([&] { FixCombination one = combination; one[i] = static_cast<std::size_t>(moved - choices_.begin()); return one; }()));
    return out;
  }
  std::optional<Found> reduced(FixCombination combination, double time) const {
    const auto enough = [&](const FixCombination& less, int layers) { return need_of_device(less, layers).fits; };
    Found out{std::move(combination), time, 0, std::nullopt};
    fewest_layers(out);
    for (bool again = out.choices.size() > 1; again;) {
      again = false;
      for (FixCombination& less : simpler(out.choices)) {
        const int layers = layered(less) ? out.layers : 0;
        if (less.empty() || earned(out.choices, less) || hopeless(less, kBeyondDoubt) || too_few(less, layers) || surely_short(less, layers, out) || !enough(less, layers)) continue;
        out.choices = std::move(less);
        out.layers = layers;  // no fewer than with what is left out
        again = out.choices.size() > 1;
        break;
      }
    }
    if (const auto rough = best_known(out.choices)) out.time = rough->time;
    if (!layered(out.choices) && !rough_.contains(out.choices))
      if (const FixNeed need = roughly(out.choices); need.known) out.time = need.time / start_.time;
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
    if (!includes_all(more, fitting)) return false;
    if (more == fitting || with_more >= time) return true;
    if (more.size() == fitting.size() + 1 && otherwise(more) && !otherwise(fitting)) return true;  // said with it (hurry())
    return !layered(fitting) && !(with_more * kEarned < time && more_than(more, fitting));
  }
  // Whether the difference is how the work is laid out, a precision or the mode: that may stay for the time that it saves alone.
  bool more_than(const FixCombination& more, const FixCombination& less) const {
    return std::any_of(more.begin(), more.end(), [&](std::size_t i) {
      const FixAxis axis = choices_[i].axis;
      return (axis == FixAxis::precision || axis == FixAxis::mode || axis == FixAxis::sharding || axis == FixAxis::split || axis == FixAxis::batch || axis == FixAxis::format) && std::find(less.begin(), less.end(), i) == less.end();
    });
  }
  bool earned(const FixCombination& more, const FixCombination& less) const {
    if (!more_than(more, less)) return false;
    const auto with = best_known(more), without = best_known(less);
    return with && without && with->time * kEarned < without->time;
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
  // One of them is the same but for what saves a little, and hardly costs more.
  template <class Some>
  bool told(const Candidate& candidate, const std::vector<Some>& others) const {
    const auto gist = [&](FixCombination combination) {
      std::erase_if(combination, [&](std::size_t i) { return choices_[i].axis == FixAxis::loss || saves_little(choices_[i].axis); });
      return combination;
    };
    return std::any_of(others.begin(), others.end(), [&](const Some& one) { return one.time < kHardly * candidate.time && gist(one.choices) == gist(candidate.choices); });
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

  // Plans without what is done by layers, which then are as few as are enough: the cheapest way to do that.
  struct Completed {
    double time = 1e300, memory = 1e300;  // times the base's; of the cheapest that fits, or else of the smallest
    std::optional<std::size_t> layered;
    bool tried = false, fits = false;
    double worth(double capacity) const { return fits ? time : time * (memory / capacity) * (memory / capacity); }  // estimates err: it may fit yet
  };
  bool allowed(std::size_t i, std::size_t kind) const { return static_cast<std::size_t>(choices_[i].result) <= kind; }
  bool otherwise(const FixCombination& combination) const {
    return std::any_of(combination.begin(), combination.end(), [&](std::size_t i) { return choices_[i].axis == FixAxis::mode; });
  }
  bool shares_weights(const FixCombination& combination) const {
    return std::any_of(combination.begin(), combination.end(), [&](std::size_t i) { return shards_weights(choices_[i]); });
  }
  static FixCombination with_one(FixCombination combination, std::size_t one) {
    combination.push_back(one);
    return in_order(std::move(combination));
  }
  Completed completed(const FixCombination& bare, const FixEstimate& need, bool tried, std::size_t kind) const {
    const double without = device_of(bare, need.most(), need.outside), base = need.time / start_.time;
    if (tried && need.host_full) return {};
    Completed out{base, without, std::nullopt, tried, without <= kEnough * capacity_};
    if (out.fits) return out;
    const FixSettings at = effects_.settings(bare);
    for (std::size_t i : by_layers_) {
      if (!allowed(i, kind) || std::any_of(bare.begin(), bare.end(), [&](std::size_t other) { return exclude_each_other(choices_[other], choices_[i]); })) continue;
      const auto known = tried ? rough_.find(with_one(bare, i)) : rough_.end();
      if (known != rough_.end() && (!known->second.known || known->second.host_full)) continue;
      FixEstimate with = known != rough_.end() ? FixEffects::from(known->second) : need;
      if (known == rough_.end()) effects_.put(with, i, at);
      Completed now{with.time / start_.time, device_of(bare, with.most(), with.outside), i, known != rough_.end(), false};
      now.fits = now.memory <= kEnough * capacity_;
      if (now.fits) now.time = base + share_of_layers(without, now.memory) * (now.time - base);
      if (now.fits != out.fits ? now.fits : now.worth(capacity_) < out.worth(capacity_)) out = now;
    }
    return out;
  }

  struct Node {
    FixCombination bare;
    FixEstimate need;
    Completed best;
  };
  std::vector<Node> nodes(std::size_t kind, bool other_mode) const {
    std::vector<Node> out;
    const auto add = [&](const FixCombination& bare, const FixNeed& need) {
      if (!need.known || otherwise(bare) != other_mode || result_of(bare) > kind || layered(bare)) return;
      Node node{bare, FixEffects::from(need), {}};
      node.best = completed(bare, node.need, true, kind);
      out.push_back(std::move(node));
    };
    add({}, start_);
    for (const auto& [combination, need] : rough_) add(combination, need);
    std::stable_sort(out.begin(), out.end(), [&](const Node& a, const Node& b) { return a.best.worth(capacity_) < b.best.worth(capacity_); });
    return out;
  }

  // From one setting to another, in terms of what was tried.
  struct Turn {
    FixAxis axis = FixAxis::batch;
    std::optional<std::size_t> old_choice, new_choice;
  };
  std::vector<std::size_t> atoms(std::optional<std::size_t> choice) const {
    if (!choice) return {};
    return choices_[*choice].parts.empty() || effects_.knows(*choice) ? std::vector<std::size_t>{*choice} : choices_[*choice].parts;
  }
  void turn(FixEstimate& need, const Turn& one, const FixSettings& at) const {
    const auto old_ones = atoms(one.old_choice), new_ones = atoms(one.new_choice);
    for (std::size_t i : old_ones)
      if (std::find(new_ones.begin(), new_ones.end(), i) == new_ones.end()) effects_.take(need, i, at);
    for (std::size_t i : new_ones)
      if (std::find(old_ones.begin(), old_ones.end(), i) == old_ones.end()) effects_.put(need, i, at);
  }
  FixCombination turned(FixCombination combination, const Turn& one) const {
    if (one.old_choice) std::erase(combination, *one.old_choice);
    return one.new_choice ? with_one(std::move(combination), *one.new_choice) : combination;
  }
  bool possible(const FixCombination& combination) const {
    const bool shared = shares_weights(combination);
    for (std::size_t i = 0; i < combination.size(); ++i) {
      if (choices_[combination[i]].needs_full && !shared) return false;
      for (std::size_t j = 0; j < i; ++j)
        if (exclude_each_other(choices_[combination[i]], choices_[combination[j]])) return false;
    }
    return std::count_if(combination.begin(), combination.end(), [&](std::size_t i) { return !choices_[i].by_layers && !saves_little(choices_[i].axis); }) <= kTogetherNear;
  }
  // Every setting in turn chosen otherwise, left alone, or changed too.
  std::vector<Turn> turns(const FixCombination& bare, std::size_t kind) const {
    std::array<std::optional<std::size_t>, kFixAxes> now{};
    for (std::size_t i : bare) now[static_cast<std::size_t>(choices_[i].axis)] = i;
    std::vector<Turn> out;
    for (std::size_t a = 0; a < kFixAxes; ++a)
      if (now[a] && static_cast<FixAxis>(a) != FixAxis::mode) out.push_back({static_cast<FixAxis>(a), now[a], std::nullopt});
    for (std::size_t i = 0; i < choices_.size(); ++i) {
      const FixChoice& choice = choices_[i];
      const auto axis = static_cast<std::size_t>(choice.axis);
      if (!near_[i] || !allowed(i, kind) || now[axis] == i) continue;
      out.push_back({choice.axis, now[axis], i});
    }
    return out;
  }
  struct Promise {
    int far = 0;       // turns from one that was tried: what is nearer is believed
    double worth = 0;
  };
  using Promises = std::map<FixCombination, Promise>;
  void promise(FixCombination bare, const FixEstimate& need, int far, std::size_t kind, double best, Promises& promises) const {
    if (bare.empty() || need.time / start_.time >= best || rough_.contains(bare) || !possible(bare)) return;
    const Promise now{far, completed(bare, need, false, kind).worth(capacity_)};
    if (now.worth >= best) return;
    const auto [place, fresh] = promises.try_emplace(std::move(bare), now);
    if (!fresh && (now.far < place->second.far || (now.far == place->second.far && now.worth < place->second.worth))) place->second = now;
  }
  // One setting turned, or two.
  void look_around(const Node& node, bool two, std::size_t kind, double best, Promises& promises) const {
    std::vector<Turn> all = turns(node.bare, kind);
    const bool little = node.best.tried && (node.best.fits ? node.best.layered && node.best.time <= best : node.best.memory <= kNearly * capacity_);
    if (two || !little) std::erase_if(all, [&](const Turn& one) { return saves_little(one.axis); });
    const FixSettings at = effects_.settings(node.bare);
    const double better = std::min(best, kBetter * node.best.worth(capacity_));  // no steps aside, but from one layout to another
    const auto limit = [&](const Turn& one) { return one.axis == FixAxis::split || one.axis == FixAxis::sharding ? best : better; };
    std::vector<FixEstimate> after(all.size(), node.need);
    for (std::size_t i = 0; i < all.size(); ++i) {
      turn(after[i], all[i], at);
      if (!two) promise(turned(node.bare, all[i]), after[i], 1, kind, limit(all[i]), promises);
    }
    for (std::size_t i = 0; two && i < all.size(); ++i)
      for (std::size_t j = 0; j < i; ++j) {
        if (all[i].axis == all[j].axis) continue;
        if (better < 1e300 && after[i].time * after[j].time / node.need.time / start_.time >= better) continue;
        FixEstimate need = after[i];
        turn(need, all[j], at);
        promise(turned(turned(node.bare, all[i]), all[j]), need, 2, kind, better, promises);
      }
  }
  // Cheapest first; of a layout few at a time, and the more it was tried the less it promises.
  using Layouts = std::map<FixCombination, std::size_t>;
  std::vector<FixCombination> best_promised(const Promises& promises, double best, std::size_t most, Layouts& often) const {
    struct Place {
      double worth = 0;
      const FixCombination* bare = nullptr;
      std::size_t* tried = nullptr;
    };
    std::vector<Place> order;
    for (const auto& [bare, one] : promises) {
      if (one.worth >= best || rough_.contains(bare)) continue;
      FixCombination layout;
      for (std::size_t i : bare)
        if (spreads(choices_[i]) || choices_[i].axis == FixAxis::split || choices_[i].axis == FixAxis::precision) layout.push_back(i);
      std::size_t& tried = often[std::move(layout)];
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
  void scan_layouts(std::size_t kind, double best, Promises& promises) const {
    const auto of = [&](FixAxis axis) {
      std::vector<std::optional<std::size_t>> out = {std::nullopt};
      for (std::size_t i = 0; i < choices_.size(); ++i)
        if (choices_[i].axis == axis && near_[i] && allowed(i, kind)) out.push_back(i);
      return out;
    };
    const auto precisions = of(FixAxis::precision), states = of(FixAxis::states), shardings = of(FixAxis::sharding), splits = of(FixAxis::split);
    for (const auto& precision : precisions)
      for (const auto& sharding : shardings) {
        if (sharding && precision && choices_[*precision].shards) continue;
        FixCombination first;
        FixEstimate need = FixEffects::from(start_);
        for (const auto& one : {precision, sharding})
          if (one) first.push_back(*one), effects_.put(need, *one, effects_.settings({}));
        const FixSettings at = effects_.settings(first);
        for (const auto& state : states) {
          FixEstimate second = need;
          if (state) effects_.put(second, *state, at);
          for (const auto& split : splits) {
            FixEstimate third = second;
            turn(third, {FixAxis::split, std::nullopt, split}, at);
            FixCombination bare = first;
            for (const auto& one : {state, split})
              if (one) bare.push_back(*one);
            promise(in_order(std::move(bare)), third, 3, kind, best, promises);
          }
        }
      }
  }
  void try_all(const std::vector<FixCombination>& wanted) {
    std::vector<FixNeed> needs(wanted.size());
    in_parallel(wanted.size(), [&](std::size_t i) { needs[i] = trials_.rough(wanted[i]); });
    for (std::size_t i = 0; i < wanted.size(); ++i) rough_[wanted[i]] = needs[i];
    for (const FixCombination& one : wanted) learn_from(one);
  }
  // What every choice of it does where the others are taken, and every other choice that was tried on top.
  void learn_from(const FixCombination& tried) {
    const auto learn = [&](const FixCombination& without, const FixCombination& with, std::size_t choice) {
      const auto before = rough_.find(without), after = rough_.find(with);
      if ((!without.empty() && before == rough_.end()) || after == rough_.end() || !learnt_.insert({with, choice}).second) return;
      effects_.learn(choice, without.empty() ? start_ : before->second, after->second, effects_.settings(without));
    };
    const std::vector<FixCombination> fewer = one_less(tried);
    for (std::size_t i = 0; i < tried.size(); ++i) learn(fewer[i], tried, tried[i]);
    for (std::size_t i = 0; i < choices_.size(); ++i)
      if (std::find(tried.begin(), tried.end(), i) == tried.end()) learn(tried, with_one(tried, i), i);
  }

  // What other types of weights and states add may be shared out or on the host in the cheapest plans, and how long states travel is a
  // matter of their type; nothing tells of that but trying.
  void try_precisions(std::size_t kind, bool other_mode) {
    std::set<FixCombination> wanted;
    const std::vector<Node> all = nodes(kind, other_mode);
    const auto put = [&](FixCombination one, std::size_t choice, std::optional<std::size_t> layered) {
      std::erase_if(one, [&](std::size_t other) { return exclude_each_other(choices_[other], choices_[choice]); });
      one = with_one(std::move(one), choice);
      if (layered)
        if (FixCombination both = with_one(one, *layered); possible(both) && !rough_.contains(both)) wanted.insert(std::move(both));
      if (possible(one) && !rough_.contains(one)) wanted.insert(one);
      return one;
    };
    for (std::size_t i = 0; i < choices_.size(); ++i) {
      const bool states = choices_[i].axis == FixAxis::states;
      if ((!states && choices_[i].axis != FixAxis::precision) || static_cast<std::size_t>(choices_[i].result) != kind) continue;
      for (std::size_t n = 0; n < std::min(kAnchors / 2, all.size()); ++n) {
        const FixCombination one = put(all[n].bare, i, all[n].best.layered);
        for (std::size_t o = 0; states && n == 0 && o < choices_.size(); ++o)
          if (choices_[o].axis == FixAxis::offload && near_[o]) put(one, o, all[n].best.layered);
      }
    }
    try_all({wanted.begin(), wanted.end()});
  }
  // From the cheapest that were tried to plans that differ in one or two settings, as long as those promise to be cheaper.
  void descend(std::size_t kind, bool other_mode) {
    if (!start_.known || !std::any_of(choices_.begin(), choices_.end(), [&](const FixChoice& one) { return kind == 0 || static_cast<std::size_t>(one.result) == kind; })) return;
    std::size_t left = (trials_.shallow() ? kTriedNear : kTriedNear / 3) / (kind == 0 ? 1 : 2) / (other_mode ? 2 : 1);
    if (other_mode) {
      const auto mode = std::find_if(choices_.begin(), choices_.end(), [](const FixChoice& one) { return one.axis == FixAxis::mode; });
      if (mode == choices_.end()) return;
      const auto place = static_cast<std::size_t>(mode - choices_.begin());
      std::vector<FixCombination> wanted;
      for (const Node& node : nodes(kind, false)) {
        if (wanted.size() >= kAnchors) break;
        FixCombination one = with_one(node.bare, place);
        if (node.best.layered)
          if (FixCombination both = with_one(one, *node.best.layered); possible(both) && !rough_.contains(both)) wanted.push_back(std::move(both));
        if (possible(one) && !rough_.contains(one)) wanted.push_back(std::move(one));
      }
      // What is done by layers does other things to memory there.
      for (std::size_t i : by_layers_)
        if (FixCombination one = in_order({place, i}); kind == 0 && possible(one) && !rough_.contains(one)) wanted.push_back(std::move(one));
      try_all(wanted);
    }
    if (kind > 0) try_precisions(kind, other_mode);
    Promises promises;
    std::set<FixCombination> once, twice;
    if (!other_mode) scan_layouts(kind, 1e300, promises);
    std::size_t aside = left / 3;
    Layouts often;
    for (int round = 0; left > 0 && round < kRounds; ++round) {
      const std::vector<Node> all = nodes(kind, other_mode);
      double best = 1e300;
      for (const Node& node : all)
        if (node.best.tried && node.best.fits) best = std::min(best, kTimesAlike * node.best.time);
      for (std::size_t i = 0; i < all.size(); ++i) {
        if (!all[i].best.tried && all[i].best.worth(capacity_) < best) continue;  // first what it is completed by
        if (once.insert(all[i].bare).second || i == 0) look_around(all[i], false, kind, kDoubtful * best, promises);
        if (i < kAnchors && twice.insert(all[i].bare).second) look_around(all[i], true, kind, best, promises);
      }
      Promises wished = promises;
      for (const Node& node : all)
        if (node.best.layered && !node.best.tried) wished[with_one(node.bare, *node.best.layered)] = {0, node.best.worth(capacity_)};
      std::vector<FixCombination> wanted = best_promised(wished, best, std::min(left, kWave / 2), often);
      if (wanted.empty()) {
        wanted = best_promised(wished, kDoubtful * best, std::min({left, aside, kWave / 2}), often);
        aside -= wanted.size();
      }
      if (wanted.empty()) break;
      try_all(wanted);
      for (const FixCombination& one : wanted)  // refused ones cost nothing
        if (rough_[one].known) left -= std::min<std::size_t>(left, 1);
    }
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
  void fewest_layers(Found& found, int more = 0) const {
    const auto some = std::find_if(found.choices.begin(), found.choices.end(), [&](std::size_t i) { return choices_[i].by_layers != nullptr; });
    if (some == found.choices.end()) return;
    FixCombination without = found.choices;
    without.erase(without.begin() + (some - found.choices.begin()));
    const auto device = [&](const FixCombination& combination) {
      const auto rough = best_known(combination);
      const std::lock_guard lock(asking_);
      const auto known = asked_.find({combination, 0});
      return known != asked_.end() && known->second.known ? known->second.device : rough ? rough->memory : 0;
    };
    double low_device = without.empty() ? static_cast<double>(base_.memory.device.value) : device(without), high_device = device(found.choices);
    const int count = trials_.layers(found.choices);
    int low = 0, high = count > 0 ? count : kMostLayersAsked;  // too few, enough
    // What a layer saves, and costs of the time: nobody asks for one less where that is too few, or would save nothing.
    const double saves = count > 0 ? (low_device - high_device) / count : 0;
    double costs = 1;
    if (const FixNeed all = count > 0 ? roughly(found.choices) : FixNeed{}, none = without.empty() ? start_ : count > 0 ? roughly(without) : FixNeed{}; all.known && none.known)
      costs = std::max(0.0, all.time - none.time) / none.time / count;
    bool enough = false;
    const int tries = more + (count == 0 ? 2 * kLayerTries : deep() ? kLayerTries - 2 : kLayerTries);
    for (int i = 0; high - low > 1 && i < tries; ++i) {
      int next = low + (high - low) / 2;
      if (count == 0 && !enough) next = 1 << i;  // how many there are is not known
      else if (saves > 0 && i != kHalved) next = i == 0 || enough ? high - static_cast<int>((capacity_ - high_device) / saves) : low + static_cast<int>(std::ceil((low_device - capacity_) / saves));
      next = std::clamp(next, low + 1, high - 1);
      const Asked use = need_of_device(found.choices, next);
      if (use.known && use.fits) high = next, high_device = use.device, enough = true;
      else if (use.known) low = next, low_device = use.device;
      else break;
      if (enough && ((saves > 0 && high_device + saves > kOneMore * capacity_) || (high - low - 1) * costs < (more > 0 ? kFewEnough : kFewAtFirst))) break;
    }
    if (enough) found.layers = high;
  }

  void predict_whole(Found& found) const {
    fewest_layers(found, kMoreTries);
    auto report = trials_.whole(found.choices, found.layers);
    if (!report || !report->memory.fits || report->samples_per_s <= 0) return;
    while (simplify(found, *report)) {}
    found.fix = filled(trials_.described(found.choices, found.layers), *report);
    found.time = 1 + found.fix->time_cost;
    hurry(*found.fix, found.choices);
  }
  // One change less, where it fits without and hardly takes longer, of more layers perhaps; what is no layout need not be quick.
  bool simplify(Found& found, Report& report) const {
    if (found.choices.size() < 2) return false;
    const double now = 1 / report.samples_per_s;
    for (FixCombination& less : simpler(found.choices)) {
      if (!possible(less)) continue;
      const bool laid_out = more_than(found.choices, less);
      Found other{less, 1, layered(less) ? found.layers : 0, std::nullopt};
      auto made = trials_.whole(other.choices, other.layers);  // no estimate will do here
      const bool enough = made && made->memory.fits;
      if (!enough) {
        const auto rough = best_known(less);
        if (!layered(less) || other.layers == 0 || !rough || rough->time * start_.time > kTimesAlike * now || hopeless(less) || !fits(less)) continue;
        fewest_layers(other, kMoreTries);
        made = trials_.whole(other.choices, other.layers);
      }
      if (!made || !made->memory.fits || made->samples_per_s <= 0) continue;
      const double time = 1 / made->samples_per_s;
      if (time > now * (!enough ? kHardly : laid_out ? kEarned : 1e300)) continue;
      found.choices = std::move(other.choices);
      found.layers = other.layers;
      report = std::move(*made);
      return true;
    }
    return false;
  }
  // What may make it faster yet: compiled, in the other memory format, or both; and a fused optimizer, where it does so by itself.
  void hurry(Fix& fix, const FixCombination& choices) const {
    std::vector<std::size_t> more, fused;
    for (std::size_t i = 0; i < choices_.size(); ++i) {
      const FixAxis axis = choices_[i].axis;
      if (std::any_of(choices.begin(), choices.end(), [&](std::size_t other) { return choices_[other].axis == axis || (axis == FixAxis::optimizer && choices_[other].patch.contains("optimizer_impl")); })) continue;
      if (choices_[i].flags == kCompiled || axis == FixAxis::format) more.push_back(i);
      if (axis == FixAxis::optimizer && i < alone_.size() && alone_[i].known && alone_[i].time < kFaster * start_.time) fused.push_back(i);
    }
    double best = fix.samples_per_s / kFaster;
    const auto try_with = [&](const FasterFix& from, const std::vector<std::size_t>& added) {
      FasterFix now = from;
      for (std::size_t i : added) now.request.merge_patch(choices_[i].patch), now.flags += (now.flags.empty() ? "" : " ") + choices_[i].flags;
      const auto faster = trials_.whole_of(now.request);
      if (!faster || !faster->memory.fits || faster->samples_per_s < best) return;
      best = faster->samples_per_s;
      fix.faster = FasterFix{now.flags, std::move(now.request), faster->step, job_.samples_per_s / faster->samples_per_s - 1, faster->memory.device, faster->memory.verdict == Certainty::certain};
    };
    const FasterFix plain{.request = fix.request};
    for (std::size_t some = 1; some < (std::size_t{1} << more.size()); ++some) {
      std::vector<std::size_t> added;
      for (std::size_t i = 0; i < more.size(); ++i)
        if (some >> i & 1) added.push_back(more[i]);
      try_with(plain, added);
    }
    if (!fused.empty()) try_with(fix.faster.value_or(plain), fused);
  }
  Fix filled(Fix fix, const Report& report) const {
    fix.step = report.step;
    fix.samples_per_s = report.samples_per_s;
    fix.time_cost = job_.samples_per_s / report.samples_per_s - 1;
    fix.peak = report.memory.peak;
    fix.device = report.memory.device;
    fix.certain = report.memory.verdict == Certainty::certain;
    fix.host_of_node = report.memory.host_of_node;
    fix.host_capacity = report.memory.host_capacity;
    fix.much_of_host = fix.host_capacity.value == 0 && static_cast<double>(fix.host_of_node.value) > kHostOfGpu * trials_.gpus_of_node();
    return fix;
  }

  const Report &job_, &base_;
  double capacity_, slack_ = 1;            // slack: segments over the peak
  std::vector<FixChoice> choices_;
  FixTrials trials_;
  std::vector<char> useful_;
  FixNeed start_;
  std::optional<std::size_t> full_;        // the choice that shards parameters
  std::vector<FixNeed> alone_, with_full_; // of each choice
  std::map<FixCombination, FixNeed> rough_;
  mutable std::map<FixCombination, FixNeed> rough_late_;  // as what was found is made smaller
  mutable std::map<std::pair<FixCombination, int>, Asked> asked_;  // of so many layers; 0: of all
  mutable std::mutex asking_;
  std::vector<Candidate> hopeful_;
  std::vector<Found> found_;
  FixEffects effects_;
  std::set<std::pair<FixCombination, std::size_t>> learnt_;
  std::vector<char> near_;                 // choices that plans near those tried may have, but for those by layers
  std::vector<std::size_t> by_layers_;     // and those
};

double time_at_best(const Fix& fix) { return 1 + (fix.faster ? fix.faster->time_cost : fix.time_cost); }

// But for what saves a little: how many layers, pieces of the loss, the allocator, the optimizer's kernels.
Json gist(const Fix& fix) {
  Json out = fix.request;
  for (const char* key : {"recompute_layers", "loss_chunks", "allocator", "optimizer_impl"}) out.erase(key);
  if (out.contains("plan")) out["plan"].erase("offload_layers");
  return out;
}

// Whether the other one will do as well.
bool needless(const Fix& fix, const Fix& other, bool before) {
  if (other.result > fix.result) return false;
  if (1 + fix.time_cost > kTooDear * (1 + other.time_cost)) return true;
  const bool fewer = other.axes.size() < fix.axes.size();
  const bool less_host = other.host_of_node.value == 0 || (fix.host_of_node.value > 0 && other.much_of_host <= fix.much_of_host);
  const bool simpler = fewer || (before && other.axes.size() == fix.axes.size());
  if (simpler && less_host && 1 + other.time_cost <= kEarned * (1 + fix.time_cost) && time_at_best(other) <= kEarned * time_at_best(fix) && gist(fix) == gist(other)) return true;
  if (!std::includes(fix.axes.begin(), fix.axes.end(), other.axes.begin(), other.axes.end()) || !less_host) return false;
  const bool compiled = std::count(fix.axes.begin(), fix.axes.end(), static_cast<std::uint8_t>(FixAxis::mode)) > 0;
  if (other.faster && other.faster->flags.starts_with(kCompiled) && compiled) return time_at_best(other) <= kHardly * time_at_best(fix);
  return 1 + other.time_cost <= (fewer ? kHardly : 1) * (1 + fix.time_cost) && time_at_best(other) <= kHardly * time_at_best(fix) && (fewer || before);
}

// Cheapest first. None that changes all that another changes, is no nearer to the same result, and is hardly cheaper; none many times
// dearer than another that is as near. Where there are too many, no more than half of them with another result, and of those the
// cheapest of each kind before all others.
std::vector<Fix> listed(std::vector<Fix> all, std::optional<Fix> smaller, std::size_t most) {
  std::vector<Fix> kept, out;
  std::stable_sort(all.begin(), all.end(), [](const Fix& a, const Fix& b) { return a.time_cost < b.time_cost; });
  for (const Fix& fix : all) {
    const bool spared = std::any_of(all.begin(), all.end(), [&](const Fix& other) {
      return &other != &fix && (needless(fix, other, &other < &fix) || (fix.much_of_host && !other.much_of_host && other.result <= fix.result));
    });
    if (!spared) kept.push_back(fix);
  }
  if (smaller) {  // in its place, and shown as the nearest to the same result
    const auto place = std::find_if(kept.begin(), kept.end(), [&](const Fix& fix) { return fix.time_cost > smaller->time_cost; });
    kept.insert(place, std::move(*smaller));
  }
  const auto same = static_cast<std::size_t>(std::count_if(kept.begin(), kept.end(), [](const Fix& fix) { return fix.result == 0; }));
  const std::size_t others = most - std::min(most - most / 2, same), equals = most - std::min(others, kept.size() - same);
  std::vector<std::size_t> order;  // who is shown first
  std::set<std::array<std::size_t, 3>> shown;
  const auto kind = [&](std::size_t i) {
    const bool other_mode = std::find(kept[i].axes.begin(), kept[i].axes.end(), static_cast<std::uint8_t>(FixAxis::mode)) != kept[i].axes.end();
    return std::array<std::size_t, 3>{kept[i].result, kept[i].smaller_step, other_mode};
  };
  for (const bool by_mode : {false, true})
    for (std::size_t i = 0; i < kept.size(); ++i) {
      auto key = kind(i);
      if (!by_mode) key[2] = 2;  // in whatever mode
      if (shown.contains(key)) continue;
      shown.insert({key, kind(i)});
      if (std::find(order.begin(), order.end(), i) == order.end()) order.push_back(i);
    }
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

}  // namespace

std::vector<Fix> search_fixes(const Json& request, const Report& base, const Catalog& catalog, const std::string& where,
                              const std::filesystem::path& folder, std::size_t most) {
  const auto whole = request.is_object() && request.contains("from") ? with_imports(request, where, folder) : Result<Json>(request);
  if (!whole) return {};
  const auto parsed = parse_request(*whole, catalog, where, folder, base.batch);
  if (!parsed) return {};
  const FixUndone nothing;
  FixSearch search(*whole, nothing, *parsed, base, base, catalog, folder);
  std::vector<Fix> all = search.run();
  // What the job recomputes or keeps on the host already may not be the cheapest way: from the job without it as well.
  if (const FixUndone back = undone(*whole)) {
    const auto lighter = parse_request(without(back, *whole), catalog, where, folder, base.batch);
    const auto light = lighter ? predict(*lighter, catalog) : tl::unexpected(lighter.error());
    if (light)
      for (Fix& fix : FixSearch(*whole, back, *lighter, base, light->report, catalog, folder).run()) all.push_back(std::move(fix));
  }
  return listed(std::move(all), search.largest_batch(), most);
}

}  // namespace precog
