#include <cmath>

#include <fmt/format.h>

#include "validate/validate.h"

namespace precog {
namespace {

Json or_null(const std::optional<double>& value) { return value && std::isfinite(*value) ? Json(*value) : Json(nullptr); }

// Bytes are whole numbers; writing them as such keeps scripts that compare them simple.
Json bytes_or_null(const std::optional<double>& value) {
  return value && std::isfinite(*value) && *value < 9e18 ? Json(static_cast<std::int64_t>(std::llround(*value))) : Json(nullptr);
}

Json to_json(const ErrorSummary& s) {
  return {{"rows", s.rows},        {"predicted", s.predicted}, {"oom", s.oom},        {"mape", or_null(s.mape)},
          {"median", or_null(s.median)}, {"p95", or_null(s.p95)},    {"bias", or_null(s.bias)}};
}

Json to_json(const Count& count) { return {{"rows", count.rows}, {"right", count.right}}; }

std::string error_cell(const std::optional<double>& value, bool sign = false) {
  if (!value) return "-";
  return sign ? fmt::format("{:+.1f}%", *value) : fmt::format("{:.1f}%", *value);
}

std::vector<Cell> error_row(const std::string& name, const ErrorSummary& s, bool oom, Ink ink) {
  std::vector<Cell> row = {{name, ink}, {fmt::format("{}", s.rows), ink}, {fmt::format("{}", s.predicted), ink}};
  if (oom) row.push_back({s.oom ? fmt::format("{}", s.oom) : "-", ink});
  for (const std::optional<double>& error : {s.mape, s.median, s.p95}) row.push_back({error_cell(error), ink});
  row.push_back({error_cell(s.bias, true), ink});
  return row;
}

// One line above the groups of one kind, so that they need not repeat what they are groups of.
std::vector<Cell> heading_row(const std::string& title, bool oom) {
  std::vector<Cell> row(oom ? 8 : 7);
  row.front() = {title, Ink::dim};
  return row;
}

}  // namespace

Json to_json(const ValidationReport& report) {
  Json out = Json::object();
  out["schema"] = 1;
  out["overall"] = to_json(report.overall);
  out["groups"] = Json::object();
  for (const auto& [name, group] : report.groups) out["groups"][name] = to_json(group);
  out["speedups"] = Json::object();
  for (const auto& [name, s] : report.speedups)
    out["speedups"][name] = {{"pairs", s.pairs}, {"median", s.median}, {"p95", s.p95}, {"bias", s.bias}};
  out["memory"] = to_json(report.memory);
  out["gpu_busy"] = to_json(report.gpu_busy);
  out["kernels"] = to_json(report.kernels);
  out["interval"] = {{"rows", report.interval.rows},
                     {"inside", report.interval.right},
                     {"coverage", report.interval.rows ? Json(100.0 * static_cast<double>(report.interval.right) /
                                                              static_cast<double>(report.interval.rows))
                                                       : Json(nullptr)}};
  out["fits"] = to_json(report.fits);
  out["oom"] = to_json(report.oom);
  out["unpredicted"] = Json::array();
  for (const UnreadableRun& run : report.unpredicted) out["unpredicted"].push_back({{"id", run.id}, {"reason", run.reason}});
  out["runs"] = Json::array();
  for (const ValidatedRun& run : report.runs) {
    Json by_class = Json::object();
    for (const auto& [name, spent] : run.predicted_by_op_class) by_class[name] = spent.value;
    out["runs"].push_back({{"id", run.id},
                           {"measured_s", or_null(run.measured_s)},
                           {"predicted_s", or_null(run.predicted_s)},
                           {"error", or_null(run.error)},
                           {"measured_peak_bytes", bytes_or_null(run.measured_peak_bytes)},
                           {"predicted_peak_bytes", bytes_or_null(run.predicted_peak_bytes)},
                           {"predicted_fits", run.predicted_fits ? Json(*run.predicted_fits) : Json()},
                           {"predicted_filled", run.predicted_filled ? Json(*run.predicted_filled) : Json()},
                           {"predicted_by_op_class", std::move(by_class)}});
  }
  out["warnings"] = report.warnings;
  return out;
}

std::string to_text(const ValidationReport& report, const Style& style) {
  using Align = Table::Align;
  std::string out = style(Ink::bold, "Error of the predicted step, per cent of the measured one") + '\n';
  const bool oom = report.overall.oom > 0;
  std::vector<Table::Column> columns = {{"", Align::left, true}, {"runs", Align::right}, {"predicted", Align::right}};
  if (oom) columns.push_back({"OOM", Align::right});
  for (const char* title : {"MAPE", "median", "p95", "bias"}) columns.push_back({title, Align::right});
  Table table(std::move(columns));
  table.add(error_row("overall", report.overall, oom, Ink::bold));
  for (const std::string& by : report.by) {
    table.add(heading_row("by " + by, oom));
    for (const auto& [name, group] : report.groups)
      if (group.by == by) table.add(error_row("  " + group.value, group, oom, Ink::plain));
  }
  if (report.gpu_busy.rows || report.kernels.rows || report.memory.rows) table.add(heading_row("other measured figures", oom));
  if (report.gpu_busy.rows) table.add(error_row("  gpu_busy_s", report.gpu_busy, oom, Ink::plain));
  if (report.kernels.rows) table.add(error_row("  kernels", report.kernels, oom, Ink::plain));
  if (report.memory.rows) table.add(error_row("  peak_bytes", report.memory, oom, Ink::plain));
  out += table.text(style);
  if (oom)
    out += wrapped("", "OOM: predicted, but the measured run ran out of memory, so that there is no step to compare with.");

  if (!report.speedups.empty()) {
    out += '\n' + style(Ink::bold, "Error of the predicted speed-up between precisions") + '\n';
    Table pairs(
        {{"", Align::left}, {"pairs", Align::right}, {"median", Align::right}, {"p95", Align::right}, {"bias", Align::right}});
    for (const auto& [name, s] : report.speedups)
      pairs.add({{name}, {fmt::format("{}", s.pairs)}, {error_cell(s.median)}, {error_cell(s.p95)}, {error_cell(s.bias, true)}});
    out += pairs.text(style);
  }
  out += '\n';
  if (report.interval.rows)
    out += wrapped(
        "", fmt::format("Inside the 80% interval: {} of {} ({}).", report.interval.right, report.interval.rows,
                        percent_text(static_cast<double>(report.interval.right) / static_cast<double>(report.interval.rows))));
  if (report.fits.right < report.fits.rows)
    out += wrapped("",
                   fmt::format("Ran, but predicted not to fit: {} of {}.", report.fits.rows - report.fits.right, report.fits.rows));
  if (report.oom.rows)
    out += wrapped("", fmt::format("Ran out of memory, as predicted: {} of {}.", report.oom.right, report.oom.rows));
  for (const std::string& warning : report.warnings) out += style(Ink::yellow, wrapped("warning: ", printable(warning)));
  if (!report.unpredicted.empty()) {
    out += '\n' + style(Ink::bold, fmt::format("Not predicted: {}", report.unpredicted.size())) + '\n';
    for (const UnreadableRun& run : report.unpredicted) 
      out += wrapped(fmt::format("  {}: ", shortened(printable(run.id), 30)), printable(run.reason));
  }
  return out;
}

}  // namespace precog
