// A pipelined plan's step: how long each chunk's pieces of work take (each simulated by itself, host and streams), how long the
// schedule makes of them, and what the worst stage keeps in memory. Data-parallel replicas and equal chunks cost nothing.
#pragma once

#include <string>
#include <vector>

#include "cost/cost.h"
#include "memory/memory.h"
#include "parallel/pipeline_stages.h"
#include "predict/request.h"
#include "predict/summarise.h"
#include "report/pipeline_view.h"
#include "schedule/pipeline_schedule.h"

namespace precog {

PipelineShape pipeline_shape(const Request& request);

// How many of each distinct chunk the mean GPU has.
void share_out(const Plan& plan, const PipelineStages& cut, std::vector<ChunkOfStep>& chunks);

// A piece of a chunk's work, simulated alone.
struct PipelinePart {
  Picoseconds length = 0;
  Exposure shown;
};
struct ChunkParts {
  Schedule forward_schedule, backward_schedule;
  PipelinePart forward, first_backward, backward, last_backward, weights, end;
  Picoseconds sync = 0;         // see ChunkTimes
  Picoseconds sync_work = 0;    // what of it the compute stream works: copies
  std::string sync_collective;  // what the gradients are reduced by
};
struct PipelineParts {
  std::vector<ChunkParts> chunks;  // of the distinct chunks
  PipelineTimes times;             // by position
};

PipelineParts pipeline_parts(const Request& request, const PipelineStages& cut, const std::vector<ChunkOfStep>& chunks, Seconds gap);

StepTimes pipeline_times(const Request& request, const std::vector<ChunkOfStep>& chunks, const PipelineParts& parts);  // of the mean GPU

struct PipelineMemory {
  MemoryUse use;            // of the stage that needs most
  int stage = 0;            // that one
  std::string peak_at;      // in words, and where in its work
  Bytes in_flight;          // of `use`: what other micro-batches keep
  std::vector<Bytes> saved;  // by distinct chunk: what one micro-batch keeps between forward and backward
};
PipelineMemory pipeline_memory(const Request& request, const PipelineStages& cut, const std::vector<ChunkOfStep>& chunks);
// That stage's memory over the step, one point where a piece of its work begins and one where it ends; of many micro-batches,
// over the first ones.
std::vector<MemoryPoint> pipeline_memory_points(const PipelineView& view, const PipelineStages& cut, const PipelineMemory& memory);

// For traces and pictures: the pipeline with all its micro-batches or, of many, a few rounds of them.
PipelineView drawn_pipeline(const Request& request, const PipelineParts& parts);  // without its chunks
PipelineView pipeline_view(const Request& request, const PipelineStages& cut, std::vector<ChunkOfStep> chunks, PipelineParts parts);

std::string uneven_stages(const PipelineStages& cut);  // a note on chunks with different numbers of layers
std::string idle_stages(const Request& request);       // one on fewer micro-batches than stages
std::string to_text(const PipelineParts& parts);
std::string to_text(const PipelineTimeline& timeline);

}  // namespace precog
