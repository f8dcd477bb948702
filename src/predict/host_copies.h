// Times of copies between a GPU and its host, which no kernel cost knows: they are the link's. Of an optimizer that is kept on the
// host (parallel/offload_optimizer.cpp). What the host itself needs for the update is the schedule's (schedule/host_times.cpp).
#pragma once

#include <vector>

#include "cost/cost.h"
#include "kernel/kernel.h"
#include "spec/host_spec.h"

namespace precog {

// What one GPU's copies reach: its link, and its part of the host's memory where `sharing` GPUs copy at the same time.
BytesPerSecond host_link(const GpuSpec& gpu, const HostSpec& host, int sharing);

void price_host_copies(const Graph& graph, const KernelProgram& program, BytesPerSecond link, std::vector<KernelCost>& costs);

}  // namespace precog
