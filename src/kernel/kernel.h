// GPU kernels as the framework launches them: the unit that is costed.
// The kernel stage turns each operator of the step into the library calls eager PyTorch makes for it, or groups of them into
// the kernels that a compiler writes;
// what a kernel is described by here is all that a cost model may look at.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "graph/graph.h"
#include "graph/operator.h"
#include "spec/gpu_spec.h"
#include "spec/plan.h"
#include "spec/scores.h"

namespace precog {

struct GemmShape {  // out[batch,m,n] from a[batch,m,k] and b[batch,k,n]; grouped products are batches of their mean size
  std::int64_t batch = 1, m = 0, n = 0, k = 0;
  bool transposed_a = false;  // a is stored [k,m]: the layout of a weight's gradient
  bool a_turned = false, b_turned = false;  // lies the other way round than it is multiplied, as far as shapes and views tell
  bool bias = false;                        // added by the same kernel
  bool row_scales = false;                  // fp8: a scale for each row, not one for all
  bool careful_sums = false;                // fp8: gradients, which libraries do not sum in the tensor cores' own width
  friend bool operator==(const GemmShape&, const GemmShape&) = default;
};

enum class ConvDirection : std::uint8_t { forward, data_gradient, weight_gradient };

struct ConvShape {
  ConvDirection direction = ConvDirection::forward;
  std::int64_t batch = 1, in_channels = 0, out_channels = 0, in_h = 0, in_w = 0, out_h = 0, out_w = 0;
  std::int64_t kernel_h = 1, kernel_w = 1, stride = 1, groups = 1;  // a third axis is folded into h; stride: the largest
  bool channels_last = false;  // of the tensors as the framework has them; layout changes are kernels of their own
  friend bool operator==(const ConvShape&, const ConvShape&) = default;
  std::int64_t stride_volume = 0;  // the strides multiplied; 0: stride along both axes
  bool native = false;  // depthwise: PyTorch's own kernel, not cuDNN's
  std::int64_t dilation = 1;  // the largest
  std::int64_t in_d = 1, kernel_d = 1;  // of what is folded into h: the first of three axes
  int axes = 2;
  bool by_fourier = false;  // the library transforms images and filters, multiplies and transforms back (fourier_way, library_rules.h)
  bool turned_groups = false;  // of one group, between generic transpositions of image and result (ConvHelpers::turns, library_rules.h)
  std::int64_t strides() const { return stride_volume > 0 ? stride_volume : stride * stride; }
  bool depthwise() const { return groups > 1 && groups == in_channels; }
};

struct AttentionShape {
  std::int64_t batch = 1, heads = 1, kv_heads = 1, q_len = 1, kv_len = 1, head_dim = 1, value_dim = 1;
  bool causal = false, backward = false;
  AttentionBackend backend = AttentionBackend::flash;
  bool dropout = false, mask = false;
  friend bool operator==(const AttentionShape&, const AttentionShape&) = default;
};

// Kernels that only move memory, by how well they do it.
enum class MemoryPattern : std::uint8_t {
  pointwise, broadcast, activation, dropout, cast, copy, permute, transpose, layout, reduction, bias_gradient, norm_forward,
  norm_backward, norm_parameters, batch_norm_forward, batch_norm_backward, native_batch_norm_forward, native_batch_norm_backward,
  softmax_forward, softmax_backward, loss, embedding,
  embedding_backward, pooling_forward, pooling_backward, index, multi_tensor, fill, kCount
};  // norm_parameters: gradients of a layer norm's weight and bias; permute: a copy to another order of axes that keeps the innermost; transpose: one that does not; layout: cuDNN's NCHW <-> NHWC copies around a convolution; native: PyTorch's own batch norm where cuDNN's is not used

struct MemoryShape {
  MemoryPattern pattern = MemoryPattern::pointwise;
  std::int64_t rows = 1, row_length = 1;  // of a row-wise kernel: how many rows, how long; their product is the large
                                          // operand's elements for every pattern
  bool channels_last = false;             // batch norm, pooling: how the image is laid out; reductions: sums down the columns
  std::int64_t part = 0;                  // what else tells two kernels of a pattern apart, 0: nothing. Copies that turn: the
                                          // source's innermost extent; joined tensors: how many; layout: channels; pooling: the
                                          // window; indexing: how many places; broadcasts: elements of the smallest operand;
                                          // reductions: the innermost run, kept or summed; generated: numbers drawn
  std::int32_t axes = 0;                  // of the index space where operands do not lie side by side in the same order (layouts.h)
  std::int32_t across = 0;                // per cent of the bytes that are read or written across memory, not along it
  friend bool operator==(const MemoryShape&, const MemoryShape&) = default;
};

enum class Collective : std::uint8_t { all_reduce, all_gather, reduce_scatter, all_to_all, send_recv };

struct CollectiveShape {
  Bytes bytes;  // the whole message; of an all_gather and a reduce_scatter each rank's share is 1/participants
  int participants = 1;
  Collective kind = Collective::all_reduce;
  int stride = 1;  // how far apart the group's ranks are; as many groups run at the same time
  int copies = 0;  // of each row of an all_to_all, of which a node gets one (CollectiveAttributes)
  friend bool operator==(const CollectiveShape&, const CollectiveShape&) = default;
};

using KernelShape = std::variant<MemoryShape, GemmShape, ConvShape, AttentionShape, CollectiveShape>;

// What arithmetic does to numbers that have mostly become zero.
enum class Zeros : std::uint8_t { none, divided, rooted };

struct Kernel {
  KernelShape shape;
  DType math = DType::fp32;     // arithmetic: decides which unit and peak (tf32 on fp32 storage)
  DType input = DType::fp32;    // storage of the main operand
  DType output = DType::fp32;
  bool emulated = false;        // the GPU has no such arithmetic: runs through fp32 with conversions
  Flops flops;
  Bytes read, written;          // least traffic
  std::int32_t launches = 1;    // identical kernels this stands for, the totals above shared between them
  std::string_view name;        // e.g. "addmm", "layer_norm_backward"; lives as long as the program
  bool estimated = false;       // costed by a pattern that was fitted to other kernels than its own
  bool fused = false;           // written by a compiler from several operators
  Zeros zeros = Zeros::none;
  std::int64_t idle_blocks = 0;  // launched with nothing to do
  bool unknown = false;         // nobody knows the operator: costed by the bytes it moves
};

// One operator's call as the host makes it, with the kernels it puts on the stream.
struct Call {
  OpId op;
  Phase phase = Phase::forward;
  Family family = Family::pointwise;
  std::uint32_t first_kernel = 0, kernel_count = 0;
  bool collective = false;     // its kernels go to the communication stream: a collective, or a copy that belongs to one
  bool waits_for_gpu = false;  // the host reads a value back
  Bytes workspace;             // taken while it runs: layout copies, library scratch
  bool compiled = false;       // issued by a compiled graph's program, not by the framework's dispatcher
};

struct KernelProgram {
  std::vector<Kernel> kernels;
  std::vector<Call> calls;  // one per operator; what runs inside another's kernel has none of its own
  // Where compiled: of each tensor that owns memory the last call to touch it, -1 where it never reaches memory.
  std::vector<std::int32_t> last_use;
  bool dispatched = false;   // fused kernels are operators of the framework's (a stack's own), issued one by one as others are
  Scores scores = Scores::returned;  // compiled: what becomes of them
  bool cuda_graphs = false;  // compiled calls are recorded once and replayed, a graph at a time
};

struct FusionPlan;

// What PyTorch launches for a step, operator by operator: eagerly, or with the fused kernels of a plan where there is one.
// `memory_format` is how images are laid out; `strides`: of operands that are known to lie otherwise than the graph's views say.
KernelProgram make_kernels(const Graph& graph, const GpuSpec& gpu, MemoryFormat memory_format, const FusionPlan* fusion = nullptr,
                           const std::unordered_map<std::int32_t, Shape>* strides = nullptr);

std::string_view to_text(MemoryPattern pattern);
std::string_view to_text(ConvDirection direction);
std::string_view to_text(Collective collective);
std::string to_text(const Kernel& kernel);
std::string to_text(const KernelProgram& program, const Graph& graph);

}  // namespace precog
