#include "report/advice_report.h"

#include <algorithm>

#include <fmt/format.h>

namespace precog {
namespace {

std::string gain_text(double gain) { return fmt::format("{:+.1f}%", 100 * gain); }

Json to_json(const Advice& advice) {
  return {{"change", advice.change}, {"flags", advice.flags}, {"request", advice.request}, {"step_s", advice.step.value}, {"gain", advice.gain},
          {"peak_bytes", advice.peak.value}, {"fits", advice.fits}, {"note", advice.note}};
}

}  // namespace

std::string advice_text(const AdviceList& list, const Style& style) {
  std::string out = '\n' + style(Ink::bold, fmt::format("Advice for {} ({}{})", list.precision, to_text(list.step), list.fits ? "" : ", does not fit")) + '\n';
  if (list.advice.empty()) return out + wrapped("  ", fmt::format("nothing of {} changes that were tried saves time", list.tried));
  out += wrapped("  ", "Each change alone, predicted like the rows above; gain: time saved per sample.");
  out += style(Ink::dim, fmt::format("  {:>7}  {:>9}  {:>9}  {}", "gain", "step", "peak mem.", "change")) + '\n';
  for (const Advice& advice : list.advice) {
    out += fmt::format("  {}  {:>9}  {:>9}  {}\n", style(advice.gain > 0 ? Ink::green : Ink::plain, fmt::format("{:>7}", gain_text(advice.gain))),
                       to_text(advice.step), to_text(advice.peak) + (advice.fits ? "" : "!"), style(Ink::bold, shortened(advice.change, 47)));
    out += wrapped("           ", advice.flags + (advice.note.empty() ? "" : "; " + advice.note));
  }
  if (!list.fits && std::none_of(list.advice.begin(), list.advice.end(), [](const Advice& advice) { return advice.fits; }))
    out += wrapped("  ", "Nothing that was tried makes it fit. More GPUs to shard over may, or larger ones, or a plan that was not tried.");
  if (list.combined) {
    const Advice& all = *list.combined;
    out += wrapped("  ", fmt::format("Together: step {}, {} per sample, peak {}{}.", to_text(all.step), gain_text(all.gain), to_text(all.peak),
                                     all.fits ? "" : " (does not fit)"));
    out += style(Ink::bold, wrapped("    ", all.flags));
  }
  return out;
}

void add_json(const AdviceList& list, Json& comparison) {
  Json advice = Json::array();
  for (const Advice& one : list.advice) advice.push_back(to_json(one));
  comparison["advice"] = std::move(advice);
  comparison["advice_for"] = {{"precision", list.precision}, {"step_s", list.step.value}, {"fits", list.fits}};
  comparison["advice_combined"] = list.combined ? to_json(*list.combined) : Json(nullptr);
}

}  // namespace precog
