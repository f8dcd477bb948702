// Operators to kernels: what eager PyTorch launches for each.
#include <algorithm>

#include "base/ensure.h"
#include "kernel/kernel.h"

namespace precog {
namespace {

class Lowering {
 public:
  Lowering(const Graph& graph, const GpuSpec& gpu, MemoryFormat format) : graph_(graph), gpu_(gpu), format_(format) {}

  KernelProgram run() {
    program_.calls.reserve(graph_.ops.size());
    program_.kernels.reserve(graph_.ops.size() + graph_.ops.size() / 4);
    for (std::size_t i = 0; i < graph_.ops.size(); ++i) {
      const OpId id = graph_.ops.id_at(i);
      const Op& op = graph_.ops[id];
      call_ = {};
      call_.op = id;
      call_.phase = op.phase;
      call_.family = definition(op.kind).family;
      call_.first_kernel = static_cast<std::uint32_t>(program_.kernels.size());
      lower(op);
      call_.kernel_count = static_cast<std::uint32_t>(program_.kernels.size()) - call_.first_kernel;
      program_.calls.push_back(call_);
    }
    return std::move(program_);
  }

 private:
  const Tensor& in(const Op& op, std::size_t i) const { return graph_.tensors[graph_.input(op, i)]; }
  const Tensor& out(const Op& op, std::size_t i = 0) const { return graph_.tensors[graph_.output(op, i)]; }
  Bytes in_bytes(const Op& op, std::size_t i) const { return graph_.bytes(graph_.input(op, i)); }
  Bytes out_bytes(const Op& op, std::size_t i = 0) const { return graph_.bytes(graph_.output(op, i)); }

  Kernel& put(const char* name, const Op& op, KernelShape shape, Work work) {
    Kernel kernel;
    kernel.name = name;
    kernel.shape = shape;
    kernel.math = op.math;
    kernel.output = op.output_count > 0 ? out(op).dtype : op.math;
    kernel.input = op.input_count > 0 ? in(op, 0).dtype : kernel.output;
    kernel.flops = work.flops;
    kernel.read = work.read;
    kernel.written = work.written;
    const bool arithmetic = !std::holds_alternative<MemoryShape>(shape) && !std::holds_alternative<CollectiveShape>(shape);
    kernel.emulated = arithmetic && op.math != DType::fp32 && !gpu_.computes(op.math);
    program_.kernels.push_back(kernel);
    return program_.kernels.back();
  }

  // Without rows: one row of the largest operand's elements.
  Kernel& memory(const char* name, const Op& op, MemoryPattern pattern, Bytes read, Bytes written, std::int64_t rows = 0,
                 std::int64_t row_length = 0) {
    if (rows == 0) {
      rows = 1;
      for (TensorId id : graph_.inputs(op)) row_length = std::max(row_length, graph_.tensors[id].shape.elements());
      for (TensorId id : graph_.outputs(op)) row_length = std::max(row_length, graph_.tensors[id].shape.elements());
    }
    return put(name, op, MemoryShape{pattern, rows, row_length}, Work{{static_cast<double>(rows * row_length)}, read, written});
  }
  Kernel& memory(const char* name, const Op& op, MemoryPattern pattern, std::int64_t rows = 0, std::int64_t row_length = 0) {
    const Work work = work_of(graph_, op);
    return memory(name, op, pattern, work.read, work.written, rows, row_length);
  }
  static const char* name_of(const Op& op) { return to_text(op.kind).data(); }  // literals: terminated

  void row_wise(const Op& op, MemoryPattern pattern) {
    const Shape& shape = op.input_count > 0 ? in(op, 0).shape : out(op).shape;
    const std::int64_t length = shape.rank() > 0 ? std::max<std::int64_t>(1, shape[-1]) : 1;
    memory(name_of(op), op, pattern, shape.elements() / length, length);
  }

  void lower(const Op& op) {
    switch (call_.family) {
      case Family::view: return;
      case Family::host:
        call_.waits_for_gpu = true;
        memory("copy_to_host", op, MemoryPattern::copy, {4}, {4});
        return;
      case Family::gemm: return lower_gemm(op);
      case Family::convolution: return op.kind == OpKind::conv2d ? lower_conv(op) : lower_conv_backward(op);
      case Family::attention: return lower_attention(op);
      case Family::normalization: return lower_normalization(op);
      case Family::softmax:
        return row_wise(op, op.kind == OpKind::softmax || op.kind == OpKind::log_softmax ? MemoryPattern::softmax_forward
                                                                                        : MemoryPattern::softmax_backward);
      case Family::loss:
        if (op.kind == OpKind::nll_loss_backward) {
          memory("fill", op, MemoryPattern::fill, {0}, out_bytes(op));
          memory("nll_loss_backward", op, MemoryPattern::loss, in_bytes(op, 1), Bytes{in(op, 1).shape.elements() * 32});
        } else {
          row_wise(op, MemoryPattern::loss);
        }
        return;
      case Family::pointwise: {
        if (op.output_count == 0) {  // adds to what is there already
          memory(name_of(op), op, MemoryPattern::pointwise);
          return;
        }
        // A kernel that mixes types is the slower, unrolled one: its input type is its narrowest large operand's.
        Kernel& kernel = memory(name_of(op), op, pointwise_pattern(op));
        for (TensorId id : graph_.inputs(op)) {
          const Tensor& operand = graph_.tensors[id];
          if (is_floating(operand.dtype) && bits_of(operand.dtype) < bits_of(kernel.input) && operand.shape == out(op).shape)
            kernel.input = operand.dtype;
        }
        return;
      }
      case Family::cast: memory("cast", op, MemoryPattern::cast); return;
      case Family::copy:
        if (op.kind == OpKind::bucket_copy) memory("bucket_copy", op, MemoryPattern::copy, in_bytes(op, 0), in_bytes(op, 0));
        else memory(name_of(op), op, op.kind == OpKind::contiguous ? MemoryPattern::transpose : MemoryPattern::copy);
        return;
      case Family::reduction: {
        const std::int64_t kept = std::max<std::int64_t>(1, out(op).shape.elements());
        // Backward sums over rows into a bias; forward sums along a row.
        memory(name_of(op), op, op.phase == Phase::backward ? MemoryPattern::bias_gradient : MemoryPattern::reduction, kept,
               in(op, 0).shape.elements() / kept);
        return;
      }
      case Family::pooling:
        memory(name_of(op), op, op.kind == OpKind::max_pool2d || op.kind == OpKind::adaptive_avg_pool2d ? MemoryPattern::pooling_forward
                                                                                                      : MemoryPattern::pooling_backward);
        return;
      case Family::embedding: return lower_embedding(op);
      case Family::index: memory(name_of(op), op, MemoryPattern::index); return;
      case Family::optimizer:
      case Family::loss_scaling:
        if (const auto* many = std::get_if<MultiTensorAttributes>(&op.attributes)) {
          Kernel& kernel = memory(name_of(op), op, many->one_by_one ? MemoryPattern::pointwise : MemoryPattern::multi_tensor);
          kernel.launches = static_cast<std::int32_t>(std::max<std::int64_t>(1, many->launches));
        } else {
          memory(name_of(op), op, MemoryPattern::pointwise, {8}, {8});
        }
        return;
      case Family::fill: memory("fill", op, MemoryPattern::fill, {0}, out_bytes(op)); return;
      case Family::collective: {
        const auto& attributes = std::get<CollectiveAttributes>(op.attributes);
        call_.collective = true;
        put("all_reduce", op, CollectiveShape{attributes.bytes, attributes.participants}, work_of(graph_, op));
        return;
      }
    }
  }

  MemoryPattern pointwise_pattern(const Op& op) const {
    const OpKind arithmetic = arithmetic_of(graph_, op);
    if (arithmetic == OpKind::dropout) return MemoryPattern::dropout;
    if (definition(arithmetic).transcendental) return MemoryPattern::activation;
    for (TensorId id : graph_.inputs(op))
      if (graph_.tensors[id].shape.elements() < out(op).shape.elements()) return MemoryPattern::broadcast;
    return MemoryPattern::pointwise;
  }

  void lower_gemm(const Op& op) {
    const auto& a = std::get<GemmAttributes>(op.attributes);
    // torch._grouped_mm has one kernel for bf16 on Hopper and data-centre Blackwell; elsewhere it reads the group sizes back
    // to the host and calls one product per group.
    const bool grouped = op.kind == OpKind::grouped_linear || op.kind == OpKind::grouped_mm;
    const bool one_kernel = op.math == DType::bf16 && gpu_.capability() >= 90 && gpu_.capability() < 110;
    if (grouped && !one_kernel) {
      Kernel& kernel = put("mm", op, GemmShape{1, a.m, a.n, a.k, a.transposed_a}, work_of(graph_, op));
      kernel.launches = static_cast<std::int32_t>(std::max<std::int64_t>(1, a.batch));
      call_.waits_for_gpu = true;
      return;
    }
    put(name_of(op), op, GemmShape{a.batch, a.m, a.n, a.k, a.transposed_a}, work_of(graph_, op));
  }

  // --- convolution: cuDNN's tensor-core kernels want NHWC, its fp32 kernels NCHW; from the other layout each operand is
  // transposed on the way in and out. Seen on an H200: 1x1 stride 1 on tensor cores is a matrix product in either layout
  // when its rows are aligned; in fp32 images of few channels and most weight gradients are read as they are.
  bool transposes(const Op& op, const ConvAttributes& conv, const Shape& image, ConvDirection direction) const {
    if (conv.groups > 1) return false;
    // Where TF32 is no faster than fp32 (consumer cards) the library has no reason to transpose for it.
    const bool idle_tf32 = op.math == DType::tf32 && gpu_.matrix[DType::tf32] < gpu_.vector[DType::fp32] * 1.5;
    if (op.math == DType::fp32 || !gpu_.matrix.has(op.math) || idle_tf32) {
      if (format_ != MemoryFormat::channels_last || image[1] <= 4) return false;
      return direction != ConvDirection::weight_gradient || (conv.kernel_h == 3 && conv.stride == 1);
    }
    if (format_ == MemoryFormat::channels_last) return false;
    const bool product = conv.kernel_h == 1 && conv.kernel_w == 1 && conv.stride == 1;
    return !product || image[2] * image[3] % 8 != 0;
  }
  ConvShape conv_shape(ConvDirection direction, const Shape& x, const Shape& y, const ConvAttributes& a) const {
    return {direction, x[0], x[1], y[1], x[2], x[3], y[2], y[3], a.kernel_h, a.kernel_w, a.stride, a.groups,
            format_ == MemoryFormat::channels_last};
  }
  void transpose_of(const Op& op, const char* name, Bytes bytes) {
    memory(name, op, MemoryPattern::layout, bytes, bytes, 1, bytes.value * 8 / bits_of(op.math));
    call_.workspace += bytes;
  }

  void lower_conv(const Op& op) {
    const auto& a = std::get<ConvAttributes>(op.attributes);
    const bool layout = transposes(op, a, in(op, 0).shape, ConvDirection::forward);
    if (layout) transpose_of(op, "nchw_to_nhwc", in_bytes(op, 0));
    put("conv2d", op, conv_shape(ConvDirection::forward, in(op, 0).shape, out(op).shape, a),
        {convolution_flops(in(op, 0).shape, out(op).shape, a), in_bytes(op, 0) + in_bytes(op, 1), out_bytes(op)});
    if (layout) transpose_of(op, "nhwc_to_nchw", out_bytes(op));
    if (op.input_count > 2) memory("conv_bias", op, MemoryPattern::broadcast, out_bytes(op), out_bytes(op));
  }

  // inputs: gradient, x, weight; outputs: those of {x, weight, bias} that need one.
  void lower_conv_backward(const Op& op) {
    const auto& a = std::get<ConvAttributes>(op.attributes);
    const Shape &y = in(op, 0).shape, &x = in(op, 1).shape, &w = in(op, 2).shape;
    for (std::size_t i = 0; i < op.output_count; ++i) {
      const Shape& result = out(op, i).shape;
      const bool layout = transposes(op, a, x, result == w ? ConvDirection::weight_gradient : ConvDirection::data_gradient);
      const Work work{convolution_flops(x, y, a), {}, out_bytes(op, i)};
      if (result == w && result.rank() == 4) {
        if (layout) transpose_of(op, "nchw_to_nhwc", in_bytes(op, 0));
        if (layout) transpose_of(op, "nchw_to_nhwc", in_bytes(op, 1));
        put("conv2d_weight_gradient", op, conv_shape(ConvDirection::weight_gradient, x, y, a),
            {work.flops, in_bytes(op, 0) + in_bytes(op, 1), work.written});
      } else if (result.rank() == 4) {
        if (layout) transpose_of(op, "nchw_to_nhwc", in_bytes(op, 0));
        put("conv2d_data_gradient", op, conv_shape(ConvDirection::data_gradient, x, y, a),
            {work.flops, in_bytes(op, 0) + in_bytes(op, 2), work.written});
        if (layout) transpose_of(op, "nhwc_to_nchw", out_bytes(op, i));
      } else {
        memory("conv_bias_gradient", op, MemoryPattern::bias_gradient, in_bytes(op, 0), out_bytes(op, i), result.elements(),
               y.elements() / std::max<std::int64_t>(1, result.elements()));
      }
    }
  }

  void lower_attention(const Op& op) {
    const auto& a = std::get<AttentionAttributes>(op.attributes);
    const bool backward = op.kind == OpKind::attention_backward;
    AttentionShape shape{a.batch, a.heads, a.kv_heads, a.q_len, a.kv_len, a.head_dim, a.value_dim, a.causal, backward, a.backend};
    if (backward) {
      // Row sums of gradient times output first; the query gradient is gathered in fp32 and converted last.
      const Bytes rows{a.batch * a.heads * a.q_len * 4};
      memory("attention_row_sums", op, MemoryPattern::reduction, in_bytes(op, 0) + in_bytes(op, 4), rows,
             a.batch * a.heads * a.q_len, a.value_dim);
      put("attention_backward", op, shape, work_of(graph_, op));
      if (a.backend == AttentionBackend::flash || a.backend == AttentionBackend::cudnn) {
        const Bytes gathered{a.batch * a.heads * a.q_len * a.head_dim * 4};
        memory("attention_convert_dq", op, MemoryPattern::cast, gathered, out_bytes(op));
        call_.workspace += gathered;
      }
      if (a.heads != a.kv_heads) {  // per query head first, then summed over each group
        const Bytes expanded{a.batch * a.heads * a.kv_len * (a.head_dim + a.value_dim) * 2};
        memory("attention_sum_groups", op, MemoryPattern::reduction, expanded, out_bytes(op, op.output_count - 1u));
        call_.workspace += expanded;
      }
    } else {
      put("scaled_dot_product_attention", op, shape, work_of(graph_, op));
    }
  }

  void lower_normalization(const Op& op) {
    const bool backward = op.kind == OpKind::layer_norm_backward || op.kind == OpKind::batch_norm_backward;
    if (op.kind == OpKind::layer_norm_backward) {
      const std::int64_t length = in(op, 0).shape[-1], rows = in(op, 0).shape.elements() / length;
      const Bytes both = in_bytes(op, 0) + in_bytes(op, 1);
      Bytes parameters{};
      bool input_gradient = false;
      for (std::size_t i = 0; i < op.output_count; ++i) {
        if (out(op, i).shape == in(op, 0).shape && out(op, i).shape.rank() > 1) input_gradient = true;
        else parameters += out_bytes(op, i);
      }
      if (input_gradient) memory("layer_norm_backward", op, MemoryPattern::norm_backward, both, out_bytes(op), rows, length);
      if (parameters.value > 0)
        memory("layer_norm_parameter_gradients", op, MemoryPattern::bias_gradient, both, parameters, length, rows);
      return;
    }
    if (op.kind == OpKind::layer_norm) return row_wise(op, MemoryPattern::norm_forward);
    // cuDNN's batch norm takes fp32, or fp16 with fp32 weights; everything else runs PyTorch's own kernels, three forward.
    const DType image_type = in(op, backward ? 1 : 0).dtype;
    const DType weight_type = backward ? out(op, op.output_count - 1u).dtype : in(op, 1).dtype;
    const bool native = image_type == DType::bf16 || (image_type == DType::fp16 && weight_type == DType::fp16);
    const Shape& image = in(op, 0).shape;  // one row per channel
    const MemoryPattern pattern = backward ? (native ? MemoryPattern::native_batch_norm_backward : MemoryPattern::batch_norm_backward)
                                           : (native ? MemoryPattern::native_batch_norm_forward : MemoryPattern::batch_norm_forward);
    Kernel& kernel = memory(name_of(op), op, pattern, image[1], image.elements() / std::max<std::int64_t>(1, image[1]));
    std::get<MemoryShape>(kernel.shape).channels_last = format_ == MemoryFormat::channels_last;
    if (native && !backward) kernel.launches = 3;
  }

  void lower_embedding(const Op& op) {
    if (op.kind == OpKind::embedding) {
      memory("embedding", op, MemoryPattern::embedding);
      return;
    }
    // Zero the table's gradient, sort the indices, then add each row to its place.
    const Bytes indices = in_bytes(op, 1), rows = in_bytes(op, 0);
    memory("fill", op, MemoryPattern::fill, {0}, out_bytes(op));
    memory("sort_indices", op, MemoryPattern::index, indices * 4.0, indices * 4.0).launches = 10;  // a radix sort and its helpers
    memory("embedding_backward", op, MemoryPattern::embedding_backward, rows, rows);
  }

  const Graph& graph_;
  const GpuSpec& gpu_;
  MemoryFormat format_;
  KernelProgram program_;
  Call call_;
};

}  // namespace

KernelProgram make_kernels(const Graph& graph, const GpuSpec& gpu, MemoryFormat memory_format) {
  return Lowering(graph, gpu, memory_format).run();
}

}  // namespace precog
