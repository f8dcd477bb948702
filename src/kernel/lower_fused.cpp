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

std::string_view name_for(FusedKind kind, Family family) {
  switch (kind) {
    case FusedKind::rows: return family == Family::normalization ? "fused_normalization" : family == Family::softmax ? "fused_softmax" : "fused_rows";
    case FusedKind::columns: return "fused_columns";
    case FusedKind::scatter: return "fused_scatter";
    case FusedKind::pointwise: break;
  }
  return family == Family::cast ? "cast" : "fused_pointwise";
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

Kernel lower_fused(const FusedKernel& fused, const Graph& graph) {
  Kernel kernel;
  kernel.name = name_for(fused.kind, family_of(fused, graph));
  kernel.shape = MemoryShape{fused.kind == FusedKind::scatter ? MemoryPattern::broadcast : fused.transposes ? MemoryPattern::copy : MemoryPattern::pointwise,
                             fused.rows, fused.row_length};
  kernel.math = graph.ops[fused.ops.front()].math;
  kernel.input = kernel.output = main_type(fused, graph);
  kernel.flops = {static_cast<double>(fused.rows * fused.row_length) * static_cast<double>(fused.ops.size())};
  kernel.read = fused.scratch_read;
  kernel.written = fused.scratch_written;
  for (const FusedRead& read : fused.reads) kernel.read += read.bytes;
  for (TensorId id : fused.writes) kernel.written += graph.bytes(id);
  kernel.launches = fused.stages;
  kernel.estimated = true;
  kernel.fused = true;
  return kernel;
}

}  // namespace precog
