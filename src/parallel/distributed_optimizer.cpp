// A distributed optimizer (Megatron's, ZeRO 1 and 2): every rank keeps the optimizer's states of its share of the elements.
// Gradients are reduce_scattered in buckets beside backward, the optimizer updates one share, and the updated parameters are
// all_gathered in their own type. ZeRO 1 keeps whole gradients in buffers, sent once a step; ZeRO 2 keeps only the reduced
// share, and so must send them after every micro-batch: main gradients too are then the share's alone (Megatron's
// data_parallel_sharding_strategy optim_grads, DeepSpeed's stage 2).
#include <algorithm>

#include "parallel/parallel.h"
#include "parallel/rewrite.h"

namespace precog {
namespace {

// Megatron-LM core, DistributedDataParallelConfig: a bucket is closed at max(40,000,000, 1,000,000 x ranks) elements.
constexpr std::int64_t kBucketElements = 40'000'000, kBucketElementsPerRank = 1'000'000;

// No whole buffers of main gradients: each is a tensor of its own until it has been sent.
void unfold(StepGraph& step) {
  step.gradients_folded = false;
  step.main_gradients = {};
  for (const ParameterGradient& g : step.gradients) step.graph.tensors[g.gradient].role = Role::gradient;
  for (Op& op : step.graph.ops)
    if (auto* product = std::get_if<GemmAttributes>(&op.attributes)) product->accumulates = false;
}

}  // namespace

void distribute_optimizer(int ranks, int copies, bool gradients_too, const Replicas& how, const PrecisionRecipe& recipe, StepGraph& step) {
  const bool copied = !gradients_in_buffers(recipe) || gradients_too, shards_kept = gradients_too;
  // DeepSpeed's stage 1 has no buffers for messages: gradients are added up where autograd left them or in the bf16 optimizer's own, each message is laid
  // together when it is sent, copied back and let go (engine.py switches contiguous_gradients off; allreduce_bucket there and in stage_1_and_2.py).
  const bool passing = !shards_kept && recipe.reduces_after_backward;
  if (gradients_too && step.gradients_folded) unfold(step);
  const std::int64_t full = std::max(kBucketElements, kBucketElementsPerRank * ranks);
  const auto buckets = fill_buckets(step, [&](const Bucket& bucket, std::size_t) { return bucket.elements >= full; });
  const Phase phase = shards_kept ? Phase::backward : Phase::gradient_sync;
  Rewrite out(step);
  Graph& graph = step.graph;
  // DeepSpeed's bf16 optimizer sums its fp32 buffers on every rank, when all of backward is done, and each then reads its share (engine.py,
  // buffered_allreduce_fallback over the optimizer's get_grads_for_reduction; pipe/engine.py, _exec_reduce_grads).
  // So does its stage 1 in fp16, though each rank gets its share alone (engine.py, allreduce_gradients at the last micro-batch; stage_1_and_2.py, reduce_gradients).
  const bool when_done = !gradients_too && (recipe.reduces_after_backward || !how.overlap_reduce);
  const bool sums_everywhere = !gradients_too && recipe.reduces_after_backward && recipe.main_gradients && recipe.main_gradients->made == MainGradients::Made::in_backward;
  // Shares must be made as backward goes, or there would be no room for the whole: without overlap it stands still for each (DeepSpeed's overlap_comm false:
  // the reduction is on the stream that computes, stage_1_and_2.py).
  const bool stands_still = gradients_too && !how.overlap_reduce;
  bool accumulates = false;
  for (std::size_t i = 0; i < out.size(); ++i) accumulates = accumulates || out.old(i).phase == Phase::accumulate || out.old(i).kind == OpKind::accumulate_gradient;

  auto send = [&](const Bucket& bucket) {
    const DType own = kept_type(recipe, graph.tensors[step.gradients[bucket.gradients.front()].gradient].dtype), sent = recipe.reduced_gradients.value_or(own);
    Tensor buffer{.shape = {bucket.elements}, .dtype = sent};
    if (!shards_kept && !passing) buffer.role = Role::gradient_bucket, buffer.name = graph.intern("gradient_buffer");
    const bool in_place = !copied && sent == own;  // the training pass's own buffers
    TensorId memory;
    std::vector<TensorId> inputs;
    for (std::size_t i : bucket.gradients) inputs.push_back(step.gradients[i].gradient);
    const Bytes read = bytes_of(bucket.elements, own), written = bytes_of(bucket.elements, sent);
    if (in_place) {
      out.put({OpKind::shard_copy, phase, own, ShardCopyAttributes{bucket.elements, 1, read, written}, "scale"}, {}, {});
    } else {  // divided by the number of ranks on the way
      memory = graph.add_tensor(buffer);
      const auto launches = copied ? static_cast<std::int64_t>(inputs.size()) : 1;
      out.put({OpKind::shard_copy, phase, sent, ShardCopyAttributes{bucket.elements, launches, read, written}, "bucket_copy"}, inputs,
              std::vector<TensorId>(shards_kept || passing ? 1u : 0u, memory));
    }
    const CollectiveAttributes message = group_of(bucket, step, written, ranks);
    const int sharing = message.participants;
    const TensorId reduced = out.tensor(shards_kept ? share_of(bucket.elements, sharing) : 0, sent);
    out.put({sums_everywhere ? OpKind::all_reduce : OpKind::reduce_scatter, phase, sent, message}, std::vector<TensorId>(memory.valid() ? 1u : 0u, memory), std::vector{reduced});
    TensorId kept = reduced, done = reduced;
    if (copies > 1) done = sum_over_groups(out, phase, sent, bytes_of(share_of(bucket.elements, sharing), sent), message.stride * sharing, copies, reduced);
    if (stands_still) out.put({OpKind::shard_copy, phase, DType::uint8, ShardCopyAttributes{1, 1, {1}, {1}}, "wait_for_reduction"}, {done}, {});
    if (sent != own) {  // the optimizer reads the gradients' own type
      kept = out.tensor(share_of(bucket.elements, sharing), own);
      out.put({OpKind::shard_copy, phase, own, ShardCopyAttributes{share_of(bucket.elements, sharing), 1, bytes_of(share_of(bucket.elements, sharing), sent), bytes_of(share_of(bucket.elements, sharing), own)},
               copies > 1 ? kAcrossGroups : "reduce_scatter", true}, {reduced}, {kept});
    }
    if (shards_kept && accumulates) out.put({OpKind::accumulate_gradient, Phase::accumulate, own, {}, copies > 1 ? kAcrossGroups : "reduce_scatter", true}, {kept}, {});
    if (shards_kept || (kept != reduced && !passing)) step.shards.kept_gradients.push_back(kept);
  };

  std::size_t next = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const Op& op = out.old(i);
    if (ends_step(op.phase))
      while (next < buckets.size()) send(buckets[next++]);
    if (shards_kept && out.accumulates(i)) out.drop(i);
    else out.keep(i);
    while (!when_done && next < buckets.size() && buckets[next].ready.index() <= i) send(buckets[next++]);
  }
  while (next < buckets.size()) send(buckets[next++]);
  std::vector<char> narrow;  // weights that products read in 8 bits only travel so
  if (recipe.gathers_fp8) {
    narrow.resize(graph.tensors.size());
    for (const Op& op : graph.ops)
      if (op.kind == OpKind::scaled_mm && op.phase == Phase::forward)
        for (TensorId id : graph.inputs(op)) narrow[id.index()] = graph.tensors[id].role == Role::parameter && graph.tensors[id].shape.rank() > 1;
  }
  for (std::size_t k = 0; k < buckets.size(); ++k) {
    // Forward wants first what backward finished last. Gathers that name their parameters are waited for where those are read.
    const Bucket& bucket = buckets[how.overlap_gather ? buckets.size() - 1 - k : k];
    Bytes bytes;
    std::vector<TensorId> waited_for;
    for (std::size_t i : bucket.gradients) {
      const TensorId parameter = step.gradients[i].parameter;
      bytes += narrow.empty() || !narrow[parameter.index()] ? graph.bytes(parameter) : bytes_of(graph.tensors[parameter].shape.elements(), DType::fp8);
      if (how.overlap_gather) waited_for.push_back(step.gradients[i].parameter);
    }
    out.put({OpKind::all_gather, Phase::optimizer, graph.tensors[step.gradients[bucket.gradients.front()].parameter].dtype, group_of(bucket, step, bytes, ranks)}, waited_for, {});
  }
  out.finish();
  step.shards.gradients_released = copied && !passing;
  step.shards.optimizer = {ranks, step.expert_sharers(ranks)};
}

}  // namespace precog
