#include "sim/simulate.h"

#include <algorithm>

namespace precog {

namespace {

// The taking tasks so far, queue by queue; each queue's spans follow one another.
class Taken {
 public:
  explicit Taken(std::size_t resources) : spans_(resources) {}

  void add(std::int32_t resource, Span span, const Sharing& sharing) {
    if (span.end > span.start) spans_[static_cast<std::size_t>(resource)].push_back({span, sharing}), latest_ = std::max(latest_, span.end);
  }

  // The end of a task that would take `duration` alone. `owed` (one per queue) grows by what it slowed others down.
  Picoseconds end(std::int32_t resource, Picoseconds start, Picoseconds duration, const Sharing& needs, std::vector<Picoseconds>& owed) const {
    if (start >= latest_) return start + duration;  // nobody is left to share with
    Picoseconds now = start;
    double left = static_cast<double>(duration);
    while (true) {
      double rate = 1;
      Picoseconds until = kNever;  // the rate stays the same up to here
      std::size_t beside = 0;      // the queue that runs a taking task now
      for (std::size_t other = 0; other < spans_.size(); ++other) {
        if (static_cast<std::int32_t>(other) == resource) continue;
        const auto held = std::partition_point(spans_[other].begin(), spans_[other].end(), [&](const Held& one) { return one.span.end <= now; });
        if (held == spans_[other].end()) continue;
        if (held->span.start > now) {
          until = std::min(until, held->span.start);
          continue;
        }
        until = std::min(until, held->span.end);
        rate = std::min(rate, needs.takes ? 0.5 : 1 - std::max<double>(needs.units * held->sharing.units, needs.traffic * held->sharing.traffic));
        beside = other;
      }
      rate = std::max(rate, kLeastRate);
      const double needed = left / rate;
      const bool last = until == kNever || needed <= static_cast<double>(until - now);
      const Picoseconds stop = last ? now + static_cast<Picoseconds>(needed + 0.5) : until;
      if (needs.takes && rate < 1) owed[beside] += (stop - now) / 2;
      if (last) return stop;
      left -= static_cast<double>(until - now) * rate;
      now = until;
    }
  }

 private:
  static constexpr Picoseconds kNever = INT64_MAX;
  static constexpr double kLeastRate = 0.05;  // nobody starves
  struct Held {
    Span span;
    Sharing sharing;
  };
  std::vector<std::vector<Held>> spans_;
  Picoseconds latest_ = 0;  // end of any of them
};

}  // namespace

Timeline simulate(const TaskGraph& graph) {
  Timeline timeline;
  timeline.spans.resize(graph.tasks().size());
  std::vector<Picoseconds> free_at(static_cast<std::size_t>(graph.resources()), 0);
  Taken taken(free_at.size());
  for (std::size_t i = 0; i < graph.tasks().size(); ++i) {
    const Task& task = graph.tasks()[i];
    Picoseconds& available = free_at[static_cast<std::size_t>(task.resource)];
    Picoseconds start = available;
    for (std::int32_t dependency : graph.dependencies(task))
      start = std::max(start, timeline.spans[static_cast<std::size_t>(dependency)].end);
    const bool shares = graph.anything_taken() && (task.sharing.takes || task.sharing.units > 0 || task.sharing.traffic > 0);
    const Picoseconds end = shares ? taken.end(task.resource, start, task.duration, task.sharing, free_at) : start + task.duration;
    available = end;
    timeline.spans[i] = {start, end};
    if (task.sharing.takes) taken.add(task.resource, timeline.spans[i], task.sharing);
    timeline.end = std::max(timeline.end, end);
  }
  return timeline;
}

}  // namespace precog
