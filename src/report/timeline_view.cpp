#include "report/timeline_view.h"

#include <algorithm>
#include <cmath>

#include "base/ensure.h"
#include "report/parts.h"
#include "report/precision_colours.h"

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

namespace {

struct Block {
  double start, end, busy;
  std::size_t slot;
};

// Time from `from` to `to` in equal bins, each of the slot that it spent most in. `slot_of` a task: where it counts, or `slots` where
// it does not.
template <class SlotOf>
std::vector<Block> binned(const TimelineParts& parts, Picoseconds from, Picoseconds to, int bins, std::size_t slots, SlotOf slot_of) {
  const auto& spans = parts.timeline.spans;
  const double bin_length = static_cast<double>(to - from) / bins;
  std::vector<double> filled(static_cast<std::size_t>(bins) * slots, 0);
  for (std::size_t i = 0; i < spans.size(); ++i) {
    const Picoseconds start = std::max(spans[i].start, from), end = std::min(spans[i].end, to);
    const std::size_t slot = end > start ? slot_of(i) : slots;
    if (slot >= slots) continue;
    const double a = static_cast<double>(start - from) / bin_length, b = static_cast<double>(end - from) / bin_length;
    for (int bin = static_cast<int>(a); bin < bins && bin < b; ++bin)
      filled[static_cast<std::size_t>(bin) * slots + slot] += std::min(b, bin + 1.0) - std::max(a, static_cast<double>(bin));
  }
  std::vector<Block> blocks;
  for (int i = 0; i < bins; ++i) {
    const double* time = filled.data() + static_cast<std::size_t>(i) * slots;
    double busy = 0;
    std::size_t most = 0;
    for (std::size_t slot = 0; slot < slots; ++slot) {
      busy += time[slot];
      if (time[slot] > time[most]) most = slot;
    }
    busy = std::ceil(std::min(busy, 1.0) * 8) / 8;  // few levels, so that neighbours merge
    if (time[most] < 0.01) continue;
    const Block block{static_cast<double>(i) / bins, static_cast<double>(i + 1) / bins, busy, most};
    const bool same = !blocks.empty() && blocks.back().end == block.start && blocks.back().busy == block.busy && blocks.back().slot == block.slot;
    if (same) blocks.back().end = block.end;
    else blocks.push_back(block);
  }
  return blocks;
}

}  // namespace

std::vector<ArithmeticBlock> arithmetic_blocks(const TimelineParts& parts, Picoseconds from, Picoseconds to, int bins) {
  const std::size_t none = precision_colours().size();
  std::vector<ArithmeticBlock> out;
  for (const Block& block : binned(parts, from, to, bins, none, [&](std::size_t i) {
         const std::int32_t call = parts.schedule.labels[i].call;
         if (call < 0 || parts.schedule.graph.tasks()[i].resource != kCompute) return none;
         return precision_class(arithmetic_of(parts, parts.program.calls[static_cast<std::size_t>(call)]));
       }))
    out.push_back({block.start, block.end, block.busy, block.slot});
  return out;
}

TimelineView timeline_view(const TimelineParts& parts, int bins, std::int64_t micro_batches) {
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
  view.left_out = std::max<std::int64_t>(0, micro_batches - parts.schedule.micro_batches_laid_out);

  constexpr auto kActivities = static_cast<std::size_t>(Activity::kCount), kSlots = 2 * kActivities;  // of this step, then of earlier ones
  for (std::size_t track = 0; track < view.tracks.size(); ++track)
    for (const Block& block : binned(parts, from, to, bins, kSlots, [&](std::size_t i) {
           if (tasks[i].resource >= kResourceCount || track_of(tasks[i].resource) != track) return kSlots;
           return static_cast<std::size_t>(activity_of(parts, i)) + (labels[i].step == last ? 0 : kActivities);
         }))
      view.tracks[track].push_back({block.start, block.end, block.busy, static_cast<Activity>(block.slot % kActivities), block.slot >= kActivities});
  view.arithmetic = arithmetic_blocks(parts, from, to, bins);
  return view;
}

}  // namespace precog
