// What views of a pipelined step look at: the simulated pipeline, and of each distinct chunk one forward and one backward.
#pragma once

#include <string>
#include <vector>

#include "report/report.h"
#include "report/timeline_view.h"
#include "schedule/pipeline_schedule.h"

namespace precog {

struct PipelineChunkView {
  Graph graph;
  KernelProgram program;
  std::vector<KernelCost> costs;
  Schedule forward, backward;  // by themselves, from idle queues
};

struct PipelineView {
  PipelineShape shape;               // with as many micro-batches as are shown
  std::int64_t micro_batches = 1;    // of the step
  std::vector<std::size_t> chunk_at;  // by position: which of the chunks
  std::vector<PipelineChunkView> chunks;
  PipelineTimes times;  // simulated when a view asks for it

  PipelineTimeline timeline() const { return simulate_pipeline(shape, times); }
};

// One process per stage; tracks for its work, the operators of its first micro-batch, messages, gradient reductions, the host.
// `memory` is that of one stage: a counter beside its tracks.
std::string pipeline_trace(const PipelineView& view, const std::string& title, const std::vector<MemoryPoint>& memory = {}, int memory_stage = 0);
std::string pipeline_svg(const PipelineView& view);
// In which arithmetic each distinct chunk's forward and backward run.
std::string pipeline_precision_svg(const PipelineView& view);

}  // namespace precog
