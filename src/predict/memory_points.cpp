#include "predict/memory_points.h"

#include <algorithm>
#include <array>
#include <numeric>

namespace precog {
namespace {

constexpr std::size_t kMostPoints = 240;
constexpr std::size_t kPointsOfPiece = 24;   // of a pipeline's piece of work
constexpr std::int64_t kPiecesFollowed = 20'000;  // of all stages

using Points = std::vector<MemoryPoint>;

Bytes bytes_in(const BytesByCategory& bytes) { return std::accumulate(bytes.begin(), bytes.end(), Bytes{}); }
std::size_t category_at(MemoryCategory category) { return static_cast<std::size_t>(category); }

// Of each of `bins` equal stretches of time the moment with most, where the stretch's first one was.
Points thinned(const Points& points, Seconds from, Seconds length, std::size_t bins) {
  Points out;
  std::size_t bin = bins;
  for (const MemoryPoint& point : points) {
    const double share = length.value > 0 ? std::clamp((point.at - from) / length, 0.0, 1.0) : 0;
    const std::size_t here = std::min(bins - 1, static_cast<std::size_t>(share * static_cast<double>(bins)));
    if (here != bin) out.push_back(point);
    else if (bytes_in(point.bytes) > bytes_in(out.back().bytes)) out.back().bytes = point.bytes;
    bin = here;
  }
  return out;
}

// From 0 to the step's end.
Points whole_step(Points points, Seconds step) {
  if (points.empty()) return points;
  points = thinned(points, {}, step, kMostPoints);
  points.front().at = {};
  for (MemoryPoint& point : points) point.at = std::min(point.at, step);
  points.push_back({step, points.back().bytes});
  return points;
}

// What lies between `from` and a period later happens so many more times, and what follows is as much later. Of more times than can be
// told apart, each stretch has what there is at most.
Points repeated(const Points& points, Seconds from, Seconds period, std::int64_t times) {
  if (times <= 0 || period.value <= 0) return points;
  Points out, again, later;
  for (const MemoryPoint& point : points) (point.at < from ? out : point.at < from + period ? again : later).push_back(point);
  Points drawn = thinned(again, from, period, kMostPoints);
  const auto most = static_cast<std::int64_t>(kMostPoints);
  if (times > most && !drawn.empty()) {
    const auto largest = std::max_element(drawn.begin(), drawn.end(), [](const MemoryPoint& a, const MemoryPoint& b) { return bytes_in(a.bytes) < bytes_in(b.bytes); });
    drawn = {{from, largest->bytes}};
  }
  out.insert(out.end(), again.begin(), again.end());
  const std::int64_t rounds = std::min(times, 2 * most);
  for (std::int64_t round = 1; round <= rounds; ++round) {
    const Seconds shift = period * (static_cast<double>(round) * static_cast<double>(times) / static_cast<double>(rounds));
    for (const MemoryPoint& point : drawn) out.push_back({point.at + shift, point.bytes});
  }
  for (const MemoryPoint& point : later) out.push_back({point.at + period * static_cast<double>(times), point.bytes});
  return out;
}

// A chunk's part of the step: what is there when which share of the part's time is over.
struct PieceProfile {
  struct At {
    double share;
    BytesByCategory bytes;
  };
  std::vector<At> points;
  BytesByCategory last{};  // while its last operator runs
};

PieceProfile profile_of(const PipelineChunkView& chunk, const std::vector<BytesByCategory>& by_op, StepPart part) {
  PieceProfile out;
  Points points;
  Seconds at;
  for (std::size_t i = 0; i < by_op.size() && i < chunk.program.calls.size(); ++i) {
    const Call& call = chunk.program.calls[i];
    if (part_of_step(call.phase) != part) continue;
    points.push_back({at, by_op[i]});
    out.last = by_op[i];
    if (call.collective) continue;
    for (std::uint32_t k = 0; k < call.kernel_count; ++k) at += chunk.costs[call.first_kernel + k].total;
  }
  for (const MemoryPoint& point : thinned(points, {}, at, kPointsOfPiece)) out.points.push_back({at.value > 0 ? point.at / at : 0, point.bytes});
  return out;
}

// What stays between two pieces of work, but for what is kept for backward.
BytesByCategory at_rest(BytesByCategory bytes) {
  for (MemoryCategory category : {MemoryCategory::activations, MemoryCategory::recomputed, MemoryCategory::temporaries, MemoryCategory::optimizer_temporaries, MemoryCategory::workspaces})
    bytes[category_at(category)] = {};
  return bytes;
}

// A stage's pieces of work one after the other.
class StagePoints {
 public:
  StagePoints(const PipelineView& view, const PipelineShape& shape, const StageMemory& memory, double stands_for)
      : view_(view), memory_(memory), stands_for_(stands_for), in_flight_(static_cast<std::size_t>(shape.positions()), 0) {
    for (int position : shape.positions_of(memory.stage)) own_.push_back(static_cast<std::size_t>(position));
    profiles_.resize(view.chunks.size());
    for (std::size_t position : own_) {
      const std::size_t c = view.chunk_at[position];
      if (profiles_[c].empty())
        for (StepPart part : {StepPart::forward, StepPart::backward, StepPart::end}) profiles_[c].push_back(profile_of(view.chunks[c], memory.by_op[c], part));
    }
  }

  Points run(const PipelineTimeline& timeline) {
    using What = PipelineSpan::What;
    last_ = own_.front();
    const PieceProfile& first = profiles_[view_.chunk_at[last_]].front();
    if (!first.points.empty()) resting_ = at_rest(first.points.front().bytes);
    rest({});
    for (const PipelineSpan& span : timeline.spans) {  // a stage's are in its queue's order
      if (span.stage != memory_.stage || span.position < 0) continue;
      const auto position = static_cast<std::size_t>(span.position);
      if (span.what == What::end) {
        const auto count = static_cast<double>(own_.size());
        for (std::size_t i = 0; i < own_.size(); ++i) {
          const Seconds start = seconds(span.span.start), length = seconds(span.span.end - span.span.start) / count;
          work(own_[i], StepPart::end, start + length * static_cast<double>(i), length);
        }
      }
      if (span.what > What::weights) continue;
      const bool forward = span.what == What::forward;
      double& count = in_flight_[position];
      count -= forward ? 0 : 1;
      work(position, forward ? StepPart::forward : StepPart::backward, seconds(span.span.start), seconds(span.span.end - span.span.start), span.what == What::activations);
      count += span.what == What::backward || span.what == What::weights ? 0 : 1;
      rest(seconds(span.span.end));
    }
    return std::move(points_);
  }

 private:
  // Other micro-batches' and chunks' part.
  BytesByCategory beside(std::size_t position) const {
    BytesByCategory out{};
    for (std::size_t at : own_) {
      const std::size_t c = view_.chunk_at[at];
      out[category_at(MemoryCategory::activations)] += memory_.saved[c] * others(at, position);
      if (at == position) continue;
      out[category_at(MemoryCategory::parameters)] += memory_.resident[c][0];
      out[category_at(MemoryCategory::gradients)] += memory_.resident[c][1];
      out[category_at(MemoryCategory::optimizer_states)] += memory_.resident[c][2];
    }
    return out;
  }
  double others(std::size_t at, std::size_t working) const { return in_flight_[at] * stands_for_ + (at == working && !ended_ ? stands_for_ - 1 : 0); }

  // `held`: nothing of what the piece works on is let go, as other work wants it still.
  void work(std::size_t position, StepPart part, Seconds start, Seconds length, bool held = false) {
    ended_ = part == StepPart::end;
    const PieceProfile& profile = profiles_[view_.chunk_at[position]][static_cast<std::size_t>(part) - 1];
    const BytesByCategory more = beside(position);
    const auto add = [&](Seconds at, BytesByCategory bytes) {
      for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] += more[i];
      points_.push_back({at, bytes});
    };
    if (profile.points.empty()) return;
    if (held) {
      const auto most = std::max_element(profile.points.begin(), profile.points.end(), [](const auto& a, const auto& b) { return bytes_in(a.bytes) < bytes_in(b.bytes); });
      add(start, most->bytes);
    } else {
      for (const PieceProfile::At& point : profile.points) add(start + length * point.share, point.bytes);
    }
    resting_ = at_rest(profile.last);
    last_ = position;
  }
  void rest(Seconds at) {
    BytesByCategory bytes = resting_;
    ended_ = true;
    const BytesByCategory more = beside(last_);
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] += more[i];
    points_.push_back({at, bytes});
  }

  const PipelineView& view_;
  const StageMemory& memory_;
  double stands_for_;  // micro-batches that one of those followed stands for
  bool ended_ = false;
  std::vector<double> in_flight_;
  std::vector<std::size_t> own_;
  std::vector<std::vector<PieceProfile>> profiles_;  // by chunk: forward, backward, end
  BytesByCategory resting_{};
  std::size_t last_ = 0;
  Points points_;
};

}  // namespace

std::vector<MemoryPoint> memory_points(const std::vector<BytesByCategory>& by_op, const KernelProgram& program, const Schedule& schedule, const Timeline& timeline,
                                       std::int64_t micro_batches, Seconds step) {
  if (by_op.empty()) return {};
  const auto tasks = schedule.graph.tasks();
  const auto last = static_cast<std::int16_t>(schedule.last_task.size() - 1);
  const Picoseconds begin = begin_of_last_step(schedule, timeline);
  const std::int64_t laid_out = schedule.micro_batches_laid_out;
  // Where operators have no kernel of their own, or one on another stream, the next on the compute stream shows what is there: its order is the allocator's.
  Points points = {{{}, by_op.front()}};
  std::size_t next = 0;
  std::int16_t micro_batch = 0;
  const auto until = [&](std::size_t end, Seconds at) {
    for (; next < end; ++next)
      if (micro_batch + runs_per_step(program.calls[next].phase, laid_out) >= laid_out) points.push_back({at, by_op[next]});
  };
  Seconds now;
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    const TaskLabel& label = schedule.labels[i];
    if (label.step != last || label.call < 0 || tasks[i].resource != kCompute || static_cast<std::size_t>(label.call) >= by_op.size()) continue;
    if (label.micro_batch != micro_batch) {
      until(by_op.size(), now);
      next = 0;
      micro_batch = label.micro_batch;
    }
    now = std::max(now, seconds(timeline.spans[i].start - begin));
    until(static_cast<std::size_t>(label.call) + 1, now);
  }
  until(by_op.size(), now);
  if (schedule.last_of_micro_batch.size() >= 2) {
    const auto end_of = [&](std::size_t i) { return seconds(timeline.spans[static_cast<std::size_t>(schedule.last_of_micro_batch[i])].end - begin); };
    points = repeated(points, end_of(0), end_of(1) - end_of(0), micro_batches - laid_out);
  }
  return whole_step(std::move(points), step);
}

std::vector<MemoryPoint> pipeline_memory_points(const PipelineView& view, const StageMemory& memory, Seconds step) {
  PipelineShape shape = view.shape;
  shape.micro_batches = view.micro_batches;
  const std::int64_t round = shape.round();
  const std::int64_t followed = std::max<std::int64_t>(1, kPiecesFollowed / (2 * shape.positions() * round)) * round;
  std::int64_t rounds = 0;  // of those that are not followed
  double stands_for = 1;
  if (shape.micro_batches > followed + 4 * round) {
    if (shape.schedule == PipelineSchedule::gpipe) {
      stands_for = static_cast<double>(shape.micro_batches) / static_cast<double>(followed);
      shape.micro_batches = followed;
    } else {
      rounds = (shape.micro_batches - followed) / round;
      shape.micro_batches -= rounds * round;
    }
  }
  PipelineTimes times = view.times;
  if (stands_for > 1) {
    for (ChunkTimes& chunk : times.chunks)
      for (Picoseconds* one : {&chunk.forward, &chunk.first_backward, &chunk.backward, &chunk.last_backward}) *one = static_cast<Picoseconds>(static_cast<double>(*one) * stands_for);
  }
  const PipelineTimeline timeline = simulate_pipeline(shape, times);
  Points points = StagePoints(view, shape, memory, stands_for).run(timeline);
  if (stands_for > 1)
    for (MemoryPoint& point : points) point.at = point.at * (step.value / seconds(timeline.end).value);
  // The pipeline is full in the middle: a round of micro-batches there is like the next.
  const Seconds end = seconds(timeline.end), missing = step - end;
  if (rounds > 0 && missing.value > 0) {
    const Seconds period = missing / static_cast<double>(rounds);
    points = repeated(points, std::max(Seconds{}, (end - period) / 2), period, rounds);
  }
  return whole_step(std::move(points), step);
}

}  // namespace precog
