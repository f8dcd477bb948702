// How much of each kernel's traffic the GPU's L2 cache saves: reads of what was written or read so recently that little else has
// moved since. Kernels run alone, one after the other, as streams run them; weights, and activations saved for backward, have
// mostly gone by the time they are read again. Writes are never saved: each pushes something else out. Takes a step's kernels in order, returns a share from 0 to 1 for each; knows no times.
#pragma once

#include <vector>

#include "graph/graph.h"
#include "kernel/kernel.h"
#include "spec/gpu_spec.h"

namespace precog {

std::vector<double> cached_reads(const Graph& graph, const KernelProgram& program, const GpuSpec& gpu);

}  // namespace precog
