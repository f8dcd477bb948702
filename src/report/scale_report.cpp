#include "report/scale_report.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "report/parts.h"
#include "report/svg.h"
#include "report/text_report.h"

namespace precog {
namespace {

std::string job(const ScaleStudy& scaling) {
  const Report& r = *scaling.first()->report;
  return fmt::format("{} in {} on {}", r.model, r.precision, r.gpu_title);
}

std::string how(const ScaleStudy& scaling) {
  const Report& r = *scaling.first()->report;
  if (scaling.strong) return fmt::format("Strong scaling: every number of GPUs shares a global batch of {}.", r.global_batch);
  return fmt::format("Weak scaling: each data-parallel replica keeps its batch of {}, so the global batch grows.", r.batch * r.micro_batches);
}

double throughput(const Report& r) { return r.tokens_per_s ? *r.tokens_per_s : r.samples_per_s; }
const char* unit(const Report& r) { return r.tokens_per_s ? "tokens/s" : "samples/s"; }

double share(Seconds part, const Report& r) { return r.step.value > 0 ? part / r.step : 0; }

std::string chopped(const std::string& text, std::size_t most) { return text.size() <= most ? text : text.substr(0, most - 3) + "..."; }

// One curve: x is log2 of the GPU count, y linear or logarithmic between its own bounds.
struct Curve {
  std::string title;
  std::vector<std::pair<double, double>> points;
  bool logarithmic = false;
  double low = 0, high = 1;
  std::string (*text)(double);
};

constexpr double kWidth = 960, kLeft = 90, kRight = 30, kPanel = 210, kTop = 60;

std::string panel(const Curve& curve, const ScaleStudy& scaling, double top) {
  const double from = std::log2(static_cast<double>(scaling.points.front().gpus)), to = std::max(from + 1, std::log2(static_cast<double>(scaling.points.back().gpus)));
  const double height = kPanel - 60;
  auto x = [&](double gpus) { return kLeft + (kWidth - kLeft - kRight) * (std::log2(gpus) - from) / (to - from); };
  auto level = [&](double value) { return curve.logarithmic ? std::log2(std::max(value, 1e-30)) : value; };
  const double low = level(curve.low), high = std::max(low + 1e-9, level(curve.high));
  auto y = [&](double value) { return top + height * (1 - (level(value) - low) / (high - low)); };
  std::string out = fmt::format("<text x=\"{}\" y=\"{:.1f}\" class=\"h\">{}</text>\n", 14, top - 10, escaped(curve.title));
  for (int i = 0; i <= 4; ++i) {
    const double at = curve.logarithmic ? std::exp2(low + (high - low) * i / 4) : low + (high - low) * i / 4;
    out += fmt::format("<line x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" class=\"g\"/><text x=\"{3}\" y=\"{4:.1f}\" class=\"m\" text-anchor=\"end\">{5}</text>\n", kLeft,
                       kWidth - kRight, y(at), kLeft - 8, y(at) + 4, escaped(curve.text(at)));
  }
  const std::size_t every = (scaling.points.size() + 11) / 12;
  for (std::size_t i = 0; i < scaling.points.size(); i += every)
    out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"m\" text-anchor=\"middle\">{}</text>\n", x(static_cast<double>(scaling.points[i].gpus)), top + height + 18,
                       scaling.points[i].gpus);
  std::string line;
  for (const auto& [gpus, value] : curve.points) line += fmt::format("{}{:.1f},{:.1f}", line.empty() ? "" : " ", x(gpus), y(value));
  out += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\n", line, kColourForward);
  for (const auto& [gpus, value] : curve.points)
    out += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"><title>{}: {}</title></circle>\n", x(gpus), y(value), kColourForward, counted_exactly(gpus, "GPU"), escaped(curve.text(value)));
  return out;
}

}  // namespace

double ScaleStudy::efficiency(const ScalePoint& point) const {
  const ScalePoint* base = first();
  if (!base || !point.report) return 0;
  return throughput(*point.report) / static_cast<double>(point.gpus) / (throughput(*base->report) / static_cast<double>(base->gpus));
}

std::string scale_text(const ScaleStudy& scaling, const Style& style) {
  const Report& first = *scaling.first()->report;
  std::string out = style(Ink::bold, wrapped("", job(scaling))) + wrapped("", how(scaling)) + '\n';
  out += fmt::format("{:>7} {:>7} {:>9} {:>10} {:>12} {:>10} {:>8} {:>6} {:>7}  {}\n", "GPUs", "dp", "batch", "step", unit(first), "per GPU", "scaling", "comm.", "bubble", "memory");
  for (const ScalePoint& point : scaling.points) {
    if (!point.report) {
      out += fmt::format("{:>7}  {}\n", point.gpus, style(Ink::dim, chopped(point.problem, 100)));
      continue;
    }
    const Report& r = *point.report;
    out += fmt::format("{:>7} {:>7} {:>9} {:>10} {:>12} {:>10} {:>8} {:>6} {:>7}  {}\n", point.gpus, point.dp, r.global_batch, to_text(r.step), number_text(throughput(r)),
                       number_text(throughput(r) / static_cast<double>(point.gpus)), percent_text(scaling.efficiency(point)), percent_text(share(exposed_total(r.breakdown), r)),
                       percent_text(share(r.breakdown.pipeline_bubble, r)), r.memory.fits ? to_text(r.memory.peak) : style(Ink::red, to_text(r.memory.peak) + ", does not fit"));
  }
  return out + '\n' + wrapped("", fmt::format("scaling: throughput per GPU against {} GPU{}. Predicted, not measured; networks between nodes are estimates.", scaling.first()->gpus,
                                              scaling.first()->gpus == 1 ? "" : "s"));
}

Json to_json(const ScaleStudy& scaling) {
  Json out = Json::array();
  for (const ScalePoint& point : scaling.points) {
    Json one = {{"gpus", point.gpus}};
    if (point.report) {
      one["scaling"] = scaling.strong ? "strong" : "weak";
      one["dp"] = point.dp;
      one["efficiency"] = scaling.efficiency(point);
      one["report"] = to_json(*point.report);
    } else {
      one["problem"] = point.problem;
    }
    out.push_back(std::move(one));
  }
  return out;
}

std::string scale_svg(const ScaleStudy& scaling) {
  const Report& first = *scaling.first()->report;
  Curve step{.title = "step time", .points = {}, .text = [](double v) { return to_text(Seconds{v}); }};
  Curve rate{.title = unit(first), .points = {}, .logarithmic = true, .text = [](double v) { return number_text(v); }};
  Curve efficiency{.title = "throughput per GPU, relative", .points = {}, .text = [](double v) { return percent_text(v); }};
  for (const ScalePoint& point : scaling.points) {
    if (!point.report) continue;
    const auto gpus = static_cast<double>(point.gpus);
    step.points.emplace_back(gpus, point.report->step.value);
    rate.points.emplace_back(gpus, throughput(*point.report));
    efficiency.points.emplace_back(gpus, scaling.efficiency(point));
  }
  auto most = [](const Curve& curve) { return std::max_element(curve.points.begin(), curve.points.end(), [](auto& a, auto& b) { return a.second < b.second; })->second; };
  step.high = most(step) * 1.05;
  rate.low = rate.points.front().second;
  rate.high = most(rate);
  efficiency.high = std::max(1.0, most(efficiency));
  const std::array curves = {&step, &rate, &efficiency};
  const double bottom = kTop + kPanel * static_cast<double>(curves.size());
  const std::string title = job(scaling);
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" role=\"img\" font-family=\"system-ui,sans-serif\" font-size=\"13\"><title>{2}: scaling</title><desc>{3}</desc>\n"
      "<style>text{{fill:#1b1f24}}.h{{font-weight:600}}.m{{fill:#57606a}}.g{{stroke:#d0d7de}}@media (prefers-color-scheme:dark){{text{{fill:#e6edf3}}.m{{fill:#9da7b3}}.g{{stroke:#30363d}}}}</style>\n"
      "<text x=\"14\" y=\"22\" class=\"h\">{2}</text>\n",
      kWidth, bottom + 30, escaped(title), escaped(how(scaling)));
  for (std::size_t i = 0; i < curves.size(); ++i) out += panel(*curves[i], scaling, kTop + kPanel * static_cast<double>(i));
  return out + fmt::format("<text x=\"14\" y=\"{:.0f}\" class=\"m\">{} Horizontal: GPUs.</text>\n</svg>\n", bottom + 14, escaped(how(scaling)));
}

std::string scale_html(const ScaleStudy& scaling) {
  std::string rows;
  for (const ScalePoint& point : scaling.points) {
    if (!point.report) {
      rows += fmt::format("<tr><td>{}</td><td colspan=\"6\">{}</td></tr>\n", point.gpus, escaped(point.problem));
      continue;
    }
    const Report& r = *point.report;
    rows += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n", point.gpus, r.global_batch, to_text(r.step), number_text(throughput(r)),
                        percent_text(scaling.efficiency(point)), percent_text(share(exposed_total(r.breakdown), r)),
                        r.memory.fits ? to_text(r.memory.peak) : to_text(r.memory.peak) + ", does not fit");
  }
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n<title>{0}: scaling</title>\n<style>:root{{color-scheme:light dark}}body{{font:16px/1.5 "
      "system-ui,sans-serif;max-width:66rem;margin:2rem auto;padding:0 1rem}}svg{{width:100%;height:auto}}table{{border-collapse:collapse;width:100%;font-size:.9rem}}th,td{{text-align:right;padding:.3rem "
      ".5rem;border-bottom:1px solid #8886}}</style>\n</head>\n<body>\n<main>\n{1}<table>\n<thead><tr><th>GPUs</th><th>global batch</th><th>step</th><th>{2}</th><th>scaling</th><th>exposed "
      "communication</th><th>peak memory</th></tr></thead>\n<tbody>\n{3}</tbody>\n</table>\n<p>Predicted by precog, not measured.</p>\n</main>\n</body>\n</html>\n",
      escaped(job(scaling)), scale_svg(scaling), unit(*scaling.first()->report), rows);
}

}  // namespace precog
