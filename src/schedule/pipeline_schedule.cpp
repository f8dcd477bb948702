#include "schedule/pipeline_schedule.h"

#include <algorithm>

#include "base/ensure.h"

namespace precog {
namespace {

using Kind = PipelineWork::Kind;
using What = PipelineSpan::What;

// Lays the pipeline out as tasks: per stage a queue of work, one of messages it sends, one of its gradients' reduction; two loaders.
class Pipeline {
 public:
  Pipeline(const PipelineShape& shape, const PipelineTimes& times)
      : shape_(shape), times_(times), order_(pipeline_order(shape)), graph_(3 * shape.stages + 3),
        forwarded_(static_cast<std::size_t>(shape.positions()) * static_cast<std::size_t>(shape.micro_batches), kNotYet), backwarded_(forwarded_) {
    ensure(times.chunks.size() == static_cast<std::size_t>(shape.positions()), "every chunk has its times");
    const std::size_t stages = order_.size();
    next_.assign(stages, 0);
    last_message_.assign(stages, -1);
    last_sync_.assign(stages, -1);
    last_work_.assign(stages, -1);
    left_.assign(stages, std::vector<std::int64_t>(static_cast<std::size_t>(shape.positions()), 0));
    begun_ = left_;
    std::size_t works = 0;
    for (std::size_t s = 0; s < stages; ++s) {
      works += order_[s].size();
      for (const PipelineWork& work : order_[s])
        if (work.finishes()) ++left_[s][static_cast<std::size_t>(work.position)];
    }
    micro_batches_ = left_;
    graph_.reserve(2 * works + 4 * stages);
    labels_.reserve(2 * works + 4 * stages);
  }

  PipelineTimeline run() {
    lay_out_work();
    lay_out_end();
    const Timeline timeline = simulate(graph_);
    PipelineTimeline out;
    out.end = timeline.end;
    for (std::size_t i = 0; i < labels_.size(); ++i) labels_[i].span = timeline.spans[i];
    out.spans = std::move(labels_);
    return out;
  }

 private:
  static constexpr std::int32_t kNotYet = -2;  // a task that has not been laid out; -1 needs none

  std::int32_t add(int resource, Picoseconds duration, std::initializer_list<std::int32_t> after, PipelineSpan label) {
    labels_.push_back(label);
    return graph_.add(resource, duration, after);
  }
  std::size_t at(int position, std::int64_t micro_batch) const {
    return static_cast<std::size_t>(position) * static_cast<std::size_t>(shape_.micro_batches) + static_cast<std::size_t>(micro_batch);
  }

  // What a piece of work waits for: the arrival of its operand, or kNotYet.
  std::int32_t operand(const PipelineWork& work) const {
    if (work.kind == Kind::weights) return -1;
    if (work.kind == Kind::forward) return work.position == 0 ? -1 : forwarded_[at(work.position - 1, work.micro_batch)];
    return work.position + 1 == shape_.positions() ? forwarded_[at(work.position, work.micro_batch)] : backwarded_[at(work.position + 1, work.micro_batch)];
  }

  void lay_out_work() {
    // Each stage's queue is in order and waits for others': those that can go on do, until all are done.
    for (bool moved = true; moved;) {
      moved = false;
      for (int stage = 0; stage < shape_.stages; ++stage) {
        auto& next = next_[static_cast<std::size_t>(stage)];
        const auto& queue = order_[static_cast<std::size_t>(stage)];
        for (; next < queue.size() && operand(queue[next]) != kNotYet; ++next, moved = true) lay_out(stage, queue[next]);
      }
    }
    for (std::size_t stage = 0; stage < order_.size(); ++stage) ensure(next_[stage] == order_[stage].size(), "a pipeline schedule does not wait for itself");
  }

  void lay_out(int stage, const PipelineWork& work) {
    const auto s = static_cast<std::size_t>(stage), c = static_cast<std::size_t>(work.position);
    const ChunkTimes& chunk = times_.chunks[c];
    const bool last = work.finishes() && --left_[s][c] == 0;
    Picoseconds duration = chunk.forward;
    if (work.kind == Kind::weights) {
      const bool only = last && micro_batches_[s][c] == 1;  // the last is the first, which adds to no gradients
      duration = chunk.weights + (last ? chunk.last_backward - (only ? chunk.first_backward : chunk.backward) : 0);
    } else if (work.kind != Kind::forward) {
      const bool first = begun_[s][c]++ == 0;
      duration = last ? chunk.last_backward : first ? chunk.first_backward : chunk.backward;
      if (work.kind == Kind::activations) duration -= chunk.weights;
    }
    duration = std::max<Picoseconds>(0, duration);
    if (work.kind == Kind::forward && (work.position == 0 || work.position + 1 == shape_.positions())) take_batch(stage, operand(work));
    const What what = static_cast<What>(work.kind);
    const std::int32_t done = add(stage, duration, {operand(work), shape_.overlaps_messages() ? -1 : last_message_[s]}, {stage, what, work.position, work.micro_batch, {}});
    last_work_[s] = done;
    if (last && chunk.sync > 0) last_sync_[s] = add(2 * shape_.stages + stage, chunk.sync, {done}, {stage, What::sync, work.position, work.micro_batch, {}});
    if (work.kind == Kind::forward) forwarded_[at(work.position, work.micro_batch)] = sent(stage, work, work.position + 1, done);
    if (work.kind == Kind::backward || work.kind == Kind::activations) backwarded_[at(work.position, work.micro_batch)] = sent(stage, work, work.position - 1, done);
  }

  // The step begins with as many batches as loaders keep ahead: who lags behind over a whole step sets its length (pipeline_length).
  void take_batch(int stage, std::int32_t operand) {
    const PipelineInput& input = times_.input;
    if (input.before == 0 && input.every == 0) return;
    std::vector<std::int32_t>& taken = taken_[stage == 0 ? 0 : 1];
    const auto ahead = static_cast<std::size_t>(input.ahead);
    const PipelineSpan not_drawn{stage, What::end, -1, 0, {}};
    std::int32_t loaded = -1;
    if (input.every > 0 && taken.size() >= ahead) loaded = add(3 * shape_.stages + (stage == 0 ? 1 : 2), input.every, {taken[taken.size() - ahead]}, not_drawn);
    taken.push_back(add(stage, input.before, {operand, loaded, shape_.overlaps_messages() ? -1 : last_message_[static_cast<std::size_t>(stage)]}, not_drawn));
  }

  // When what was made is where it is needed next.
  std::int32_t sent(int stage, const PipelineWork& work, int to, std::int32_t made) {
    if (to < 0 || to >= shape_.positions() || shape_.stage_of(to, work.micro_batch) == stage) return made;
    const Picoseconds duration = to > work.position ? times_.send_forward[static_cast<std::size_t>(work.position)] : times_.send_backward[static_cast<std::size_t>(to)];
    const std::int32_t message = add(shape_.stages + stage, duration, {made}, {stage, What::message, work.position, work.micro_batch, {}});
    last_message_[static_cast<std::size_t>(stage)] = message;
    return message;
  }

  void lay_out_end() {
    const int p = shape_.stages, barrier = 3 * p;
    const auto last = static_cast<std::size_t>(p - 1);
    if (times_.tied > 0 && p > 1) {
      const std::int32_t both = add(2 * p, times_.tied, {last_work_[0], last_work_[last], last_sync_[last]}, {0, What::tied, 0, 0, {}});
      const std::int32_t too = add(2 * p + p - 1, times_.tied, {last_work_[0], last_sync_[0], last_work_[last]}, {p - 1, What::tied, p - 1, 0, {}});
      last_sync_[0] = both;
      last_sync_[last] = too;
    }
    std::int32_t all = -1;
    if (times_.all_wait)
      for (std::size_t s = 0; s < order_.size(); ++s) all = add(barrier, 0, {last_work_[s], last_sync_[s]}, {static_cast<int>(s), What::end, -1, 0, {}});
    for (int stage = 0; stage < p; ++stage) {
      Picoseconds end = times_.step;
      for (int position : shape_.positions_of(stage)) end += times_.chunks[static_cast<std::size_t>(position)].end;
      add(stage, end, {all, last_sync_[static_cast<std::size_t>(stage)]}, {stage, What::end, stage, 0, {}});
    }
  }

  const PipelineShape& shape_;
  const PipelineTimes& times_;
  PipelineOrder order_;
  TaskGraph graph_;
  std::vector<PipelineSpan> labels_;
  std::vector<std::int32_t> forwarded_, backwarded_;  // per position and micro-batch: the task after which the next may read it
  std::vector<std::int32_t> taken_[2];                // by the first and the last stage: tasks that took a batch
  std::vector<std::size_t> next_;
  std::vector<std::int32_t> last_message_, last_sync_, last_work_;
  std::vector<std::vector<std::int64_t>> left_, begun_, micro_batches_;  // per stage and position: backwards to finish, begun, and in all
};

}  // namespace

PipelineTimeline simulate_pipeline(const PipelineShape& shape, const PipelineTimes& times) { return Pipeline(shape, times).run(); }

static Picoseconds length_of_work(const PipelineShape& shape, const PipelineTimes& times) {
  const std::int64_t round = shape.round();
  const std::int64_t few = 4 * round + shape.micro_batches % round;
  auto length = [&](std::int64_t micro_batches) {
    PipelineShape shorter = shape;
    shorter.micro_batches = micro_batches;
    return simulate_pipeline(shorter, times).end;
  };
  if (shape.micro_batches > few + 2 * round) {
    const Picoseconds a = length(few), b = length(few + round), c = length(few + 2 * round);
    if (c - b == b - a) return c + (shape.micro_batches - few - 2 * round) / round * (c - b);
  }
  return length(shape.micro_batches);
}

Picoseconds pipeline_length(const PipelineShape& shape, const PipelineTimes& times) {
  return std::max(length_of_work(shape, times), shape.micro_batches * times.input.every);
}

}  // namespace precog
