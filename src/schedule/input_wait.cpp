#include <algorithm>

#include "schedule/schedule.h"

namespace precog {
namespace {

// What is left of [from, to] when both streams' work is taken out. `work` is in no order: two streams' tasks.
Picoseconds idle_within(const std::vector<Span>& work, Picoseconds from, Picoseconds to) {
  std::vector<Span> inside;
  for (const Span& span : work)
    if (span.end > from && span.start < to) inside.push_back(span);
  std::sort(inside.begin(), inside.end(), [](const Span& a, const Span& b) { return a.start < b.start; });
  Picoseconds idle = 0;
  for (const Span& span : inside) {
    idle += std::max<Picoseconds>(0, span.start - from);
    from = std::max(from, span.end);
  }
  return idle + std::max<Picoseconds>(0, to - from);
}

}  // namespace

InputWait input_wait(const Schedule& schedule, const Timeline& timeline, Picoseconds from, Picoseconds to) {
  InputWait out;
  if (schedule.fetches.empty()) return out;
  std::vector<Span> work;
  const auto tasks = schedule.graph.tasks();
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    const Span& span = timeline.spans[i];
    if (schedule.labels[i].call >= 0 && tasks[i].resource != kHost && span.end > from && span.start < to)
      work.push_back(span);
  }
  for (std::size_t micro = 0; micro < schedule.fetches.size(); ++micro) {
    const Schedule::Fetch& fetch = schedule.fetches[micro];
    const Picoseconds asked = fetch.before < 0 ? 0 : timeline.spans[static_cast<std::size_t>(fetch.before)].end;
    Picoseconds waited = idle_within(work, std::max(asked, from), timeline.spans[static_cast<std::size_t>(fetch.taken)].end);
    if (fetch.copied >= 0) {
      const Span& copy = timeline.spans[static_cast<std::size_t>(fetch.copied)];
      waited += copy.end - copy.start;
    }
    out.all += waited;
    if (micro == 1) out.in_second = waited;
  }
  return out;
}

}  // namespace precog
