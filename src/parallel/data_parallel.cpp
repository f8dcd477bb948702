#include <vector>

#include "parallel/parallel.h"

namespace precog {
namespace {

// torch.nn.parallel.DistributedDataParallel: bucket_cap_mb = 25, and a small first bucket so that communication
// starts early (dist._DEFAULT_FIRST_BUCKET_BYTES).
constexpr std::int64_t kBucketBytes = 25 << 20;
constexpr std::int64_t kFirstBucketBytes = 1 << 20;

struct Bucket {
  std::vector<std::size_t> gradients;  // indices into StepGraph::gradients
  Bytes bytes;
  OpId ready;  // the operator that completes its last gradient
};

std::vector<Bucket> fill_buckets(const StepGraph& step) {
  std::vector<Bucket> buckets;
  Bucket open;
  for (std::size_t i = 0; i < step.gradients.size(); ++i) {
    const ParameterGradient& g = step.gradients[i];
    open.gradients.push_back(i);
    open.bytes += step.graph.bytes(g.gradient);
    open.ready = std::max(open.ready, g.made_by);
    if (open.bytes.value >= (buckets.empty() ? kFirstBucketBytes : kBucketBytes)) {
      buckets.push_back(std::move(open));
      open = {};
    }
  }
  if (!open.gradients.empty()) buckets.push_back(std::move(open));
  return buckets;
}

Op sync_op(OpKind kind, DType dtype, Attributes attributes = {}) {
  Op op;
  op.kind = kind;
  op.phase = Phase::gradient_sync;
  op.math = dtype;
  op.attributes = std::move(attributes);
  return op;
}

}  // namespace

StepGraph apply_plan(const Plan& plan, StepGraph step) {
  if (plan.dp <= 1) return step;
  const std::vector<Bucket> buckets = fill_buckets(step);
  Graph& graph = step.graph;
  Store<OpId, Op> before = std::move(graph.ops);
  graph.ops = {};
  graph.ops.reserve(before.size() + 2 * step.gradients.size() + buckets.size());

  std::vector<TensorId> bucket_tensors;
  auto send = [&](const Bucket& bucket) {
    const DType dtype = graph.tensors[step.gradients[bucket.gradients.front()].gradient].dtype;
    const std::int64_t elements = bucket.bytes.value * 8 / bits_of(dtype);
    // Buckets live as long as the model (gradient_as_bucket_view is off by default).
    TensorId memory = graph.add_tensor({.shape = {elements}, .dtype = dtype, .role = Role::gradient_bucket, .name = graph.intern("ddp_bucket")});
    bucket_tensors.push_back(memory);
    for (std::size_t i : bucket.gradients)  // each gradient is divided by the number of ranks on its way in
      graph.add_op(sync_op(OpKind::bucket_copy, dtype), std::array{step.gradients[i].gradient}, {});
    graph.add_op(sync_op(OpKind::all_reduce, dtype, CollectiveAttributes{bucket.bytes, plan.dp}), std::array{memory}, {});
  };
  auto receive_all = [&] {
    for (const Bucket& bucket : buckets)
      for (std::size_t i : bucket.gradients)
        graph.add_op(sync_op(OpKind::bucket_copy, graph.tensors[step.gradients[i].gradient].dtype),
                     std::array{step.gradients[i].gradient}, {});
  };

  std::vector<OpId> moved(before.size());
  std::size_t next = 0;
  bool received = false;
  for (std::size_t i = 0; i < before.size(); ++i) {
    const Op& op = before[before.id_at(i)];
    const bool step_ends = op.phase == Phase::optimizer || op.phase == Phase::loss_scaling;
    if (step_ends && !received) {
      while (next < buckets.size()) send(buckets[next++]);
      receive_all();
      received = true;
    }
    moved[i] = graph.ops.add(op);
    while (next < buckets.size() && buckets[next].ready.index() <= i) send(buckets[next++]);
  }
  for (ParameterGradient& g : step.gradients) g.made_by = moved[g.made_by.index()];
  return step;
}

}  // namespace precog
