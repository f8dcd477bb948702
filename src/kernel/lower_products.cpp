// Matrix products, and what is made of them: recurrent layers, attention.
#include <algorithm>

#include "graph/recurrent_space.h"
#include "kernel/library_rules.h"
#include "kernel/lowering.h"

namespace precog {

// Converts, and where asked writes a copy for products along the other axis from the tile it holds. With a scale in a byte for every 16 or
// 32 elements (mxfp8's second copy lies as the first does) it moves memory as a cast: on a B300 Transformer Engine's documentation
// (docs/examples/gemm_profiling, autocast less pre-quantised) has mxfp8 at 5.1 TB/s forward and 4.5 for gradients, nvfp4 with its pass for the
// largest element at 4.8, a cast comes out at 4.4. With other scales the copy is transposed: as a layout copy.
void Lowering::lower_quantize(const Op& op) {
  const bool block_scaled = bits_of(out(op, op.output_count - 1).dtype) == 8, transposes = op.output_count > 2 && !block_scaled;
  memory("quantize", op, transposes ? MemoryPattern::layout : MemoryPattern::cast).estimated = true;
}

// cuDNN's recurrent layers: the inputs of all time steps as one product, then one product after the other along time,
// each followed by the gates, or one kernel that walks through time. Backward the same for the data, and three products for the weights: for
// the first states their own.
void Lowering::lower_recurrent(const Op& op) {
  const auto& a = std::get<RnnAttributes>(op.attributes);
  const bool backward = op.kind == OpKind::rnn_backward;
  const std::int64_t width = a.gates * a.hidden, rows = a.steps * a.batch;
  call_.workspace += recurrent_workspace(a, out(op).dtype);
  const auto bytes = [&](std::int64_t elements) { return Bytes{elements * bits_of(out(op).dtype) / 8}; };
  auto product = [&](std::string_view name, std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t times, bool transposed) {
    const double flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) * static_cast<double>(times);
    const auto repeated = static_cast<double>(times);
    Kernel& kernel = put(name, op, GemmShape{1, m, n, k, transposed},
                         Work{{flops}, (bytes(m * k) + bytes(k * n)) * repeated, bytes(m * n) * repeated});
    kernel.launches = static_cast<std::int32_t>(times);
  };
  if (!backward) copy_steps_first(op, 0);
  // The data's gradients and the weights' are two calls of PyTorch's (_cudnn_rnn_backward), each with its copies.
  else for (std::size_t operand : {std::size_t{3}, std::size_t{0}}) copy_steps_first(op, operand);
  const bool pair = a.directions > 1;
  for (std::int64_t layer = 0; layer < a.layers; ++layer) {
    const std::int64_t in_width = layer == 0 ? a.input : a.hidden * a.directions;
    for (std::int64_t direction = 0; direction < a.directions; ++direction) {
      if (is_persistent(op, a)) {  // one kernel walks through time with the weights on chip
        walk_on_chip(op, a, in_width);
        continue;
      }
      // Layers work side by side on eight time steps each, unless the one above must wait for both directions (recorded kernels of
      // language models and of deep-speech-2).
      const std::int64_t chunks = a.directions == 1 && a.layers > 1 ? (a.steps + 7) / 8 : 1;
      if (!backward) product("rnn_input", rows / chunks, width, in_width, chunks, false);
      product(backward ? pair ? "rnn_recurrent_backward_pair" : "rnn_recurrent_backward" : pair ? "rnn_recurrent_pair" : "rnn_recurrent", a.batch, backward ? a.hidden : width, backward ? width : a.hidden,
              a.steps, false);
      const Bytes gates = bytes(rows * (width + a.hidden));
      memory(backward ? pair ? "rnn_gates_backward_pair" : "rnn_gates_backward" : pair ? "rnn_gates_pair" : "rnn_gates", op, MemoryPattern::activation, gates, gates, 1, rows * width).launches =
          static_cast<std::int32_t>(a.steps);
      if (!backward) continue;
      if (splits_step(op, a)) clear(op, static_cast<std::int32_t>(a.steps));
      memory(pair ? "rnn_bias_gradient_pair" : "rnn_bias_gradient", op, MemoryPattern::bias_gradient, bytes(rows * width), bytes(width), width, rows);
      product("rnn_data_gradient", rows / chunks, in_width, width, chunks, false);
      product("rnn_weight_gradient", width, in_width, rows, 1, true);
      product("rnn_weight_gradient", width, a.hidden, rows, 1, true);
    }
    if (backward && pair) memory("rnn_join", op, MemoryPattern::pointwise, bytes(2 * rows * in_width), bytes(rows * in_width), 1, rows * in_width);
  }
  if (backward) {
    copy_steps_first(op, 3);
    // Gradients of the last states, which nobody asked about, and room for all weights' (at::zeros).
    const Bytes states = bytes(a.layers * a.directions * a.batch * a.hidden), weights = bytes(a.layers * a.directions * width * (a.input + a.hidden));
    for (int i = 0; i < (a.gates == 4 ? 2 : 1); ++i) memory("fill", op, MemoryPattern::fill, {0}, states, 1, a.layers * a.directions * a.batch * a.hidden);
    memory("fill", op, MemoryPattern::fill, {0}, weights, 1, a.layers * a.directions * width * (a.input + a.hidden));
  }
  lay_steps_first(op);
}

// A layer's direction whose steps are one kernel (RNN_blockPersist_*), with cuBLAS's products around it.
void Lowering::walk_on_chip(const Op& op, const RnnAttributes& a, std::int64_t in_width) {
  const bool backward = op.kind == OpKind::rnn_backward;
  const std::int64_t width = a.gates * a.hidden, rows = a.steps * a.batch;
  const auto bytes = [&](std::int64_t elements) { return Bytes{elements * bits_of(out(op).dtype) / 8}; };
  const auto multiply = [&](std::int64_t m, std::int64_t n, std::int64_t k, bool transposed) {
    const GemmShape shape{1, m, n, k, transposed};
    const ProductHelpers helpers = product_helpers(shape, op.math, gpu_, !backward);
    if (helpers.clears) clear(op);
    put("rnn_mm", op, shape, Work{{2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k)}, bytes(m * k) + bytes(k * n), bytes(m * n)});
    if (helpers.reduces) memory("split_sum", op, MemoryPattern::pointwise, Bytes{m * n * 8}, bytes(m * n), 1, m * n);
  };
  const auto walk = [&](std::string_view name) {  // by steps, samples, gates, width: cost/fallback_kernels.cpp
    put(name, op, GemmShape{a.steps, a.batch, width, a.hidden, false},
        Work{{2.0 * static_cast<double>(rows) * static_cast<double>(width) * static_cast<double>(a.hidden)}, bytes(rows * width), bytes(rows * (width + a.hidden))});
  };
  if (!backward) {
    multiply(rows, width, in_width, false);
    if (a.gates == 3) memory("rnn_gates", op, MemoryPattern::activation, bytes(rows * width), bytes(rows * width), 1, rows * width);  // their biases
    walk("rnn_persistent");
    return;
  }
  const Bytes last = bytes(a.batch * (width + a.hidden));
  memory("rnn_gates_backward", op, MemoryPattern::activation, last, last, 1, a.batch * width);
  walk("rnn_persistent_backward");
  multiply(rows, in_width, width, false);
  memory(a.directions > 1 ? "rnn_bias_gradient_pair" : "rnn_bias_gradient", op, MemoryPattern::bias_gradient, bytes(rows * width), bytes(width), width, rows);
  std::get<MemoryShape>(program_.kernels.back().shape).part = a.directions * rows * (width + in_width);  // moved since they were written
  multiply(width, a.hidden, a.batch, true);
  if (a.steps > 1) multiply(width, a.hidden, rows - a.batch, true);
  multiply(width, in_width, rows, true);
}

void Lowering::lower_gemm(const Op& op) {
  const auto& a = std::get<GemmAttributes>(op.attributes);
  // torch._grouped_mm has one kernel for bf16 on Hopper and data-centre Blackwell; elsewhere it reads the group sizes back
  // to the host and calls one product per group.
  const bool grouped = op.kind == OpKind::grouped_linear || op.kind == OpKind::grouped_mm;
  if (grouped && !(op.math == DType::bf16 && gpu_.capability() >= 90 && gpu_.capability() < 110)) {
    product(op, "mm", GemmShape{1, a.m, a.n, a.k, a.transposed_a}, static_cast<std::int32_t>(std::max<std::int64_t>(1, a.batch)));
    call_.waits_for_gpu = true;
    return;
  }
  GemmShape shape{a.batch, a.m, a.n, a.k, a.transposed_a};
  shape.a_turned = a.transposed_a || lies_turned(op, 0, a.k);
  shape.b_turned = op.kind == OpKind::linear || lies_turned(op, 1, a.n);
  shape.bias = a.bias;
  if (op.kind == OpKind::scaled_mm) {
    shape.row_scales = op.input_count > 2 && in(op, 2).shape.elements() > 1;
    shape.careful_sums = op.phase == Phase::backward;
  }
  // Linear layers copy such rows first, and then add their bias themselves (native/Linear.cpp: a matmul where the input is not contiguous).
  const bool folds = op.kind == OpKind::linear && !call_.compiled && answered_plain_[graph_.input(op, 0).index()];
  if (folds) copy_turned("linear_copy", op, 0);
  if (folds) shape.bias = false;
  product(op, name_of(op), shape);
  if (!folds || !a.bias) return;
  Kernel& added = memory("add", op, MemoryPattern::broadcast, out_bytes(op) + in_bytes(op, 2), out_bytes(op), a.m, a.n);
  std::get<MemoryShape>(added.shape).part = a.n, std::get<MemoryShape>(added.shape).axes = 2;
}

// Whether an operand that is multiplied with `inner` innermost is stored with that axis second.
bool Lowering::lies_turned(const Op& op, std::size_t operand, std::int64_t inner) const {
  if (operand >= op.input_count) return false;
  const Shape& shape = in(op, operand).shape;
  const bool other = shape.rank() >= 2 && shape[-1] != inner && shape[-2] == inner;
  return other != (order_[graph_.input(op, operand).index()] == Order::turned);
}

void Lowering::product(const Op& op, std::string_view name, const GemmShape& shape, std::int32_t times) {
  const ProductHelpers helpers = product_helpers(shape, op.math, gpu_, op.phase != Phase::backward);
  if (helpers.clears) clear(op, times);
  put(name, op, shape, work_of(graph_, op)).launches = times;
  if (!helpers.reduces) return;
  // Two partial products in fp32, summed and rounded; in cuBLAS's own workspace.
  const Bytes whole{times * shape.batch * shape.m * shape.n * 4};
  memory("split_sum", op, MemoryPattern::pointwise, whole * 2.0, op.output_count > 0 ? out_bytes(op) : whole, 1, whole.value / 4).launches = times;
}

// Rows of a mask that are no multiples of eight are filled up for the memory-efficient kernels (preprocess_mask, native/transformers/attention.cpp):
// zeros, then a copy; for its gradient the same the other way round, and a copy without the filling.
void Lowering::pad_mask(const Op& op, bool gradient) {
  const auto& a = std::get<AttentionAttributes>(op.attributes);
  if (a.backend != AttentionBackend::memory_efficient || !a.mask || a.kv_len % 8 == 0 || call_.compiled) return;
  if (gradient ? op.output_count < 4 : op.input_count < 4) return;
  const Bytes bytes = gradient ? out_bytes(op, 3) : in_bytes(op, 3);
  memory("attention_mask_fill", op, MemoryPattern::fill, {0}, bytes);
  for (int copies = gradient ? 2 : 1; copies > 0; --copies) memory("attention_mask_copy", op, MemoryPattern::copy, bytes, bytes);
}

// Heads of no multiple of eight are filled up for the flash kernels, forward zeros and then a copy for each operand; backward so the result's
// gradient, and the operands' gradients are cut to size by copies, which lie plain: where the operand did not, the reshape of its gradient
// is a copy more (pad_last_dim and post_process_flash_output, native/transformers/attention.cpp; constant_pad_nd).
void Lowering::pad_heads(const Op& op, bool before) {
  const auto& a = std::get<AttentionAttributes>(op.attributes);
  if (a.backend != AttentionBackend::flash || a.head_dim % 8 == 0 || call_.compiled) return;
  const auto copy = [&](Bytes bytes, std::int64_t places) {
    Kernel& kernel = memory("attention_pad_copy", op, MemoryPattern::permute, bytes, bytes, places, a.head_dim);
    auto& place = std::get<MemoryShape>(kernel.shape);
    place.part = a.head_dim, place.axes = 2;
  };
  const auto fill_up = [&](std::size_t operand) {
    const std::int64_t places = in(op, operand).shape.elements() / std::max<std::int64_t>(1, a.head_dim), filled = (a.head_dim + 7) / 8 * 8;
    const Bytes bytes{places * filled * bits_of(in(op, operand).dtype) / 8};
    memory("attention_pad_fill", op, MemoryPattern::fill, {0}, bytes, 1, places * filled);
    copy(in_bytes(op, operand), places);
    call_.workspace += bytes;
  };
  const bool backward = op.kind == OpKind::attention_backward;
  if (before)
    for (std::size_t operand = 0; operand < (backward ? 1u : 3u) && operand < op.input_count; ++operand) fill_up(operand);
  else if (backward)
    for (std::size_t i = 0; i < std::min<std::size_t>(op.output_count, 3); ++i)
      for (int copies = layouts_.is_plain(graph_.input(op, i + 1)) ? 1 : 2; copies > 0; --copies) copy(out_bytes(op, i), out(op, i).shape.elements() / std::max<std::int64_t>(1, a.head_dim));
}

void Lowering::lower_attention(const Op& op) {
  const auto& a = std::get<AttentionAttributes>(op.attributes);
  const bool backward = op.kind == OpKind::attention_backward;
  AttentionShape shape{a.batch, a.heads, a.kv_heads, a.q_len, a.kv_len, a.head_dim, a.value_dim, a.causal, backward, a.backend, a.dropout, a.mask};
  pad_heads(op, true);
  if (backward) {
    // Row sums of gradient times output first; the query gradient is gathered in fp32 and converted last.
    const Bytes rows{a.batch * a.heads * a.q_len * 4};
    const bool efficient = a.backend == AttentionBackend::memory_efficient;
    // Memory-efficient: the gradients' accumulators are zeroed; (grad * out).sum(-1) takes two kernels and a copy in fp32, and is
    // done by the attention kernel itself in 16 bits (attention_backward.cu, kKernelComputesDelta).
    const bool apart = !is_16bit(in(op, 0).dtype);
    if (efficient) {
      if (apart) memory("attention_row_products", op, MemoryPattern::pointwise, in_bytes(op, 0) + in_bytes(op, 4), in_bytes(op, 0));
      memory("attention_clear", op, MemoryPattern::fill, {0}, in_bytes(op, 0));
      if (apart) memory("attention_copy_sums", op, MemoryPattern::copy, rows, rows, 1, rows.value / 4);
    }
    if (!efficient || apart)
      memory("attention_row_sums", op, MemoryPattern::reduction, efficient ? in_bytes(op, 0) : in_bytes(op, 0) + in_bytes(op, 4), rows,
             a.batch * a.heads * a.q_len, a.value_dim);
    if (a.backend == AttentionBackend::cudnn) clear(op, 2);
    put("attention_backward", op, shape, work_of(graph_, op));
    if (a.backend == AttentionBackend::flash || a.backend == AttentionBackend::cudnn) {
      const Bytes gathered{a.batch * a.heads * a.q_len * a.head_dim * 4};
      memory("attention_convert_dq", op, MemoryPattern::cast, gathered, out_bytes(op));
      call_.workspace += gathered;
    }
    for (std::size_t i = 0; i < std::min<std::size_t>(op.output_count, 3); ++i) lie_alike(graph_.output(op, i), graph_.input(op, i + 1));
    if (a.heads != a.kv_heads) {  // per query head first, then summed over each group
      const Bytes expanded{a.batch * a.heads * a.kv_len * (a.head_dim + a.value_dim) * 2};
      memory("attention_sum_groups", op, MemoryPattern::reduction, expanded, out_bytes(op, op.output_count - 1u));
      call_.workspace += expanded;
    }
    pad_mask(op, true);
    pad_heads(op, false);
    if (a.ring != AttentionAttributes::Ring::none) ring_gradients(op);
  } else {
    // The random state of dropout is unpacked on the device for cuDNN.
    pad_mask(op, false);
    if (a.dropout && a.backend == AttentionBackend::cudnn) memory("attention_seed", op, MemoryPattern::pointwise, {16}, {16}, 1, 2);
    if (a.ring == AttentionAttributes::Ring::first) ring_pack(op, 1);
    put("scaled_dot_product_attention", op, shape, work_of(graph_, op));
    // Each step's result is weighted by its share of the exponentials in a pass of its own; later ones add (which the graph has).
    if (a.ring == AttentionAttributes::Ring::first) memory("context_weigh", op, MemoryPattern::pointwise, out_bytes(op) + out_bytes(op, 1), out_bytes(op));
  }
}

// What a ring of context parallelism does beside attention (Transformer Engine, context_parallel.py, AttnFuncWithCPAndKVP2P): keys and
// values are put together for one message; in backward they are so again, and each step's gradients are put together and
// copied or added to those that go round.
void Lowering::ring_pack(const Op& op, std::size_t keys) {
  const Bytes both = in_bytes(op, keys) + in_bytes(op, keys + 1);
  memory("context_pack", op, MemoryPattern::copy, both, both);
}

void Lowering::ring_gradients(const Op& op) {
  if (op.output_count < 3) return;
  const auto& a = std::get<AttentionAttributes>(op.attributes);
  if (a.ring == AttentionAttributes::Ring::first) ring_pack(op, 2);
  const Bytes queries = out_bytes(op, 0), both{a.batch * a.kv_heads * a.kv_len * (a.head_dim + a.value_dim) * bits_of(in(op, 2).dtype) / 8};  // a later step's is half
  memory("context_query_gradients", op, MemoryPattern::copy, queries, queries);
  memory("context_pack_gradients", op, MemoryPattern::copy, both, both);
  memory("context_gather_gradients", op, MemoryPattern::copy, both, both);
}

}  // namespace precog
