// Memory over one step by time, from its begin on the GPU to its end, as a few hundred points: of the stretch between one point and the next the moment
// with most, so that the peak is among them. Work of views: nothing else of a prediction waits for it.
#pragma once

#include <vector>

#include "kernel/kernel.h"
#include "predict/pipeline.h"
#include "report/pipeline_view.h"
#include "report/report.h"
#include "schedule/schedule.h"

namespace precog {

// `by_op`: what is there while each operator runs. Micro-batches that were not laid out repeat the second one, as in the step's time.
std::vector<MemoryPoint> memory_points(const std::vector<BytesByCategory>& by_op, const KernelProgram& program, const Schedule& schedule, const Timeline& timeline,
                                       std::int64_t micro_batches, Seconds step);

// Of a pipeline's stage: each piece of its work as its chunk's operators have it, on top of what other micro-batches and chunks keep there.
std::vector<MemoryPoint> pipeline_memory_points(const PipelineView& view, const StageMemory& memory, Seconds step);

}  // namespace precog
