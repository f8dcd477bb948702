#include <algorithm>
#include <set>

#include <doctest/doctest.h>

#include "schedule/pipeline_schedule.h"

using namespace precog;

namespace {

// Chunks that are all alike, messages that cost nothing, and no end of the step: what the published formulas are for.
PipelineTimes uniform(const PipelineShape& shape, Picoseconds forward, Picoseconds backward, Picoseconds weights = 0) {
  PipelineTimes times;
  ChunkTimes chunk{.forward = forward, .first_backward = backward, .backward = backward, .last_backward = backward, .weights = weights};
  times.chunks.assign(static_cast<std::size_t>(shape.positions()), chunk);
  times.send_forward.assign(times.chunks.size() - 1, 0);
  times.send_backward = times.send_forward;
  return times;
}

std::int64_t most_in_flight(const PipelineShape& shape, int stage) {
  std::int64_t most = 0;
  follow(shape, pipeline_order(shape)[static_cast<std::size_t>(stage)], [&](const PipelineWork& work, const std::vector<std::int64_t>& others) {
    std::int64_t now = work.kind == PipelineWork::Kind::forward ? 1 : 0;
    for (std::int64_t count : others) now += count;
    most = std::max(most, now + (now > 0 && work.kind != PipelineWork::Kind::forward ? 1 : 0));
  });
  return most;
}

}  // namespace

TEST_CASE("PipelineBubbleIsTheFormulas") {
  for (int p : {2, 4, 8, 16})
    for (std::int64_t m : {p, 2 * p, 3 * p, 12 * p}) {
      CAPTURE(p);
      CAPTURE(m);
      const Picoseconds f = 1000, b = 2000;
      for (PipelineSchedule schedule : {PipelineSchedule::gpipe, PipelineSchedule::one_f_one_b}) {
        const PipelineShape shape{schedule, p, 1, m};
        CHECK(simulate_pipeline(shape, uniform(shape, f, b)).end == (m + p - 1) * (f + b));  // a bubble of (p - 1) / m
      }
      for (int v : {2, 4}) {
        const PipelineShape shape{PipelineSchedule::interleaved, p, v, m};
        // f and b are a chunk's: 1/v of a stage's, so that the bubble is (p - 1) / (m v)
        CHECK(simulate_pipeline(shape, uniform(shape, f, b)).end == (m * v + p - 1) * (f + b));
      }
    }
}

TEST_CASE("OneFOneBTakesAnyNumberOfMicroBatches") {
  for (std::int64_t m : {1, 2, 3, 5, 7}) {
    const PipelineShape shape{PipelineSchedule::one_f_one_b, 4, 1, m};
    CHECK(simulate_pipeline(shape, uniform(shape, 10, 20)).end == (m + 3) * 30);
  }
}

TEST_CASE("ZeroBubbleLeavesAThird") {
  // Qi et al. 2023, table 2: ZB-H1's bubble is (p - 1)(F + B - W), where B is the activations' part of backward.
  for (int p : {2, 4, 8})
    for (std::int64_t m : {2 * p, 3 * p, 5 * p}) {
      const PipelineShape shape{PipelineSchedule::zero_bubble, p, 1, m};
      CHECK(simulate_pipeline(shape, uniform(shape, 100, 200, 100)).end == m * 300 + (p - 1) * 100);
    }
}

TEST_CASE("TheVLeavesNoBubbleWhereItsPiecesAreAlike") {
  // Qi et al. 2024: with F = B = W each stage, once begun, works without a pause; only the way down to the last one is waited for.
  for (int p : {2, 4, 8})
    for (std::int64_t m : {2 * p, 3 * p, 5 * p}) {
      const PipelineShape shape{PipelineSchedule::zero_bubble_v, p, 2, m};
      CAPTURE(p);
      CAPTURE(m);
      const PipelineTimeline timeline = simulate_pipeline(shape, uniform(shape, 100, 200, 100));
      CHECK(timeline.end == 2 * m * 300 + (p - 1) * 100);
      std::vector<Picoseconds> first(static_cast<std::size_t>(p), timeline.end), last(first.size(), 0);
      for (const PipelineSpan& span : timeline.spans) {
        if (span.what > PipelineSpan::What::weights) continue;
        const auto stage = static_cast<std::size_t>(span.stage);
        first[stage] = std::min(first[stage], span.span.start), last[stage] = std::max(last[stage], span.span.end);
      }
      for (std::size_t stage = 0; stage < first.size(); ++stage) {
        CHECK(first[stage] == static_cast<Picoseconds>(stage) * 100);
        CHECK(last[stage] - first[stage] == 2 * m * 300);
      }
      // A chunk is half a stage: of 1F1B's memory, p whole ones, there are 2 p.
      for (int stage = 0; stage < p; ++stage) CHECK(most_in_flight(shape, stage) == 2 * p);
    }
}

TEST_CASE("AnOnlyMicroBatchInTwoPiecesIsAsLongAsItsWholeBackward") {
  // It is the first, which adds to no gradients, and the last, which lasts longer than the first: what the others add is in neither.
  const PipelineShape split{PipelineSchedule::zero_bubble, 2, 1, 1}, whole{PipelineSchedule::one_f_one_b, 2, 1, 1};
  PipelineTimes times = uniform(split, 1000, 2000, 900);
  for (ChunkTimes& chunk : times.chunks) chunk.backward = 2600, chunk.last_backward = 2300;
  const auto work_of_first_stage = [&](const PipelineShape& shape) {
    Picoseconds sum = 0;
    for (const PipelineSpan& span : simulate_pipeline(shape, times).spans)
      if (span.stage == 0 && (span.what == PipelineSpan::What::backward || span.what == PipelineSpan::What::activations || span.what == PipelineSpan::What::weights)) sum += span.span.end - span.span.start;
    return sum;
  };
  CHECK(work_of_first_stage(whole) == 2300);
  CHECK(work_of_first_stage(split) == 2300);
}

TEST_CASE("TheVHasBothEndsOnTheFirstStage") {
  const PipelineShape shape{PipelineSchedule::zero_bubble_v, 4, 2, 8};
  CHECK(shape.positions_of(0) == std::vector<int>{0, 7});
  CHECK(shape.positions_of(3) == std::vector<int>{3, 4});
  const PipelineShape dual{PipelineSchedule::dualpipe, 4, 1, 8}, rounds{PipelineSchedule::interleaved, 4, 2, 8};
  CHECK(dual.positions_of(1) == std::vector<int>{1, 2});
  CHECK(rounds.positions_of(1) == std::vector<int>{1, 5});
  // At the turn nothing is sent: one message between neighbours each way, down and back.
  PipelineTimes times = uniform(shape, 100, 200, 100);
  for (Picoseconds& message : times.send_forward) message = 1;
  for (Picoseconds& message : times.send_backward) message = 1;
  const PipelineTimeline timeline = simulate_pipeline(shape, times);
  CHECK(std::count_if(timeline.spans.begin(), timeline.spans.end(), [](const PipelineSpan& span) { return span.what == PipelineSpan::What::message; }) == 8 * 2 * 6);
}

TEST_CASE("DualPipeBeatsZeroBubble") {
  // DeepSeek-V3 report, table 2: (p / 2 - 1)(F&B + B - 3W), of pairs F&B that send nothing before both are done: 200 each here.
  // In this simulation the first of a pair sends when it is done, and the wait is shorter.
  for (int p : {4, 8, 16})
    for (std::int64_t m : {2 * p, 4 * p}) {
      const PipelineShape shape{PipelineSchedule::dualpipe, p, 1, m};
      CAPTURE(p);
      CAPTURE(m);
      CHECK(simulate_pipeline(shape, uniform(shape, 100, 200, 100)).end - m * 300 == (p / 2 - 1) * 100);
    }
}

TEST_CASE("EveryMicroBatchOfEveryChunkIsDoneOnceInEverySchedule") {
  for (PipelineShape shape : {PipelineShape{PipelineSchedule::gpipe, 4, 1, 6}, PipelineShape{PipelineSchedule::one_f_one_b, 4, 1, 6},
                              PipelineShape{PipelineSchedule::interleaved, 4, 3, 8}, PipelineShape{PipelineSchedule::zero_bubble, 4, 1, 6},
                              PipelineShape{PipelineSchedule::zero_bubble_v, 4, 2, 6}, PipelineShape{PipelineSchedule::zero_bubble_v, 4, 2, 11},
                              PipelineShape{PipelineSchedule::dualpipe, 4, 1, 10}, PipelineShape{PipelineSchedule::dualpipe, 8, 1, 16}}) {
    std::set<std::tuple<int, int, int>> seen;
    const PipelineOrder order = pipeline_order(shape);
    std::size_t works = 0;
    for (int stage = 0; stage < shape.stages; ++stage)
      for (const PipelineWork& work : order[static_cast<std::size_t>(stage)]) {
        ++works;
        CHECK(shape.stage_of(work.position, work.micro_batch) == stage);
        seen.insert({static_cast<int>(work.kind), work.position, work.micro_batch});
      }
    CHECK(seen.size() == works);
    for (int position = 0; position < shape.positions(); ++position)
      for (int i = 0; i < shape.micro_batches; ++i) {
        using Kind = PipelineWork::Kind;
        const auto has = [&](Kind kind) { return seen.contains({static_cast<int>(kind), position, i}); };
        CHECK(has(Kind::forward));
        CHECK(has(Kind::backward) != (has(Kind::activations) && has(Kind::weights)));
      }
  }
}

TEST_CASE("OneFOneBKeepsAsManyMicroBatchesAsStagesFollow") {
  for (int stage = 0; stage < 4; ++stage) {
    CHECK(most_in_flight({PipelineSchedule::one_f_one_b, 4, 1, 16}, stage) == 4 - stage);
    CHECK(most_in_flight({PipelineSchedule::gpipe, 4, 1, 16}, stage) == 16);
    CHECK(most_in_flight({PipelineSchedule::zero_bubble, 4, 1, 16}, stage) <= 4);
    // Megatron: 2 (p - s - 1) + (v - 1) p warm-up forwards, and one more
    CHECK(most_in_flight({PipelineSchedule::interleaved, 4, 2, 16}, stage) == 2 * (4 - stage - 1) + 4 + 1);
    CHECK(most_in_flight({PipelineSchedule::dualpipe, 4, 1, 16}, stage) <= 4 + 1);  // the report's p + 1
  }
}

TEST_CASE("MessagesAreExposedWhereAStageWaitsForThem") {
  // Two stages: the second starts a message later and the first's backward another one; the schedule that goes on while it sends hides the rest.
  PipelineShape shape{PipelineSchedule::gpipe, 2, 1, 1};
  PipelineTimes times = uniform(shape, 100, 200);
  times.send_forward = {7};
  times.send_backward = {5};
  CHECK(simulate_pipeline(shape, times).end == 600 + 12);
  shape.micro_batches = 8;
  const Picoseconds waiting = simulate_pipeline(shape, times).end;
  CHECK(waiting > 9 * 300 + 12);  // every send of the first stage holds it up
  shape.schedule = PipelineSchedule::one_f_one_b;
  CHECK(simulate_pipeline(shape, times).end > 9 * 300 + 12);
}

TEST_CASE("TheEndOfAStepWaitsForWhatItMust") {
  PipelineShape shape{PipelineSchedule::one_f_one_b, 2, 1, 4};
  PipelineTimes times = uniform(shape, 100, 200);
  for (ChunkTimes& chunk : times.chunks) chunk.end = 50, chunk.sync = 30;
  const Picoseconds apart = simulate_pipeline(shape, times).end;
  CHECK(apart == 5 * 300 + 30 + 50);  // the first stage ends last: its own reduction, its own update
  times.chunks[1].end = 400;          // the second stage has 300 to spare
  CHECK(simulate_pipeline(shape, times).end == 4 * 300 + 100 + 30 + 400);
  times.all_wait = true;              // but not when its update waits for the first stage's gradients
  CHECK(simulate_pipeline(shape, times).end == 5 * 300 + 30 + 400);
  times.tied = 11;
  times.all_wait = false;
  CHECK(simulate_pipeline(shape, times).end == 5 * 300 + 30 + 11 + 400);
}

TEST_CASE("ManyMicroBatchesNeedNotBeSimulated") {
  for (PipelineShape shape : {PipelineShape{PipelineSchedule::one_f_one_b, 4, 1, 211}, PipelineShape{PipelineSchedule::interleaved, 4, 2, 200},
                              PipelineShape{PipelineSchedule::gpipe, 4, 1, 123}, PipelineShape{PipelineSchedule::zero_bubble, 4, 1, 150}, PipelineShape{PipelineSchedule::zero_bubble_v, 4, 2, 150},
                              PipelineShape{PipelineSchedule::dualpipe, 4, 1, 160}}) {
    PipelineTimes times = uniform(shape, 101, 203, 77);
    times.chunks.front().forward += 13;  // uneven stages
    times.chunks.back().backward += 31;
    for (Picoseconds& message : times.send_forward) message = 17;
    for (Picoseconds& message : times.send_backward) message = 19;
    CHECK(pipeline_length(shape, times) == simulate_pipeline(shape, times).end);
  }
}

TEST_CASE("NoStageDoesTwoThingsAtOnce") {
  const PipelineShape shape{PipelineSchedule::interleaved, 4, 2, 8};
  PipelineTimes times = uniform(shape, 100, 190);
  const PipelineTimeline timeline = simulate_pipeline(shape, times);
  for (int stage = 0; stage < 4; ++stage) {
    Picoseconds free = 0;
    for (const PipelineSpan& span : timeline.spans) {
      if (span.stage != stage || span.what > PipelineSpan::What::weights) continue;
      CHECK(span.span.start >= free);
      free = span.span.end;
    }
  }
}

TEST_CASE("TheFirstAndTheLastStageWaitForTheirBatches") {
  const PipelineShape shape{PipelineSchedule::one_f_one_b, 4, 1, 8};
  PipelineTimes times = uniform(shape, 10, 20);
  const Picoseconds fed = pipeline_length(shape, times);
  CHECK(fed == (8 + 3) * 30);
  // Workers that keep up, with enough kept for the first stage's run of forwards.
  times.input = {.every = 20, .ahead = 4};
  CHECK(pipeline_length(shape, times) == fed);
  // Workers that do not: the step is as long as they need for its batches.
  times.input = {.every = 100, .ahead = 2};
  CHECK(pipeline_length(shape, times) >= 8 * 100);
  times.input = {.every = 1000, .ahead = 2};
  const Picoseconds slow = pipeline_length(shape, times);
  CHECK(slow == 8 * 1000);
  // What a loop loads by itself is part of both stages' forwards: of m + p - 1 turns, whose slowest piece they are, all are longer; the middle stages hide nothing.
  times.input = {.before = 5};
  PipelineTimes longer = times;
  longer.input = {};
  longer.chunks.front().forward += 5;
  longer.chunks.back().forward += 5;
  CHECK(pipeline_length(shape, times) == pipeline_length(shape, longer));
  CHECK(pipeline_length(shape, times) > fed);
}
