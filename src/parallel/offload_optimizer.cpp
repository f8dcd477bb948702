// An optimizer on the host (ZeRO-Offload: Ren et al. 2021; deepspeed/runtime/zero/stage_1_and_2.py, DeepSpeedCPUAdam). Each rank's
// reduced share of the gradients goes to the host's memory in fp32 as soon as it is there, on the stream of the reduction; with
// several micro-batches the sum so far comes back to be added to. At the end of the step the host waits for the last of them,
// updates states and master weights in its own memory, and sends the new weights up. ZeRO 1 and 2 send them in fp32, all at once, and
// the GPU makes the model's type of that copy (bit16.copy_(fp32.to(device))); ZeRO 3 copies into the weights themselves (stage3.py), for
// which PyTorch converts on the host (aten/src/ATen/native/cuda/Copy.cu). Then they are gathered as ever. Kernels of loss scaling,
// clipping and the optimizer are gone from the GPU.
// Where the host has a part only, the GPU is given its own updates first and does them while the host is at work (stage3.py, subgroup_to_device: the
// first sub-groups are the GPU's; Megatron-LM's HybridDeviceOptimizer.step, core/optimizer/cpu_offloading/hybrid_optimizer.py).
// How long copies and the host take is not known here: sizes are, in shard_copy operators with the labels below.
#include "parallel/parallel.h"
#include "parallel/rewrite.h"

namespace precog {
namespace {

constexpr DType kHostType = DType::fp32;
// One pass of Adam: weight, gradient and two states read, all but the gradient written. Unscaling or clipping is one more pass over
// the gradients.
constexpr std::int64_t kUpdateBytes = 28, kScaleBytes = 8;
constexpr std::int64_t kConvertBytes = 6;  // fp32 read, 16 bits written
constexpr std::int64_t kAloneElements = 50'000'000;  // of a rank by itself, which has no reductions to go with

bool is_kernel_of_update(const Op& op) {
  return ends_step(op.phase) && op.kind != OpKind::all_gather && op.kind != OpKind::all_reduce && op.kind != OpKind::reduce_scatter;
}

}  // namespace

void offload_optimizer(const Shards::Sharers& owners, bool in_place, bool once, const Replicas& how, const PrecisionRecipe& recipe, StepGraph& step) {
  const bool shared = owners.replicas > 1;
  std::int64_t share = 0;
  for (const ParameterGradient& g : step.gradients) share += share_of(step.graph.tensors[g.parameter].shape.elements(), ranks_sharing(step, g.parameter, owners));
  const auto part = [](std::int64_t whole, double of) { return of == 1 ? whole : static_cast<std::int64_t>(static_cast<double>(whole) * of); };
  const double fraction = how.offload_fraction, rest = 1 - fraction;
  const std::int64_t share_of_all = share;
  share = part(share, fraction);
  const DType parameter = step.gradients.empty() ? DType::fp32 : step.graph.tensors[step.gradients.front().parameter].dtype;
  const DType kept = step.shards.parameter_type.value_or(parameter);
  // What no reduction makes: all of a rank by itself, experts that nobody else has where gathered parameters are reduced unit by unit.
  std::vector<Bucket> alone;
  if (!shared || (in_place && step.experts_own_replicas() && owners.experts == 1)) alone = fill_buckets(step, [](const Bucket& bucket, std::size_t) { return bucket.elements >= kAloneElements; });
  std::erase_if(alone, [&](const Bucket& bucket) { return (bucket.experts ? owners.experts : owners.replicas) > 1; });
  const Phase alone_in = once ? Phase::gradient_sync : Phase::backward;
  bool scales = static_cast<bool>(recipe.loss_scaling), accumulates = false;
  for (const Op& op : step.graph.ops) {
    scales = scales || (op.phase == Phase::optimizer && step.graph.name(op.label) == "norm");
    accumulates = accumulates || op.phase == Phase::accumulate;
  }

  Rewrite out(step);
  Graph& graph = step.graph;
  const auto moves = [&](Phase phase, std::string_view label, std::int64_t elements, std::span<const TensorId> after) {
    const Bytes bytes = bytes_of(elements, kHostType);
    out.put({OpKind::shard_copy, phase, kHostType, ShardCopyAttributes{elements, 1, bytes, bytes}, label, true}, after, {});
  };
  const auto send_down = [&](Phase phase, std::int64_t all, std::span<const TensorId> after) {
    const std::int64_t elements = part(all, fraction);
    if (phase == Phase::backward && accumulates) moves(Phase::accumulate, "from_host", elements, after);
    moves(phase, "to_host", elements, after);
  };
  const auto gradients_of = [&](const Bucket& bucket) {
    std::vector<TensorId> ids;
    for (std::size_t i : bucket.gradients) ids.push_back(step.gradients[i].gradient);
    return ids;
  };
  const auto update_on_host = [&] {
    out.put({OpKind::read_back, Phase::optimizer, DType::fp32, {}, "gradients on the host"}, {}, {});
    // Where the host has the parameters too, nothing goes up: the time is the update's alone.
    const bool staged = !in_place && !how.offload_parameters, converts = in_place && !how.offload_parameters && kept != kHostType;
    const std::int64_t bytes = kUpdateBytes + (scales ? kScaleBytes : 0) + (converts ? kConvertBytes : 0);
    const Bytes host{share * bytes * how.node_ranks};  // all ranks of the node update at the same time
    const Bytes up = how.offload_parameters ? Bytes{1} : bytes_of(share, in_place ? kept : kHostType);
    const TensorId arrived = out.tensor(staged ? share : 0, kHostType);
    out.put({OpKind::shard_copy, Phase::optimizer, kHostType, ShardCopyAttributes{share, 1, host, up}, "cpu_adam"}, {}, {arrived});
    if (staged) out.put({OpKind::shard_copy, Phase::optimizer, parameter, ShardCopyAttributes{share, 1, bytes_of(share, kHostType), bytes_of(share, parameter)}, "copy updated weights"}, {arrived}, {});
  };
  // The GPU's part of an operator at the end of the step.
  const auto keep_rest = [&](std::size_t i) {
    out.keep(i);
    Op& op = graph.ops[graph.ops.id_at(graph.ops.size() - 1)];
    auto* many = std::get_if<MultiTensorAttributes>(&op.attributes);
    if (!many) return;
    for (TensorId made : graph.outputs(op))
      if (graph.tensors[made].shape.elements() == many->elements) graph.tensors[made].shape = {part(many->elements, rest)};
    many->elements = part(many->elements, rest);
    many->launches = std::max<std::int64_t>(1, part(many->launches, rest)), many->tensors = std::max<std::int64_t>(1, part(many->tensors, rest));
  };
  std::size_t last_own = 0;  // of the GPU's calls, after which the host does its part
  for (std::size_t i = 0; i < out.size(); ++i)
    if (is_kernel_of_update(out.old(i))) last_own = i;
  std::size_t next = 0;
  bool ended = false;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const Op& op = out.old(i);
    if (ends_step(op.phase) && !ended) {
      ended = true;
      for (; next < alone.size(); ++next) send_down(alone_in, alone[next].elements, gradients_of(alone[next]));
      if (rest == 0) update_on_host();
    }
    if (rest > 0 && is_kernel_of_update(op)) {
      keep_rest(i);
      if (i == last_own) update_on_host();
      continue;
    }
    if (is_kernel_of_update(op)) {
      out.drop(i);
      continue;
    }
    out.keep(i);
    const auto* message = std::get_if<CollectiveAttributes>(&op.attributes);
    if (op.kind == OpKind::reduce_scatter && !op.label.valid() && message && (shared || message->participants > 1)) {
      const std::vector<TensorId> made(graph.outputs(op).begin(), graph.outputs(op).end());
      send_down(op.phase, share_of(message->bytes.value * 8 / bits_of(op.math), message->participants), made);
    }
    for (; !once && next < alone.size() && alone[next].ready.index() <= i; ++next) send_down(alone_in, alone[next].elements, gradients_of(alone[next]));
  }
  out.finish();
  // The host's own weights, states and gradients; beside them the weights as the model reads them, where those live there too.
  step.on_host += bytes_of(share * (2 + how.state_tensors), kHostType);
  if (how.offload_parameters && kept != kHostType) step.on_host += bytes_of(share, kept);
  // What the GPU updates it has the gradients of, in the optimizer's type, all along.
  if (rest > 0) graph.add_tensor({.shape = {part(share_of_all, rest)}, .dtype = kHostType, .role = Role::gradient_bucket, .name = graph.intern("gradients of the GPU's part")});
  step.shards.updated_here = rest > 0 ? rest : 1;
  step.master_weights = step.master_weights * rest;
  step.main_gradients = {};
  step.shards.kept_gradients.clear();
  if (!shared && !once) step.shards.gradients_released = true;
}

// Moments, master weights, and parameters where the host has them: read and written in passing, both ways at once, a piece at a
// time, so that nothing of them is held. The update itself is the GPU's, as ever.
void offload_states(const Shards::Sharers& owners, const Replicas& how, int state_tensors, StepGraph& step) {
  std::int64_t elements = 0;
  Bytes parameters;
  for (const ParameterGradient& g : step.gradients) {
    const std::int64_t own = share_of(step.graph.tensors[g.parameter].shape.elements(), ranks_sharing(step, g.parameter, owners));
    elements += own;
    parameters += bytes_of(own, step.shards.parameter_type.value_or(step.graph.tensors[g.parameter].dtype));
  }
  Bytes bytes;
  if (how.offload_states) bytes += bytes_of(elements * state_tensors, step.optimizer_state_type) + masters_kept(step, owners);
  if (how.offload_master || how.offload_parameters) bytes += parameters;
  Rewrite out(step);
  bool passed = false;
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (out.old(i).phase == Phase::optimizer && !passed) {
      passed = true;
      out.put({OpKind::shard_copy, Phase::optimizer, DType::uint8, ShardCopyAttributes{bytes.value, 1, bytes, bytes}, "from_host"}, {}, {});
    }
    out.keep(i);
  }
  out.finish();
  step.on_host += bytes;
  if (how.offload_states) step.master_weights = {};
  step.shards.converted_on_host = step.shards.converted_on_host || how.offload_master;
  if (how.offload_master) step.master_weights = {};
}

}  // namespace precog
