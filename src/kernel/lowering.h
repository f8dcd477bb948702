// The class behind make_kernels, for the files lower*.cpp only: it goes over the graph once, operator by operator. Each file lowers
// one kind of them; lower.cpp says which.
#pragma once

#include <vector>

#include "graph/framework_names.h"
#include "kernel/kernel.h"
#include "kernel/layouts.h"
#include "kernel/lower_fused.h"

namespace precog {

class Lowering {
 public:
  Lowering(const Graph& graph, const GpuSpec& gpu, MemoryFormat format, const FusionPlan* fusion, const KnownStrides* strides)
      : graph_(graph), gpu_(gpu), format_(format), fusion_(fusion), layouts_(graph, strides) {}
  // Images lie as they do in another's step, which must outlive this one.
  Lowering& lying_as(const Lowering& other) {
    traced_ = &other.layouts_;
    return *this;
  }
  KernelProgram run();

 private:
  // lower.cpp
  bool is_on_host(const Op& op);
  bool is_number_on_host(TensorId id) const;
  void put_fused(const FusionPlan::PerOp& planned);
  Kernel& put(std::string_view name, const Op& op, KernelShape shape, Work work);
  Kernel& memory(std::string_view name, const Op& op, MemoryPattern pattern, Bytes read, Bytes written, std::int64_t rows = 0, std::int64_t row_length = 0);
  Kernel& memory(std::string_view name, const Op& op, MemoryPattern pattern, std::int64_t rows = 0, std::int64_t row_length = 0);
  void clear(const Op& op, std::int32_t times = 1);
  Kernel& reduce(std::string_view name, const Op& op, Bytes read, Bytes written, std::int64_t outputs, std::int64_t length, const Walk& how);
  Kernel& reduce(std::string_view name, const Op& op, Bytes read, Bytes written, std::int64_t outputs, std::int64_t length, bool columns);
  void rows_of(Kernel& kernel, const Op& op, std::int64_t part = 0) const;
  std::int64_t smallest_input(const Op& op) const;
  std::int64_t places(const Op& op) const;
  std::string_view name_of(const Op& op) const;
  void row_wise(const Op& op, MemoryPattern pattern);
  void lower(const Op& op);
  std::int64_t walked_chunk(const Op& op, const MultiTensorAttributes& many);
  static std::int64_t usual_size(std::int64_t elements, std::int64_t tensors);
  static bool splits_step(const Op& op, const RnnAttributes& a);
  MemoryPattern pointwise_pattern(const Op& op) const;

  void walk_on_chip(const Op& op, const RnnAttributes& a, std::int64_t in_width);

  // lower_layout.cpp
  void copy_steps_first(const Op& op, std::size_t operand);
  void follow_answer(const Op& op);
  void copy_turned(std::string_view name, const Op& op, std::size_t operand);
  bool picks_last(const Op& op) const;
  void lay_steps_first(const Op& op);
  bool lies_last(TensorId id) const;
  bool runs_channels_last(const Op& op) const;
  void lay_last(const Op& op);
  static Shape kept_axes(const Shape& from, const Shape& to);
  void walk_operands(Kernel& kernel, const Op& op);
  void inherit_order(const Op& op, const std::vector<Shape>& operands);
  void lower_contiguous(const Op& op);
  bool joins_last(const Op& op) const;
  bool joins_types(const Op& op);
  void lower_cat(const Op& op);
  void lower_edge(const Op& op);
  std::int64_t ragged_run(const Op& op) const;
  std::int64_t idle_blocks_of_cat(const Op& op) const;
  TensorId widest_operand(const Op& op) const;
  void pass_on_planes(const Op& op);
  void prepare(const Op& op);
  void lower_copy(const Op& op);
  void note_order(const Op& op);
  MemoryPattern copy_pattern(const Op& op) const;
  std::int64_t source_row(const Op& op) const;
  void lower_shard_copy(const Op& op);
  bool has_gaps(TensorId id) const;
  void lie_alike(TensorId made, TensorId pattern);
  bool copy_inside(const Op& op, std::size_t operand, std::string_view name);

  void lower_pooling(const Op& op);
  void lower_global_pooling(const Op& op, const Shape& image);

  // lower_conv.cpp
  bool transposes(const Op& op, const ConvAttributes& conv, const Shape& image, ConvDirection direction) const;
  static std::int64_t pixels(const Shape& image);
  bool native_depthwise(const Op& op, const Shape& image, const ConvAttributes& a) const;
  ConvShape conv_shape(const Op& op, ConvDirection direction, const Shape& x, const Shape& y, const ConvAttributes& a) const;
  void transpose_of(const Op& op, std::string_view name, Bytes bytes, int times, std::int64_t channels);
  void convolution(const Op& op, std::string_view name, const ConvShape& shape, const Work& work, bool layout, Bytes first, Bytes second);
  void helper(const Op& op, std::string_view name, Bytes read, Bytes written, int times);
  void lower_conv(const Op& op);
  void lower_conv_backward(const Op& op);
  bool transforms_weight_gradient(const Op& op, const ConvAttributes& a, const Shape& image) const;
  static Bytes transformed(const Shape& x, const Shape& y, const Shape& w);

  // lower_products.cpp
  void lower_quantize(const Op& op);
  void lower_recurrent(const Op& op);
  void lower_gemm(const Op& op);
  bool lies_turned(const Op& op, std::size_t operand, std::int64_t inner) const;
  void product(const Op& op, std::string_view name, const GemmShape& shape, std::int32_t times = 1);
  void lower_attention(const Op& op);
  void pad_mask(const Op& op, bool gradient);
  void pad_heads(const Op& op, bool before);
  void ring_pack(const Op& op, std::size_t keys);
  void ring_gradients(const Op& op);

  // lower_rows.cpp
  void lower_nll_loss(const Op& op);
  bool lower_alignment(const Op& op);
  void lower_softmax(const Op& op);
  void lower_loss(const Op& op);
  void lower_index(const Op& op);
  bool lower_sort(const Op& op);
  void lower_index_gradient(const Op& op);
  static std::int64_t row_of(const Op& op, const Shape& shape);
  void copy_for_norm(const Op& op, std::size_t operand, bool told);
  void lower_row_norm_backward(const Op& op);
  void lower_group_norm(const Op& op);
  void lower_normalization(const Op& op);
  void lower_batch_norm(const Op& op);
  void lower_embedding(const Op& op);

  const Tensor& in(const Op& op, std::size_t i) const { return graph_.tensors[graph_.input(op, i)]; }
  const Tensor& out(const Op& op, std::size_t i = 0) const { return graph_.tensors[graph_.output(op, i)]; }
  Bytes in_bytes(const Op& op, std::size_t i) const { return graph_.bytes(graph_.input(op, i)); }
  Bytes out_bytes(const Op& op, std::size_t i = 0) const { return graph_.bytes(graph_.output(op, i)); }
  const Shape& widest_input(const Op& op) const { return graph_.tensors[widest_operand(op)].shape; }
  std::int64_t input_elements(const Op& op) const { return op.input_count > 0 ? widest_input(op).elements() : 0; }
  static bool turns(const Shape& from, const Shape& to) { return from.rank() > 0 && to.rank() > 0 && from[-1] != to[-1]; }
  static bool is_persistent(const Op& op, const RnnAttributes& a) {
    const std::int64_t widest = op.kind == OpKind::rnn_backward ? kWidestOnChipBackward : kWidestOnChip;
    return a.hidden <= (a.gates > 1 ? widest : 2 * widest) && op.math != DType::bf16;
  }
  static bool unit_stride(const ConvAttributes& conv) { return conv.stride[0] * conv.stride[1] * conv.stride[2] == 1; }

  // Parts that lie side by side are joined by a kernel of wide loads, others by one that works out each element's place, of up to
  // four axes; of more they are copied one by one (aten/native/cuda/Shape.cu, cat_out_cuda).
  static constexpr int kMostJoinedAxes = 4;
  // In which order a tensor's elements lie, as far as a copy minds. Told from shapes: a transposition that changes the last
  // extent has moved the innermost axis (two extents alike hide it).
  enum class Order : std::uint8_t { plain, permuted, turned };
  // One kernel keeps the recurrent weights on chip where they are few, but for bf16: recorded kernels of 1,200 layers (cuDNN 9.19), LSTMs and
  // GRUs up to 192 wide forward and 128 backward, plain ones up to 320 and 256, without exception.
  static constexpr std::int64_t kWidestOnChip = 192, kWidestOnChipBackward = 128;
  static constexpr std::int64_t kNormSplitRows = 65536;

  const Graph& graph_;
  const GpuSpec& gpu_;
  MemoryFormat format_;
  bool last_ = false;  // of the operator at hand: the channels of its image lie innermost
  const FusionPlan* fusion_;  // of a compiled step
  Layouts layouts_;
  const Layouts* traced_ = nullptr;  // of a compiled step whose images nobody turned: as they lay when it was traced
  std::vector<Order> order_ = std::vector<Order>(graph_.tensors.size(), Order::plain);
  std::vector<bool> planar_ = std::vector<bool>(graph_.tensors.size(), false);  // contiguous, whatever images are
  // What cuDNN's batch norm made of a transposed sequence: it lies as its shape says, and the capture, which ran another kernel, took it to lie as the image.
  std::vector<bool> answered_plain_ = std::vector<bool>(graph_.tensors.size(), false);
  std::vector<bool> on_host_ = std::vector<bool>(graph_.tensors.size(), false);
  std::vector<std::int64_t> parameter_sizes_;  // as optimizers list them; filled when first asked for
  KernelProgram program_;
  Call call_;
  const FrameworkName* known_ = nullptr;  // of the operator at hand, where its kind is generic and its name known
};

}  // namespace precog
