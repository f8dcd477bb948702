// Writes a forward graph the way a model's code calls the framework: one method per operator, shapes inferred,
// module paths kept. Frontends use it; passes do not.
#pragma once

#include <string>
#include <span>
#include <string_view>
#include <vector>

#include "graph/graph.h"

namespace precog {

class GraphBuilder {
 public:
  // Everything built while the Scope lives belongs to the module path extended by `name`.
  class Scope {
   public:
    Scope(GraphBuilder& builder, std::string_view name);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    GraphBuilder& builder_;
    std::size_t old_length_;
    NameId old_module_;
  };
  [[nodiscard]] Scope module(std::string_view name) { return Scope(*this, name); }
  // Repeated layers, numbered from 0: the unit of recomputation (and later of pipeline stages). -1 ends it.
  void set_block(int block) { block_ = static_cast<std::int16_t>(block); }
  // By layer: not built, because it equals one before it that is. What follows reads what that one made.
  void leave_out(std::vector<char> layers) { left_out_ = std::move(layers); }
  // Begins this layer, where it is built.
  bool begin_layer(std::int64_t layer) {
    set_block(static_cast<int>(layer));
    return static_cast<std::size_t>(layer) >= left_out_.size() || !left_out_[static_cast<std::size_t>(layer)];
  }
  // What is built while this is set runs when backward is done (a trainer's metrics), without gradients of its own.
  void set_after_backward(bool after) { after_backward_ = after; }

  TensorId input(std::string_view name, Shape shape, DType dtype = DType::model);
  TensorId parameter(std::string_view name, Shape shape);  // the name is relative to the current module
  TensorId buffer(std::string_view name, Shape shape, DType dtype = DType::model);

  // matrix products
  TensorId linear(TensorId x, TensorId weight, TensorId bias = {});             // weight[out, in]
  TensorId linear_layer(std::string_view name, TensorId x, std::int64_t out, bool bias = true);  // makes its parameters
  TensorId conv1d_layer(std::string_view name, TensorId x, std::int64_t out);   // GPT-2's: weight[in, out], always a bias
  // Batched over leading axes. `autocast` false: inside a region that switches autocast off, so it runs in a's type.
  TensorId matmul(TensorId a, TensorId b, bool autocast = true);
  TensorId grouped_linear(TensorId x, TensorId weight, std::int64_t experts_hit);  // x[tokens,in], weight[experts,out,in]
  TensorId conv2d_layer(std::string_view name, TensorId x, std::int64_t out, std::int64_t kernel, std::int64_t stride = 1,
                        std::int64_t padding = 0, std::int64_t groups = 1, bool bias = false);
  // q[b,h,s,d], k[b,hk,t,d], v[b,hk,t,dv] -> [b,h,s,dv]. Written out, it is the model's own products, softmax and dropout
  // (transformers' attn_implementation="eager", Megatron's CoreAttention) instead of one library call.
  void write_out_attention(bool write_out) { writes_out_attention_ = write_out; }
  TensorId attention(TensorId q, TensorId k, TensorId v, bool causal, TensorId mask = {}, double dropout = 0);

  // normalisation, softmax, losses
  // strided: x is not contiguous, so each way the operator makes a copy of its own first.
  TensorId layer_norm_layer(std::string_view name, TensorId x, bool bias = true, bool strided = false);
  TensorId batch_norm_layer(std::string_view name, TensorId x);
  TensorId softmax(TensorId x);
  TensorId log_softmax(TensorId x);
  TensorId nll_loss(TensorId log_probabilities, TensorId target);
  TensorId cross_entropy(TensorId logits, TensorId target);  // log_softmax, then nll_loss: where autocast decides
  // One kernel each way that keeps nothing but the logits in their own type (flash_attn.losses): losses of all rows, and their mean.
  TensorId fused_cross_entropy(TensorId logits, TensorId target);

  // pointwise
  TensorId unary(OpKind kind, TensorId x, bool in_place = false);   // relu, gelu, silu, tanh, neg, rsqrt, pow ...
  TensorId binary(OpKind kind, TensorId a, TensorId b, bool in_place = false);  // add, sub, mul, div
  TensorId relu(TensorId x, bool in_place = false) { return unary(OpKind::relu, x, in_place); }
  TensorId gelu(TensorId x) { return unary(OpKind::gelu, x); }
  TensorId silu(TensorId x) { return unary(OpKind::silu, x); }
  TensorId add(TensorId a, TensorId b, bool in_place = false) { return binary(OpKind::add, a, b, in_place); }
  TensorId mul(TensorId a, TensorId b) { return binary(OpKind::mul, a, b); }
  TensorId masked_fill(TensorId x, TensorId mask);
  TensorId dropout(TensorId x, double probability);  // 0: nothing is built, as nn.Dropout's fast path
  TensorId integer_op(std::initializer_list<TensorId> inputs, Shape shape, DType dtype = DType::int64);  // masks, positions

  // Anything of the framework's by its name (framework_names.h); of a name nobody knows, an `unknown` operator. Kinds with
  // attributes of their own have methods of their own. Without a recorded gradient nothing flows back through most of these.
  TensorId by_name(std::string_view name, std::span<const TensorId> inputs, Shape shape, DType dtype = DType::model);

  // movement
  TensorId cast_to(TensorId x, DType dtype);         // `.float()`, `.to(torch.float32)`
  TensorId cast_like(TensorId x, TensorId like);     // `.to(like.dtype)`: stays symbolic
  TensorId view(TensorId x, Shape shape, ViewKind kind = ViewKind::reshape, GradientCopy gradient = GradientCopy::none);
  TensorId reshape(TensorId x, Shape shape) { return view(x, shape); }
  TensorId transpose(TensorId x, int a, int b);
  TensorId slice(TensorId x, int axis, std::int64_t length);   // one slice along an axis: a view whose backward pads
  TensorId expand(TensorId x, Shape shape);
  std::vector<TensorId> split(TensorId x, int axis, const std::vector<std::int64_t>& lengths);
  TensorId contiguous(TensorId x, OnlyFor only = OnlyFor::any);  // a copy; call it where the framework really copies
  TensorId cat(const std::vector<TensorId>& parts, int axis);
  TensorId embedding(TensorId weight, TensorId indices);
  TensorId embedding_layer(std::string_view name, TensorId indices, std::int64_t rows, std::int64_t width);
  TensorId index_select(TensorId x, TensorId index, Shape shape);
  TensorId permute_rows(TensorId x, TensorId index, TensorId inverse, Shape shape);  // graph/permutation.h
  TensorId index_add(TensorId base, TensorId index, TensorId source);
  std::pair<TensorId, TensorId> topk(TensorId x, std::int64_t k);  // over the last axis: values, indices
  void read_back(TensorId x);  // the code looks at a value (`if x:`, `.item()`): the host waits for the GPU

  // reductions and pooling
  TensorId mean(TensorId x, int axis, bool keep = true);
  TensorId sum(TensorId x, int axis, bool keep = true);
  TensorId max_pool2d(TensorId x, std::int64_t kernel, std::int64_t stride, std::int64_t padding);
  TensorId adaptive_avg_pool2d(TensorId x, std::int64_t out);

  // The operator just built reads operands in different orders of axes: no kernel of the simple kind.
  void mark_strided();

  Shape shape(TensorId id) const { return graph_.tensors[id].shape; }  // by value: the next operator moves the tensors
  Graph finish() &&;  // the built graph; the last operator's first output is the loss

 private:
  TensorId apply(Op op, std::span<const TensorId> inputs, Tensor output);
  void apply_to(Op op, std::span<const TensorId> inputs, std::span<const TensorId> outputs);
  TensorId written_out_attention(TensorId q, TensorId k, TensorId v, bool causal, TensorId mask, double dropout);
  TensorId make(Tensor tensor, std::span<const TensorId> inputs);
  std::string qualified(std::string_view name) const;
  Op new_op(OpKind kind, Attributes attributes = {}) const;

  Graph graph_;
  std::string path_;
  NameId module_;
  std::int16_t block_ = -1;
  bool after_backward_ = false;
  bool writes_out_attention_ = false;
  std::vector<char> left_out_;
};

}  // namespace precog
