#include "predict/fix_trials.h"

#include <algorithm>

namespace precog {
namespace {

constexpr std::int64_t kShallow = 4, kDeeper = 6;  // layers: what a layer adds is the difference
constexpr std::int64_t kDeepEnough = 10;           // below, the model itself is not much dearer

FixNeed need_of(const Report& report) {
  FixNeed out;
  out.known = report.samples_per_s > 0;
  out.moments = report.memory.moments;
  out.outside = static_cast<double>((report.memory.device - report.memory.device_pinned).value);
  out.time = out.known ? 1 / report.samples_per_s : 0;
  return out;
}

// On the line through two depths.
double reckoned(double shallow, double deeper, double layers) {
  return std::max(0.0, shallow + (deeper - shallow) * (layers - kShallow) / (kDeeper - kShallow));
}

// Whether layers differ in nothing but their numbers, and nothing in the request tells them apart.
bool equal_layers_throughout(const Json& request, const Request& parsed) {
  if (!parsed.model->layer_kinds || parsed.inputs.layers.value_or(parsed.model->layers) < kDeepEnough || parsed.plan.pp > 1) return false;
  for (const char* key : {"overrides", "frozen", "recompute_layers", "recompute_every"})
    if (request.contains(key)) return false;
  if (!parsed.plan.tp_plan.empty() || !parsed.precision->rules.empty() || parsed.replicas.offload_layers > 0) return false;
  const std::vector<int> kinds = parsed.model->layer_kinds(inputs_of_rank(parsed));
  return !kinds.empty() && std::all_of(kinds.begin(), kinds.end(), [&](int kind) { return kind == kinds.front(); });
}

}  // namespace

double FixNeed::most() const {
  double out = 0;
  for (const BytesByCategory& moment : moments) {
    double all = 0;
    for (Bytes bytes : moment) all += static_cast<double>(bytes.value);
    out = std::max(out, all);
  }
  return out;
}

FixTrials::FixTrials(const Json& request, const Request& parsed, const Report& base, const Catalog& catalog, const std::filesystem::path& folder,
                     const std::vector<FixChoice>& choices)
    : request_(request), parsed_(parsed), base_(base), catalog_(catalog), folder_(folder), choices_(choices), shallow_(equal_layers_throughout(request, parsed)) {}

int FixTrials::layers(const FixCombination& combination) const {
  std::int64_t stages = parsed_.plan.pp;
  for (std::size_t i : combination)
    if (const auto plan = choices_[i].patch.find("plan"); plan != choices_[i].patch.end()) stages = plan->value("pp", stages);
  const std::int64_t all = parsed_.inputs.layers.value_or(parsed_.model->layers) * (parsed_.model->encoder_decoder ? 2 : 1);
  return static_cast<int>((all + stages - 1) / stages);
}

Fix FixTrials::described(const FixCombination& combination, int layers) const {
  std::vector<const FixChoice*> chosen;
  for (std::size_t i : combination) chosen.push_back(&choices_[i]);
  return fix_of_choices(chosen, layers, request_, base_);
}

std::optional<Request> FixTrials::changed(const FixCombination& combination, int layers) const { return patched(described(combination, layers).request); }

std::optional<Request> FixTrials::patched(const Json& patch) const {
  Json changed = request_;
  changed.merge_patch(patch);
  auto parsed = parse_request(changed, catalog_, parsed_.where, folder_, base_.batch, parsed_.model);
  if (!parsed) return std::nullopt;
  return std::move(*parsed);
}

std::optional<Report> FixTrials::whole_batch(std::int64_t batch) const {
  const auto request = patched(smaller_batch(batch, request_, base_).request);
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
  if (!shallow_ || request->plan.pp > 1) {
    const auto report = predicted(*request);
    return report ? need_of(*report) : FixNeed{};
  }
  const auto layers = static_cast<double>(request->inputs.layers.value_or(request->model->layers));
  request->inputs.layers = kShallow;
  const auto shallow = predicted(*request);
  request->inputs.layers = kDeeper;
  const auto deeper = shallow ? predicted(*request) : std::nullopt;
  if (!deeper) return {};
  const FixNeed low = need_of(*shallow), high = need_of(*deeper);
  FixNeed out = high;
  out.time = reckoned(low.time, high.time, layers);
  for (std::size_t m = 0; m < kStepParts; ++m)
    for (std::size_t c = 0; c < kMemoryCategories; ++c)
      out.moments[m][c] = Bytes{static_cast<std::int64_t>(reckoned(static_cast<double>(low.moments[m][c].value), static_cast<double>(high.moments[m][c].value), layers))};
  return out;
}

}  // namespace precog
