// Between which bytes a step's peak lies, without the allocator: what is alive at each moment, each block as large as it was asked for
// (rounded), and with the most that the allocator may add to it. A hundredth of a replay's work: for who has several steps and
// wants the largest peak only (a pipeline's stages). No segments, no categories.
#pragma once

#include "graph/graph.h"
#include "memory/lifetimes.h"
#include "spec/plan.h"

namespace precog {

struct PeakBounds {
  Bytes low, high;
  bool at_work = false;  // certainly not in what ends the step (loss scaling, the optimizer)
};

PeakBounds peak_bounds(const MemoryTrace& trace, const Graph& graph, Allocator allocator);

}  // namespace precog
