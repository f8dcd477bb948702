// How values flow through the two graphs that are compiled, as the fusion pass sees it: views looked through, equal casts
// made one, each operator given the part it plays in a fused kernel; and what backward keeps of forward. Internal to fuse.cpp.
#pragma once

#include <cstdint>
#include <vector>

#include "kernel/fuse.h"

namespace precog {

enum class Part : std::uint8_t {
  view,                 // no work: another name for a value
  library,              // a call that Inductor leaves to a library, or anything outside the compiled graphs
  pointwise,
  window,               // pooling: pointwise, but reads neighbours, so that its operand must be in memory
  rows,                 // reduces along rows; results per row or per element
  columns,              // reduces over rows, or everything
  batch_norm,           // columns first (statistics), then each element
  batch_norm_backward,  // columns first (two sums, the weights' gradients), then each element
  norm_backward,        // rows for the input's gradient, columns for the weights'
  scatter               // adds rows to a table
};

struct Flow {
  enum Where : std::uint8_t { forward, backward, outside };
  std::vector<TensorId> value;                     // per tensor: the value it is a view of
  std::vector<std::int32_t> maker;                 // per tensor that is a value: the operator that makes it, -1 if given
  std::vector<std::vector<std::int32_t>> readers;  // per value: operators other than views
  std::vector<Part> part;                          // per operator
  std::vector<Where> where;                        // per operator
};

Flow follow_values(const Graph& graph, OwnKernels own = {});

// A sum over what lies before and behind the second axis: an image's over all but its channels.
bool keeps_middle(const Graph& graph, const Op& op);

// Elements of a row, of an operator that reduces along rows.
std::int64_t row_length(const Graph& graph, const Op& op);

// The forward values that backward reads from memory; others that it needs it recomputes from these. What AOTAutograd's
// partitioner decides by a minimum cut is decided here one value at a time, last first.
std::vector<char> saved_values(const Graph& graph, const Flow& flow);

}  // namespace precog
