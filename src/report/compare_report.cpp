#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "base/ensure.h"
#include "base/text.h"
#include "report/parts.h"
#include "report/text_report.h"

namespace precog {
namespace {

double casts_share(const Report& r) { return r.step.value > 0 ? r.breakdown.casts / r.step : 0; }
double host_share(const Report& r) { return r.step.value > 0 ? r.breakdown.host / r.step : 0; }

const Report* find(const Comparison& comparison, std::string_view precision) {
  for (const Report& r : comparison.reports)
    if (r.precision == precision) return &r;
  return nullptr;
}

// The recipes that train without rounding the weights themselves, where results need no watching.
bool keeps_fp32_weights(const Report& r) {
  return r.precision.rfind("amp-", 0) == 0 || r.precision == "tf32" || r.precision.rfind("fp32", 0) == 0;
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
  return {std::move(reports), std::move(left_out)};
}

const Report& baseline(const Comparison& comparison) {
  ensure(!comparison.reports.empty(), "a comparison has a prediction");
  if (const Report* fp32 = find(comparison, "fp32")) return *fp32;
  const Report* slowest = &comparison.reports.front();
  for (const Report& r : comparison.reports)
    if (r.memory.fits == comparison.any_fits() && r.step > slowest->step) slowest = &r;
  return *slowest;
}

std::string run_terms(const Report& r) {
  std::string out;
  if (r.steps) out = fmt::format("{} steps", number_text(*r.steps));
  if (r.price_usd_per_gpu_hour)
    out += fmt::format("{}{} at {} per GPU-hour", out.empty() ? "" : " on ", r.gpus > 1 ? fmt::format("{} GPUs", r.gpus) : "1 GPU",
                       money_text(*r.price_usd_per_gpu_hour));
  return out;
}

std::string verdict(const Comparison& comparison) {
  if (!comparison.any_fits()) return "Nothing here fits in memory: a smaller batch or more GPUs to shard over would.";
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
  if (keeps_fp32_weights(best)) return out;
  for (const Report& r : comparison.reports) {
    if (!r.memory.fits || !keeps_fp32_weights(r)) continue;
    out += fmt::format(" With weights kept in fp32: {}", described(r));
    return out + (r.total ? fmt::format("; {}.", run_of(r)) : ".");
  }
  return out;
}

std::string insight(const Comparison& comparison) {
  if (comparison.reports.empty()) return "";
  const Report& best = comparison.reports.front();
  const Report* tf32 = find(comparison, "tf32");
  for (const char* amp_name : {"amp-bf16", "amp-fp16"}) {
    const Report* amp = find(comparison, amp_name);
    if (amp && tf32 && amp->step.value > 1.02 * tf32->step.value)
      return fmt::format(
          "{} is slower than tf32 here: its {:.0f} cast kernels take {} of the step, and the GPU waits for the host {} of it.",
          amp_name, amp->cast_kernels, percent_text(casts_share(*amp)), percent_text(host_share(*amp)));
  }
  if (host_share(best) > 0.15)
    return fmt::format(
        "The GPU waits for the host {} of the fastest step ({}): a larger batch or fewer operators would gain more than precision.",
        percent_text(host_share(best)), best.precision);
  for (const char* amp_name : {"amp-bf16", "amp-fp16"}) {
    const Report* amp = find(comparison, amp_name);
    if (amp && casts_share(*amp) >= 0.01)
      return fmt::format("Casting costs {} {} of its step ({:.0f} of {} kernels).{}", amp_name, percent_text(casts_share(*amp)),
                         amp->cast_kernels, amp->kernels,
                         find(comparison, amp_name + 4) ? fmt::format(" {} weights need no casts.", amp_name + 4) : "");
  }
  return fmt::format("The fastest, {}, is bound by {}: {}.", best.precision, best.bound, what_would_help(best.bound));
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
  if (std::string run = run_terms(first); !run.empty()) out += wrapped("", (first.steps ? "run: " : "price: ") + run);
  out += '\n';

  bool tokens = first.tokens_per_s.has_value();
  bool money = std::any_of(reports.begin(), reports.end(), [](const Report& r) { return r.price_usd_per_gpu_hour.has_value(); });
  using Align = Table::Align;
  std::vector<Table::Column> columns = {{"precision", Align::left},
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
  std::set<std::string> said;
  for (const Report& r : reports)
    for (const std::string& warning : r.warnings)
      if (said.insert(warning).second) out += style(Ink::yellow, wrapped("warning: ", warning));
  for (const LeftOut& left : comparison.left_out) out += wrapped(fmt::format("left out {}: ", left.precision), left.reason);
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
    reports.push_back(std::move(report));
  }
  out["reports"] = std::move(reports);
  out["left_out"] = Json::array();
  for (const LeftOut& left : comparison.left_out)
    out["left_out"].push_back({{"precision", left.precision}, {"reason", left.reason}});
  return out;
}

}  // namespace precog
