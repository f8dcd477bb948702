#include "report/svg.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/json.h"
#include "report/parts.h"
#include "report/pipeline_view.h"
#include "report/precision_colours.h"

namespace precog {
namespace {

constexpr double kWidth = 920;
constexpr double kLeft = 118, kRight = 124;
constexpr double kPlot = kWidth - kLeft - kRight;

// Scoped to the picture's class, so that it stands alone as well as inside a page.
constexpr const char* kSvgStyle =
    "<style>.pc{font:13px system-ui,-apple-system,'Segoe UI',sans-serif}.pc .bg{fill:#fff}.pc .t{fill:#1b1f24}"
    ".pc .h{font-weight:600}.pc .m{fill:#57606a}.pc .g{stroke:#d0d7de}.pc .c{stroke:#fff}.pc .w{stroke:#1b1f24;stroke-width:1.5}"
    "@media (prefers-color-scheme:dark){.pc .bg{fill:#0d1117}.pc .t{fill:#e6edf3}.pc .m{fill:#9da7b3}"
    ".pc .g{stroke:#30363d}.pc .c{stroke:#0d1117}.pc .w{stroke:#e6edf3}}</style>\n";

std::string open_svg(double height, std::string_view id, std::string_view title, std::string_view description) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"pc\" viewBox=\"0 0 {0} {1:.0f}\" width=\"{0}\" height=\"{1:.0f}\" "
      "role=\"img\" "
      "aria-labelledby=\"{2}-t {2}-d\">\n<title id=\"{2}-t\">{3}</title>\n<desc id=\"{2}-d\">{4}</desc>\n{5}"
      "<rect class=\"bg\" width=\"100%\" height=\"100%\"/>\n",
      kWidth, height, id, escaped(title), escaped(description), kSvgStyle);
}

std::string label(double x, double y, std::string_view css, std::string_view anchor, std::string_view text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"{}\" text-anchor=\"{}\">{}</text>\n", x, y, css, anchor,
                     escaped(text));
}

std::string box(double x, double y, double width, double height, std::string_view fill, std::string_view tip, double opacity = 1) {
  std::string faded = opacity < 1 ? fmt::format(" fill-opacity=\"{:.2f}\"", opacity) : std::string();
  return fmt::format(
      "<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\" fill=\"{}\"{} class=\"c\" stroke-width=\"0.5\">"
      "<title>{}</title></rect>\n",
      x, y, width, height, fill, faded, escaped(tip));
}

struct LegendItem {
  std::string text;
  std::string_view colour;
};

std::string legend(double& y, const std::vector<LegendItem>& items) {
  constexpr double kFrom = 14;
  std::string out;
  double x = kFrom;
  for (const LegendItem& item : items) {
    double width = 32 + 7.2 * static_cast<double>(display_width(item.text));
    if (x + width > kWidth - 10) {
      x = kFrom;
      y += 20;
    }
    out += box(x, y - 10, 12, 12, item.colour, item.text);
    out += label(x + 17, y, "m", "start", item.text);
    x += width;
  }
  return out;
}

// 1, 2 or 5 times a power of ten: at most six ticks up to `most`.
double tick_step(double most) {
  double power = std::pow(10.0, std::floor(std::log10(most / 6)));
  for (double factor : {1.0, 2.0, 5.0, 10.0})
    if (most / (power * factor) <= 6) return power * factor;
  return 10 * power;
}

std::string time_axis(double most, double top, double bottom) {
  std::string out;
  if (!(most > 0)) return out;
  double step = tick_step(most);
  for (int i = 0; i * step <= most * 1.0001; ++i) {
    double x = kLeft + kPlot * i * step / most;
    out += fmt::format("<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\" class=\"g\"/>\n", x, top, bottom);
    out += label(x, bottom + 15, "m", "middle", i == 0 ? "0" : to_text(Seconds{i * step}));
  }
  return out;
}

std::string step_bar(const Report& r, double y, double height, double most) {
  std::string out;
  double x = kLeft;
  for (const TimePart& part : time_parts(r.breakdown)) {
    double width = most > 0 ? kPlot * part.time.value / most : 0;
    if (width <= 0 || negligible(part, r.step)) continue;
    double share = r.step.value > 0 ? part.time / r.step : 0;
    out += box(x, y, width, height, part.colour,
               fmt::format("{}, {}: {} ({})", r.precision, part.label, to_text(part.time), percent_text(share)));
    x += width;
  }
  // The 80% interval as a whisker on the bar's end.
  auto at = [&](Seconds s) { return kLeft + (most > 0 ? kPlot * std::min(s.value / most, 1.0) : 0); };
  double middle = y + height / 2;
  out += fmt::format(
      "<path class=\"w\" fill=\"none\" d=\"M{0:.1f} {2:.1f}H{1:.1f}M{0:.1f} {3:.1f}v8M{1:.1f} "
      "{3:.1f}v8\"><title>{4}</title></path>\n",
      at(r.step_low), at(r.step_high), middle, middle - 4,
      escaped(fmt::format("80% interval: {} to {}", to_text(r.step_low), to_text(r.step_high))));
  return out;
}

std::vector<LegendItem> time_legend(const std::vector<const Report*>& reports) {
  std::vector<LegendItem> items;
  for (std::size_t i = 0; i < time_parts({}).size(); ++i)
    for (const Report* r : reports) {
      TimePart part = time_parts(r->breakdown)[i];
      if (negligible(part, r->step)) continue;
      items.push_back({part.label, part.colour});
      break;
    }
  return items;
}

std::string bars(const std::vector<const Report*>& reports, std::string_view id, std::string_view title, const Report* base) {
  constexpr double kRow = 34, kBar = 22, kTop = 44;
  double most = 0;
  std::string description;
  for (const Report* r : reports) {
    most = std::max(most, r->step_high.value);
    description += fmt::format("{}: {}. ", r->precision, to_text(r->step));
  }
  double bottom = kTop + kRow * static_cast<double>(reports.size());
  double legend_y = bottom + 42;
  std::string key = legend(legend_y, time_legend(reports));
  std::string out = open_svg(legend_y + 38, id, title, description);
  out += label(14, 24, "t h", "start", title);
  out += time_axis(most, kTop - 4, bottom);
  for (std::size_t i = 0; i < reports.size(); ++i) {
    const Report& r = *reports[i];
    double y = kTop + kRow * static_cast<double>(i);
    out += label(kLeft - 8, y + 16, "t", "end", r.precision);
    out += step_bar(r, y, kBar, most);
    std::string note = r.memory.fits ? to_text(r.step) : "does not fit";
    if (r.memory.fits && base && base != &r && r.step.value > 0) note += fmt::format(", {:.2f}x", base->step / r.step);
    double x = std::min(kLeft + kPlot * (most > 0 ? r.step_high.value / most : 0) + 8, kWidth - kRight + 6);
    out += label(x, y + 16, "t", "start", note);
  }
  std::string note = fmt::format("{}. Predicted; whiskers: 80% interval.", job_line(*reports.front()));
  return out + key + label(14, legend_y + 22, "m", "start", note) + "</svg>\n";
}

}  // namespace

std::string escaped(std::string_view text) {
  // dump() replaces broken UTF-8; its quotes and escapes are undone by parsing it back.
  std::string clean = Json::parse(Json(std::string(text)).dump(-1, ' ', false, Json::error_handler_t::replace)).get<std::string>();
  std::string out;
  for (char c : clean) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t' ? ' ' : c;
    }
  }
  return out;
}

std::string comparison_svg(const Comparison& comparison) {
  std::vector<const Report*> reports;
  for (const Report& r : comparison.reports) reports.push_back(&r);
  const Report& first = comparison.reports.front();
  std::string title = fmt::format("One training step of {} on {} x {}", first.model, first.gpus, first.gpu_title);
  return bars(reports, "compare", title, &baseline(comparison));
}

std::string breakdown_svg(const Report& report) {
  return bars({&report}, "breakdown", fmt::format("Where one step of {} goes", report.model), nullptr);
}

std::string memory_svg(const Report& report) {
  constexpr double kTop = 44, kBar = 26;
  const MemoryUse& m = report.memory;
  auto most = static_cast<double>(std::max(m.device.value, m.capacity.value));
  std::vector<LegendItem> items;
  std::string body;
  double x = kLeft;
  for (const MemoryPart& part : memory_parts(m)) {
    double width = most > 0 ? kPlot * static_cast<double>(part.bytes.value) / most : 0;
    if (width <= 0) continue;
    std::string text = fmt::format("{} {}", part.key, to_text(part.bytes));
    body += box(x, kTop, width, kBar, part.colour, text);
    items.push_back({text, part.colour});
    x += width;
  }
  double capacity = kLeft + (most > 0 ? kPlot * static_cast<double>(m.capacity.value) / most : 0);
  body += fmt::format("<line class=\"w\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\"/>\n", capacity, kTop - 8,
                      kTop + kBar + 8);
  body += label(capacity, kTop + kBar + 22, "m", "end", "capacity " + to_text(m.capacity));
  body += label(kLeft - 8, kTop + 18, "t", "end", m.fits ? "fits" : "does not fit");
  double legend_y = kTop + kBar + 48;
  std::string key = legend(legend_y, items);
  std::string title = fmt::format("GPU memory: {} of {}", to_text(m.device), to_text(m.capacity));
  return open_svg(legend_y + 16, "memory", title, m.fits ? "The step fits in memory." : "The step does not fit in memory.") +
         label(14, 24, "t h", "start", title) + body + key + "</svg>\n";
}

std::string memory_timeline_svg(const Report& report) {
  constexpr double kTop = 44, kHeight = 230;
  const auto& points = report.memory_points;
  const MemoryUse& m = report.memory;
  if (points.size() < 2 || !(points.back().at.value > 0)) return "";
  // Up to the capacity where the step comes near it; a line far above would flatten everything.
  const bool near = m.capacity.value < 3 * m.peak.value;
  const double most = 1.06 * static_cast<double>(near ? std::max(m.capacity.value, m.peak.value) : m.peak.value);
  const double window = points.back().at.value, base = kTop + kHeight;
  auto across = [&](Seconds at) { return kLeft + kPlot * at.value / window; };
  auto up = [&](double bytes) { return base - kHeight * bytes / most; };
  std::string body = time_axis(window, kTop, base);
  const double step = tick_step(most);
  for (int i = 1; i * step <= most; ++i)
    body += fmt::format("<line x1=\"{0:.1f}\" x2=\"{1:.1f}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" class=\"g\"/>\n", kLeft, kLeft + kPlot, up(i * step)) +
            label(kLeft - 8, up(i * step) + 4, "m", "end", to_text(Bytes{static_cast<std::int64_t>(i * step)}));
  std::vector<double> below(points.size(), 0);
  std::vector<LegendItem> items;
  for (const MemoryLayer& layer : memory_layers()) {
    std::string top, bottom;
    double highest = 0;
    for (std::size_t i = 0; i + 1 < points.size(); ++i) {  // steps: what is there between one point and the next
      const auto here = static_cast<double>(layer_bytes(layer, points[i].bytes).value);
      highest = std::max(highest, here);
      const double from = across(points[i].at), to = across(points[i + 1].at);
      top += fmt::format("{}{:.1f} {:.1f}H{:.1f}", i == 0 ? "M" : "L", from, up(below[i] + here), to);
      bottom = fmt::format("L{:.1f} {:.1f}H{:.1f}", to, up(below[i]), from) + bottom;
      below[i] += here;
    }
    if (highest <= 0) continue;
    items.push_back({layer.name, layer.colour});
    body += fmt::format("<path fill=\"{}\" d=\"{}{}Z\"><title>{}, at most {}</title></path>\n", layer.colour, top, bottom, layer.name,
                        to_text(Bytes{static_cast<std::int64_t>(highest)}));
  }
  std::size_t peak = 0;
  for (std::size_t i = 0; i + 1 < points.size(); ++i)
    if (below[i] > below[peak]) peak = i;
  const double peak_x = across(points[peak].at), peak_y = up(below[peak]);
  body += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" class=\"w\" fill=\"none\"/>\n", peak_x, peak_y);
  body += label(peak_x, peak_y - 9, "t h", peak_x > kLeft + kPlot / 2 ? "end" : "start", "peak " + to_text(m.peak));
  if (near)
    body += fmt::format("<line class=\"w\" stroke-dasharray=\"6 4\" x1=\"{0:.1f}\" x2=\"{1:.1f}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>\n", kLeft,
                        kLeft + kPlot, up(static_cast<double>(m.capacity.value))) +
            label(kLeft + kPlot + 6, up(static_cast<double>(m.capacity.value)) + 4, "m", "start", "capacity");
  double legend_y = base + 42;
  std::string key = legend(legend_y, items);
  const std::string note = fmt::format("Peak in {}.{}", report.peak_at.empty() ? "the step" : report.peak_at,
                                       near ? "" : fmt::format(" The capacity, {}, is far above the picture.", to_text(m.capacity)));
  const std::string title = "Memory over the step";
  return open_svg(legend_y + 34, "memory-timeline", title, note) + label(14, 24, "t h", "start", title) + body + key +
         label(14, legend_y + 22, "m", "start", note) + "</svg>\n";
}

namespace {

// A strip coloured by arithmetic; notes which it met.
std::string arithmetic_strip(const std::vector<ArithmeticBlock>& blocks, double x, double width, double base, double height, std::vector<char>& met) {
  std::string out;
  met.resize(precision_colours().size(), 0);
  for (const ArithmeticBlock& block : blocks) {
    const double tall = height * block.busy;
    out += fmt::format("<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\" fill=\"{}\"/>\n", x + width * block.start, base - tall,
                       width * (block.end - block.start), tall, precision_colours()[block.precision].colour);
    met[block.precision] = 1;
  }
  return out;
}

std::vector<LegendItem> precision_legend(const std::vector<char>& met) {
  std::vector<LegendItem> items;
  for (std::size_t i = 0; i < met.size(); ++i)
    if (met[i]) items.push_back({precision_colours()[i].name, precision_colours()[i].colour});
  return items;
}

}  // namespace

std::string timeline_svg(const TimelineView& view) {
  constexpr double kTop = 44, kTrack = 46, kHeight = 34;
  static constexpr std::array<const char*, kTrackCount> kNames = {"host", "compute", "communication"};
  double bottom = kTop + kTrack * static_cast<double>(kTrackCount + 1);
  std::array<bool, static_cast<std::size_t>(Activity::kCount)> seen{};
  std::string body = time_axis(view.window.value, kTop - 4, bottom);
  bool earlier = false;
  double base = kTop + kHeight;
  std::vector<char> met;
  for (std::size_t track = 0; track < view.tracks.size(); ++track, base += kTrack) {
    body += label(kLeft - 8, base - 12, "t", "end", kNames[track]);
    for (const TimelineBlock& block : view.tracks[track]) {
      double x = kLeft + kPlot * block.start, width = kPlot * (block.end - block.start), height = kHeight * block.busy;
      body += fmt::format("<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\" fill=\"{}\"{}/>\n", x, base - height,
                          width, height, colour(block.activity), block.earlier_step ? " fill-opacity=\"0.35\"" : "");
      seen[static_cast<std::size_t>(block.activity)] = true;
      earlier = earlier || block.earlier_step;
    }
    if (track != kCompute) continue;
    base += kTrack;
    body += label(kLeft - 8, base - 12, "t", "end", "its precision") + arithmetic_strip(view.arithmetic, kLeft, kPlot, base, kHeight, met);
  }
  std::vector<LegendItem> items;
  for (std::size_t i = 0; i < seen.size(); ++i)
    if (seen[i]) items.push_back({to_text(static_cast<Activity>(i)), colour(static_cast<Activity>(i))});
  double legend_y = bottom + 42;
  std::string key = legend(legend_y, items);
  legend_y += 20;
  key += legend(legend_y, precision_legend(met));
  std::string note = "Height: how busy the track is." + std::string(earlier ? " Pale: work of the step before." : "");
  if (view.left_out > 0) note += fmt::format(" Left out: {} micro-batches like the second.", view.left_out);
  std::string title = "Timeline of one step, from its first call to its last kernel";
  return open_svg(legend_y + 34, "timeline", title, note) + label(14, 24, "t h", "start", title) + body + key +
         label(14, legend_y + 22, "m", "start", note) + "</svg>\n";
}

std::string pipeline_svg(const PipelineView& view) {
  const PipelineTimeline timeline = view.timeline();
  using What = PipelineSpan::What;
  const double track = std::clamp(480.0 / view.shape.stages, 6.0, 34.0), height = track * 0.8, top = 44;
  const double bottom = top + track * view.shape.stages, window = seconds(timeline.end).value;
  static constexpr std::array<const char*, 8> kColours = {kColourForward, kColourBackward, kColourBackward, kColourLossScaling, nullptr, kColourCommunication, kColourCommunication, kColourOptimizer};
  std::string body = time_axis(window, top - 4, bottom);
  bool apart = false, reduced = false;
  for (int stage = 0; stage < view.shape.stages; ++stage)
    if (stage % std::max(1, static_cast<int>(14 / track)) == 0) body += label(kLeft - 8, top + track * stage + height * 0.8, "t", "end", fmt::format("stage {}", stage));
  for (const PipelineSpan& span : timeline.spans) {
    const char* fill = kColours[static_cast<std::size_t>(span.what)];
    if (!fill || span.position < 0 || span.span.end <= span.span.start || window <= 0) continue;
    apart = apart || span.what == What::weights;
    const bool reduces = span.what == What::sync || span.what == What::tied;
    reduced = reduced || reduces;
    // Later chunks of a stage are paler, as is usual; a reduction runs beside the work and is drawn thinner.
    const double pale = span.what <= What::weights ? 1 - 0.6 * (span.position / view.shape.stages) / std::max(1, view.shape.chunks) : 1;
    const double x = kLeft + kPlot * seconds(span.span.start).value / window, width = kPlot * seconds(span.span.end - span.span.start).value / window;
    body += fmt::format("<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\" fill=\"{}\" fill-opacity=\"{:.2f}\" stroke=\"#fff\" stroke-width=\"{:.2f}\"/>\n", x,
                        top + track * span.stage + (reduces ? height * 0.75 : 0), width, reduces ? height * 0.25 : height, fill, pale, std::min(0.5, width / 8));
  }
  std::vector<LegendItem> items = {{"forward", kColourForward}, {"backward", kColourBackward}};
  if (apart) items.push_back({"weights' gradients", kColourLossScaling});
  if (reduced) items.push_back({"gradient reduction", kColourCommunication});
  items.push_back({"end of step", kColourOptimizer});
  double legend_y = bottom + 42;
  const std::string key = legend(legend_y, items);
  const std::string title = "The pipeline's step, stage by stage";
  const std::string note = view.shape.micro_batches == view.micro_batches
                               ? fmt::format("{} micro-batch{}, schedule {}.", view.micro_batches, view.micro_batches == 1 ? "" : "es", to_text(view.shape.schedule))
                               : fmt::format("Drawn with {} of the step's {} micro-batches, schedule {}.", view.shape.micro_batches, view.micro_batches, to_text(view.shape.schedule));
  return open_svg(legend_y + 34, "pipeline", title, note) + label(14, 24, "t h", "start", title) + body + key +
         label(14, legend_y + 22, "m", "start", note) + "</svg>\n";
}

std::string pipeline_precision_svg(const PipelineView& view) {
  constexpr double kTop = 44, kTrack = 30, kHeight = 22;
  constexpr int kBins = 600;
  std::vector<Timeline> timelines;
  Picoseconds longest = 0;
  for (const PipelineChunkView& chunk : view.chunks)
    for (const Schedule* part : {&chunk.forward, &chunk.backward}) longest = std::max(longest, timelines.emplace_back(simulate(part->graph)).end);
  if (longest <= 0) return "";
  const double bottom = kTop + kTrack * static_cast<double>(timelines.size());
  std::string body = time_axis(seconds(longest).value, kTop - 4, bottom);
  std::vector<char> met;
  for (std::size_t i = 0; i < timelines.size(); ++i) {
    const PipelineChunkView& chunk = view.chunks[i / 2];
    const Schedule& schedule = i % 2 == 0 ? chunk.forward : chunk.backward;
    const std::size_t place = static_cast<std::size_t>(std::find(view.chunk_at.begin(), view.chunk_at.end(), i / 2) - view.chunk_at.begin());
    const double base = kTop + kTrack * static_cast<double>(i) + kHeight, width = kPlot * static_cast<double>(timelines[i].end) / static_cast<double>(longest);
    body += label(kLeft - 8, base - 6, "t", "end", fmt::format("{} {}", place, i % 2 == 0 ? "forward" : "backward"));
    const TimelineParts parts{chunk.graph, chunk.program, chunk.costs, schedule, timelines[i]};
    if (timelines[i].end > 0) body += arithmetic_strip(arithmetic_blocks(parts, 0, timelines[i].end, std::max(1, static_cast<int>(kBins * width / kPlot))), kLeft, width, base, kHeight, met);
  }
  double legend_y = bottom + 42;
  const std::string key = legend(legend_y, precision_legend(met));
  const std::string title = "Precision of one micro-batch's work";
  const std::string note = "One forward and one backward of each different chunk of layers, by its first place in the model. Height: how busy the compute stream is.";
  return open_svg(legend_y + 34, "pipeline-precision", title, note) + label(14, 24, "t h", "start", title) + body + key +
         label(14, legend_y + 22, "m", "start", note) + "</svg>\n";
}

}  // namespace precog
