#include "kernel/megatron_softmax.h"

#include <algorithm>
#include <bit>

#include "parallel/forward_rewrite.h"

namespace precog {

bool are_scores(const Shape& shape) { return shape.rank() == 4 && shape[2] == shape[3]; }

bool FusedSoftmaxRule::takes(const Shape& scores) const {
  constexpr std::int64_t kLeast = 16, kMost = 4096, kMultiple = 4, kWarp = 32, kThreads = 128, kShort = 128;
  const std::int64_t length = scores[3], rows = scores[0] * scores[1];
  if (length <= kLeast || length > kMost || length % kMultiple != 0 || rows % kMultiple != 0) return false;
  const auto filled = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(heads_for_lengths ? scores[1] : length)));
  const std::int64_t of_block = kThreads / std::min(filled, kWarp) * (filled <= kShort ? 2 : 1);
  return rows % of_block == 0;
}

Graph convert_scores(Graph forward, FusedSoftmaxRule rule) {
  ForwardRewrite rewrite(std::move(forward));
  for (const Op& op : rewrite.in.ops) {
    const bool of_scores = (op.kind == OpKind::mul_scalar || op.kind == OpKind::masked_fill) && are_scores(rewrite.in.tensors[rewrite.in.input(op, 0)].shape);
    if (!of_scores || rule.takes(rewrite.in.tensors[rewrite.in.input(op, 0)].shape)) {
      rewrite.keep(op);
    } else if (op.kind == OpKind::mul_scalar) {
      const TensorId input = rewrite.in.input(op, 0), wide = rewrite.like(input);
      rewrite.out.tensors[wide].dtype = DType::fp32;
      rewrite.put(rewrite.beside(op, OpKind::cast, CastAttributes{.to = DType::fp32}), {input}, {wide});
      rewrite.put(op, {wide}, {rewrite.in.output(op)});
    } else {  // masked_fill_
      Op inside = op;
      inside.in_place = true;
      const TensorId scaled = rewrite.in.input(op, 0), storage = rewrite.out.tensors[scaled].storage;
      rewrite.out.tensors[rewrite.in.output(op)].storage = storage.valid() ? storage : scaled;
      rewrite.put(inside, {scaled, rewrite.in.input(op, 1)}, {rewrite.in.output(op)});
    }
  }
  return std::move(rewrite.out);
}

}  // namespace precog
