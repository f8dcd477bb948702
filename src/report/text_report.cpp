#include "report/text_report.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "report/parts.h"

namespace precog {
namespace {

constexpr std::size_t kLabelWidth = 12;
constexpr std::size_t kBarWidth = 32;
constexpr std::size_t kPartWidth = 18;  // of a part of the step, where none is longer: what it takes more, bars have less
constexpr std::size_t kUnknownShown = 8;  // names of unknown operators; the rest are counted

std::string field(const Style& style, std::string_view label, std::string_view text) {
  std::string first = fmt::format("  {:<{}}", label, kLabelWidth);
  std::string out = wrapped(first, text);
  return style(Ink::dim, first) + out.substr(first.size());
}

std::string throughput(const Report& r) {
  std::string out = fmt::format("{} samples/s", number_text(r.samples_per_s));
  if (r.tokens_per_s) out += fmt::format(", {} tokens/s", number_text(*r.tokens_per_s));
  if (r.tokens_per_s_per_gpu && r.gpus > 1) out += fmt::format(" ({} per GPU)", number_text(*r.tokens_per_s_per_gpu));
  return out;
}

std::string memory_line(const Report& r, const Style& style) {
  const MemoryUse& m = r.memory;
  std::string verdict = m.fits ? style(Ink::green, "fits") : style(Ink::red, "does not fit");
  if (m.verdict == Certainty::likely) verdict += fmt::format(" (likely: {} to {})", to_text(m.device_low), to_text(m.device_high));
  return fmt::format("peak {}, needs {} of {}: {}", to_text(m.peak), to_text(m.device), to_text(m.capacity), verdict);
}

std::string host_memory_line(const MemoryUse& m) {
  std::string out = fmt::format("{} per GPU", to_text(m.host));
  if (m.host_of_node > m.host) out += fmt::format(", {} in a node", to_text(m.host_of_node));
  return m.host_capacity.value > 0 ? out + fmt::format(" of {}", to_text(m.host_capacity)) : out;
}

std::string breakdown_table(const Report& r, const Style& style) {
  std::string out;
  std::size_t width = kPartWidth;
  for (const TimePart& part : time_parts(r.breakdown))
    if (part.time.value > 0) width = std::max(width, display_width(part.label));
  for (const TimePart& part : time_parts(r.breakdown)) {
    if (part.time.value <= 0) continue;
    double share = r.step.value > 0 ? part.time / r.step : 0;
    std::string bar = style(part.ink, style.bar(share, kBarWidth + kPartWidth - width));
    std::string line =
        fmt::format("  {:<{}} {:>10} {:>5}  {}", part.label, width, part_text(part), percent_text(share), bar);
    while (!line.empty() && line.back() == ' ') line.pop_back();
    out += line + '\n';
  }
  return out;
}

std::string memory_table(const Report& r) {
  std::string out;
  for (const MemoryPart& part : memory_parts(r.memory)) {
    if (part.bytes.value <= 0) continue;
    if (!out.empty()) out += ", ";
    out += fmt::format("{} {}", part.key, to_text(part.bytes));
  }
  return out;
}

// Of all repeated layers together.
std::string largest_modules(const Report& r) {
  constexpr std::size_t kShown = 4;
  std::string out;
  for (std::size_t i = 0; i < std::min(kShown, r.memory.by_module.size()); ++i)
    out += fmt::format("{}{} {}", i == 0 ? "most in " : ", ", printable(r.memory.by_module[i].module), to_text(r.memory.by_module[i].total()));
  return out;
}

std::string run_line(const Report& r) {
  std::string out = to_text(*r.total);
  if (r.steps) out += " for " + counted(*r.steps, "step");
  if (r.cost_usd) out += ", " + money_text(*r.cost_usd);
  if (r.cost_usd && r.price_usd_per_gpu_hour) out += fmt::format(" at {} per GPU-hour", money_text(*r.price_usd_per_gpu_hour));
  return out;
}

}  // namespace

std::string text_report(const Report& r, const Style& style) {
  std::string gpus = r.gpus > 1 ? fmt::format("{} x {}", r.gpus, r.gpu_title) : r.gpu_title;
  std::string title =
      fmt::format("{} ({} parameters) in {} on {}", r.model, number_text(static_cast<double>(r.parameters)),
                  printable(r.precision), gpus);
  std::string out = style(Ink::bold, wrapped("", title));
  out += wrapped("", job_line(r) + (r.precision_title.empty() ? "" : "; " + r.precision_title));
  if (std::string cluster = cluster_line(r); !cluster.empty()) out += wrapped("", r.sharding.empty() ? cluster : cluster + "; " + r.sharding);
  out += '\n';
  out += field(
      style, "step",
      fmt::format("{}   (80% interval: {} to {})", style(Ink::bold, to_text(r.step)), to_text(r.step_low), to_text(r.step_high)));
  out += field(style, "throughput", throughput(r));
  out += field(style, "memory", memory_line(r, style));
  if (r.memory.host.value > 0) out += field(style, "on the host", host_memory_line(r.memory));
  if (r.largest_batch) out += field(style, "max batch", largest_text(*r.largest_batch));
  out += field(style, "efficiency",
               fmt::format("MFU {:.1f}% ({:.1f}% of the {} peak), {:.4g} TFLOP/s per GPU", 100 * r.mfu, 100 * r.mfu_bf16,
                           r.peak_16bit, r.tflops_per_gpu));
  out += field(style, "bound by",
               fmt::format("{}; GPU busy {} ({}), host busy {}", style(Ink::bold, r.bound), to_text(r.gpu_busy),
                           percent_text(r.step.value > 0 ? r.gpu_busy / r.step : 0), to_text(r.host)));
  std::string kernels = fmt::format("{} launched per step", r.kernels);
  if (r.cast_kernels > 0) kernels += fmt::format(", {:.0f} of them {}", r.cast_kernels, std::lround(r.cast_kernels) == 1 ? "a cast" : "casts");
  out += field(style, "kernels", kernels);
  if (r.sustained_clock < 0.995)
    out += field(style, "clock", fmt::format("{} of the boost clock over minutes: the power limit", percent_text(r.sustained_clock)));
  if (!r.unknown_names.empty()) {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < r.unknown_names.size() && i < kUnknownShown; ++i) names.push_back(printable(r.unknown_names[i]));
    const std::size_t more = r.unknown_names.size() - names.size();
    out += field(style, "unknown", fmt::format("{} of the GPU's time in operators costed by the bytes they move: {}{}", percent_text(r.unknown_share),
                                               fmt::join(names, ", "), more > 0 ? fmt::format(" and {} more", more) : ""));
  }
  if (r.total) out += field(style, "whole run", run_line(r));
  if (r.losses)
    out += field(style, "failures", fmt::format("one every {} on average, {} in all; a checkpoint of {}{} every {}, restarts of {}{}: {} of the run is kept", to_text(r.losses->between_failures),
                                                number_text(std::round(r.losses->failures)), to_text(r.losses->checkpoint), r.losses->checkpoint_estimated ? " (estimate)" : "",
                                                to_text(r.losses->interval), to_text(r.losses->restart), r.losses->restart_estimated ? " (estimate)" : "", percent_text(r.losses->useful_share)));

  out += '\n' + style(Ink::bold, "Where the step goes") + '\n' + breakdown_table(r, style);
  out += '\n' + style(Ink::bold, "Memory at the peak") + '\n' + wrapped("  ", memory_table(r));
  if (!r.peak_at.empty()) out += wrapped("  ", "peak in " + printable(r.peak_at));
  if (!r.memory.by_module.empty()) out += wrapped("  ", largest_modules(r));
  if (!r.memory.fits && r.fixes_sought) out += fixes_text(r.fixes, style);
  if (!r.provenance.empty()) {
    out += '\n' + style(Ink::bold, "Where the numbers come from") + '\n';
    for (const std::string& line : provenance_lines(r)) out += wrapped("  ", line);
  }
  if (!r.warnings.empty()) {
    out += '\n' + style(Ink::yellow, "Warnings") + '\n';
    for (const std::string& warning : r.warnings) out += wrapped("  - ", printable(warning));
  }
  return out;
}

}  // namespace precog
