// One step's timeline as a few hundred rectangles, however many tasks it has: time is cut into equal bins, and each
// bin shows what its track did most and how busy it was.
#pragma once

#include <array>
#include <vector>

#include "cost/cost.h"
#include "graph/graph.h"
#include "kernel/kernel.h"
#include "schedule/schedule.h"
#include "sim/simulate.h"

namespace precog {

// What views of a timeline look at; all of one prediction, and all outlive the view.
struct TimelineParts {
  const Graph& graph;
  const KernelProgram& program;
  const std::vector<KernelCost>& costs;
  const Schedule& schedule;
  const Timeline& timeline;
};

enum class Activity : std::uint8_t { forward, backward, optimizer, casts, loss_scaling, communication, other, kCount };
const char* to_text(Activity activity);
const char* colour(Activity activity);

struct TimelineBlock {
  double start = 0, end = 0;  // shares of the window
  double busy = 0;            // share of the block in which the track had work
  Activity activity = Activity::other;
  bool earlier_step = false;  // work left over from the step before
};

struct ArithmeticBlock {
  double start = 0, end = 0, busy = 0;  // as above
  std::size_t precision = 0;            // precision_colours.h
};

struct TimelineView {
  Seconds window;  // from the first task of the last step, on any track, to its end
  std::array<std::vector<TimelineBlock>, kTrackCount> tracks;
  std::vector<ArithmeticBlock> arithmetic;  // of the compute stream
  std::int64_t left_out = 0;  // micro-batches like the second
};

inline constexpr int kTimelineBins = 600;
TimelineView timeline_view(const TimelineParts& parts, int bins = kTimelineBins, std::int64_t micro_batches = 1);

// The compute stream between two times, in bins, each of the arithmetic that it spent most in.
std::vector<ArithmeticBlock> arithmetic_blocks(const TimelineParts& parts, Picoseconds from, Picoseconds to, int bins);

Activity activity_of(const TimelineParts& parts, std::size_t task);

}  // namespace precog
