// What a recomputed layer begins with, shared out among the ranks that split it (Megatron-LM's --distribute-saved-activations,
// core/tensor_parallel/random.py, CheckpointFunction: split_tensor_into_1d_equal_chunks when forward is done, gather_split_1d_tensor in backward; DeepSpeed's
// partition_activations, runtime/activation_checkpointing/checkpointing.py). Without sequence parallelism every rank has all of it: each keeps its
// part, a copy, and all is gathered before the layer is computed again, which waits for it.
#include "parallel/read_copies.h"

namespace precog {
namespace {

struct Checkpoint {
  std::vector<TensorId> tensors;  // storages that recomputation reads
  std::vector<TensorId> parts;    // this rank's, of each
  std::size_t last_forward = 0;
};

// By block: what of earlier operators its recomputation reads, of what follows from parameters (positions' angles do not, and are nobody's checkpoints).
std::map<int, Checkpoint> find_checkpoints(const Rewrite& steps) {
  std::map<int, Checkpoint> out;
  const auto& tensors = steps.graph.tensors;
  std::vector<char> learned(tensors.size(), 0), activation(tensors.size(), 0);
  for (std::size_t t = 0; t < tensors.size(); ++t) learned[t] = tensors[tensors.id_at(t)].role == Role::parameter;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const Op& op = steps.old(i);
    if (op.phase == Phase::forward) {
      bool follows = false;
      for (TensorId id : steps.graph.inputs(op)) follows = follows || learned[id.index()];
      for (TensorId id : steps.graph.outputs(op)) {
        learned[id.index()] = follows;
        activation[id.index()] = follows && is_floating(tensors[id].dtype) && tensors[id].role == Role::activation;
      }
    }
    if (op.phase != Phase::recompute || op.block < 0) continue;
    std::vector<TensorId>& found = out[op.block].tensors;
    for (TensorId id : steps.graph.inputs(op)) {
      const TensorId storage = steps.graph.tensors[id].storage;
      if (activation[storage.index()] && std::find(found.begin(), found.end(), storage) == found.end()) found.push_back(storage);
    }
  }
  for (std::size_t i = 0; i < steps.size(); ++i)
    if (const auto at = out.find(steps.old(i).block); steps.old(i).phase == Phase::forward && at != out.end()) at->second.last_forward = i;
  return out;
}

TensorId last_made(const Graph& graph) {
  for (std::size_t i = graph.ops.size(); i-- > 0;)
    if (const Op& op = graph.ops[graph.ops.id_at(i)]; op.output_count > 0 && op.kind != OpKind::view) return graph.outputs(op)[0];
  return {};
}

}  // namespace

void share_checkpoints(int ranks, StepGraph& step) {
  Rewrite out(step);
  ReadCopies reads(out);
  std::map<int, Checkpoint> checkpoints = find_checkpoints(out);
  const auto of_block = [&](OpId id, int block) { out.graph.ops[id].block = block; };
  for (std::size_t i = 0; i < out.size(); ++i) {
    const int block = out.old(i).block;
    const auto at = checkpoints.find(block);
    const bool here = at != checkpoints.end(), forward = out.old(i).phase == Phase::forward;
    if (here && !forward && !at->second.parts.empty()) {  // the layer's backward begins: all before it must be done, as for every collective that is issued
      const TensorId before = last_made(out.graph);
      for (std::size_t t = 0; t < at->second.tensors.size(); ++t) {
        const TensorId whole = at->second.tensors[t];
        CollectiveAttributes message{out.graph.bytes(whole), ranks};
        const OpId gather = out.put({OpKind::all_gather, Phase::recompute, out.graph.tensors[whole].dtype, message, "checkpoint"}, {at->second.parts[t], before}, {reads.copy_of(whole)});
        std::get<CollectiveAttributes>(out.graph.ops[gather].attributes).stride = 1;  // not the replicas', which put() takes for granted
        of_block(gather, block);
      }
      at->second.parts.clear();
    }
    if (forward) out.keep(i);
    else reads.keep(i);
    if (!here || !forward || i != at->second.last_forward) continue;
    for (TensorId whole : at->second.tensors) {
      const std::int64_t elements = share_of(out.graph.tensors[whole].shape.elements(), ranks);
      const DType type = out.graph.tensors[whole].dtype;
      at->second.parts.push_back(out.tensor(elements, type));
      const Bytes bytes = bytes_of(elements, type);
      of_block(out.put({OpKind::shard_copy, Phase::forward, type, ShardCopyAttributes{elements, 1, bytes, bytes}, "part_of_checkpoint"}, {whole}, {at->second.parts.back()}), block);
    }
  }
  out.finish();
}

}  // namespace precog
