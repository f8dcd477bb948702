// A pipelined plan's step: how long each chunk's pieces of work take (each simulated by itself, host and streams), how long the
// schedule makes of them, and what the worst stage keeps in memory. Data-parallel replicas and equal chunks cost nothing.
#pragma once

#include <array>
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

// `copy`: what a batch takes of the GPU before the step, where the request says how batches come.
PipelineParts pipeline_parts(const Request& request, const PipelineStages& cut, const std::vector<ChunkOfStep>& chunks, Seconds gap, Seconds copy = {});

StepTimes pipeline_times(const Request& request, const std::vector<ChunkOfStep>& chunks, const PipelineParts& parts);  // of the mean GPU

// What a stage's memory over the step is drawn from (memory_points.h); by distinct chunk.
struct StageMemory {
  int stage = 0;
  std::vector<Bytes> saved;                            // what one micro-batch keeps between forward and backward
  std::vector<std::vector<BytesByCategory>> by_op;     // what is there while an operator runs and nothing else is in flight
  std::vector<std::array<Bytes, 3>> resident;          // parameters, gradients, optimizer: what the chunk has while another works
};
struct PipelineMemory {
  MemoryUse use;            // of the stage that needs most
  std::string peak_at;      // in words, and where in its work
  StageMemory drawn;        // of that stage's chunks
};
// What the GPU has of the optimizer, where the host has its states.
TrainingOptions resident(const Request& request);
// What a node has for what plans keep there; 0 where nobody says.
Bytes host_capacity(const Request& request);
PipelineMemory pipeline_memory(const Request& request, const PipelineStages& cut, const std::vector<ChunkOfStep>& chunks);

// For traces and pictures: the pipeline with all its micro-batches or, of many, a few rounds of them.
PipelineView drawn_pipeline(const Request& request, const PipelineParts& parts);  // without its chunks
PipelineView pipeline_view(const Request& request, const PipelineStages& cut, std::vector<ChunkOfStep> chunks, PipelineParts parts);

std::string uneven_stages(const PipelineStages& cut);  // a note on chunks with different numbers of layers
std::string idle_stages(const Request& request);       // one on fewer micro-batches than stages
std::string to_text(const PipelineParts& parts);
std::string to_text(const PipelineTimeline& timeline);

}  // namespace precog
