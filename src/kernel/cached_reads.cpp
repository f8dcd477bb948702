#include "kernel/cached_reads.h"

#include <algorithm>

namespace precog {
namespace {

// The L2 cache of large GPUs has two halves, and what SMs of both sides read lies in both. On an H200 a kernel finds all of a small operand
// when up to 24 MB of others were touched since it was written, half of it after 32 MB, nothing after 45
// (data/measured/2026-11-16-h200-cached).
constexpr double kUsable = 0.35;

}  // namespace

std::vector<double> cached_reads(const Graph& graph, const KernelProgram& program, const GpuSpec& gpu) {
  const double room = kUsable * static_cast<double>(gpu.l2.value);
  std::vector<double> out(program.kernels.size(), 0), touched(graph.tensors.size(), -1e300);  // by storage: bytes moved until then
  if (room <= 0) return out;
  double moved = 0;
  for (const Call& call : program.calls) {
    const Op& op = graph.ops[call.op];
    double all = 0, held = 0;
    for (TensorId id : graph.inputs(op)) {
      const double bytes = static_cast<double>(graph.bytes(id).value), since = moved - touched[graph.tensors[id].storage.index()];
      all += bytes;
      held += bytes * std::clamp(2 - (since + bytes) / room, 0.0, 1.0);  // what is longer ago than the room goes, a part of it first
    }
    for (std::uint32_t k = 0; k < call.kernel_count; ++k) {
      const Kernel& kernel = program.kernels[call.first_kernel + k];
      const double read = static_cast<double>(kernel.read.value), traffic = read + static_cast<double>(kernel.written.value);
      // What its second kernel reads its first has just written or read.
      const double share = std::max(all > 0 ? held / all : 0, k > 0 ? std::clamp(2 - read / room, 0.0, 1.0) : 0);
      if (traffic > 0 && !kernel.fused) out[call.first_kernel + k] = share * read / traffic;
      moved += traffic;
    }
    for (TensorId id : graph.inputs(op)) touched[graph.tensors[id].storage.index()] = moved;
    for (TensorId id : graph.outputs(op)) touched[graph.tensors[id].storage.index()] = moved;
  }
  return out;
}

}  // namespace precog
