// torch.nn.parallel.DistributedDataParallel: gradients go into buckets in the order in which backward makes them; each full
// bucket is averaged by an all_reduce that runs beside the rest of backward; the optimizer waits for the last.
// Where gradients travel in another type than their own, a communication hook casts each bucket and divides it, and casts what
// comes back (torch/distributed/algorithms/ddp_comm_hooks/default_hooks.py: fp16_compress_hook, bf16_compress_hook).
// DeepSpeed's engine lays all gradients into one buffer when backward is done, divides and averages it, and copies each back
// (deepspeed/runtime/engine.py: buffered_allreduce_fallback, allreduce_and_copy).
#include <algorithm>

#include "parallel/parallel.h"
#include "parallel/rewrite.h"

namespace precog {
namespace {

// MEMORY_OPT_ALLREDUCE_SIZE of DeepSpeed's engine.
constexpr std::int64_t kElementsOfBuffer = 500'000'000;

}  // namespace

void replicate(int ranks, const Replicas& how, const PrecisionRecipe& recipe, StepGraph& step) {
  const bool flattens = recipe.reduces_after_backward;  // DeepSpeed's engine
  const bool when_done = flattens || !how.overlap_reduce;
  // Views (gradient_as_bucket_view): zero_grad drops gradients, so that backward makes new ones, which are copied in all the same; then the view takes
  // the gradient's place (reducer.cpp, mark_variable_ready_dense): nothing is copied back, and of both the bucket is left.
  const bool copied = !gradients_in_buffers(recipe), views = how.bucket_views && copied;
  std::vector<Bucket> buckets;
  {
    const Graph& graph = step.graph;
    buckets = fill_buckets(step, [&](const Bucket& bucket, std::size_t filled) {
      Bytes bytes;
      if (flattens) return bucket.elements >= kElementsOfBuffer;
      for (std::size_t i : bucket.gradients) bytes += graph.bytes(step.gradients[i].gradient);
      return bytes >= (filled == 0 ? how.first_bucket : how.bucket);
    });
  }
  std::erase_if(buckets, [&](const Bucket& bucket) { return group_of(bucket, step, {}, ranks).participants == 1; });  // experts that no other rank has
  Rewrite out(step);
  Graph& graph = step.graph;
  auto type_of = [&](std::size_t gradient) { return kept_type(recipe, graph.tensors[step.gradients[gradient].gradient].dtype); };
  auto copy = [&](std::size_t gradient) {
    out.put({OpKind::bucket_copy, Phase::gradient_sync, type_of(gradient)}, {step.gradients[gradient].gradient}, {});
  };
  auto send = [&](const Bucket& bucket) {
    const DType own = type_of(bucket.gradients.front()), sent = recipe.reduced_gradients.value_or(own);
    const CollectiveAttributes message = group_of(bucket, step, bytes_of(bucket.elements, sent), ranks);
    if (!copied && sent == own) {  // the training pass's own buffers, divided where they are
      out.put({OpKind::shard_copy, Phase::gradient_sync, own, ShardCopyAttributes{bucket.elements, 1, message.bytes, message.bytes}, "scale"}, {}, {});
      out.put({OpKind::all_reduce, Phase::gradient_sync, own, message}, {}, {});
      return;
    }
    // Buckets live as long as the model.
    const TensorId memory = graph.add_tensor({.shape = {bucket.elements}, .dtype = own, .role = Role::gradient_bucket, .name = graph.intern("ddp_bucket")});
    if (copied && flattens) {
      const ShardCopyAttributes all{bucket.elements, 1, bytes_of(bucket.elements, own), bytes_of(bucket.elements, own)};
      std::vector<TensorId> gradients;
      for (std::size_t i : bucket.gradients) gradients.push_back(step.gradients[i].gradient);
      out.put({OpKind::shard_copy, Phase::gradient_sync, own, all, "flatten"}, gradients, {});
      out.put({OpKind::shard_copy, Phase::gradient_sync, own, all, "scale"}, {}, {});
    } else if (copied) {  // each gradient is divided by the number of ranks on its way in, unless a hook does it
      for (std::size_t i : bucket.gradients) copy(i);
    }
    if (sent == own) {
      out.put({OpKind::all_reduce, Phase::gradient_sync, own, message}, {memory}, {});
      return;
    }
    const TensorId narrow = out.tensor(bucket.elements, sent), divided = graph.add_tensor({.shape = {bucket.elements}, .dtype = sent, .storage = narrow});
    out.put({OpKind::cast, Phase::gradient_sync, sent, CastAttributes{.to = sent}}, {memory}, {narrow});
    out.put({OpKind::mul_scalar, Phase::gradient_sync, sent}, {narrow}, {divided});
    out.put({OpKind::all_reduce, Phase::gradient_sync, sent, message}, {divided}, {});
    out.put({OpKind::cast, Phase::gradient_sync, own, CastAttributes{.to = own}, "all_reduce", true}, {divided}, {memory});
  };

  std::size_t next = 0;
  bool received = false;
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (ends_step(out.old(i).phase) && !received) {
      while (next < buckets.size()) send(buckets[next++]);
      // Which parameters any rank used: a number for each, summed (reducer.cpp: all_reduce_local_used_map).
      if (how.find_unused) {
        const std::int64_t parameters = static_cast<std::int64_t>(step.gradients.size());
        out.put({OpKind::all_reduce, Phase::gradient_sync, DType::int32, CollectiveAttributes{bytes_of(parameters, DType::int32), ranks, step.replica_stride}}, {}, {});
      }
      if (copied && !views)
        for (const Bucket& bucket : buckets)
          for (std::size_t gradient : bucket.gradients) copy(gradient);
      received = true;
    }
    out.keep(i);
    while (!when_done && next < buckets.size() && buckets[next].ready.index() <= i) send(buckets[next++]);
  }
  while (next < buckets.size()) send(buckets[next++]);
  out.finish();
  // Gradients of several micro-batches are added up outside the buckets (no_sync) until the last is sent.
  const bool adds_up = std::any_of(graph.ops.begin(), graph.ops.end(), [](const Op& op) { return op.phase == Phase::accumulate; });
  if (views && !adds_up) step.shards.gradients_released = true;
}

}  // namespace precog
