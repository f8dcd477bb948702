#include "kernel/lower_fused.h"

#include <algorithm>
#include <array>

namespace precog {
namespace {

// The type most bytes have: it decides how wide the kernel's loads are.
DType main_type(const FusedKernel& fused, const Graph& graph) {
  std::array<std::int64_t, kDTypeCount> bytes{};
  for (const FusedRead& read : fused.reads) bytes[static_cast<std::size_t>(graph.tensors[read.tensor].dtype)] += read.bytes.value;
  for (TensorId id : fused.writes) bytes[static_cast<std::size_t>(graph.tensors[id].dtype)] += graph.bytes(id).value;
  bytes[static_cast<std::size_t>(DType::fp32)] += fused.scratch_read.value + fused.scratch_written.value;
  std::size_t main = static_cast<std::size_t>(DType::fp32);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    if (bytes[i] > bytes[main] && is_floating(static_cast<DType>(i))) main = i;
  return static_cast<DType>(main);
}

MemoryPattern pattern_of(const FusedKernel& fused, const Graph& graph) {
  const bool backward = graph.ops[fused.ops.front()].phase == Phase::backward;
  if (fused.kind == FusedKind::scatter) return MemoryPattern::broadcast;
  if (fused.kind == FusedKind::rows) {
    for (OpId op : fused.ops)
      if (definition(graph.ops[op].kind).family == Family::softmax) return backward ? MemoryPattern::softmax_backward : MemoryPattern::softmax_forward;
    return backward ? MemoryPattern::norm_backward : MemoryPattern::norm_forward;
  }
  if (fused.kind == FusedKind::columns && !backward && definition(graph.ops[fused.ops.front()].kind).family == Family::normalization) return MemoryPattern::norm_forward;
  if (fused.kind == FusedKind::columns && graph.ops[fused.ops.front()].kind == OpKind::group_norm_backward) return MemoryPattern::norm_backward;  // along channels, as that norm's own
  if (fused.kind == FusedKind::pointwise && fused.traits.windows > 0) return MemoryPattern::pooling_backward;
  if (fused.kind == FusedKind::pointwise && fused.traits.taps > 0) return MemoryPattern::pooling_forward;
  if (fused.traits.random) return MemoryPattern::dropout;
  if (fused.traits.transcendental) return MemoryPattern::activation;
  return fused.transposes ? MemoryPattern::copy : MemoryPattern::pointwise;
}

std::string_view name_for(FusedKind kind, Family family) {
  switch (kind) {
    case FusedKind::rows: return family == Family::normalization ? "fused_normalization" : family == Family::softmax ? "fused_softmax" : "fused_rows";
    case FusedKind::columns: return "fused_columns";
    case FusedKind::scatter: return "fused_scatter";
    case FusedKind::pointwise: break;
  }
  return family == Family::cast ? "cast" : "fused_pointwise";
}

// That values are added to in bf16; 0: to none, or in another type.
std::int64_t places_met(const FusedKernel& fused, const Graph& graph) {
  for (OpId id : fused.ops) {
    const Op& op = graph.ops[id];
    if (!op.label.valid() || !graph.name(op.label).starts_with("index_put")) continue;
    const Tensor& table = graph.tensors[graph.output(op)];
    if (table.dtype == DType::bf16) return table.shape.elements();
  }
  return 0;
}

// A mask that all heads share, of a row's length in both extents, is causal.
bool is_causal_mask(const Tensor& tensor, std::int64_t row_length) { return tensor.dtype == DType::boolean && tensor.shape.elements() == row_length * row_length; }

// Megatron-LM's kernel for causal scores reads what lies up to the diagonal, forward and backward, and no mask; it writes every value
// (megatron/fused_kernels/scaled_upper_triang_masked_softmax.h).
bool skips_masked_scores(const FusedKernel& fused, const Graph& graph, OwnKernels own) {
  return own.softmax_and_loss && fused.kind == FusedKind::rows && family_of(fused, graph) == Family::softmax &&
         std::any_of(fused.reads.begin(), fused.reads.end(), [&](const FusedRead& read) { return is_causal_mask(graph.tensors[read.tensor], fused.row_length); });
}

Kernel causal_softmax(const FusedKernel& fused, const Graph& graph, Kernel kernel) {
  kernel.name = "causal_softmax";
  kernel.read = {};
  for (const FusedRead& read : fused.reads)
    if (!is_causal_mask(graph.tensors[read.tensor], fused.row_length)) kernel.read += Bytes{read.bytes.value / 2};
  return kernel;
}

}  // namespace

Family family_of(const FusedKernel& fused, const Graph& graph) {
  constexpr std::array kHeaviest = {Family::softmax, Family::normalization, Family::loss, Family::embedding, Family::reduction, Family::pooling,
                                    Family::pointwise, Family::index, Family::copy, Family::cast};
  std::size_t found = kHeaviest.size();
  for (OpId op : fused.ops) {
    const auto at = std::find(kHeaviest.begin(), kHeaviest.end(), definition(graph.ops[op].kind).family);
    found = std::min(found, static_cast<std::size_t>(at - kHeaviest.begin()));
  }
  return found == kHeaviest.size() ? Family::pointwise : kHeaviest[found];
}

std::vector<Kernel> lower_fused(const FusedKernel& fused, const Graph& graph, OwnKernels own) {
  const Op& first = graph.ops[fused.ops.front()];
  Kernel kernel;
  kernel.name = name_for(fused.kind, family_of(fused, graph));
  MemoryShape shape{pattern_of(fused, graph), fused.rows, fused.row_length};
  if (shape.pattern == MemoryPattern::pooling_forward) shape.part = fused.traits.taps;
  if (shape.pattern == MemoryPattern::pooling_backward) shape.part = fused.traits.windows;
  if (fused.traits.random && shape.part == 0) shape.part = fused.rows * fused.row_length;  // numbers drawn
  kernel.math = first.math;
  kernel.input = kernel.output = main_type(fused, graph);
  if (fused.kind == FusedKind::scatter) shape.part = places_met(fused, graph);
  kernel.shape = shape;
  kernel.flops = {static_cast<double>(fused.rows * fused.row_length) * static_cast<double>(fused.ops.size())};
  kernel.read = fused.scratch_read;
  kernel.written = fused.scratch_written;
  for (const FusedRead& read : fused.reads) kernel.read += read.bytes;
  for (TensorId id : fused.writes) kernel.written += graph.bytes(id);
  for (TensorId id : fused.biased) kernel.written += graph.bytes(id);
  kernel.launches = fused.stages;
  kernel.estimated = kernel.fused = true;
  if (skips_masked_scores(fused, graph, own)) return {causal_softmax(fused, graph, std::move(kernel))};
  std::vector<Kernel> out{kernel};
  for (int i = 0; i < fused.finished_sums; ++i) {
    if (fused.counted_sums) {
      Kernel counters;
      counters.name = "memset";
      counters.shape = MemoryShape{MemoryPattern::pointwise, 1, 1024};
      counters.flops = {1024};
      counters.written = {4096};
      out.push_back(counters);
    }
    Kernel sum;
    sum.name = "sum";
    sum.shape = MemoryShape{MemoryPattern::bias_gradient, fused.row_length, std::max<std::int64_t>(1, fused.partial_sums.value / 4 / fused.row_length)};
    sum.flops = {static_cast<double>(fused.partial_sums.value) / 4};
    sum.read = fused.partial_sums;
    sum.written = {fused.row_length * 4};
    out.push_back(sum);
    if (!fused.narrowed_sums) continue;
    Kernel narrow = sum;
    narrow.name = "cast";
    narrow.shape = MemoryShape{MemoryPattern::pointwise, 1, fused.row_length};
    narrow.read = sum.written;
    narrow.written = {fused.row_length * 2};
    narrow.estimated = narrow.fused = true;
    out.push_back(narrow);
  }
  return out;
}

Kernel layout_copy(TensorId id, const Graph& graph) {
  Kernel kernel = padding_copy(id, graph);
  kernel.name = "fused_layout";
  std::get<MemoryShape>(kernel.shape).pattern = MemoryPattern::transpose;
  return kernel;
}

Kernel padding_copy(TensorId operand, const Graph& graph) {
  Kernel kernel;
  kernel.name = "fused_padding";
  kernel.shape = MemoryShape{MemoryPattern::copy, 1, graph.tensors[operand].shape.elements()};
  kernel.math = kernel.input = kernel.output = graph.tensors[operand].dtype;
  kernel.read = kernel.written = graph.bytes(operand);
  kernel.estimated = kernel.fused = true;
  return kernel;
}

}  // namespace precog
