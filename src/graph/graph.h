// The one representation every pass reads and writes: tensors and operators in execution order.
// A forward graph from a frontend is precision-free (floating tensors are DType::model); the precision pass
// decides them, the training pass appends backward and optimizer, the parallel pass collectives.
// A graph is a few vectors and typed ids: it copies, compares and prints.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/id.h"
#include "base/units.h"
#include "graph/names.h"
#include "graph/shape.h"
#include "spec/dtype.h"

namespace precog {

using TensorId = Id<struct TensorTag>;
using OpId = Id<struct OpTag>;
using RecipeId = Id<struct RecipeTag>;

enum class OpKind : std::uint8_t {
#define PRECOG_OPERATOR(name) name,
#include "graph/operators.def"
#undef PRECOG_OPERATOR
  kCount
};

// PyTorch's CUDA autocast lists (aten/src/ATen/autocast_mode.h).
enum class Autocast : std::uint8_t {
  lower,        // inputs cast to the lower type
  fp32,         // inputs cast to fp32
  fp32_result,  // asked for an fp32 result (softmax, sum): fp16 inputs are read by the kernel itself, bf16 ones cast
  promote,      // inputs cast to their widest type
  none          // runs in the types it is given, with ordinary promotion
};

// gathered: a parameter as it arrives from its shards; its memory is counted where the gather makes it.
enum class Role : std::uint8_t { activation, input, parameter, buffer, gradient, gradient_bucket, gathered };

struct Tensor {
  Shape shape;
  DType dtype = DType::model;
  Role role = Role::activation;
  bool requires_grad = false;
  TensorId storage;  // whose memory this is: itself, or the tensor it is a view or an in-place result of
  NameId name;       // parameters, buffers and inputs have one

  friend bool operator==(const Tensor&, const Tensor&) = default;
};

// When in the step an operator runs. Micro-batches repeat everything before gradient_sync.
enum class Phase : std::uint8_t { forward, recompute, backward, accumulate, gradient_sync, loss_scaling, optimizer };
// How often a phase runs in a step of so many micro-batches: its end once, accumulation in all but the first, the rest in each.
constexpr std::int64_t runs_per_step(Phase phase, std::int64_t micro_batches) {
  if (phase >= Phase::gradient_sync) return 1;
  return phase == Phase::accumulate ? micro_batches - 1 : micro_batches;
}

// Matrix products are described by their own extents, whatever the rank of the tensors: out[m,n] += a[m,k] b[k,n].
struct GemmAttributes {
  std::int64_t batch = 1, m = 0, n = 0, k = 0;
  bool bias = false;
  bool transposed_a = false;  // the first operand is stored [k,m], as for the gradient of a weight
  bool accumulates = false;   // adds to what its result holds already
  friend bool operator==(const GemmAttributes&, const GemmAttributes&) = default;
};
// One to three image axes, the last ones of the tensors. What is not there counts as 1 (padding 0).
struct ConvAttributes {
  std::array<std::int64_t, 3> kernel{1, 1, 1}, stride{1, 1, 1}, padding{0, 0, 0}, dilation{1, 1, 1};
  int axes = 2;
  std::int64_t groups = 1;
  bool transposed = false;  // ConvTranspose: the data gradient of an ordinary convolution, run forwards
  static ConvAttributes square(std::int64_t kernel, std::int64_t stride, std::int64_t padding, std::int64_t groups) {
    return {{kernel, kernel, 1}, {stride, stride, 1}, {padding, padding, 0}, {1, 1, 1}, 2, groups, false};
  }
  std::int64_t volume() const { return kernel[0] * kernel[1] * kernel[2]; }
  friend bool operator==(const ConvAttributes&, const ConvAttributes&) = default;
};
enum class AttentionBackend : std::uint8_t { undecided, flash, cudnn, memory_efficient, math };
struct AttentionAttributes {
  std::int64_t batch = 1, heads = 1, kv_heads = 1, q_len = 1, kv_len = 1, head_dim = 1, value_dim = 1;
  bool causal = false, mask = false, dropout = false;
  bool broadcast = false;  // keys and values of one head go to all queries without enable_gqa: no fused kernel takes that
  bool across = false;     // an operand's rows do not lie side by side: nor that
  enum class Ring : std::uint8_t { none, first, later };  // a step of context parallelism's ring
  Ring ring = Ring::none;
  // Operands (q, k, v) whose batch and head axes do not form one: copied where no fused kernel runs. A mask not contiguous
  // along its last axis is read by no memory-efficient kernel.
  std::array<bool, 3> scattered{};
  bool mask_scattered = false;
  AttentionBackend backend = AttentionBackend::undecided;
  friend bool operator==(const AttentionAttributes&, const AttentionAttributes&) = default;
};
struct CastAttributes {
  DType to = DType::model;  // a type the model's code names ...
  TensorId like;            // ... or the type of this tensor (`.to(x.dtype)`), which stays symbolic
  bool by_autocast = false;
  // The door of an operator that is written as its parts: a cast by this list when autocasting, nothing otherwise.
  Autocast door = Autocast::none;
  friend bool operator==(const CastAttributes&, const CastAttributes&) = default;
};
enum class ViewKind : std::uint8_t { reshape, transpose, slice, expand };
// A view whose gradient arrives in another order of axes: autograd copies it before it can be looked at that way.
enum class GradientCopy : std::uint8_t { none, fp32, always };  // fp32: the 16-bit attention kernels answer in their query's order
struct ViewAttributes {
  ViewKind kind = ViewKind::reshape;
  GradientCopy gradient = GradientCopy::none;
  friend bool operator==(const ViewAttributes&, const ViewAttributes&) = default;
};
// One call of a recurrent layer over a whole sequence, as cuDNN takes it.
struct RnnAttributes {
  std::int64_t batch = 1, steps = 1, input = 1, hidden = 1, layers = 1, directions = 1;
  int gates = 4;             // LSTM 4, GRU 3, plain 1
  bool batch_first = false;  // operands are [batch, steps, width]; the library's are [steps, batch, width]
  friend bool operator==(const RnnAttributes&, const RnnAttributes&) = default;
};
// Rows of a normalisation over several trailing axes, or the groups of a group norm.
struct NormAttributes {
  std::int64_t width = 0;   // elements of a row; 0: the last axis
  std::int64_t groups = 0;  // group_norm
  bool training = true;     // batch_norm: statistics of the batch, or the running ones
  friend bool operator==(const NormAttributes&, const NormAttributes&) = default;
};
struct PoolAttributes {
  std::int64_t kernel = 1, stride = 1, padding = 0;
  friend bool operator==(const PoolAttributes&, const PoolAttributes&) = default;
};
// One call over many tensors: the foreach and fused forms of optimizers, and the loss scaler's unscale.
struct MultiTensorAttributes {
  std::int64_t tensors = 0, elements = 0, launches = 0;
  int element_bytes_moved = 0;  // per element, reads and writes together
  bool one_by_one = false;      // not one call at all but a loop over the tensors (foreach=False)
  friend bool operator==(const MultiTensorAttributes&, const MultiTensorAttributes&) = default;
};
// A copy of many tensors into one buffer or out of it, as sharded data parallelism makes them around its collectives.
struct ShardCopyAttributes {
  std::int64_t elements = 0, launches = 1;
  Bytes read, written;
  friend bool operator==(const ShardCopyAttributes&, const ShardCopyAttributes&) = default;
};
struct CollectiveAttributes {
  // Of the whole message: what an all_gather leaves on each rank, what a reduce_scatter or an all_to_all takes from each. 0: the
  // operand's or the result's own, whatever type the recipe gives it (message_bytes in operator.h).
  Bytes bytes;
  int participants = 1;  // of a send_recv: the length of the chain of ranks, each sending to the next
  int stride = 1;        // how far apart neighbouring ranks of the group are in the order of all ranks
  // Of an all_gather: every rank goes on with the same work, so that it keeps its part of the gradient instead of summing.
  bool gradient_is_whole = false;
  // Of an all_to_all whose rows are copies: so many of each row, any rank as likely as another, and one for each node is enough. 0: a
  // message to each rank, whatever is in it.
  int copies = 0;
  friend bool operator==(const CollectiveAttributes&, const CollectiveAttributes&) = default;
};
// A copy to another layout that is made at some types only (fused attention kernels leave their results in different orders), and
// whether its gradient has to be copied back.
enum class OnlyFor : std::uint8_t { any, fp32, half };
struct CopyAttributes {
  OnlyFor only = OnlyFor::any;
  bool copies_gradient = false;
  friend bool operator==(const CopyAttributes&, const CopyAttributes&) = default;
};
using Attributes = std::variant<std::monostate, CopyAttributes, GemmAttributes, ConvAttributes, AttentionAttributes, CastAttributes,
                                ViewAttributes, RnnAttributes, NormAttributes, PoolAttributes, MultiTensorAttributes, CollectiveAttributes,
                                ShardCopyAttributes>;

struct Op {
  OpKind kind{};
  Phase phase = Phase::forward;
  DType math = DType::model;  // the arithmetic it runs in
  Autocast autocast = Autocast::none;  // what autocast does at its door; frontends say it, from the definition or by name
  bool in_place = false;      // the first output is the first input's memory
  bool strided = false;       // a large operand is not laid out contiguously
  bool on_communication_stream = false;  // no collective itself, but in the queue of those
  std::int16_t block = -1;    // repeated layer it belongs to: the unit of recomputation; -1 outside any
  std::uint32_t first_edge = 0;
  std::uint16_t input_count = 0, output_count = 0;
  NameId module;              // path of the module whose code calls it
  NameId label;               // a kernel's own name where the kind is generic (pointwise_backward: "gelu"; pointwise: "erf")
  NameId reason;              // why the precision pass chose this arithmetic
  OpId origin;                // of backward and recomputation: the forward operator that it runs for
  RecipeId recipe;            // its gradient as recorded; without one the definition's
  RecipeId recipe_16bit;      // the one to take where its result is of a 16-bit type, if that differs
  Attributes attributes;

  friend bool operator==(const Op&, const Op&) = default;
};

// The gradient of an operator as the framework ran it: a straight line of operators over its gradients, operands and
// results. A floating type `model` in it is the type in which the operator itself computed. Several operators may share one.
struct RecipeOperand {
  enum class From : std::uint8_t { gradient, input, output, made };
  From from = From::gradient;
  std::uint32_t index = 0;  // which gradient, operand or result; `made`: which of the tensors the recipe has made so far
  friend bool operator==(const RecipeOperand&, const RecipeOperand&) = default;
};
struct RecipeTensor {
  Shape shape;
  DType dtype = DType::model;
  std::int32_t of = -1;  // the operand whose memory it shares
  friend bool operator==(const RecipeTensor&, const RecipeTensor&) = default;
};
struct RecipeOp {
  OpKind kind{};
  NameId label;
  bool in_place = false, strided = false;
  Attributes attributes;
  std::vector<RecipeOperand> inputs;
  std::vector<RecipeTensor> outputs;
  friend bool operator==(const RecipeOp&, const RecipeOp&) = default;
};
struct RecipeGift {
  std::uint32_t input = 0;  // the operand whose gradient it is
  RecipeOperand gradient;
  friend bool operator==(const RecipeGift&, const RecipeGift&) = default;
};
struct Recipe {
  std::vector<RecipeOp> ops;
  std::vector<RecipeGift> gifts;  // in the order in which the framework hands them out
  friend bool operator==(const Recipe&, const Recipe&) = default;
};

class Graph {
 public:
  Store<TensorId, Tensor> tensors;
  Store<OpId, Op> ops;
  Store<RecipeId, Recipe> recipes;

  std::span<const TensorId> inputs(const Op& op) const { return {edges_.data() + op.first_edge, op.input_count}; }
  std::span<const TensorId> outputs(const Op& op) const {
    return {edges_.data() + op.first_edge + op.input_count, op.output_count};
  }
  TensorId input(const Op& op, std::size_t index) const { return inputs(op)[index]; }
  TensorId output(const Op& op, std::size_t index = 0) const { return outputs(op)[index]; }

  TensorId add_tensor(Tensor tensor);  // a tensor without a storage owns its memory
  OpId add_op(Op op, std::span<const TensorId> inputs, std::span<const TensorId> outputs);

  NameId intern(std::string_view name) { return names_->intern(name); }
  std::string_view name(NameId id) const { return id.valid() ? (*names_)[id] : std::string_view(); }
  // A new graph that shares this one's names and has its recipes (ids stay valid), for passes that rebuild.
  Graph empty_with_names() const;

  Bytes bytes(TensorId id) const {
    const Tensor& tensor = tensors[id];
    return {(tensor.shape.elements() * bits_of(tensor.dtype) + 7) / 8};
  }

 private:
  std::vector<TensorId> edges_;
  std::shared_ptr<Names> names_ = std::make_shared<Names>();  // copies share it too
};

std::string_view to_text(OpKind kind);
// A kind that stands for many operators: the label says which.
bool is_generic(OpKind kind);
// What reports call it: the framework's name where the kind is a generic one.
std::string_view name_of(const Graph& graph, const Op& op);
std::string_view to_text(Phase phase);
std::string_view to_text(AttentionBackend backend);
std::string to_text(const Graph& graph, TensorId tensor);
std::string to_text(const Graph& graph, const Op& op);
std::string to_text(const Graph& graph);

// Structural promises: ids exist, every activation is made before it is read, made once, in-place results share
// memory. Returns the first broken one, or an empty text.
std::string verify(const Graph& graph);

// Parameters counted once each, however many uses.
std::int64_t parameter_count(const Graph& graph);

}  // namespace precog
