#include "kernel/kernel.h"

#include <array>

#include <fmt/format.h>

namespace precog {

std::string_view to_text(MemoryPattern pattern) {
  static constexpr std::array<std::string_view, static_cast<std::size_t>(MemoryPattern::kCount)> kNames = {
      "pointwise", "broadcast", "activation", "dropout", "cast", "copy", "permute", "transpose", "layout", "reduction", "bias_gradient",
      "norm_forward", "norm_backward", "norm_parameters", "batch_norm_forward", "batch_norm_backward",
      "native_batch_norm_forward", "native_batch_norm_backward", "softmax_forward", "softmax_backward", "loss",
      "embedding", "embedding_backward", "pooling_forward", "pooling_backward", "index", "multi_tensor", "fill"};
  return kNames[static_cast<std::size_t>(pattern)];
}

std::string_view to_text(ConvDirection direction) {
  static constexpr std::array<std::string_view, 3> kNames = {"forward", "data_gradient", "weight_gradient"};
  return kNames[static_cast<std::size_t>(direction)];
}

std::string_view to_text(Collective collective) {
  static constexpr std::array<std::string_view, 5> kNames = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"};
  return kNames[static_cast<std::size_t>(collective)];
}

namespace {

struct ShapeText {
  std::string operator()(const MemoryShape& s) const { return std::string(to_text(s.pattern)); }
  std::string operator()(const GemmShape& s) const { return fmt::format("gemm {}x{}x{}x{}", s.batch, s.m, s.n, s.k); }
  std::string operator()(const ConvShape& s) const {
    return fmt::format("conv {} n={} c={} k={} {}x{}->{}x{} kernel={}x{} groups={}", to_text(s.direction), s.batch, s.in_channels,
                       s.out_channels, s.in_h, s.in_w, s.out_h, s.out_w, s.kernel_h, s.kernel_w, s.groups);
  }
  std::string operator()(const AttentionShape& s) const {
    return fmt::format("attention {} {} b={} h={}/{} q={} kv={} d={}{}", to_text(s.backend), s.backward ? "backward" : "forward",
                       s.batch, s.heads, s.kv_heads, s.q_len, s.kv_len, s.head_dim, s.causal ? " causal" : "");
  }
  std::string operator()(const CollectiveShape& s) const {
    return fmt::format("{} {} over {}{}", to_text(s.kind), to_text(s.bytes), s.participants, s.stride > 1 ? fmt::format(" stride {}", s.stride) : "") +
           (s.copies > 0 ? fmt::format(", {} copies", s.copies) : "");
  }
};

}  // namespace

std::string to_text(const Kernel& kernel) {
  std::string out = fmt::format("{} [{}] {}", kernel.name, std::visit(ShapeText{}, kernel.shape), to_text(kernel.math));
  if (kernel.flops.value > 0) out += fmt::format(" {:.4g} GFLOP", kernel.flops.value / 1e9);
  out += fmt::format(" read {} write {}", to_text(kernel.read), to_text(kernel.written));
  if (kernel.launches > 1) out += fmt::format(" x{}", kernel.launches);
  if (kernel.emulated) out += " emulated";
  if (kernel.unknown) out += " unknown";
  return out;
}

std::string to_text(const KernelProgram& program, const Graph& graph) {
  std::string out;
  for (const Call& call : program.calls) {
    out += fmt::format("{} {}", to_text(call.phase), name_of(graph, graph.ops[call.op]));
    if (call.kernel_count == 0) out += call.waits_for_gpu ? ": the host waits for the GPU" : ": no kernel";
    out += '\n';
    for (std::uint32_t i = 0; i < call.kernel_count; ++i)
      out += fmt::format("  {}\n", to_text(program.kernels[call.first_kernel + i]));
  }
  return out;
}

}  // namespace precog
