// From a simulated timeline to the report's figures: where the step's seconds went, what bounds it, how sure we are.
#pragma once

#include "cost/cost.h"
#include "kernel/kernel.h"
#include "memory/memory.h"
#include "predict/request.h"
#include "report/report.h"
#include "schedule/schedule.h"
#include "training/step_graph.h"

namespace precog {

// `model_flops` is one micro-batch's (training_flops), `gap` the stream's idle time between two queued kernels.
Report summarise(const Request& request, Flops model_flops, Seconds gap, const StepGraph& step, const KernelProgram& program,
                 const std::vector<KernelCost>& costs, const Schedule& schedule, const Timeline& timeline, const MemoryUse& memory);

}  // namespace precog
