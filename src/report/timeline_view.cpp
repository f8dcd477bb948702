#include "report/timeline_view.h"

#include <algorithm>
#include <cmath>

#include "base/ensure.h"
#include "report/parts.h"

namespace precog {

const char* to_text(Activity activity) {
  switch (activity) {
    case Activity::forward:
      return "forward";
    case Activity::backward:
      return "backward";
    case Activity::optimizer:
      return "optimizer";
    case Activity::casts:
      return "casts";
    case Activity::loss_scaling:
      return "loss scaling";
    case Activity::communication:
      return "communication";
    case Activity::other:
    case Activity::kCount:
      break;
  }
  return "other";
}

const char* colour(Activity activity) {
  switch (activity) {
    case Activity::forward:
      return kColourForward;
    case Activity::backward:
      return kColourBackward;
    case Activity::optimizer:
      return kColourOptimizer;
    case Activity::casts:
      return kColourCasts;
    case Activity::loss_scaling:
      return kColourLossScaling;
    case Activity::communication:
      return kColourCommunication;
    case Activity::other:
    case Activity::kCount:
      break;
  }
  return kColourBubble;
}

Activity activity_of(const TimelineParts& parts, std::size_t task) {
  const TaskLabel& label = parts.schedule.labels[task];
  if (label.call < 0) return Activity::other;
  const Call& call = parts.program.calls[static_cast<std::size_t>(label.call)];
  if (call.collective) return Activity::communication;
  if (call.family == Family::cast) return Activity::casts;
  switch (call.phase) {
    case Phase::forward:
      return Activity::forward;
    case Phase::recompute:
    case Phase::backward:
    case Phase::accumulate:
      return Activity::backward;
    case Phase::gradient_sync:
      return Activity::communication;
    case Phase::loss_scaling:
      return Activity::loss_scaling;
    case Phase::optimizer:
      return Activity::optimizer;
  }
  return Activity::other;
}

TimelineView timeline_view(const TimelineParts& parts, int bins) {
  const auto& spans = parts.timeline.spans;
  const auto& labels = parts.schedule.labels;
  auto tasks = parts.schedule.graph.tasks();
  ensure(spans.size() == tasks.size() && labels.size() == tasks.size(), "a timeline has one span and one label per task");
  TimelineView view;
  if (spans.empty() || bins < 1) return view;

  std::int16_t last = 0;
  for (const TaskLabel& label : labels) last = std::max(last, label.step);
  Picoseconds from = parts.timeline.end, to = 0;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    if (labels[i].step != last || tasks[i].resource >= kResourceCount) continue;
    from = std::min(from, spans[i].start);
    to = std::max(to, spans[i].end);
  }
  if (to <= from) return view;
  view.window = seconds(to - from);
  const double bin_length = static_cast<double>(to - from) / bins;

  constexpr auto kActivities = static_cast<std::size_t>(Activity::kCount);
  struct Bin {
    std::array<double, 2 * kActivities> time{};  // of this step, then of earlier ones
  };
  std::array<std::vector<Bin>, kTrackCount> filled;
  for (auto& track : filled) track.resize(static_cast<std::size_t>(bins));
  for (std::size_t i = 0; i < spans.size(); ++i) {
    Picoseconds start = std::max(spans[i].start, from), end = std::min(spans[i].end, to);
    if (end <= start || tasks[i].resource >= kResourceCount) continue;
    std::size_t slot = static_cast<std::size_t>(activity_of(parts, i)) + (labels[i].step == last ? 0 : kActivities);
    double a = static_cast<double>(start - from) / bin_length, b = static_cast<double>(end - from) / bin_length;
    auto& track = filled[track_of(tasks[i].resource)];
    for (int bin = static_cast<int>(a); bin < bins && bin < b; ++bin)
      track[static_cast<std::size_t>(bin)].time[slot] += std::min(b, bin + 1.0) - std::max(a, static_cast<double>(bin));
  }

  for (std::size_t resource = 0; resource < filled.size(); ++resource) {
    auto& blocks = view.tracks[resource];
    for (int i = 0; i < bins; ++i) {
      const auto& time = filled[resource][static_cast<std::size_t>(i)].time;
      double busy = 0;
      std::size_t most = 0;
      for (std::size_t slot = 0; slot < time.size(); ++slot) {
        busy += time[slot];
        if (time[slot] > time[most]) most = slot;
      }
      busy = std::ceil(std::min(busy, 1.0) * 8) / 8;  // few levels, so that neighbours merge
      if (time[most] < 0.01) continue;
      TimelineBlock block{static_cast<double>(i) / bins, static_cast<double>(i + 1) / bins, busy,
                          static_cast<Activity>(most % kActivities), most >= kActivities};
      bool same = !blocks.empty() && blocks.back().end == block.start && blocks.back().busy == block.busy &&
                  blocks.back().activity == block.activity && blocks.back().earlier_step == block.earlier_step;
      if (same) blocks.back().end = block.end;
      else blocks.push_back(block);
    }
  }
  return view;
}

}  // namespace precog
