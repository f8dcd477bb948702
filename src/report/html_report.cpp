#include "report/html_report.h"

#include <set>

#include <fmt/format.h>

#include "report/parts.h"
#include "report/svg.h"

namespace precog {
namespace {

constexpr const char* kPageStyle =
    ":root{color-scheme:light dark;--fg:#1b1f24;--bg:#fff;--muted:#57606a;--line:#d0d7de}"
    "@media (prefers-color-scheme:dark){:root{--fg:#e6edf3;--bg:#0d1117;--muted:#9da7b3;--line:#30363d}}"
    "body{font:16px/1.5 system-ui,-apple-system,'Segoe "
    "UI',sans-serif;color:var(--fg);background:var(--bg);max-width:66rem;margin:2rem auto;padding:0 1rem}"
    "h1{font-size:1.5rem;margin:0}h2{font-size:1.1rem;margin:2rem 0 .5rem}p{margin:.3rem 0}.muted{color:var(--muted)}"
    "svg{width:100%;height:auto;border:1px solid var(--line);border-radius:6px;margin-top:1rem}"
    ".scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:.9rem}th,td{text-align:right;padding:.35rem "
    ".5rem;border-bottom:1px solid var(--line);white-space:nowrap}"
    "th{color:var(--muted);font-weight:600}th:first-child,td:first-child,.jobs td:last-child,.jobs th:last-child{text-align:left}"
    ".lead{font-weight:600;margin-top:1rem}footer{margin:2rem 0;font-size:.85rem}"
    ".no{color:#d55e00;font-weight:600}";

std::string page(std::string_view title, std::string_view body) {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>{}</title>\n<style>{}</style>\n"
      "</head>\n<body>\n<main>\n{}"
      "<footer class=\"muted\">Predicted by precog, not measured.</footer>\n</main>\n</body>\n</html>\n",
      escaped(title), kPageStyle, body);
}

std::string row(const char* tag, const std::vector<std::string>& cells) {
  std::string out = "<tr>";
  for (const std::string& cell : cells) out += fmt::format("<{0}>{1}</{0}>", tag, cell);
  return out + "</tr>\n";
}

std::string list(std::string_view heading, const std::vector<std::string>& items) {
  if (items.empty()) return "";
  std::string out = fmt::format("<h2>{}</h2>\n<ul>\n", escaped(heading));
  for (const std::string& item : items) out += fmt::format("<li>{}</li>\n", escaped(item));
  return out + "</ul>\n";
}

std::string memory_cell(const Report& r) {
  return r.memory.fits ? to_text(r.memory.peak) : fmt::format("<span class=\"no\">{}, does not fit</span>", to_text(r.memory.peak));
}

std::string reports_table(const std::vector<const Report*>& reports, const Report& base) {
  const Report& first = *reports.front();
  bool tokens = first.tokens_per_s.has_value();
  std::vector<std::string> titles = {"precision", "step", "80% interval"};
  if (reports.size() > 1) titles.push_back("vs " + escaped(base.precision));
  titles.insert(titles.end(), {tokens ? "tokens/s" : "samples/s", "peak memory", "MFU"});
  if (first.total) titles.emplace_back("run time");
  if (first.cost_usd) titles.emplace_back("run cost");
  titles.emplace_back("bound by");
  std::string out = "<div class=\"scroll\">\n<table class=\"jobs\">\n<thead>\n" + row("th", titles) + "</thead>\n<tbody>\n";
  for (const Report* r : reports) {
    std::vector<std::string> cells = {escaped(r->precision), to_text(r->step),
                                      fmt::format("{} to {}", to_text(r->step_low), to_text(r->step_high))};
    if (reports.size() > 1) cells.push_back(fmt::format("{:.2f}x", r->step.value > 0 ? base.step / r->step : 0));
    cells.insert(cells.end(), {number_text(tokens && r->tokens_per_s ? *r->tokens_per_s : r->samples_per_s), memory_cell(*r),
                               fmt::format("{:.1f}%", 100 * r->mfu)});
    if (first.total) cells.push_back(r->total ? to_text(*r->total) : "-");
    if (first.cost_usd) cells.push_back(r->cost_usd ? money_text(*r->cost_usd) : "-");
    cells.push_back(escaped(r->bound));
    out += row("td", cells);
  }
  return out + "</tbody>\n</table>\n</div>\n";
}

std::string parts_table(const Report& r) {
  std::string out = "<div class=\"scroll\">\n<table>\n<thead>\n" + row("th", {"part", "time", "share"}) + "</thead>\n<tbody>\n";
  for (const TimePart& part : time_parts(r.breakdown))
    out += row("td", {escaped(part.label), part_text(part), percent_text(r.step.value > 0 ? part.time / r.step : 0)});
  return out + "</tbody>\n</table>\n</div>\n";
}

// Of all repeated layers together; small ones as one.
std::string modules_table(const Report& r) {
  constexpr std::size_t kShown = 16;
  if (r.memory.by_module.empty()) return "";
  std::string out = "<h2>Memory at the peak, by module</h2>\n<div class=\"scroll\">\n<table>\n<thead>\n" +
                    row("th", {"module", "all", "parameters", "gradients", "optimizer", "weight copies", "activations", "workspace"}) + "</thead>\n<tbody>\n";
  const auto line = [](const std::string& name, const ModuleMemory& m) {
    std::vector<std::string> cells = {escaped(name), to_text(m.total())};
    for (Bytes part : {m.parameters, m.gradients, m.optimizer, m.weight_copies, m.activations, m.workspace}) cells.push_back(part.value > 0 ? to_text(part) : "-");
    return row("td", cells);
  };
  ModuleMemory others;
  for (std::size_t i = 0; i < r.memory.by_module.size(); ++i) {
    const ModuleMemory& one = r.memory.by_module[i];
    if (i < kShown) out += line(one.module, one);
    else
      for (auto part : {&ModuleMemory::parameters, &ModuleMemory::gradients, &ModuleMemory::optimizer, &ModuleMemory::weight_copies, &ModuleMemory::activations, &ModuleMemory::workspace})
        others.*part += one.*part;
  }
  if (r.memory.by_module.size() > kShown) out += line(fmt::format("{} others", r.memory.by_module.size() - kShown), others);
  return out + "</tbody>\n</table>\n</div>\n";
}

std::string fixes_table(const Report& r) {
  std::string out = "<h2>What would make it fit</h2>\n";
  if (r.fixes.empty()) return out + "<p>Nothing that was tried. More GPUs to shard over may, or larger ones, or a plan that was not tried.</p>\n";
  out += "<div class=\"scroll\">\n<table>\n<thead>\n" + row("th", {"change", "time per sample", "step", "on the device", "flags", "notes"}) + "</thead>\n<tbody>\n";
  for (const Fix& fix : r.fixes)
    out += row("td", {escaped(fix_change(fix)), fmt::format("{:+.1f}%", 100 * fix.time_cost), to_text(fix.step),
                      to_text(fix.device) + (fix.certain ? "" : " (likely)"), fmt::format("<code>{}</code>", escaped(fix.flags)), escaped(fix_notes(fix))});
  return out + "</tbody>\n</table>\n</div>\n";
}

std::string heading(const Report& r, std::string_view title) {
  std::string run = run_terms(r), cluster = cluster_line(r);
  if (!cluster.empty()) cluster = fmt::format("<p class=\"muted\">{}</p>\n", escaped(cluster));
  return fmt::format("<h1>{}</h1>\n<p class=\"muted\">{} parameters on {} x {}; {}{}</p>\n{}", escaped(title),
                     number_text(static_cast<double>(r.parameters)), r.gpus, escaped(r.gpu_title), escaped(job_line(r)),
                     run.empty() ? "" : "; " + escaped(run), cluster);
}

}  // namespace

std::string comparison_html(const Comparison& comparison) {
  const Report& first = comparison.reports.front();
  std::vector<const Report*> reports;
  std::vector<std::string> warnings;
  std::set<std::string> said;
  for (const Report& r : comparison.reports) {
    reports.push_back(&r);
    for (const std::string& warning : r.warnings)
      if (said.insert(warning).second) warnings.push_back(warning);
  }
  std::string title = first.model + ": every precision compared";
  std::string body = heading(first, title);
  body += fmt::format("<p class=\"lead\">{}</p>\n<p>{}</p>\n", escaped(verdict(comparison)), escaped(insight(comparison)));
  body += comparison_svg(comparison) + "<h2>Table</h2>\n" + reports_table(reports, baseline(comparison));
  body += list("Where the numbers come from", provenance_lines(first)) + list("Warnings", warnings);
  body += list("Left out", left_out_texts(comparison));
  return page(title, body);
}

namespace {

std::string report_with(const Report& report, const std::string& timeline) {
  std::string title = fmt::format("{} in {}", report.model, report.precision);
  std::string body = heading(report, title);
  if (report.largest_batch) body += fmt::format("<p class=\"lead\">Largest batch: {}</p>\n", escaped(largest_text(*report.largest_batch)));
  body += breakdown_svg(report) + memory_svg(report) + timeline + memory_timeline_svg(report);
  if (!report.memory.fits && report.fixes_sought) body += fixes_table(report);
  body += "<h2>Summary</h2>\n" + reports_table({&report}, report) + "<h2>The step, part by part</h2>\n" + parts_table(report) + modules_table(report);
  body += list("Where the numbers come from", provenance_lines(report)) + list("Warnings", report.warnings);
  return page(title, body);
}

}  // namespace

std::string report_html(const Report& report, const TimelineView& timeline) { return report_with(report, timeline_svg(timeline)); }
std::string report_html(const Report& report, const PipelineView& pipeline) { return report_with(report, pipeline_svg(pipeline) + pipeline_precision_svg(pipeline)); }

}  // namespace precog
