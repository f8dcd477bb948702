// What torch.compile makes of a step: which operators Inductor puts into one kernel, and what it recomputes in backward.
// Takes the step's graph as eager PyTorch would run it; returns the kernels that replace its pointwise operators, copies,
// reductions and normalisations. Matrix products, convolutions, attention, sorting, recurrent layers and collectives stay
// library calls, the optimizer stays eager. Rules and their sources: docs/model_notes/compile_mode.md. No costs here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "kernel/megatron_softmax.h"
#include "spec/plan.h"

namespace precog {

enum class FusedKind : std::uint8_t {
  pointwise,  // each element by itself
  rows,       // reductions along rows and what surrounds them, a row at a time
  columns,    // sums over rows, in stages where few results leave the GPU idle
  scatter     // adds rows to places of a table, with what comes before it
};

// What a kernel holds that makes it slower than moving its operands.
struct FusedTraits {
  bool transcendental = false, random = false;
  std::int64_t taps = 0;     // of a pooling window, that each result looks at
  std::int64_t windows = 0;  // that each pixel of a pooling's gradient looks at
};

struct FusedRead {
  TensorId tensor;
  Bytes bytes;  // what of it is read: a slice, or the rows an index asks for
  bool remade = false;  // not as forward made it, but as a kernel of backward made it again
};

struct FusedKernel {
  FusedKind kind = FusedKind::pointwise;
  std::vector<OpId> ops;              // that decide what is computed, in order; cheap ones inside them are not listed
  std::vector<FusedRead> reads;       // each tensor once
  std::vector<TensorId> writes;       // what anybody else reads
  std::vector<TensorId> biased;       // results of convolutions that it writes back with their bias
  std::int64_t rows = 1, row_length = 1;
  Bytes scratch_read, scratch_written;  // partial sums, and places that are added to
  int stages = 1;                     // launches one after the other; all but the first are small
  bool transposes = false;            // writes in another order than it reads
  FusedTraits traits;
  // Sums over columns that ride along in a kernel over rows: each is finished by a reduction of the framework's own.
  int finished_sums = 0;
  bool narrowed_sums = false;         // and then cast, in one more small kernel each
  Bytes partial_sums;                 // what each of those reads
  bool counted_sums = false;          // by several blocks for one result, which meet through counters
};

// Kernels that a stack wrote by hand, where a compiler would put more into one or has no conditions.
struct OwnKernels {
  bool norms = false;              // Megatron-LM's and Transformer Engine's
  bool softmax_and_loss = false;   // Megatron-LM's
  FusedSoftmaxRule softmax;        // which scores its kernel takes
  bool products = false;           // libraries' products of the extents that they have: nobody rounds them up
};

struct FusionPlan {
  struct PerOp {
    bool compiled = false;               // belongs to one of the two compiled graphs
    bool absorbed = false;               // computed inside fused kernels, or a view: no call of its own
    std::vector<std::int32_t> kernels;   // launched where this operator stands
    bool adds_bias = false;              // a convolution whose bias no kernel that reads it can add
    bool padded = false;                 // a product whose extents Inductor rounds up to what the library likes
    std::vector<TensorId> copied;        // operands that this copies first
    std::vector<TensorId> turned;        // operands and results copied into another order of axes
  };
  std::vector<PerOp> ops;                // one per operator of the graph
  std::vector<FusedKernel> kernels;
  OwnKernels own;
  // Of each tensor that owns memory: the last operator to touch it, -1 where it never reaches memory.
  std::vector<std::int32_t> last_use;
};

// How parameters and inputs lie, and how the compiled graphs' images do: decides along which axis batch norm's sums run, and
// what has to be turned on the way in and out.
struct ImageLayout {
  MemoryFormat given = MemoryFormat::contiguous, compiled = MemoryFormat::contiguous;
};
// `sms` decides where a reduction is split.
FusionPlan plan_fusion(const Graph& step_graph, int sms, ImageLayout layout = {}, OwnKernels own = {});
// Of how many pieces each column is that the first stage of a sum leaves to the next.
std::int64_t column_pieces(std::int64_t results, std::int64_t length, int sms);
// Into how many kernels Inductor splits a sum of `length` values for each of `results` columns, and along each of `rows` rows.
int column_stages(std::int64_t results, std::int64_t length, int sms);
int row_stages(std::int64_t rows, std::int64_t length, int sms);
// Where pooling found its maxima is kept as a place in the window, one byte each (prims._low_memory_max_pool_with_offsets).
void compact_indices(Graph& step_graph);
// Images become channels-last when Inductor judges that its convolutions gain by it.
MemoryFormat compiled_memory_format(const Graph& step_graph, MemoryFormat asked);

std::string to_text(const FusionPlan& plan, const Graph& graph);
// Promises: what a kernel or a library call reads was given, or made by a library call, or written by exactly one kernel; the
// writer does not read what depends on it. Returns the first broken one, or an empty text.
std::string verify(const FusionPlan& plan, const Graph& graph);

}  // namespace precog
