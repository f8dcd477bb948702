// What tensor-parallel ranks tell each other once a step (Megatron-LM core, distributed/finalize_model_grads.py and
// optimizer/clip_grads.py): the gradients of parameters that all have but meet with their part of the tokens only, as one
// message; whether a gradient overflowed, and the norm of all gradients.
#include <utility>

#include "parallel/rewrite.h"

namespace precog {

void finish_split_layers(int ranks, const PrecisionRecipe& recipe, StepGraph& step) {
  const DType type = step.gradients.empty() ? DType::fp32 : kept_type(recipe, step.graph.tensors[step.gradients.front().gradient].dtype);
  Rewrite out(step);
  Graph& graph = step.graph;
  bool summed = step.summed_gradients == 0;
  auto sum = [&] {
    const std::int64_t elements = std::exchange(step.summed_gradients, 0);
    const Bytes bytes = bytes_of(elements, type);
    const TensorId message = out.tensor(elements, type), event = out.event();
    const ShardCopyAttributes copy{elements, 1, bytes, bytes};
    out.put({OpKind::shard_copy, Phase::gradient_sync, type, copy, "bucket_copy"}, {}, {message});
    out.put({OpKind::all_reduce, Phase::gradient_sync, type, CollectiveAttributes{bytes, ranks}}, {message}, {event});
    out.put({OpKind::shard_copy, Phase::gradient_sync, type, copy, "bucket_copy"}, {message, event}, {});
    summed = true;
  };
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (!summed && ends_step(out.old(i).phase)) sum();
    out.keep(i);
    const Op& op = graph.ops[graph.ops.id_at(graph.ops.size() - 1)];
    const Phase phase = op.phase;
    const bool checks = op.kind == OpKind::unscale_and_check && (i + 1 == out.size() || out.old(i + 1).kind != OpKind::unscale_and_check);
    const bool norm = ends_step(phase) && op.kind == OpKind::multi_tensor && graph.name(op.label) == "norm";
    if (checks || norm) out.put({OpKind::all_reduce, phase, DType::fp32, CollectiveAttributes{{4}, ranks}}, {}, {});
  }
  if (!summed) sum();
  out.finish();
}

}  // namespace precog
