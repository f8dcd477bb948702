#include "predict/fix_finish.h"

#include <algorithm>
#include <cmath>

namespace precog {
namespace {

constexpr double kSurely = 0.9;          // of the capacity: below, a rough trial leaves no doubt; what is listed is predicted whole
constexpr double kSurelyShort = 1.1;     // of the capacity, by a rough trial brought to one that was asked
constexpr double kSegments = 1.05;       // of the capacity: what expandable segments may save
constexpr int kLayerTries = 5, kHalved = 2, kMostLayersAsked = 256;  // the second: this one in the middle of what is left
constexpr double kOneMore = 1.005;       // of the capacity
constexpr double kFewEnough = 0.002;     // of the time: what fewer layers yet could save
constexpr double kHostOfGpu = 256e9;     // bytes that a node has for each GPU, where nobody says: DGX H100's 2 TB for 8, a cloud's largest machine with one L4

}  // namespace

// What a plan needs at its own depth.
FixFinish::Asked FixFinish::ask(const Plan& plan) const {
  const std::pair key(plan.choices, plan.layers);
  {
    const std::lock_guard lock(mutex_);
    if (const auto known = asked_.find(key); known != asked_.end()) return known->second;
  }
  Asked out;
  if (const FixNeed rough = plan.layers == 0 ? pool_.roughly(plan.choices) : FixNeed{}; rough.whole) out = {true, rough.fits, rough.device};
  else if (const auto device = plan.layers == 0 ? reckoned(plan) : std::nullopt; device && *device < kSurely * pool_.capacity()) out = {true, true, *device};
  else if (const auto use = trials_.memory(plan.choices, plan.layers)) out = {true, use->fits, static_cast<double>(use->device.value)};
  const std::lock_guard lock(mutex_);
  return asked_[key] = out;
}

bool FixFinish::nearly_fits(const FixCombination& combination) const {
  const std::lock_guard lock(mutex_);
  const auto known = asked_.find({combination, 0});
  return known != asked_.end() && known->second.known && !known->second.fits && known->second.device <= kSegments * pool_.capacity();
}

// From rough trials with all layers and with none.
std::optional<double> FixFinish::reckoned(const Plan& plan) const {
  const int count = trials_.layers(plan.choices);
  if (!trials_.shallow() || rules_.in_stages(plan.choices) || (plan.layers > 0 && count == 0)) return std::nullopt;
  const auto device = [&](const FixCombination& combination) -> std::optional<double> {
    const FixNeed need = pool_.roughly(combination);
    return need.known ? std::optional(pool_.device(combination, need.most(), need.outside)) : std::nullopt;
  };
  const auto all = device(plan.choices);
  if (!all || plan.layers == 0) return all;
  const auto none = device(rules_.bare(plan.choices));
  return none ? std::optional(*none + (*all - *none) * plan.layers / count) : std::nullopt;
}
// By trials of both that are as far off as that of the one whose need is known; what lies between blocks they do not know.
bool FixFinish::surely_short(const Plan& less, const Plan& plan) const {
  if (rules_.on(FixAxis::allocator, less.choices) != rules_.on(FixAxis::allocator, plan.choices)) return false;
  const auto short_one = reckoned(less), whole_one = reckoned(plan);
  const Asked asked = ask(plan);
  return short_one && whole_one && asked.known && *short_one * asked.device / *whole_one > kSurelyShort * pool_.capacity();
}

// Of what is done to some layers only: how few are enough. Memory grows by about the same with each layer that it is not done to.
void FixFinish::fewest_layers(Plan& plan) const {
  if (!rules_.by_layers(plan.choices)) return;
  const double capacity = pool_.capacity();
  const FixCombination bare = rules_.bare(plan.choices);
  const FixNeed none = pool_.roughly(bare), all = pool_.roughly(plan.choices);
  const int count = trials_.layers(plan.choices);
  int low = 0, high = count > 0 ? count : kMostLayersAsked;  // too few, enough
  double high_device = ask({plan.choices, 0}).device, low_device = none.known ? pool_.device(bare, none.most(), none.outside) : capacity;
  // What a layer saves, and costs of the time: nobody asks for one less where that is too few, or would save nothing.
  const double saves = count > 0 ? (low_device - high_device) / count : 0;
  const double costs = count > 0 && all.known && none.known ? std::max(0.0, all.time - none.time) / none.time / count : 1;
  bool enough = false;
  for (int i = 0; high - low > 1 && i < (count == 0 ? 2 * kLayerTries : kLayerTries); ++i) {
    int next = low + (high - low) / 2;
    if (count == 0 && !enough) next = 1 << i;  // how many there are is not known
    else if (saves > 0 && i != kHalved) next = i == 0 || enough ? high - static_cast<int>((capacity - high_device) / saves) : low + static_cast<int>(std::ceil((low_device - capacity) / saves));
    next = std::clamp(next, low + 1, high - 1);
    const Asked use = ask({plan.choices, next});
    if (use.known && use.fits) high = next, high_device = use.device, enough = true;
    else if (use.known) low = next, low_device = use.device;
    else break;
    if (enough && ((saves > 0 && high_device + saves > kOneMore * capacity) || (high - low - 1) * costs < kFewEnough)) break;
  }
  if (enough) plan.layers = high;
}

// One change left out; states on the host with a fused optimizer: with the optimizer as it is; what layers keep goes to the host without
// recomputing any of it.
std::vector<FixCombination> FixFinish::simpler(const FixCombination& combination) const {
  std::vector<FixCombination> out = one_less(combination);
  const auto moved = std::find_if(choices_.begin(), choices_.end(), [](const FixChoice& one) { return one.axis == FixAxis::offload && one.by_layers; });
  for (std::size_t i = 0; i < combination.size(); ++i) {
    const std::size_t one = combination[i];
    if (one > 0 && choices_[one].axis == FixAxis::offload && choices_[one].patch.contains("optimizer_impl")) out.push_back(with_one(out[i], one - 1));
    if (choices_[one].moves && moved != choices_.end()) out.push_back(with_one(out[i], static_cast<std::size_t>(moved - choices_.begin())));
  }
  std::erase_if(out, [&](const FixCombination& one) { return one.empty() || !rules_.possible(one); });
  return out;
}

// One change less, where it fits without, or where more layers make up for it at hardly any cost; what saves time may stay for that.
bool FixFinish::simplify(Plan& plan, Report& report) const {
  const double now = 1 / report.samples_per_s;
  for (const FixCombination& less : simpler(plan.choices)) {
    const bool layered = rules_.by_layers(less).has_value();
    const bool earns = std::any_of(plan.choices.begin(), plan.choices.end(), [&](std::size_t i) { return !saves_little(choices_[i].axis) && !choices_[i].by_layers && !std::binary_search(less.begin(), less.end(), i); });
    Plan other{less, layered ? plan.layers : 0};
    if (const FixNeed least = pool_.roughly(rules_.bare(less)); !pool_.roughly(less).known || (earns && least.known && least.time > kFixAlike * kFixEarned * now)) continue;
    bool enough = !surely_short(other, plan) && ask(other).fits;
    if (!enough) {
      if (!layered || plan.layers == 0 || pool_.roughly(less).time > kFixAlike * now || !ask({less, 0}).fits) continue;
      fewest_layers(other);
    }
    auto made = trials_.whole(other.choices, other.layers);
    if (!made || !made->memory.fits || made->samples_per_s <= 0 || 1 / made->samples_per_s > now * (!enough ? kFixHardly : earns ? kFixEarned : 1e300)) continue;
    plan = std::move(other);
    report = std::move(*made);
    return true;
  }
  return false;
}

std::optional<FoundFix> FixFinish::finished(const FixCombination& combination) const {
  Plan plan{combination, 0};
  if (!ask(plan).fits) return std::nullopt;
  fewest_layers(plan);
  auto report = trials_.whole(plan.choices, plan.layers);
  if (!report || !report->memory.fits || report->samples_per_s <= 0) return std::nullopt;
  while (plan.choices.size() > 1 && simplify(plan, *report)) {}
  FoundFix out{plan.choices, plan.layers, 1, filled(trials_.described(plan.choices, plan.layers), *report)};
  out.time = 1 / report->samples_per_s / pool_.start().time;
  return out;
}

// Compiled, in the other memory format, or both; and a fused optimizer, where it does so by itself.
void FixFinish::hurry(Fix& fix, const FixCombination& choices) const {
  std::vector<std::size_t> more, fused;
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    const FixAxis axis = choices_[i].axis;
    if (std::any_of(choices.begin(), choices.end(), [&](std::size_t other) { return choices_[other].axis == axis || (axis == FixAxis::optimizer && choices_[other].patch.contains("optimizer_impl")); })) continue;
    if (choices_[i].flags == kFixCompiled || axis == FixAxis::format) more.push_back(i);
    if (const FixNeed alone = axis == FixAxis::optimizer ? pool_.roughly({i}) : FixNeed{}; alone.known && alone.time < kFixFaster * pool_.start().time) fused.push_back(i);
  }
  double best = fix.samples_per_s / kFixFaster;
  const auto try_with = [&](const FasterFix& from, const std::vector<std::size_t>& added) {
    FasterFix now = from;
    for (std::size_t i : added) now.request.merge_patch(choices_[i].patch), now.flags += (now.flags.empty() ? "" : " ") + choices_[i].flags;
    const auto faster = trials_.whole_of(now.request);
    if (!faster || !faster->memory.fits || faster->samples_per_s < best) return;
    best = faster->samples_per_s;
    fix.faster = faster_fix(std::move(now.flags), std::move(now.request), *faster, job_);
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

Fix FixFinish::filled(Fix fix, const Report& report) const {
  fill_in(fix, report, job_, trials_.gpus_of_node());
  return fix;
}

void fill_in(Fix& fix, const Report& report, const Report& job, int gpus_of_node) {
  fix.step = report.step;
  fix.samples_per_s = report.samples_per_s;
  fix.time_cost = job.samples_per_s / report.samples_per_s - 1;
  fix.peak = report.memory.peak;
  fix.device = report.memory.device;
  fix.certain = report.memory.verdict == Certainty::certain;
  fix.host_of_node = report.memory.host_of_node;
  fix.host_capacity = report.memory.host_capacity;
  fix.much_of_host = fix.host_capacity.value == 0 && static_cast<double>(fix.host_of_node.value) > kHostOfGpu * gpus_of_node;
}

FasterFix faster_fix(std::string flags, Json request, const Report& report, const Report& job) {
  return {.flags = std::move(flags), .request = std::move(request), .step = report.step, .time_cost = job.samples_per_s / report.samples_per_s - 1,
          .device = report.memory.device, .certain = report.memory.verdict == Certainty::certain};
}

}  // namespace precog
