#include "report/fit_report.h"

#include <fmt/format.h>

namespace precog {

Json to_json(const Fix& fix) {
  return {{"change", fix.change}, {"flags", fix.flags}, {"request", fix.request}, {"step_s", fix.step.value}, {"samples_per_s", fix.samples_per_s},
          {"time_ratio", 1 + fix.time_cost}, {"peak_bytes", fix.peak.value}, {"device_bytes", fix.device.value}, {"fits", true},
          {"verdict", fix.certain ? "certain" : "likely"}, {"note", fix.note}};
}

Json to_json(const LargestBatch& largest) {
  return {{"batch", largest.batch}, {"next_batch", largest.next ? Json(*largest.next) : Json(nullptr)},
          {"next_device_bytes", largest.next ? Json(largest.next_device.value) : Json(nullptr)}, {"tried", largest.tried}, {"fragmented", largest.holes}};
}

std::string fixes_text(const std::vector<Fix>& fixes, const Style& style) {
  std::string out = '\n' + style(Ink::bold, "What would make it fit") + '\n';
  if (fixes.empty()) return out + wrapped("  ", "Nothing that was tried: it wants more GPUs to shard over, or larger ones.");
  out += wrapped("  ", "Each predicted, cheapest first; time: per sample, against the job as asked for.");
  out += style(Ink::dim, fmt::format("  {:>7}  {:>9}  {:>9}  {}", "time", "step", "device", "change")) + '\n';
  for (const Fix& fix : fixes) {
    out += fmt::format("  {:>7}  {:>9}  {:>9}  {}\n", fmt::format("{:+.1f}%", 100 * fix.time_cost), to_text(fix.step),
                       to_text(fix.device) + (fix.certain ? "" : "?"), style(Ink::bold, shortened(fix.change, 47)));
    out += wrapped("           ", fix.flags + (fix.note.empty() ? "" : "; " + fix.note));
  }
  return out;
}

std::string largest_text(const LargestBatch& largest) {
  const std::string next = largest.next ? fmt::format("{} would need {}", *largest.next, to_text(largest.next_device)) : std::string("no larger one was tried");
  if (largest.batch == 0) return fmt::format("not even one sample fits ({})", next);
  std::string holes;
  for (std::int64_t hole : largest.holes) holes += fmt::format("{}{}", holes.empty() ? "" : ", ", hole);
  if (!holes.empty()) holes = fmt::format("; fragmentation alone keeps {} from fitting", holes);
  return fmt::format("{} per GPU and micro-batch ({}{}; {} predictions)", largest.batch, next, holes, largest.tried);
}

}  // namespace precog
