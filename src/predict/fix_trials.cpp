#include "predict/fix_trials.h"

#include <algorithm>

namespace precog {
namespace {

constexpr std::int64_t kShallow = 2, kDeeper = 4, kDeepest = 6;  // layers after the first that differ: what a layer adds is the difference of two of them
constexpr double kShrinks = 0.0005;                // of a moment: rounding is less
constexpr std::int64_t kDeepEnough = 10;           // below, the model itself is not much dearer
constexpr std::int64_t kFewFirst = 4;              // layers that differ at most
constexpr std::int64_t kLongStage = 15;            // layers from which on shallow stages are enough cheaper

FixNeed need_of(const Report& report) {
  FixNeed out;
  out.known = report.samples_per_s > 0;
  out.moments = report.memory.moments;
  out.outside = static_cast<double>((report.memory.device - report.memory.device_pinned).value);
  out.host = static_cast<double>(report.memory.host_of_node.value);
  out.time = out.known ? 1 / report.samples_per_s : 0;
  return out;
}

// On the line through two depths, so many layers before and after the deeper one.
struct Line {
  double before = 0, after = 0;
  double operator()(double shallow, double deeper) const { return std::max(0.0, deeper + (deeper - shallow) * after / before); }
};

// Some part of it is less at the greater depth: it is another operator's.
bool shrinks(const BytesByCategory& shallow, const BytesByCategory& deeper) {
  Bytes all{}, most{};
  for (std::size_t c = 0; c < kMemoryCategories; ++c) all += deeper[c], most = std::max(most, shallow[c] - deeper[c]);
  return static_cast<double>(most.value) > kShrinks * static_cast<double>(all.value);
}

// All of a moment is on that line. No part shrinks with depth: one that does was at another operator, and so what others gain for it is
// not a layer's.
BytesByCategory reckoned_moment(const BytesByCategory& shallow, const BytesByCategory& deeper, const Line& line) {
  double low = 0, high = 0, more = 0;
  for (std::size_t c = 0; c < kMemoryCategories; ++c) {
    low += static_cast<double>(shallow[c].value);
    high += static_cast<double>(deeper[c].value);
    more += static_cast<double>(std::max<std::int64_t>(0, (deeper[c] - shallow[c]).value));
  }
  const double each = more > 0 ? std::clamp((high - low) / more, 0.0, 1.0) : 0;
  BytesByCategory out{};
  for (std::size_t c = 0; c < kMemoryCategories; ++c) {
    const auto last = static_cast<double>(deeper[c].value), slope = each * static_cast<double>(std::max<std::int64_t>(0, (deeper[c] - shallow[c]).value)) / line.before;
    out[c] = Bytes{static_cast<std::int64_t>(last + slope * line.after)};
  }
  return out;
}

FixNeed reckoned(const Report& shallow, const Report& deeper, const Line& line) {
  const FixNeed low = need_of(shallow), high = need_of(deeper);
  FixNeed out = high;
  out.time = line(low.time, high.time);
  out.host = line(low.host, high.host);
  for (std::size_t m = 0; m < kStepParts; ++m) out.moments[m] = reckoned_moment(low.moments[m], high.moments[m], line);
  return out;
}

double bytes_of(const BytesByCategory& moment) {
  double all = 0;
  for (Bytes bytes : moment) all += static_cast<double>(bytes.value);
  return all;
}

// After how many layers all differ in nothing but their numbers, where nothing in the request tells them apart.
std::optional<std::int64_t> layers_alike_after(const Json& request, const Request& parsed) {
  const std::int64_t layers = parsed.inputs.layers.value_or(parsed.model->layers);
  if (!parsed.model->layer_kinds || layers < kDeepEnough || parsed.plan.pp > 1) return std::nullopt;
  for (const char* key : {"overrides", "frozen", "recompute_layers", "recompute_every"})
    if (request.contains(key)) return std::nullopt;
  if (!parsed.plan.tp_plan.empty() || !parsed.precision->rules.empty() || parsed.replicas.offload_layers > 0) return std::nullopt;
  ModelInputs inputs = inputs_of_rank(parsed);
  const std::vector<int> kinds = parsed.model->layer_kinds(inputs);
  if (kinds.empty()) return std::nullopt;
  // Alike, or two kinds by turns, as far as both depths end with the same one.
  const auto differs_last = [&](std::size_t turns) {
    std::size_t i = kinds.size() - turns;
    while (i > 0 && kinds[i - 1] == kinds[i - 1 + turns]) --i;
    return static_cast<std::int64_t>(i);
  };
  std::int64_t first = differs_last(1);
  if (first > kFewFirst && (layers - differs_last(2)) % 2 == 0) first = differs_last(2);
  if (first == 0) return 0;
  if (first > kFewFirst || layers < kDeepEnough + 2 * first) return std::nullopt;
  inputs.layers = first + kShallow;  // the first of a shallower model are the same?
  const std::vector<int> fewer = parsed.model->layer_kinds(inputs);
  const bool same = fewer.size() == static_cast<std::size_t>(first + kShallow) && std::equal(fewer.begin(), fewer.end(), kinds.begin());
  return same ? std::optional(first) : std::nullopt;
}

}  // namespace

std::size_t FixNeed::worst() const {
  return static_cast<std::size_t>(std::max_element(moments.begin(), moments.end(), [](const auto& a, const auto& b) { return bytes_of(a) < bytes_of(b); }) - moments.begin());
}
double FixNeed::most() const { return bytes_of(moments[worst()]); }

FixTrials::FixTrials(const Json& request, const FixUndone& undone, const Request& parsed, const Report& base, const Catalog& catalog, const std::filesystem::path& folder,
                     const std::vector<FixChoice>& choices)
    : request_(request), undone_(undone), parsed_(parsed), base_(base), catalog_(catalog), folder_(folder), choices_(choices),
      host_capacity_(static_cast<double>(parsed.cluster.host_memory.value)), alike_after_(layers_alike_after(without(undone, request), parsed)) {}

int FixTrials::layers(const FixCombination& combination) const {
  std::int64_t stages = parsed_.plan.pp;
  for (std::size_t i : combination)
    if (const auto plan = choices_[i].patch.find("plan"); plan != choices_[i].patch.end()) stages = plan->value("pp", stages);
  const std::int64_t all = parsed_.inputs.layers.value_or(parsed_.model->layers) * (parsed_.model->encoder_decoder ? 2 : 1);
  return static_cast<int>((all + stages - 1) / stages);
}

Fix FixTrials::described(const FixCombination& combination, int of_layers) const {
  std::vector<const FixChoice*> chosen;
  for (std::size_t i : combination) chosen.push_back(&choices_[i]);
  return fix_of_choices(chosen, of_layers, request_, parsed_.plan, base_, undone_, undone_.by_layers ? layers(combination) : 0);
}

std::optional<Request> FixTrials::changed(const FixCombination& combination, int layers) const { return patched(described(combination, layers).request); }

std::optional<Request> FixTrials::patched(const Json& patch) const {
  Json changed = request_;
  changed.merge_patch(patch);  // a null takes back
  auto parsed = parse_request(changed, catalog_, parsed_.where, folder_, base_.batch, parsed_.model);
  if (!parsed) return std::nullopt;
  return std::move(*parsed);
}

std::optional<Report> FixTrials::whole_of(const Json& patch) const {
  const auto request = patched(patch);
  return request ? predicted(*request) : std::nullopt;
}

std::optional<MemoryUse> FixTrials::memory_of_batch(std::int64_t batch) const {
  const auto request = patched(smaller_batch(batch, request_, base_).request);
  if (!request) return std::nullopt;
  auto use = predict_memory(*request);
  if (!use) return std::nullopt;
  return std::move(*use);
}

std::optional<Report> FixTrials::predicted(const Request& request) const {
  auto prediction = predict(request, catalog_);
  if (!prediction) return std::nullopt;
  return std::move(prediction->report);
}

std::optional<Report> FixTrials::whole(const FixCombination& combination, int layers) const {
  const auto request = changed(combination, layers);
  return request ? predicted(*request) : std::nullopt;
}

std::optional<MemoryUse> FixTrials::memory(const FixCombination& combination, int layers) const {
  const auto request = changed(combination, layers);
  if (!request) return std::nullopt;
  auto use = predict_memory(*request);
  if (!use) return std::nullopt;
  return std::move(*use);
}

FixNeed FixTrials::rough(const FixCombination& combination) const {
  auto request = changed(combination, 0);
  if (!request) return {};
  const auto held = [&](FixNeed need) {
    need.host_full = host_capacity_ > 0 && need.host > host_capacity_;
    return need;
  };
  const std::optional<std::int64_t> given = request->inputs.layers;
  const std::int64_t all = request->inputs.layers.value_or(request->model->layers), stages = request->plan.pp;
  const auto whole = [&]() -> FixNeed {
    request->inputs.layers = given;
    const auto report = predicted(*request);
    if (!report) return {};
    FixNeed out = need_of(*report);
    out.whole = true;
    out.fits = report->memory.fits;
    out.device = static_cast<double>(report->memory.device.value);
    return held(out);
  };
  const std::int64_t of_stage = (all + stages - 1) / stages;
  if (!alike_after_ || (stages > 1 && (*alike_after_ > 0 || of_stage < kLongStage || !request->plan.stage_layers.empty()))) return whole();
  const auto layers = static_cast<double>(stages > 1 ? of_stage : all - *alike_after_);
  const auto at = [&](std::int64_t depth) {
    request->inputs.layers = *alike_after_ + stages * depth;
    return predicted(*request);
  };
  auto shallow = at(kShallow);
  auto deeper = shallow ? at(kDeeper) : std::nullopt;
  if (!deeper) return {};
  // The stage that needs most stays the first as all get deeper; another may not stay it.
  if (shallow->memory_stage != 0 || deeper->memory_stage != 0) return whole();
  Line line{kDeeper - kShallow, layers - kDeeper};
  FixNeed out = reckoned(*shallow, *deeper, line);
  const std::size_t worst = out.worst();
  if (!shrinks(shallow->memory.moments[worst], deeper->memory.moments[worst])) return held(out);
  shallow = std::move(deeper);
  deeper = at(kDeepest);
  return deeper ? held(reckoned(*shallow, *deeper, {kDeepest - kDeeper, layers - kDeepest})) : FixNeed{};
}

}  // namespace precog
