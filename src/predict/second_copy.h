// ZeRO++'s second copy of the weights (hpZ) over several micro-batches: it is made in a step's first forward and dropped after the update
// (deepspeed/runtime/zero/stage3.py, invalidate_secondary_tensor), so that later forwards gather from it too, as backward does. One micro-batch stands
// for all: each of its forward's gathers costs their mean.
#pragma once

#include <vector>

#include "cost/cost.h"
#include "graph/graph.h"
#include "kernel/kernel.h"

namespace precog {

void gather_from_second_copy(const Graph& graph, const KernelProgram& program, int sharing, std::int64_t micro_batches, const ClusterSpec& cluster, const GpuSpec& gpu,
                             std::vector<KernelCost>& costs);

}  // namespace precog
