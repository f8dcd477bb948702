#include "parallel/quantised_messages.h"

#include <algorithm>

namespace precog {

std::int64_t scales_of(std::int64_t elements) {
  constexpr std::int64_t kGroup = 8000;
  std::int64_t groups = std::max<std::int64_t>(1, (elements + kGroup - 1) / kGroup);
  while (groups < elements && elements % (8 * groups) != 0) ++groups;
  return groups;
}

bool exchanged_in_4_bits(const Shape& gradient, int ranks) { return gradient.rank() > 1 && gradient.elements() % (2 * std::int64_t{ranks}) == 0; }

void exchange_in_4_bits(Rewrite& out, const Shape& gradient, DType sent, int local, int nodes, std::vector<TensorId> after, TensorId part, TensorId done) {
  const std::int64_t elements = gradient.elements(), ranks = std::int64_t{local} * nodes, own = elements / ranks;
  const std::int64_t scales = std::max({gradient[0], gradient[1], ranks}), fewer = scales / local;
  const auto narrow = [](std::int64_t count, std::int64_t scaled) { return Bytes{count / 2 + 4 * scaled}; };
  const auto kernel = [&](std::int64_t count, std::int64_t launches, Bytes read, Bytes written, TensorId made) {
    out.put({OpKind::shard_copy, Phase::backward, sent, ShardCopyAttributes{count, launches, read, written}, "reduce_scatter", true}, after, std::vector{made});
    after = {made};
  };
  const auto exchange = [&](std::int64_t count, std::int64_t scaled, int participants, int stride) {
    const TensorId numbers = out.tensor(narrow(count, 0).value, DType::uint8), factors = out.tensor(scaled, DType::fp32);
    out.put({OpKind::all_to_all, Phase::backward, DType::int8, CollectiveAttributes{narrow(count, 0), participants, stride}}, after, std::vector{numbers});
    out.put({OpKind::all_to_all, Phase::backward, DType::fp32, CollectiveAttributes{{4 * scaled}, participants, stride}}, {numbers}, {factors});
    after = {numbers, factors};
  };
  const auto bytes = [&](std::int64_t count) { return bytes_of(count, sent); };
  const int stride = out.step.replica_stride;
  kernel(elements, 1, bytes(elements), narrow(elements, scales), out.tensor(narrow(elements, scales).value, DType::uint8));  // swizzle_quant
  exchange(elements, scales, local, stride);
  const std::int64_t node = elements / local;
  kernel(elements, 1, narrow(elements, scales), narrow(node, fewer), out.tensor(narrow(node, fewer).value, DType::uint8));  // quantized_reduction
  exchange(node, fewer, nodes, stride * local);
  kernel(node, 1, narrow(node, fewer), bytes(node), out.tensor(node, sent));  // dequantize
  // sum(chunks) / nodes: from 0 on, a pass for each chunk, and one to divide.
  out.put({OpKind::shard_copy, Phase::backward, sent, ShardCopyAttributes{own, nodes + 1, bytes(2 * nodes * own), bytes((nodes + 1) * own)}, "reduce_scatter", true}, after, std::vector{part, done});
}

}  // namespace precog
