#include "report/fit_report.h"

#include <fmt/format.h>

namespace precog {
namespace {

// A long change over several lines, indented by who prints it.
std::vector<std::string> change_lines(const std::string& change) {
  constexpr std::size_t kBefore = 33;  // columns of the figures
  std::vector<std::string> out;
  const std::string text = wrapped(std::string(kBefore, ' '), change);
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    out.push_back(text.substr(begin + kBefore, end - begin - kBefore));
    begin = end + 1;
  }
  return out;
}

}  // namespace

Json to_json(const Fix& fix) {
  Json out = {{"change", fix.change}, {"flags", fix.flags}, {"request", fix.request}, {"step_s", fix.step.value}, {"samples_per_s", fix.samples_per_s},
          {"time_ratio", 1 + fix.time_cost}, {"peak_bytes", fix.peak.value}, {"device_bytes", fix.device.value}, {"fits", true},
          {"verdict", fix.certain ? "certain" : "likely"}, {"note", fix.note},
              {"numerics", fix.numerics}};
  if (fix.host_of_node.value > 0) {
    out["host_bytes_per_node"] = fix.host_of_node.value;
    if (fix.host_capacity.value > 0) out["host_capacity_bytes"] = fix.host_capacity.value;
  }
  if (fix.batch > 0) out["batch"] = fix.batch;
  if (fix.faster) {
    out["faster_with"] = {{"flags", fix.faster->flags}, {"request", fix.faster->request}, {"step_s", fix.faster->step.value}, {"time_ratio", 1 + fix.faster->time_cost},
                          {"device_bytes", fix.faster->device.value}, {"fits", true}, {"verdict", fix.faster->certain ? "certain" : "likely"}};
    if (fix.faster->batch > 0) out["faster_with"]["batch"] = fix.faster->batch;
  }
  return out;
}

std::string fix_change(const Fix& fix) { return fix.batch > 0 ? fmt::format("{}: batch {}", fix.change, fix.batch) : fix.change; }

std::string fix_notes(const Fix& fix) {
  std::string out = fix.note;
  const auto add = [&](const std::string& text) { out += (out.empty() ? "" : "; ") + text; };
  if (!fix.numerics.empty()) add("numerics: " + fix.numerics);
  if (fix.host_of_node.value > 0)
    add(fix.host_capacity.value > 0 ? fmt::format("host memory: {} of a node's {}", to_text(fix.host_of_node), to_text(fix.host_capacity))
                                    : fmt::format("host memory: {} in a node, {}", to_text(fix.host_of_node), fix.much_of_host ? "more than machines with so many GPUs have" : "and nobody says how much it has"));
  if (fix.faster)
    add(fmt::format("faster with {}: {:+.1f}%, {}, {}{}{}", fix.faster->flags, 100 * fix.faster->time_cost, to_text(fix.faster->step), to_text(fix.faster->device), fix.faster->certain ? "" : "?",
                    fix.faster->batch > 0 ? fmt::format(", batch {}", fix.faster->batch) : ""));
  return out;
}

Json to_json(const LargestBatch& largest) {
  return {{"batch", largest.batch}, {"next_batch", largest.next ? Json(*largest.next) : Json(nullptr)},
          {"next_device_bytes", largest.next ? Json(largest.next_device.value) : Json(nullptr)}, {"tried", largest.tried}, {"fragmented", largest.holes}};
}

std::string fixes_text(const std::vector<Fix>& fixes, const Style& style) {
  std::string out = '\n' + style(Ink::bold, "What would make it fit") + '\n';
  if (fixes.empty()) return out + wrapped("  ", "Nothing that was tried. More GPUs to shard over may, or larger ones, or a plan that was not tried.");
  out += wrapped("  ", fixes.front().batch > 0 ? "Each predicted with the largest batch that fits then, cheapest first; time: per sample, against one sample at a time of the job as asked for."
                                               : "Each predicted, cheapest first; time: per sample, against the job as asked for.");
  out += style(Ink::dim, fmt::format("  {:>7}  {:>9}  {:>9}  {}", "time", "step", "device", "change")) + '\n';
  for (const Fix& fix : fixes) {
    const std::vector<std::string> lines = change_lines(fix_change(fix));
    out += fmt::format("  {:>7}  {:>9}  {:>9}  {}\n", fmt::format("{:+.1f}%", 100 * fix.time_cost), to_text(fix.step),
                       to_text(fix.device) + (fix.certain ? "" : "?"), style(Ink::bold, lines.front()));
    for (std::size_t i = 1; i < lines.size(); ++i) out += fmt::format("{:33}{}\n", "", style(Ink::bold, lines[i]));
    const std::string notes = fix_notes(fix);
    out += wrapped("           ", fix.flags + (notes.empty() ? "" : "; " + notes));
  }
  return out;
}

std::string largest_text(const LargestBatch& largest) {
  const std::string next = largest.next ? fmt::format("{} would need {}", *largest.next, to_text(largest.next_device)) : std::string("no larger one was tried");
  if (largest.batch == 0) return fmt::format("not even one sample fits ({})", next);
  std::string holes;
  for (std::int64_t hole : largest.holes) holes += fmt::format("{}{}", holes.empty() ? "" : ", ", hole);
  if (!holes.empty()) holes = fmt::format("; fragmentation alone keeps {} from fitting", holes);
  return fmt::format("{} per GPU and micro-batch ({}{}; {})", largest.batch, next, holes, counted(static_cast<double>(largest.tried), "prediction"));
}

}  // namespace precog
