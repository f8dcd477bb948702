// Pipeline parallelism over time: in what order each stage works on which micro-batch of which chunk of layers, and when
// everything ends, given how long each piece takes. It knows no kernels: times come from schedule/segment.h, one per
// distinct chunk, so that neither equal layers nor data-parallel replicas cost anything here.
//
// A chunk's position is its place in the model, 0 the first layers; stage s has the positions s, s + stages, ...
// (DualPipe: stage s has s and, for micro-batches fed from the other end, stages - 1 - s; ZB-V: s and 2 stages - 1 - s).
#pragma once

#include <cstdint>
#include <vector>

#include "sim/simulate.h"
#include "spec/plan.h"

namespace precog {

struct PipelineShape {
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  int stages = 1, chunks = 1;  // chunks per stage; DualPipe's second copy is not one
  std::int64_t micro_batches = 1;

  int positions() const { return stages * chunks; }
  int stage_of(int position, std::int64_t micro_batch) const {
    const bool from_the_end = schedule == PipelineSchedule::dualpipe && micro_batch >= micro_batches / 2;
    if (schedule == PipelineSchedule::zero_bubble_v && position >= stages) return 2 * stages - 1 - position;
    return from_the_end ? stages - 1 - position : position % stages;
  }
  // Whose parameters a stage has.
  std::vector<int> positions_of(int stage) const {
    if (schedule == PipelineSchedule::dualpipe) return {stage, stages - 1 - stage};
    std::vector<int> out;
    for (int position = 0; position < positions(); ++position)
      if (stage_of(position, 0) == stage) out.push_back(position);
    return out;
  }
  // Micro-batches after which a schedule repeats itself: a group of as many as stages, from both ends in DualPipe.
  std::int64_t round() const { return stages * (schedule == PipelineSchedule::dualpipe ? 2 : 1); }
  bool splits_backward() const { return schedule == PipelineSchedule::zero_bubble || schedule == PipelineSchedule::zero_bubble_v || schedule == PipelineSchedule::dualpipe; }
  // Whether a stage goes on while its message travels. Megatron waits for each message, except when interleaving.
  bool overlaps_messages() const { return schedule != PipelineSchedule::gpipe && schedule != PipelineSchedule::one_f_one_b; }
};

struct PipelineWork {
  // Backward whole, or in two pieces: the activations' gradients, which the stage before waits for, and the weights'.
  enum class Kind : std::uint8_t { forward, backward, activations, weights };
  Kind kind = Kind::forward;
  std::int16_t position = 0;
  std::int32_t micro_batch = 0;
  bool finishes() const { return kind == Kind::backward || kind == Kind::weights; }  // nothing of the micro-batch is needed here any more
};

// What each stage does, in order.
using PipelineOrder = std::vector<std::vector<PipelineWork>>;
PipelineOrder pipeline_order(const PipelineShape& shape);

struct ChunkTimes {
  Picoseconds forward = 0;
  Picoseconds first_backward = 0, backward = 0, last_backward = 0;  // the first adds to no gradients, the last sends them
  Picoseconds weights = 0;  // what of `backward` is the weights' gradients
  Picoseconds sync = 0;     // what is left of the gradients' reduction when the last backward ends: on the network
  Picoseconds end = 0;      // loss scaling and optimizer
};

// How micro-batches reach the first stage, and their labels the last: each has a loader of its own (Megatron-LM's get_batch on both; DeepSpeed's
// _exec_load_micro_batch).
struct PipelineInput {
  Picoseconds before = 0;   // of the stage itself, before each forward: what the loop loads by itself, the copy to the GPU
  Picoseconds every = 0;    // workers beside it finish one so often; 0: there are none
  std::int64_t ahead = 0;   // and keep so many
};

struct PipelineTimes {
  std::vector<ChunkTimes> chunks;                         // by position
  std::vector<Picoseconds> send_forward, send_backward;   // a message between position i and i + 1
  Picoseconds tied = 0;      // the sum of a shared embedding's gradients over the first and the last stage
  Picoseconds step = 0;      // what each stage's host needs between two steps, while nothing runs
  PipelineInput input;
  bool all_wait = false;     // no stage updates before all have their gradients: a norm or an overflow is every stage's concern
};

struct PipelineSpan {
  int stage = 0;
  enum class What : std::uint8_t { forward, backward, activations, weights, message, sync, tied, end } what = What::forward;
  int position = 0;
  std::int64_t micro_batch = 0;
  Span span;
};

struct PipelineTimeline {
  Picoseconds end = 0;
  std::vector<PipelineSpan> spans;  // in the order of the simulation
};

PipelineTimeline simulate_pipeline(const PipelineShape& shape, const PipelineTimes& times);

// The end alone. Many micro-batches are not all simulated where adding one more round of them is seen to add the same time
// each time; otherwise they are.
Picoseconds pipeline_length(const PipelineShape& shape, const PipelineTimes& times);

// Follows one stage's queue: calls `at(work, in_flight)` for each piece of work, where in_flight[position] counts the other
// micro-batches that have been forwarded there and not let go.
template <class At>
void follow(const PipelineShape& shape, const std::vector<PipelineWork>& queue, At at) {
  std::vector<std::int64_t> in_flight(static_cast<std::size_t>(shape.positions()), 0);
  for (const PipelineWork& work : queue) {
    std::int64_t& count = in_flight[static_cast<std::size_t>(work.position)];
    const bool held = work.kind != PipelineWork::Kind::forward;
    count -= held ? 1 : 0;
    at(work, in_flight);
    count += work.finishes() ? 0 : 1;
  }
}

}  // namespace precog
