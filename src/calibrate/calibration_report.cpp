// The views of a calibration: a table for a terminal, JSON, and the page docs/calibration.md.
#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "calibrate/calibrate.h"

namespace precog {
namespace {

constexpr std::size_t kReasonsShown = 12;

double per_cent(double fraction) { return 100 * fraction; }

// Lines that could not be used, by reason, with the first of each.
std::vector<std::pair<std::string, std::vector<const UnusableLine*>>> by_reason(const Measurements& measurements) {
  std::map<std::string, std::vector<const UnusableLine*>> found;
  for (const UnusableLine& line : measurements.unusable) {
    const std::size_t at = line.reason.find(": ");
    found[at == std::string::npos ? line.reason : line.reason.substr(at + 2)].push_back(&line);
  }
  std::vector<std::pair<std::string, std::vector<const UnusableLine*>>> out(found.begin(), found.end());
  std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.second.size() > b.second.size(); });
  return out;
}

std::string place(const Measurements& measurements, const UnusableLine& line) { return fmt::format("{}, line {}", measurements.files[line.file].file, line.line); }

std::string unused_text(const Calibration& calibration, const Measurements& measurements, const char* bullet) {
  std::string out;
  if (calibration.chilled > 0) out += fmt::format("{}{} rows: operands kept out of the cache that are so few that in a step they would be in it\n", bullet, calibration.chilled);
  const auto reasons = by_reason(measurements);
  for (std::size_t i = 0; i < reasons.size() && i < kReasonsShown; ++i)
    out += fmt::format("{}{} rows: {} ({}: {})\n", bullet, reasons[i].second.size(), reasons[i].first, place(measurements, *reasons[i].second.front()),
                       reasons[i].second.front()->reason.substr(0, reasons[i].second.front()->reason.find(": ")));
  if (reasons.size() > kReasonsShown) out += fmt::format("{}and {} reasons more: --json lists every line\n", bullet, reasons.size() - kReasonsShown);
  return out;
}

Json row_json(const CalibrationRow& row) {
  return {{"family", row.family}, {"dtype", row.dtype}, {"rows", row.rows}, {"median", per_cent(row.median)}, {"p95", per_cent(row.p95)}, {"bias", per_cent(row.bias)},
          {"physics", {{"median", per_cent(row.physics_median)}, {"p95", per_cent(row.physics_p95)}, {"bias", per_cent(row.physics_bias)}}},
          {"interval_covers", per_cent(row.covered)}};
}

}  // namespace

std::string to_text(const Calibration& calibration, const Measurements& measurements) {
  std::string out = fmt::format("{}: {} measured operators fitted, {} held out (a fifth of the shapes)\n\n", calibration.profile.gpu, calibration.fitted, calibration.held_out);
  if (calibration.from_few) out += fmt::format("{}.\nJudged without the held-out rows; the profile has them in, too.\n\n", calibration.profile.method);
  out += fmt::format("{:<30} {:<6} {:>5}   {:^21}   {:^21}   {}\n", "Held-out shapes", "", "", "physics alone", "with what was learned", "80% interval");
  out += fmt::format("{:<30} {:<6} {:>5}   {:>6} {:>6} {:>7}   {:>6} {:>6} {:>7}   {:>6}\n", "", "type", "rows", "median", "p95", "bias", "median", "p95", "bias", "covers");
  const auto add = [&](const CalibrationRow& row) {
    out += fmt::format("{:<30} {:<6} {:>5}   {:>5.1f}% {:>5.0f}% {:>+6.1f}%   {:>5.1f}% {:>5.0f}% {:>+6.1f}%   {:>5.0f}%\n", row.family, row.dtype == "all" ? "" : row.dtype, row.rows,
                       per_cent(row.physics_median), per_cent(row.physics_p95), per_cent(row.physics_bias), per_cent(row.median), per_cent(row.p95), per_cent(row.bias),
                       per_cent(row.covered));
  };
  for (const CalibrationRow& row : calibration.groups) add(row);
  out += '\n';
  for (const CalibrationRow& row : calibration.families) {
    CalibrationRow shown = row;
    if (row.dtype != "all") shown.family = "  " + row.family;
    add(shown);
  }
  if (const std::string unused = unused_text(calibration, measurements, "  "); !unused.empty()) out += "\nNot used\n" + unused;
  return out;
}

Json to_json(const Calibration& calibration, const Measurements& measurements) {
  Json groups = Json::array(), families = Json::array(), files = Json::array(), unusable = Json::array();
  for (const CalibrationRow& row : calibration.groups) groups.push_back(row_json(row));
  for (const CalibrationRow& row : calibration.families) families.push_back(row_json(row));
  for (const MeasurementSource& file : measurements.files) files.push_back({{"file", file.file}, {"rows", file.rows}, {"date", file.date}, {"software", file.software}});
  for (const UnusableLine& line : measurements.unusable) unusable.push_back({{"file", measurements.files[line.file].file}, {"line", line.line}, {"reason", line.reason}});
  return {{"schema", 1}, {"gpu", calibration.profile.gpu}, {"method", calibration.profile.method.empty() ? "trees on physics" : calibration.profile.method}, {"fitted", calibration.fitted}, {"held_out", calibration.held_out}, {"warm", calibration.warm}, {"left_out_chilled", calibration.chilled},
          {"files", files}, {"groups", groups}, {"families", families}, {"unusable", unusable}};
}

std::string to_markdown(const Calibration& calibration, const Measurements& measurements, const GpuSpec& gpu) {
  std::string out = fmt::format("# Kernel costs on shapes that were never fitted: {}\n\n", gpu.title);
  out += "Written by `precog calibrate ... --report`; [how](how_to/calibrate_a_gpu.md). Each measured operator is turned into the kernels that a\n"
         "prediction would launch for it. A fifth of the shapes, chosen by a hash of the shape with all its types, layouts and directions, is held\n"
         "out: the tables below are of those alone. *Physics* is the cost model without corrections; *learned* is with the residual of the profile.\n"
         "Errors are of the time of the call, in per cent; bias is their median with its sign. The 80% interval comes from shapes left out among\n"
         "the fitted ones, a fifth of large families, all of small ones in turn; what it covers is counted here, on the held-out ones.\n\n";
  out += fmt::format("{} rows were fitted, {} are held out, from the files below. {} of all were timed again and again on operands that stayed in the L2 cache: a\n"
                     "feature tells them apart, a prediction is for operands that come from memory, and the memory-bound among them are not judged here.\n\n",
                     calibration.fitted, calibration.held_out, calibration.warm);
  if (calibration.from_few) out += fmt::format("This is a {}. The figures are of a fit without the held-out rows; the profile has them in, too.\n\n", calibration.profile.method);
  for (const MeasurementSource& file : measurements.files) out += fmt::format("- `{}`: {} rows, {} ({})\n", file.file, file.rows, file.date, file.software);
  const auto table = [&](const std::vector<CalibrationRow>& rows, bool types) {
    out += fmt::format("| family |{} rows | physics median | p95 | bias | learned median | p95 | bias | interval covers |\n", types ? " type |" : "");
    out += fmt::format("|---|{}---:|---:|---:|---:|---:|---:|---:|---:|\n", types ? "---|" : "");
    for (const CalibrationRow& row : rows)
      out += fmt::format("| {} |{} {} | {:.1f} | {:.0f} | {:+.1f} | {:.1f} | {:.0f} | {:+.1f} | {:.0f} |\n", row.family, types ? fmt::format(" {} |", row.dtype) : "", row.rows,
                         per_cent(row.physics_median), per_cent(row.physics_p95), per_cent(row.physics_bias), per_cent(row.median), per_cent(row.p95), per_cent(row.bias),
                         per_cent(row.covered));
  };
  out += "\n## By kind of kernel\n\n";
  table(calibration.groups, false);
  out += "\n## By family and type\n\n";
  table(calibration.families, true);
  out += "\n## What was not used\n\n" + unused_text(calibration, measurements, "- ");
  return out;
}

}  // namespace precog
