#include "predict/fix_search.h"

#include <algorithm>
#include <cmath>

#include "import/import.h"
#include "predict/fix_finish.h"
#include "predict/fix_list.h"
#include "predict/fix_walk.h"
#include "predict/in_parallel.h"

namespace precog {
namespace {

constexpr std::size_t kFound = 5, kFoundOthers = 2;  // that fit: with the same result, and of each other kind; in another mode half as many
constexpr std::size_t kAsked = 8;       // of each kind and mode
constexpr std::size_t kAskedBelow = 4;  // beyond these, where none of them fitted: that a rough trial puts well below the capacity
constexpr double kBelow = 0.97;
constexpr std::size_t kFinishedTogether = 4;        // finished at a time, whatever the number of threads
constexpr double kSame = 1e-4;          // of time and of memory: what an optimizer on the host has for states, say
constexpr int kDeep = 60;               // layers from which on every question takes long: half as many of them
constexpr double kWorthAsking = 1.04;   // of the capacity, by a rough trial

class FixSearch {
 public:
  // `asked`: the report of the job itself; `base`: of it without what is undone.
  FixSearch(const Json& request, const FixUndone& undone, const Request& parsed, const Report& asked, const Report& base, const Catalog& catalog, const std::filesystem::path& folder)
      : base_(base), choices_(fix_choices(without(undone, request), base, parsed, catalog)), trials_(request, undone, parsed, base, catalog, folder, choices_),
        rules_(choices_, parsed, base), pool_(rules_, trials_, base), finish_(pool_, rules_, trials_, asked) {}

  std::vector<Fix> run() {
    if (base_.memory.fits) take_back();
    else {
      walk_plans(pool_, rules_, trials_);
      finish_cheapest();
    }
    in_parallel(found_.size(), [&](std::size_t i) { finish_.hurry(found_[i].fix, found_[i].choices); });
    std::vector<Fix> out;
    for (FoundFix& found : found_)
      if (!found.fix.flags.empty()) out.push_back(std::move(found.fix));
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
      else if (i % 3 != 0 && high_device > pool_.capacity()) next = low + static_cast<std::int64_t>(static_cast<double>(high - low) * (pool_.capacity() - low_device) / std::max(1.0, high_device - low_device));
      next = std::clamp(next, low + 1, high - 1);
      const auto use = trials_.memory_of_batch(next);
      if (!use || (next == 1 && !use->fits)) return std::nullopt;
      (use->fits ? low : high) = next;
      (use->fits ? low_device : high_device) = static_cast<double>(use->device.value);
    }
    const std::int64_t each = base_.batch * base_.micro_batches;
    for (std::int64_t batch = low; 2 * batch > low; --batch)
      if (each % batch == 0) return std::nullopt;
    const Fix fix = trials_.smaller(low);
    const auto report = trials_.whole_of(fix.request);
    if (!report || !report->memory.fits || report->samples_per_s <= 0) return std::nullopt;
    Fix out = finish_.filled(fix, *report);
    finish_.hurry(out, {});
    return out;
  }

 private:
  // Without what is undone it fits as it is.
  void take_back() { found_.push_back({{}, 0, 1, finish_.filled(trials_.described({}), base_)}); }

  void finish_cheapest() {
    std::vector<FixCandidate> left = pool_.fitting(kWorthAsking * pool_.capacity());
    const auto allocator = std::find_if(choices_.begin(), choices_.end(), [](const FixChoice& one) { return one.axis == FixAxis::allocator; });
    std::map<std::pair<std::size_t, bool>, std::size_t> asked_of, asked_below;
    std::map<std::pair<std::size_t, bool>, std::vector<FixCandidate>> asked;
    for (std::size_t next = 0; next < left.size();) {
      std::vector<FixCandidate> wave;
      for (; next < left.size() && wave.size() < kFinishedTogether; ++next) {
        const FixCandidate& one = left[next];
        const std::pair kind(rules_.result(one.choices), rules_.other_mode(one.choices));
        if (enough_of(kind) || beaten(one) || told(one, found_) || comes_to_the_same(one, asked[kind])) continue;
        if (told(one, wave)) break;  // that one may not fit
        const auto below = [&] { return one.memory < kBelow * pool_.capacity() && found_of(kind) == 0 && asked_below[kind]++ < kAskedBelow; };
        if (one.choices.size() > 1 && asked_of[kind]++ >= (deep() ? kAsked / 2 : kAsked) && !below()) continue;
        asked[kind].push_back(one);
        wave.push_back(one);
      }
      std::vector<std::optional<FoundFix>> made(wave.size());
      in_parallel(wave.size(), [&](std::size_t i) { made[i] = finish_.finished(wave[i].choices); });
      for (std::size_t i = 0; i < wave.size(); ++i) {
        if (made[i]) keep(std::move(*made[i]));
        // What is over by what segments cost: with expandable ones.
        if (made[i] || allocator == choices_.end() || rules_.on(FixAxis::allocator, wave[i].choices) || !finish_.nearly_fits(wave[i].choices)) continue;
        FixCandidate more = wave[i];
        more.choices = with_one(more.choices, static_cast<std::size_t>(allocator - choices_.begin()));
        if (!pool_.contains(more.choices)) left.insert(left.begin() + static_cast<std::ptrdiff_t>(next), more);
      }
    }
  }
  // Of its own kind, as fast and as large.
  static bool comes_to_the_same(const FixCandidate& one, const std::vector<FixCandidate>& asked) {
    return std::any_of(asked.begin(), asked.end(), [&](const FixCandidate& other) { return std::abs(other.time / one.time - 1) < kSame && std::abs(other.memory / one.memory - 1) < kSame; });
  }
  bool deep() const { return trials_.layers({}) > kDeep; }
  bool enough_of(const std::pair<std::size_t, bool>& kind) const {
    const std::size_t most = std::max<std::size_t>(1, (kind.first == 0 ? kFound : kFoundOthers) / (deep() || kind.second ? 2 : 1));
    return found_of(kind) >= static_cast<std::ptrdiff_t>(most);
  }
  std::ptrdiff_t found_of(const std::pair<std::size_t, bool>& kind) const {
    return std::count_if(found_.begin(), found_.end(), [&](const FoundFix& one) { return std::pair(rules_.result(one.choices), rules_.other_mode(one.choices)) == kind; });
  }
  void keep(FoundFix found) {
    if (std::none_of(found_.begin(), found_.end(), [&](const FoundFix& one) { return one.choices == found.choices && one.layers == found.layers; })) found_.push_back(std::move(found));
  }
  // One that was found changes no more settings and costs less, or fewer and hardly more.
  bool beaten(const FixCandidate& candidate) const {
    const std::vector<std::size_t> axes = rules_.axes(candidate.choices);
    return std::any_of(found_.begin(), found_.end(), [&](const FoundFix& one) {
      const std::vector<std::size_t> fewer = rules_.axes(one.choices);
      return one.time < (fewer.size() < axes.size() ? kFixEarned : 1 / kFixAlike) * candidate.time && rules_.result(one.choices) <= rules_.result(candidate.choices) && std::includes(axes.begin(), axes.end(), fewer.begin(), fewer.end());
    });
  }
  // One of them is the same but for what saves a little, and hardly costs more.
  template <class Some>
  bool told(const FixCandidate& candidate, const std::vector<Some>& others) const {
    const auto gist = [&](FixCombination combination) {
      std::erase_if(combination, [&](std::size_t i) { return choices_[i].axis == FixAxis::loss || saves_little(choices_[i].axis); });
      return combination;
    };
    return std::any_of(others.begin(), others.end(), [&](const Some& one) { return one.time < kFixHardly * candidate.time && gist(one.choices) == gist(candidate.choices); });
  }

  const Report& base_;
  std::vector<FixChoice> choices_;
  FixTrials trials_;
  FixRules rules_;
  FixPool pool_;
  FixFinish finish_;
  std::vector<FoundFix> found_;
};

}  // namespace

std::vector<Fix> search_fixes(const Json& request, const Report& base, const Catalog& catalog, const std::string& where,
                              const std::filesystem::path& folder, std::size_t most) {
  const auto whole = request.is_object() && request.contains("from") ? with_imports(request, where, folder) : Result<Json>(request);
  if (!whole) return {};
  const auto parsed = parse_request(*whole, catalog, where, folder, base.batch);
  if (!parsed) return {};
  const FixUndone nothing, back = undone(*whole);
  FixSearch search(*whole, nothing, *parsed, base, base, catalog, folder);
  // What the job recomputes or keeps on the host already may not be the cheapest way: sought from the job without, and from the job itself only
  // where no flag takes that back.
  const auto lighter = back ? parse_request(without(back, *whole), catalog, where, folder, base.batch) : parsed;
  auto light = lighter && back ? predict(*lighter, catalog) : Result<Prediction>(fail(where, "nothing to take back"));
  if (light) light->report.largest_batch = base.largest_batch;
  std::vector<Fix> all;
  if (!light || back.by_layers || back.every) all = search.run();
  if (light)
    for (Fix& fix : FixSearch(*whole, back, *lighter, base, light->report, catalog, folder).run()) all.push_back(std::move(fix));
  return listed_fixes(std::move(all), search.largest_batch(), most);
}

}  // namespace precog
