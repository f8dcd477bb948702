#include "kernel/loss_pieces.h"

#include <algorithm>

namespace precog {
namespace {

struct SizeOfScores {
  std::int64_t tokens = 0, classes = 0;
  std::int64_t elements() const { return tokens * classes; }
  // Shifted by a token, too.
  bool has_size(const Shape& shape) const { return shape.elements() >= elements() - elements() / 64 && shape.elements() <= elements() + elements() / 64; }
};

SizeOfScores find_scores(const Graph& graph) {
  SizeOfScores out;
  for (const Op& op : graph.ops) {
    if (op.kind != OpKind::log_softmax || op.block >= 0) continue;
    const Shape& shape = graph.tensors[graph.input(op, 0)].shape;
    if (shape.rank() == 0 || shape.elements() <= out.elements()) continue;
    out.classes = shape[shape.rank() - 1];
    out.tokens = shape.elements() / std::max<std::int64_t>(1, out.classes);
  }
  return out;
}

}  // namespace

void run_loss_in_pieces(const Graph& graph, int pieces, KernelProgram& program) {
  const SizeOfScores scores = find_scores(graph);
  if (pieces <= 1 || scores.tokens == 0) return;
  for (const Call& call : program.calls) {
    const Op& op = graph.ops[call.op];
    if (op.block >= 0 || op.phase > Phase::backward) continue;
    bool reads = false, makes = false;
    for (TensorId id : graph.inputs(op)) reads = reads || scores.has_size(graph.tensors[id].shape);
    for (TensorId id : graph.outputs(op)) makes = makes || scores.has_size(graph.tensors[id].shape);
    if (!reads && !makes) continue;
    for (std::uint32_t i = 0; i < call.kernel_count; ++i) {
      Kernel& kernel = program.kernels[call.first_kernel + i];
      kernel.launches *= pieces;
      if (auto* memory = std::get_if<MemoryShape>(&kernel.shape)) memory->rows = std::max<std::int64_t>(1, memory->rows / pieces);
      auto* product = std::get_if<GemmShape>(&kernel.shape);
      if (!product) continue;
      // The head's weight: tokens are summed over, and every piece but the first reads what it adds to.
      const bool of_weight = !makes && product->k != scores.classes;
      std::int64_t& tokens = of_weight ? product->k : product->m;
      tokens = std::max<std::int64_t>(1, tokens / pieces);
      if (!of_weight) kernel.read += Bytes{(pieces - 1) * scores.classes * (makes ? product->k : product->n) * bits_of(kernel.input) / 8};  // the weight, again
      else {
        const Bytes sums = kernel.written * static_cast<double>(pieces - 1);
        kernel.read += sums;
        kernel.written += sums;
      }
    }
  }
}

}  // namespace precog
