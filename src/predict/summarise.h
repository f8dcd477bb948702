// From a simulated timeline to the report's figures: where the step's seconds went, what bounds it, how sure we are.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cost/cost.h"
#include "kernel/kernel.h"
#include "memory/memory.h"
#include "predict/request.h"
#include "report/report.h"
#include "schedule/schedule.h"
#include "training/step_graph.h"

namespace precog {

// A part of the model that a GPU has whole: the model itself, or the layers of one place in a pipeline.
struct ChunkOfStep {
  StepGraph step;
  KernelProgram program;
  std::vector<KernelCost> costs;
  double per_gpu = 1;       // how many like it the mean GPU works on in each micro-batch
  double ends_per_gpu = 1;  // and updates at the end of the step
};

// The length of a step and what of it is not kernels of the compute stream; of a pipeline, of the mean GPU.
struct StepTimes {
  Seconds length, host;                    // host: busy
  Seconds start_up;                        // what steps from an idle machine take beyond so many of that length
  std::map<std::string, Seconds> exposed;  // by collective: the compute stream idle while the communication stream runs
  Seconds bubble;
  Seconds input;                           // the GPU idle until a batch was there
};

// What a part of a timeline shows of the streams beside the kernels.
struct Exposure {
  std::map<std::string, Seconds> by_collective;
  Seconds host_busy, host_busy_second;  // in the second micro-batch alone: what one more would add
};
Exposure exposure(const Schedule& schedule, const Timeline& timeline, const KernelProgram& program, const Graph& graph, Picoseconds begin, Picoseconds end);

// The last simulated step, from the end of the one before it.
StepTimes steady_step(const Schedule& schedule, const Timeline& timeline, const ChunkOfStep& chunk, std::int64_t micro_batches);

// `whole` is the model's forward graph, `gap` the stream's idle time between two queued kernels.
// model_flops: what a GPU must compute of the model in a micro-batch.
Report summarise(const Request& request, std::int64_t parameters, Flops model_flops, Seconds gap, const std::vector<ChunkOfStep>& chunks, const StepTimes& times,
                 const MemoryUse& memory, const std::string& peak_at);

// "backward mm in layers.3.mlp": where a step's memory peaks.
std::string describe(const Graph& graph, OpId op);

}  // namespace precog
