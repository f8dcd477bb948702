#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "base/ensure.h"
#include "base/text.h"
#include "report/parts.h"
#include "report/reasons.h"
#include "report/text_report.h"

namespace precog {
namespace {

double casts_share(const Report& r) { return r.step.value > 0 ? r.breakdown.casts / r.step : 0; }
double host_share(const Report& r) { return r.step.value > 0 ? r.breakdown.host / r.step : 0; }

bool is_plain(const Report& r) { return r.precision == "fp32" || r.precision == "tf32" || r.precision == "fp32-default"; }

const Report* find(const Comparison& comparison, std::string_view precision) {
  for (const Report& r : comparison.reports)
    if (r.precision == precision) return &r;
  return nullptr;
}

// The fastest that is trained in this way: reports are sorted, fastest first.
const Report* fastest(const Comparison& comparison, bool fp32_weights, bool autocast) {
  for (const Report& r : comparison.reports)
    if (r.memory.fits && r.fp32_weights == fp32_weights && r.autocast == autocast) return &r;
  return nullptr;
}

// What this version can predict that needs less memory; sharding and offloading are not among it.
std::string what_would_fit(const Report& r) {
  std::vector<std::string> ways;
  if (r.batch > 1) ways.emplace_back("a smaller batch");
  bool recomputes = r.request.is_object() && r.request.contains("recompute") && r.request["recompute"] == "full";
  if (!recomputes) ways.emplace_back("--recompute full");
  ways.emplace_back("a GPU with more memory");
  std::string last = ways.back();
  ways.pop_back();
  return ways.empty() ? last : join(ways, ", ") + " or " + last;
}

const char* what_would_help(const std::string& bound) {
  if (bound == "memory") return "fusing operators or more memory bandwidth would gain more than faster arithmetic";
  if (bound == "network") return "a larger batch per GPU, or more micro-batches between reductions, would hide it";
  if (bound == "host") return "a larger batch or a faster CPU would gain more than a faster GPU";
  return "faster arithmetic, by precision or by GPU, shortens it directly";
}

std::string cost_cell(const Report& r) {
  if (r.cost_usd) return money_text(*r.cost_usd);
  // Without a run's length the price still says something: what a million samples cost.
  if (r.price_usd_per_gpu_hour && r.samples_per_s > 0)
    return money_text(*r.price_usd_per_gpu_hour * r.gpus / 3600 / r.samples_per_s * 1e6);
  return "-";
}

std::string cost_title(const Report& r) {
  if (r.cost_usd) return "run cost";
  return r.price_usd_per_gpu_hour ? "$/M samples" : "cost";
}

}  // namespace

bool Comparison::any_fits() const {
  return std::any_of(reports.begin(), reports.end(), [](const Report& r) { return r.memory.fits; });
}

Comparison make_comparison(std::vector<Report> reports, std::vector<LeftOut> left_out) {
  std::stable_sort(reports.begin(), reports.end(), [](const Report& a, const Report& b) {
    if (a.memory.fits != b.memory.fits) return a.memory.fits;
    return a.step < b.step;
  });
  return {std::move(reports), std::move(left_out), std::nullopt};
}

const Report& baseline(const Comparison& comparison) {
  ensure(!comparison.reports.empty(), "a comparison has a prediction");
  if (const Report* fp32 = find(comparison, "fp32")) return *fp32;
  const Report* slowest = &comparison.reports.front();
  for (const Report& r : comparison.reports)
    if (r.memory.fits == comparison.any_fits() && r.step > slowest->step) slowest = &r;
  return *slowest;
}

const Report* plain_fp32(const Comparison& comparison) {
  for (const char* name : {"tf32", "fp32-default", "fp32"})
    if (const Report* found = find(comparison, name)) return found;
  return nullptr;
}

std::string win_or_loss(const Comparison& comparison, const Report& r) {
  const Report& best = comparison.reports.front();
  const Report* plain = plain_fp32(comparison);
  std::string out;
  if (&r == &best) {
    out = "the fastest";
    if (plain && plain != &r) out += "; " + against(*plain, r);
  } else {
    out = against(best, r);
    if (plain && plain != &r && plain != &best) out += "; " + against(*plain, r);
  }
  if (!r.memory.fits) out += "; does not fit";
  return out + '.';
}

std::string run_terms(const Report& r) {
  std::string out;
  if (r.steps) out = counted(*r.steps, "step");
  if (r.price_usd_per_gpu_hour)
    out += fmt::format("{}{} at {} per GPU-hour", out.empty() ? "" : " on ", r.gpus > 1 ? fmt::format("{} GPUs", r.gpus) : "1 GPU",
                       money_text(*r.price_usd_per_gpu_hour));
  return out;
}

std::string verdict(const Comparison& comparison) {
  if (!comparison.any_fits())
    return fmt::format("Nothing here fits in memory. What may help: {}.", what_would_fit(comparison.reports.front()));
  const Report& best = comparison.reports.front();
  const Report& base = baseline(comparison);
  auto run_of = [](const Report& r) {
    if (!r.total) return std::string();
    return to_text(*r.total) + (r.cost_usd ? " and " + money_text(*r.cost_usd) : std::string());
  };
  auto described = [&](const Report& r) {
    std::string out = r.precision;
    if (&r != &base) out += fmt::format(", {:.2f}x {}", base.step / r.step, base.precision);
    return out;
  };
  std::string out = "Fastest: " + described(best);
  if (best.total) {
    out += fmt::format("; the run takes {}", run_of(best));
    if (&best != &base) out += fmt::format(" instead of {}", run_of(base));
  }
  out += '.';
  if (best.fp32_weights) return out;  // results need no watching: the weights themselves are not rounded
  for (const Report& r : comparison.reports) {
    if (!r.memory.fits || !r.fp32_weights) continue;
    out += fmt::format(" With weights kept in fp32: {}", described(r));
    return out + (r.total ? fmt::format("; {}.", run_of(r)) : ".");
  }
  return out;
}

std::string insight(const Comparison& comparison) {
  if (comparison.reports.empty()) return "";
  const Report& best = comparison.reports.front();
  const Report* amp = fastest(comparison, true, true);
  const Report* plain = fastest(comparison, true, false);
  if (amp && plain && amp->step.value > 1.02 * plain->step.value)
    return fmt::format("{} is slower than {} here: its {:.0f} cast kernels take {} of the step{}.", amp->precision, plain->precision, amp->cast_kernels,
                       percent_text(casts_share(*amp)),
                       host_share(*amp) >= 0.01 ? fmt::format(", and the GPU waits for the host {} of it", percent_text(host_share(*amp))) : "");
  if (host_share(best) > 0.15)
    return fmt::format(
        "The GPU waits for the host {} of the fastest step ({}): a larger batch or fewer operators would gain more than precision.",
        percent_text(host_share(best)), best.precision);
  if (amp && casts_share(*amp) >= 0.01) {
    const Report* whole = fastest(comparison, false, false);  // the whole model in one narrow type
    std::string other;
    if (whole)
      other = fmt::format("; {} has {}", whole->precision, whole->cast_kernels > 0 ? number_text(whole->cast_kernels) : "none");
    return fmt::format("Casting costs {} {} of its step ({:.0f} of {} kernels{}).", amp->precision, percent_text(casts_share(*amp)),
                       amp->cast_kernels, amp->kernels, other);
  }
  return fmt::format("The fastest, {}, is bound by {}: {}.", best.precision, best.bound, what_would_help(best.bound));
}

std::vector<std::string> left_out_texts(const Comparison& comparison) {
  std::vector<std::string> reasons, out;
  for (const LeftOut& left : comparison.left_out)
    if (std::find(reasons.begin(), reasons.end(), left.reason) == reasons.end()) reasons.push_back(left.reason);
  for (const std::string& reason : reasons) {
    std::vector<std::string> names;
    for (const LeftOut& left : comparison.left_out)
      if (left.reason == reason) names.push_back(left.precision);
    out.push_back(fmt::format("{} ({})", join(names, ", "), reason));
  }
  return out;
}

// "amp-bf16 (+12%), amp-fp16 (+15%) lose to tf32 here: ..", one text for each cause.
std::vector<std::string> losers(const Comparison& comparison) {
  const Report* plain = plain_fp32(comparison);
  std::vector<std::string> out;
  std::vector<std::pair<Loss, std::vector<std::string>>> causes;
  for (const Report& r : comparison.reports) {
    const auto lost = plain && !is_plain(r) && r.memory.fits ? loses_to(*plain, r) : std::nullopt;
    if (!lost) continue;
    auto cause = std::find_if(causes.begin(), causes.end(), [&](const auto& one) { return std::string_view(one.first.kind) == lost->kind; });
    if (cause == causes.end()) cause = causes.insert(causes.end(), {*lost, {}});
    cause->second.push_back(fmt::format("{} ({:+.0f}%)", r.precision, 100 * lost->share));
  }
  for (const auto& [loss, names] : causes)
    out.push_back(fmt::format("{} {} to {} here: {}.", join(names, ", "), names.size() > 1 ? "lose" : "loses", plain->precision, loss.because));
  return out;
}

std::string compare_text(const Comparison& comparison, const Style& style) {
  const std::vector<Report>& reports = comparison.reports;
  ensure(!reports.empty(), "a comparison has a prediction");
  const Report& first = reports.front();
  const Report& base = baseline(comparison);
  std::string gpus = first.gpus > 1 ? fmt::format("{} x {}", first.gpus, first.gpu_title) : first.gpu_title;
  std::string out = style(Ink::bold, wrapped("", fmt::format("{} ({} parameters) on {}", first.model,
                                                             number_text(static_cast<double>(first.parameters)), gpus)));
  out += wrapped("", job_line(first));
  const bool one_plan = std::all_of(reports.begin(), reports.end(), [&](const Report& r) { return r.sharding == first.sharding; });
  if (std::string cluster = cluster_line(first); !cluster.empty())
    out += wrapped("", one_plan && !first.sharding.empty() ? cluster + "; " + first.sharding : cluster);
  if (std::string run = run_terms(first); !run.empty()) out += wrapped("", (first.steps ? "run: " : "price: ") + run);
  out += '\n';

  bool tokens = first.tokens_per_s.has_value();
  bool money = std::any_of(reports.begin(), reports.end(), [](const Report& r) { return r.price_usd_per_gpu_hour.has_value(); });
  using Align = Table::Align;
  std::vector<Table::Column> columns = {{"precision", Align::left, true},
                                        {"step", Align::right},
                                        {"vs " + base.precision, Align::right},
                                        {tokens ? "tokens/s" : "samples/s", Align::right},
                                        {"peak mem.", Align::right}};
  if (money) columns.push_back({cost_title(first), Align::right});
  columns.push_back({"bound by", Align::left});
  Table table(std::move(columns));
  for (const Report& r : reports) {
    bool best = &r == &first && r.memory.fits;
    Ink ink = !r.memory.fits ? Ink::dim : best ? Ink::bold : Ink::plain;
    std::vector<Cell> row = {{r.precision, ink},
                             {to_text(r.step), ink},
                             {fmt::format("{:.2f}x", r.step.value > 0 ? base.step / r.step : 0), best ? Ink::green : ink},
                             {number_text(tokens && r.tokens_per_s ? *r.tokens_per_s : r.samples_per_s), ink},
                             {to_text(r.memory.peak) + (r.memory.fits ? "" : " !"), r.memory.fits ? ink : Ink::red}};
    if (money) row.push_back({cost_cell(r), ink});
    row.push_back({r.bound, ink});
    table.add(std::move(row));
  }
  out += table.text(style);
  out += '\n';
  if (reports.size() > 1) {
    out += style(Ink::bold, "What each wins or loses") + '\n';
    std::vector<std::pair<std::string, std::vector<std::string>>> sentences;  // recipes that come out alike share one
    for (const Report& r : reports) {
      std::string said = win_or_loss(comparison, r);
      auto same = std::find_if(sentences.begin(), sentences.end(), [&](const auto& one) { return one.first == said; });
      if (same == sentences.end()) same = sentences.insert(same, {std::move(said), {}});
      same->second.push_back(r.precision);
    }
    for (const auto& [said, names] : sentences) out += wrapped("- ", fmt::format("{}: {}", join(names, ", "), said));
    for (const std::string& lost : losers(comparison)) out += style(Ink::yellow, wrapped("! ", lost));
    out += '\n';
  }
  for (const Report& r : reports) {
    if (r.memory.fits) continue;
    out += wrapped(
        "!  ",
        fmt::format(
            "does not fit: {} needs {} on the device, which has {}. Times of such rows are what they would take if they did.",
            r.precision, to_text(r.memory.device), to_text(r.memory.capacity)));
    break;  // the first stands for all
  }
  out += style(Ink::bold, wrapped("", verdict(comparison)));
  out += wrapped("", insight(comparison));
  out += wrapped("", fmt::format("80% interval of the step in {}: {} to {}.", first.precision,
                                 to_text(first.step_low), to_text(first.step_high)));
  // What is estimated: the fastest one's sources stand for all, since they share GPU, cluster and host.
  if (!first.provenance.empty()) out += "Predicted, not measured. What this rests on:\n";
  for (const std::string& line : provenance_lines(first)) out += style(Ink::dim, wrapped("  ", line));
  std::map<std::string, std::vector<std::string>> sharded;  // a recipe of FSDP's shards by itself; the others only when asked to
  for (const Report& r : reports) sharded[r.sharding].push_back(r.precision);
  const bool some_whole = sharded.count("") > 0;
  for (const auto& [how, recipes] : sharded)
    if (!how.empty() && !one_plan) out += wrapped("", fmt::format("{}: {}{}.", how, recipes.size() == reports.size() ? "all" : join(recipes, ", "),
                                                     some_whole ? "; the others keep the whole model on every GPU" : ""));
  std::set<std::string> said;
  for (const Report& r : reports)
    for (const std::string& warning : r.warnings)
      if (said.insert(warning).second) out += style(Ink::yellow, wrapped("warning: ", warning));
  if (!comparison.left_out.empty()) out += wrapped("left out: ", join(left_out_texts(comparison), "; "));
  if (comparison.advice) out += advice_text(*comparison.advice, style);
  return out;
}

Json to_json(const Comparison& comparison) {
  Json out = Json::object();
  out["schema"] = 1;
  out["baseline"] = comparison.reports.empty() ? Json(nullptr) : Json(baseline(comparison).precision);
  out["verdict"] = verdict(comparison);
  out["insight"] = insight(comparison);
  Json reports = Json::array();
  for (const Report& r : comparison.reports) {
    Json report = to_json(r);
    report["speedup"] = r.step.value > 0 ? Json(baseline(comparison).step / r.step) : Json(nullptr);
    report["wins_or_loses"] = win_or_loss(comparison, r);
    reports.push_back(std::move(report));
  }
  if (const Report* plain = plain_fp32(comparison)) {
    out["loses_to_plain"] = Json::array();
    for (const Report& r : comparison.reports)
      if (!is_plain(r))
        if (const auto lost = loses_to(*plain, r))
          out["loses_to_plain"].push_back({{"precision", r.precision}, {"to", plain->precision}, {"by", lost->share}, {"cause", lost->kind}, {"why", lost->because}});
  }
  out["reports"] = std::move(reports);
  out["left_out"] = Json::array();
  for (const LeftOut& left : comparison.left_out)
    out["left_out"].push_back({{"precision", left.precision}, {"reason", left.reason}});
  if (comparison.advice) add_json(*comparison.advice, out);
  return out;
}

}  // namespace precog
