// What forward keeps for backward, of the first layers, in the host's memory (Transformer Engine's CPU offloading as Megatron's
// cpu_offloading_num_layers uses it; DeepSpeed's cpu_checkpointing where layers are recomputed). When a layer's forward is done its
// saved tensors go down on a stream of their own; two layers further on the compute stream waits for that, and their memory is
// free: layers that compute faster than the link are held up. In backward they come back while the layer behind them is at work.
// How long copies take is not known here: sizes are, in shard_copy operators labelled to_host and from_host.
#include <map>

#include "graph/weights_alone.h"
#include "parallel/read_copies.h"

namespace precog {
namespace {

constexpr std::int64_t kLeast = 1 << 20;  // smaller ones stay: statistics of norms, scales

class OffloadActivations {
 public:
  OffloadActivations(int layers, StepGraph& step) : out_(step), reads_(out_), graph_(step.graph) { choose(layers); }

  void run() {
    std::size_t asked = 0;  // layers whose copies were asked for
    for (std::size_t i = 0; i < out_.size(); ++i) {
      const Op& op = out_.old(i);
      const bool back = op.phase == Phase::backward || op.phase == Phase::recompute;
      if (back && asked == 0 && !order_.empty() && order_.front() == last_block_) fetch(asked++);
      if (back && op.block >= 0)  // a layer's come while the one behind it works
        while (asked < order_.size() && op.block <= order_[asked] + 1) fetch(asked++);
      if (back) reads_.keep(i);
      else out_.keep(i);
      if (const auto done = ends_at_.find(i); done != ends_at_.end()) send(*done->second);
    }
    out_.finish();
  }
  // Of all layers, as they lie on the host when forward is done.
  Bytes kept_on_host() const {
    Bytes bytes;
    for (const auto& [block, layer] : layers_) bytes += bytes_of_layer(layer);
    return bytes;
  }

 private:
  struct Layer {
    std::vector<TensorId> saved;  // storages
    std::size_t last_forward = 0;
    TensorId sent;  // event
  };

  void choose(int layers) {
    const std::vector<char> of_weights = weights_alone_of_old();
    std::vector<std::int32_t> made_in(graph_.tensors.size(), -2), wanted_by(graph_.tensors.size(), -1);  // blocks
    std::map<int, std::size_t> last_forward;
    for (std::size_t i = 0; i < out_.size(); ++i) {
      const Op& op = out_.old(i);
      if (op.phase == Phase::forward) {
        if (op.block >= 0) last_forward[op.block] = i;
        for (TensorId id : graph_.outputs(op)) made_in[id.index()] = op.block;
      } else if (op.phase == Phase::backward || op.phase == Phase::recompute) {
        for (TensorId id : graph_.inputs(op)) {
          std::int32_t& block = wanted_by[graph_.tensors[id].storage.index()];
          block = op.block < 0 ? 1 << 20 : std::max<std::int32_t>(block, op.block);
        }
      }
    }
    std::map<int, int> place;
    if (!last_forward.empty()) last_block_ = last_forward.rbegin()->first;
    for (const auto& [block, last] : last_forward) place.emplace(block, static_cast<int>(place.size()));
    for (std::size_t t = 0; t < graph_.tensors.size(); ++t) {
      const TensorId id = graph_.tensors.id_at(t);
      const Tensor& tensor = graph_.tensors[id];
      const auto at = place.find(wanted_by[t]);
      if (made_in[t] < 0 || tensor.storage != id || tensor.role != Role::activation || at == place.end() || at->second >= layers) continue;
      if (of_weights[t] || graph_.bytes(id).value < kLeast) continue;
      Layer& layer = layers_[at->first];
      layer.saved.push_back(id);
      layer.last_forward = last_forward[at->first];
    }
    for (auto& [block, layer] : layers_) ends_at_[layer.last_forward] = &layer;
    for (auto layer = layers_.rbegin(); layer != layers_.rend(); ++layer) order_.push_back(layer->first);
  }
  // The rewrite holds the operators already.
  std::vector<char> weights_alone_of_old() {
    Store<OpId, Op> ops;
    for (std::size_t i = 0; i < out_.size(); ++i) ops.add(out_.old(i));
    std::swap(ops, graph_.ops);
    std::vector<char> out = weights_alone(graph_);
    std::swap(ops, graph_.ops);
    return out;
  }

  Bytes bytes_of_layer(const Layer& layer) const {
    Bytes bytes;
    for (TensorId id : layer.saved) bytes += graph_.bytes(id);
    return bytes;
  }
  void send(Layer& layer) {
    const Bytes bytes = bytes_of_layer(layer);
    layer.sent = out_.event();
    out_.put({OpKind::shard_copy, Phase::forward, DType::uint8, ShardCopyAttributes{bytes.value, 1, bytes, bytes}, "to_host", true}, layer.saved, std::vector{layer.sent});
    // Of the layer before, the copy must be done by now, and its tensors are let go.
    if (before_) release(*before_);
    before_ = &layer;
  }
  void release(const Layer& layer) {
    std::vector<TensorId> inputs = layer.saved;
    inputs.push_back(layer.sent);
    out_.put({OpKind::shard_copy, Phase::forward, DType::uint8, ShardCopyAttributes{1, 1, {1}, {1}}, "wait_for_host"}, inputs, {});
  }
  void fetch(std::size_t at) {
    const Layer& layer = layers_.at(order_[at]);
    const Bytes bytes = bytes_of_layer(layer);
    std::vector<TensorId> outputs, after;
    for (TensorId id : layer.saved) outputs.push_back(reads_.copy_of(id));
    if (layer.sent.valid()) after.push_back(layer.sent);
    out_.put({OpKind::shard_copy, Phase::backward, DType::uint8, ShardCopyAttributes{bytes.value, 1, bytes, bytes}, "from_host", true}, after, outputs);
  }

  Rewrite out_;
  ReadCopies reads_;  // what came back
  Graph& graph_;
  std::map<int, Layer> layers_;  // by block
  std::map<std::size_t, Layer*> ends_at_;  // by the last operator of its forward
  std::vector<int> order_;       // blocks, as backward comes to them
  int last_block_ = -1;
  Layer* before_ = nullptr;
};

}  // namespace

void offload_activations(int layers, StepGraph& step) {
  OffloadActivations offload(layers, step);
  offload.run();
  step.saved_on_host += offload.kept_on_host();
}

}  // namespace precog
