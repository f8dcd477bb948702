#include "predict/advise.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "base/text.h"
#include "frontend/pad_vocabulary.h"
#include "graph/operator.h"
#include "report/inspection.h"

namespace precog {
namespace {

constexpr double kWorthSaying = 0.002;         // of the time per sample; less is below what predictions can tell
constexpr std::size_t kMostOverrides = 4;
constexpr int kMostDoublings = 6;              // of the batch
constexpr std::int64_t kAccumulated = 8;       // micro-batches: what happens once per step then costs an eighth
constexpr std::int64_t kVocabularyMultiple = 64;

struct Candidate {
  std::string change, flags, note;
  Json patch;         // fields of the request; "overrides" are added to those there
  std::string group;  // at most one of a group can be had; empty: goes with everything
};

Json patched(Json request, const Json& patch) {
  Json overrides = request.contains("overrides") && request["overrides"].is_array() ? request["overrides"] : Json::array();
  request.merge_patch(patch);
  if (patch.contains("overrides")) {
    for (const Json& one : patch["overrides"]) overrides.push_back(one);
    request["overrides"] = std::move(overrides);
  }
  return request;
}

// The 16-bit type that a recipe computes in; nothing where it computes in fp32.
std::optional<DType> sixteen_bit(const PrecisionRecipe& recipe) {
  if (recipe.autocast) return recipe.autocast;
  if (is_16bit(recipe.parameters)) return recipe.parameters;
  return std::nullopt;
}

// Names that autocast itself runs in fp32 (others in fp32 only follow their inputs).
std::vector<std::string> roots_of_fp32(const Graph& graph, const Inspection& inspection, Seconds step) {
  std::vector<std::string> out;
  for (const KeptWide& kept : kept_in_fp32(graph, inspection)) {
    if ((kept.own + kept.casts.time).value < 0.002 * step.value || out.size() >= kMostOverrides) continue;
    for (const InspectedOp& at : inspection.ops) {
      const Op& op = graph.ops[at.op];
      if ((op.autocast != Autocast::fp32 && op.autocast != Autocast::fp32_result) || op.math != DType::fp32 || name_of(graph, op) != kept.name) continue;
      out.push_back(kept.name);
      break;
    }
  }
  return out;
}

std::string numerics_of(const std::string& name) {
  if (name.find("loss") != std::string::npos || name.find("softmax") != std::string::npos)
    return "numerics: probabilities and losses rounded to 16 bits; watch the loss curve";
  if (name.find("norm") != std::string::npos)
    return "numerics: its kernel still sums in fp32, but results are stored in 16 bits (so is the residual that follows)";
  return "numerics: autocast keeps it in fp32 for accuracy; watch the loss curve";
}

class Advisor {
 public:
  Advisor(const Json& request, const Catalog& catalog, const std::string& where, const std::filesystem::path& folder)
      : request_(request), catalog_(catalog), where_(where), folder_(folder) {}

  Result<AdviceList> run(const std::vector<Report>& others) {
    PRECOG_TRY(parsed, parse_request(request_, catalog_, where_, folder_));
    PRECOG_TRY(prediction, predict(parsed, catalog_));
    base_ = prediction.report;
    list_.precision = base_.precision;
    list_.step = base_.step;
    list_.fits = base_.memory.fits;
    list_.tried = 1;
    settings(parsed, prediction);
    precisions(others);
    overrides(parsed, prediction);
    sizes(parsed);
    rank();
    combine();
    return std::move(list_);
  }

 private:
  double share(Seconds part) const { return base_.step.value > 0 ? part / base_.step : 0; }

  std::optional<Report> predicted(const Json& request) {
    auto parsed = parse_request(request, catalog_, where_, folder_);
    if (!parsed) return std::nullopt;
    auto prediction = predict(*parsed, catalog_);
    ++list_.tried;
    if (!prediction) return std::nullopt;
    return std::move(prediction->report);
  }

  Advice advice_of(const Candidate& candidate, const Report& report) const {
    return {candidate.change, candidate.flags, candidate.patch, candidate.note, report.step,
            report.samples_per_s > 0 ? 1 - base_.samples_per_s / report.samples_per_s : 0, report.memory.peak, report.memory.fits};
  }

  // Kept when it saves time, or makes fit what did not. What would not fit is no advice where the job does.
  void keep(const Candidate& candidate, const Report& report) {
    Advice advice = advice_of(candidate, report);
    const bool rescues = !base_.memory.fits && advice.fits;
    if (!rescues && (advice.gain < kWorthSaying || (base_.memory.fits && !advice.fits))) return;
    if (rescues) advice.note += (advice.note.empty() ? "" : "; ") + std::string("with it the job fits");
    list_.advice.push_back(std::move(advice));
    groups_[candidate.flags] = candidate.group;
  }
  void attempt(const Candidate& candidate) {
    if (auto report = predicted(patched(request_, candidate.patch))) keep(candidate, *report);
  }

  void settings(const Request& parsed, const Prediction& prediction) {
    const auto& classes = base_.by_op_class;
    if (parsed.memory_format == MemoryFormat::contiguous && classes.count("convolution"))
      attempt({"channels_last memory format", "--memory-format channels_last", "model and images .to(memory_format=torch.channels_last)",
               {{"memory_format", "channels_last"}}, ""});
    if (parsed.training.optimizer_impl != OptimizerImpl::fused)
      attempt({"fused optimizer", "--optimizer-impl fused", "fused=True: one pass over memory, the same result",
               {{"optimizer_impl", "fused"}}, ""});
    const std::string mode = base_.request.value("mode", "eager");
    if (mode == "eager")
      attempt({"torch.compile", "--mode compile", "compile time before the first step; graph breaks in your own code are not modelled",
               {{"mode", "compile"}}, "mode"});
    if (mode != "compile-cudagraphs" && share(base_.breakdown.host) > 0.05)
      attempt({"torch.compile with CUDA graphs", "--mode compile-cudagraphs", "as compiling; every shape is recorded anew, inputs are copied in",
               {{"mode", "compile-cudagraphs"}}, "mode"});
    if (parsed.training.recompute == Recompute::full)
      attempt({"no recomputation", "--recompute none", "keeps the activations instead", {{"recompute", "none"}}, "recompute"});
    else if (!base_.memory.fits)
      attempt({"recompute activations", "--recompute full", "a second forward pass per layer", {{"recompute", "full"}}, "recompute"});
    if (!base_.memory.fits && parsed.plan.dp > 1)
      attempt({"shard parameters, gradients and states over the GPUs", "--fsdp full", "gathers each layer's weights when it needs them",
               {{"plan", {{"fsdp", "full"}}}}, "sharding"});
    const std::int64_t vocabulary = vocabulary_of(prediction.graph);
    if (vocabulary % kVocabularyMultiple != 0) {
      const std::int64_t padded = (vocabulary / kVocabularyMultiple + 1) * kVocabularyMultiple;
      attempt({fmt::format("vocabulary padded from {} to {}", vocabulary, padded), fmt::format("--pad-vocabulary {}", kVocabularyMultiple),
               "the new rows are never looked up; mask their scores or leave them untrained", {{"pad_vocabulary", kVocabularyMultiple}}, ""});
    }
    if (!request_.contains("precision") || !request_["precision"].is_string()) return;
    const std::string name = request_["precision"].get<std::string>();
    auto part = [&](const char* extra, const std::string& change, const std::string& note) {
      if (name.find(extra) == std::string::npos)
        attempt({change, fmt::format("--precision {}+{}", name, extra), note, {{"precision", name + "+" + extra}}, "precision"});
    };
    Seconds exposed;
    for (const auto& [collective, time] : base_.breakdown.exposed_communication) exposed += time;
    if (parsed.plan.dp > 1 && share(exposed) > 0.01)
      part(parsed.gpu->computes(DType::bf16) ? "gradients-bf16" : "gradients-fp16", "gradients compressed to 16 bits on the way",
           "numerics: gradients are summed in 16 bits (a DDP communication hook)");
    if (!base_.memory.fits || share(base_.breakdown.optimizer) > 0.1)
      part("optimizer-8bit", "optimizer states in 8 bits", "numerics: states quantised by blocks (bitsandbytes)");
  }

  void precisions(const std::vector<Report>& others) {
    std::vector<const Report*> chosen;
    auto first = [&](auto wanted) {
      const Report* best = nullptr;
      for (const Report& r : others)
        if (r.memory.fits && r.precision != base_.precision && wanted(r) && (!best || r.samples_per_s > best->samples_per_s)) best = &r;
      if (best && std::find(chosen.begin(), chosen.end(), best) == chosen.end()) chosen.push_back(best);
    };
    auto narrow = [](const Report& r) {
      return std::any_of(r.by_dtype.begin(), r.by_dtype.end(), [](const auto& entry) {
        const auto type = dtype_named(entry.first);
        return type && is_floating(*type) && bits_of(*type) < 16;
      });
    };
    first([](const Report&) { return true; });
    first([](const Report& r) { return r.fp32_weights; });
    first(narrow);
    for (const Report* r : chosen) {
      const std::string caveat = narrow(*r)          ? "numerics: linear layers in 8 bits or fewer; compare the loss curve with bf16"
                                 : !r->fp32_weights ? "numerics: weights themselves are rounded to 16 bits; small updates are lost"
                                                    : "weights stay in fp32";
      keep({fmt::format("precision {}", r->precision), fmt::format("--precision {}", r->precision), caveat, {{"precision", r->precision}}, "precision"}, *r);
    }
  }

  void overrides(const Request& parsed, const Prediction& prediction) {
    const auto type = sixteen_bit(*parsed.precision);
    if (!type) return;
    const Inspection inspection = inspect_step(prediction.graph, prediction.program, prediction.costs, base_.micro_batches);
    auto try_one = [&](const std::string& rule, const std::string& change, const std::string& note) {
      attempt({change, "--override " + (rule.find('*') == std::string::npos ? rule : "'" + rule + "'"), note, {{"overrides", Json::array({rule})}}, ""});
    };
    for (const std::string& name : roots_of_fp32(prediction.graph, inspection, base_.step))
      try_one(fmt::format("op:{}={}", name, to_text(*type)), fmt::format("{} in {}", name, to_text(*type)), numerics_of(name));
    bool rotary = false;
    std::map<std::string, Seconds> linears;  // in 8 bits or fewer, by place
    for (const InspectedOp& at : inspection.ops) {
      const Op& op = prediction.graph.ops[at.op];
      const std::string_view module = prediction.graph.name(op.module);
      rotary = rotary || (op.math == DType::fp32 && module.find("rotary") != std::string_view::npos && at.own().value > 0);
      if (is_matrix_work(op.kind) && bits_of(op.math) < 16) linears[without_numbers(module)] += at.own() + at.casts().time;
    }
    if (rotary)
      try_one(fmt::format("*rotary*={}", to_text(*type)), fmt::format("rotary embedding in {}", to_text(*type)),
              "numerics: angles of late positions lose digits; long contexts suffer first");
    std::vector<std::pair<Seconds, std::string>> dearest;
    for (const auto& [module, time] : linears) dearest.emplace_back(time, module);
    std::stable_sort(dearest.begin(), dearest.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    for (std::size_t i = 0; i < dearest.size() && i < kMostOverrides; ++i)
      try_one(dearest[i].second + "=no-fp8", fmt::format("{} out of fp8", dearest[i].second), "its scales and casts cost more than its products gain");
  }

  void sizes(const Request& parsed) {
    // A larger batch: at the same global batch where one is given, else a larger step.
    const bool fixed = request_.contains("global_batch");
    std::optional<Report> best;
    std::int64_t best_batch = 0;
    for (std::int64_t batch = 2 * base_.batch, tries = 0; tries < kMostDoublings && base_.memory.fits; batch *= 2, ++tries) {
      auto report = predicted(patched(request_, {{"batch", batch}}));
      if (!report || !report->memory.fits) break;
      if (best && report->samples_per_s < 1.005 * best->samples_per_s) break;
      best = std::move(report);
      best_batch = batch;
    }
    const char* larger_step = "more samples per step: the learning rate may need another value";
    if (best)
      keep({fmt::format("batch {} instead of {}", best_batch, base_.batch), fmt::format("--batch {}", best_batch),
            fixed ? "fewer, larger micro-batches at the same global batch" : larger_step, {{"batch", best_batch}}, "batch"}, *best);
    if (!base_.memory.fits && base_.batch > 1) {
      for (std::int64_t batch = base_.batch / 2; batch >= 1; batch /= 2) {
        if (base_.global_batch % (batch * parsed.plan.dp) != 0) continue;
        auto report = predicted(patched(request_, {{"batch", batch}, {"global_batch", base_.global_batch}}));
        if (!report || !report->memory.fits) continue;
        keep({fmt::format("batch {} and accumulation", batch), fmt::format("--batch {} --global-batch {}", batch, base_.global_batch),
              "the same step in smaller pieces", {{"batch", batch}, {"global_batch", base_.global_batch}}, "batch"}, *report);
        break;
      }
    }
    if (base_.micro_batches < kAccumulated) {
      const std::int64_t global = base_.batch * parsed.plan.dp * kAccumulated;
      attempt({fmt::format("accumulate {} micro-batches", kAccumulated), fmt::format("--global-batch {}", global),
               fmt::format("optimizer{} once per {} micro-batches; {}", parsed.plan.dp > 1 ? " and all-reduce" : "", kAccumulated, larger_step),
               {{"global_batch", global}}, "batch"});
    }
  }

  void rank() {
    std::stable_sort(list_.advice.begin(), list_.advice.end(), [](const Advice& a, const Advice& b) {
      if (a.fits != b.fits) return a.fits;
      return a.gain > b.gain;
    });
  }

  // Taken one after the other, largest first, each only if it still helps on top of the others.
  void combine() {
    if (list_.advice.size() < 2) return;
    Json request = request_, patch = Json::object();
    std::vector<std::string> flags, groups;
    std::optional<Report> now;
    for (const Advice& advice : list_.advice) {
      const std::string& group = groups_[advice.flags];
      if (!group.empty() && std::find(groups.begin(), groups.end(), group) != groups.end()) continue;
      Json next = patched(request, advice.request);
      auto report = predicted(next);
      const Report& before = now ? *now : base_;
      if (!report || (before.memory.fits && !report->memory.fits) || (before.memory.fits && report->samples_per_s < 1.001 * before.samples_per_s)) continue;
      request = std::move(next);
      patch = patched(patch, advice.request);
      now = std::move(report);
      flags.push_back(advice.flags);
      if (!group.empty()) groups.push_back(group);
    }
    if (flags.size() > 1) list_.combined = advice_of({"all that go together", join(flags, " "), "", patch, ""}, *now);
  }

  const Json& request_;
  const Catalog& catalog_;
  const std::string& where_;
  const std::filesystem::path& folder_;
  Report base_;
  AdviceList list_;
  std::map<std::string, std::string> groups_;  // by flags
};

}  // namespace

Result<AdviceList> advise(const Json& request, const std::vector<Report>& others, const Catalog& catalog, const std::string& where,
                          const std::filesystem::path& folder) {
  return Advisor(request, catalog, where, folder).run(others);
}

const Report& advised(const Comparison& comparison) {
  for (const Report& r : comparison.reports)
    if (r.memory.fits && r.fp32_weights) return r;
  return comparison.reports.front();
}

std::vector<WhatIf> fp32_what_ifs(const Json& request, const Prediction& prediction, const Catalog& catalog, const std::string& where,
                                  const std::filesystem::path& folder) {
  std::vector<WhatIf> out;
  auto parsed = parse_request(request, catalog, where, folder, 1);
  const auto type = parsed ? sixteen_bit(*parsed->precision) : std::nullopt;
  if (!type) return out;
  const Inspection inspection = inspect_step(prediction.graph, prediction.program, prediction.costs, prediction.report.micro_batches);
  for (const std::string& name : roots_of_fp32(prediction.graph, inspection, prediction.report.step)) {
    const std::string rule = fmt::format("op:{}={}", name, to_text(*type));
    auto changed = parse_request(patched(request, {{"overrides", Json::array({rule})}}), catalog, where, folder, 1);
    if (!changed) continue;
    auto again = predict(*changed, catalog);
    if (again && again->report.step != prediction.report.step) out.push_back({rule, again->report.step});
  }
  return out;
}

}  // namespace precog
