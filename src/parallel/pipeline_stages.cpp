#include "parallel/pipeline_stages.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

namespace precog {
namespace {

// Layers of each chunk. An even split where there is one; else, as torchtitan does and Megatron can be told to
// (--account-for-embedding-in-pipeline-split and its like for the loss), embedding and head count as a layer each, and what
// is left over goes to the first chunks.
Result<std::vector<int>> layers_of_chunks(const Plan& plan, int layers) {
  const int chunks = plan.pp * plan.vpp;
  if (!plan.stage_layers.empty()) {
    const int given = std::accumulate(plan.stage_layers.begin(), plan.stage_layers.end(), 0);
    if (static_cast<int>(plan.stage_layers.size()) != chunks)
      return fail("plan.stage_layers", fmt::format("has {} entries; pp x vpp = {} x {} = {} chunks need one each", plan.stage_layers.size(), plan.pp, plan.vpp, chunks));
    if (given != layers) return fail("plan.stage_layers", fmt::format("adds up to {} layers; the model has {}", given, layers));
    return plan.stage_layers;
  }
  if (layers < chunks)
    return fail("plan.pp", fmt::format("x vpp is {} x {} = {}, but the model has {} repeated layers to cut between: every chunk needs one", plan.pp, plan.vpp, chunks, layers));
  if (layers % chunks == 0) return std::vector<int>(static_cast<std::size_t>(chunks), layers / chunks);
  std::vector<int> out(static_cast<std::size_t>(chunks), (layers + 2) / chunks);
  for (int i = 0; i < (layers + 2) % chunks; ++i) ++out[static_cast<std::size_t>(i)];
  --out.front();
  --out.back();
  for (int& count : out)  // few layers: a chunk that only embeds takes one from its richest neighbour
    if (count == 0) --*std::max_element(out.begin(), out.end()), ++count;
  return out;
}

class Cutter {
 public:
  Cutter(const Graph& graph, const std::vector<int>& layers) : graph_(graph), chunk_of_(graph.ops.size()), maker_(graph.tensors.size()) {
    // Which chunk an operator is in: its block's; outside of any, its predecessor's.
    std::vector<int> of_layer;
    for (std::size_t chunk = 0; chunk < layers.size(); ++chunk) of_layer.insert(of_layer.end(), static_cast<std::size_t>(layers[chunk]), static_cast<int>(chunk));
    int layer = -1, block = -1;
    for (std::size_t i = 0; i < graph.ops.size(); ++i) {
      const Op& op = graph.ops[graph.ops.id_at(i)];
      if (op.block >= 0 && op.block != block) ++layer, block = op.block;
      chunk_of_[i] = layer < 0 ? 0 : of_layer[static_cast<std::size_t>(layer)];
      for (TensorId id : graph.outputs(op))
        if (!maker_[id.index()].valid()) maker_[id.index()] = graph.ops.id_at(i);
    }
    begin_.assign(layers.size(), 0);
    end_.assign(layers.size(), 0);
    for (std::size_t i = 0; i < chunk_of_.size(); ++i) end_[static_cast<std::size_t>(chunk_of_[i])] = i + 1;
    for (std::size_t chunk = 1; chunk < layers.size(); ++chunk) begin_[chunk] = end_[chunk - 1];
    find_remade();
    find_crossings(static_cast<int>(layers.size()));
  }

  PipelineChunk chunk(int which, bool last) {
    PipelineChunk out;
    out.has_loss = last;
    out.forward = graph_.empty_with_names();
    Graph& made = out.forward;
    moved_.assign(graph_.tensors.size(), {});
    const auto received = received_[static_cast<std::size_t>(which)];
    for (TensorId id : received) {
      Tensor tensor = graph_.tensors[id];
      tensor.storage = {};
      tensor.role = Role::input;
      tensor.name = made.intern("received");
      out.received += graph_.bytes(id);
      moved_[id.index()] = made.add_tensor(tensor);
    }
    // What it makes again for itself comes first, in the model's order.
    const std::size_t end = end_[static_cast<std::size_t>(which)];
    std::vector<char> again(end, 0);
    for (std::size_t i = end; i-- > 0;) {
      if (chunk_of_[i] != which && !again[i]) continue;
      for (TensorId id : graph_.inputs(op(i))) {
        const OpId maker = maker_[id.index()];
        if (maker.valid() && maker.index() < i && chunk_of_[maker.index()] < which && remade_[id.index()]) again[maker.index()] = 1;
      }
    }
    std::int16_t block = -1, number = -1;
    for (std::size_t i = 0; i < end; ++i) {
      if (chunk_of_[i] != which && !again[i]) continue;
      Op copy = op(i);
      if (copy.block >= 0 && chunk_of_[i] == which) {
        if (copy.block != block) block = copy.block, ++number;
        copy.block = number;
      } else {
        copy.block = -1;
      }
      std::vector<TensorId> inputs, outputs;
      for (TensorId id : graph_.inputs(op(i))) inputs.push_back(moved(made, id));
      for (TensorId id : graph_.outputs(op(i))) outputs.push_back(moved(made, id));
      if (auto* cast = std::get_if<CastAttributes>(&copy.attributes); cast && cast->like.valid()) cast->like = moved_[cast->like.index()];
      made.add_op(copy, inputs, outputs);
    }
    out.layers = number + 1;
    for (TensorId id : crossing_[static_cast<std::size_t>(which)])  // what is not here only passes through
      if (graph_.tensors[id].requires_grad && moved_[id.index()].valid()) out.sent.push_back(moved_[id.index()]);
    return out;
  }

  // Equal but for names: the same operators on tensors that correspond one to one. Neither is the last, which has the loss.
  bool alike(int a, int b) const {
    const auto ca = static_cast<std::size_t>(a), cb = static_cast<std::size_t>(b);
    if (end_[ca] - begin_[ca] != end_[cb] - begin_[cb] || received_[ca].size() != received_[cb].size() || crossing_[ca].size() != crossing_[cb].size()) return false;
    std::vector<TensorId> to(graph_.tensors.size()), from(graph_.tensors.size());
    const auto pair = [&](TensorId x, TensorId y) {
      if (to[x.index()].valid() || from[y.index()].valid()) return to[x.index()] == y;
      to[x.index()] = y;
      from[y.index()] = x;
      if (x == y) return true;
      const OpId maker = maker_[x.index()];
      if (remade_[x.index()] && maker.valid() && maker.index() < begin_[ca]) return false;  // what each makes again must be the same
      const Tensor &s = graph_.tensors[x], &t = graph_.tensors[y];
      return !remade_[x.index()] == !remade_[y.index()] && s.shape == t.shape && s.dtype == t.dtype && s.role == t.role && s.requires_grad == t.requires_grad && (s.storage == x) == (t.storage == y);
    };
    for (std::size_t i = begin_[ca], j = begin_[cb]; i < end_[ca]; ++i, ++j) {
      const Op &x = op(i), &y = op(j);
      if (x.kind != y.kind || x.math != y.math || x.in_place != y.in_place || x.strided != y.strided || x.label != y.label || x.recipe != y.recipe ||
          x.recipe_16bit != y.recipe_16bit || x.input_count != y.input_count || x.output_count != y.output_count || (x.block < 0) != (y.block < 0))
        return false;
      if (i > begin_[ca] && (x.block == op(i - 1).block) != (y.block == op(j - 1).block)) return false;
      const auto *cast = std::get_if<CastAttributes>(&x.attributes), *other = std::get_if<CastAttributes>(&y.attributes);
      if (cast && other ? cast->to != other->to || cast->by_autocast != other->by_autocast : !(x.attributes == y.attributes)) return false;
      for (std::size_t k = 0; k < x.input_count; ++k)
        if (!pair(graph_.input(x, k), graph_.input(y, k))) return false;
      for (std::size_t k = 0; k < x.output_count; ++k)
        if (!pair(graph_.output(x, k), graph_.output(y, k))) return false;
    }
    for (std::size_t k = 0; k < crossing_[ca].size(); ++k) {
      const TensorId x = crossing_[ca][k], y = crossing_[cb][k];
      if (x != y && to[x.index()] != y) return false;
    }
    return true;
  }

  // What goes over the boundary behind this chunk.
  Bytes sent_forward(int chunk) const { return sum(chunk, false); }
  Bytes sent_backward(int chunk) const { return sum(chunk, true); }

 private:
  const Op& op(std::size_t i) const { return graph_.ops[graph_.ops.id_at(i)]; }

  // What follows from inputs and buffers alone, and needs no gradient: nobody sends that. Casts of weights neither: a stage has its weights.
  void find_remade() {
    remade_.assign(graph_.tensors.size(), 0);
    for (std::size_t i = 0; i < graph_.tensors.size(); ++i) {
      const Tensor& tensor = graph_.tensors[graph_.tensors.id_at(i)];
      remade_[i] = tensor.role == Role::input || tensor.role == Role::buffer ? 1 : 0;
    }
    for (std::size_t i = 0; i < graph_.ops.size(); ++i) {
      const auto inputs = graph_.inputs(op(i));
      const bool of_weight = op(i).kind == OpKind::cast && inputs.size() == 1 && graph_.tensors[graph_.tensors[inputs[0]].storage].role == Role::parameter;
      const bool alone = std::all_of(inputs.begin(), inputs.end(), [&](TensorId id) { return remade_[id.index()] != 0; });
      for (TensorId id : graph_.outputs(op(i)))
        if (graph_.tensors[id].role == Role::activation) remade_[id.index()] = of_weight || (alone && !graph_.tensors[id].requires_grad) ? 1 : 0;
    }
  }

  void find_crossings(int chunks) {
    std::vector<int> last_read(graph_.tensors.size(), -1);
    received_.resize(static_cast<std::size_t>(chunks));
    crossing_.resize(static_cast<std::size_t>(chunks));
    for (std::size_t i = 0; i < graph_.ops.size(); ++i)
      for (TensorId id : graph_.inputs(op(i))) {
        const OpId maker = maker_[id.index()];
        if (graph_.tensors[id].role != Role::activation || !maker.valid() || chunk_of_[maker.index()] >= chunk_of_[i] || remade_[id.index()]) continue;
        auto& arrived = received_[static_cast<std::size_t>(chunk_of_[i])];
        if (std::find(arrived.begin(), arrived.end(), id) == arrived.end()) arrived.push_back(id);
        last_read[id.index()] = std::max(last_read[id.index()], chunk_of_[i]);
      }
    for (std::size_t i = 0; i < last_read.size(); ++i) {
      if (last_read[i] < 0) continue;
      const TensorId id = graph_.tensors.id_at(i);
      for (int chunk = chunk_of_[maker_[i].index()]; chunk < last_read[i]; ++chunk) crossing_[static_cast<std::size_t>(chunk)].push_back(id);
    }
  }

  Bytes sum(int chunk, bool gradients) const {
    Bytes out;
    for (TensorId id : crossing_[static_cast<std::size_t>(chunk)])
      if (!gradients || graph_.tensors[id].requires_grad) out += graph_.bytes(id);
    return out;
  }

  TensorId moved(Graph& made, TensorId id) {
    TensorId& place = moved_[id.index()];
    if (place.valid()) return place;
    Tensor tensor = graph_.tensors[id];
    const TensorId base = tensor.storage;
    // A view's memory is its base's where that is here, else its own.
    tensor.storage = base != id && moved_[base.index()].valid() ? made.tensors[moved_[base.index()]].storage : TensorId{};
    if (base != id && !tensor.storage.valid() && graph_.tensors[base].role != Role::activation) tensor.storage = moved(made, base);
    const TensorId added = made.add_tensor(tensor);
    moved_[id.index()] = added;
    return added;
  }

  const Graph& graph_;
  std::vector<int> chunk_of_;        // per operator
  std::vector<std::size_t> begin_, end_;  // per chunk: its operators
  std::vector<OpId> maker_;          // per tensor: the operator that makes it
  std::vector<char> remade_;         // per tensor
  std::vector<std::vector<TensorId>> received_, crossing_;  // per chunk: what it reads of others'; what passes the boundary behind it
  std::vector<TensorId> moved_;      // of the chunk being made
};

}  // namespace

Result<PipelineStages> cut_into_stages(const Plan& plan, const Graph& forward) {
  int layers = 0;
  std::int16_t block = -1;
  for (const Op& op : forward.ops)
    if (op.block >= 0 && op.block != block) ++layers, block = op.block;
  PRECOG_TRY(counts, layers_of_chunks(plan, layers));
  PipelineStages out;
  out.layers_at = counts;
  out.even = std::all_of(counts.begin(), counts.end(), [&](int count) { return count == counts.front(); });
  Cutter cutter(forward, counts);
  const int chunks = static_cast<int>(counts.size());
  int first_layer = 0;
  std::vector<int> first_at;  // of each distinct chunk: its first place
  for (int i = 0; i < chunks; ++i) {
    std::size_t same = i + 1 < chunks ? 0 : out.chunks.size();
    while (same < out.chunks.size() && !cutter.alike(first_at[same], i)) ++same;
    if (same == out.chunks.size()) {
      out.chunks.push_back(cutter.chunk(i, i + 1 == chunks));
      out.chunks.back().first_layer = first_layer;
      first_at.push_back(i);
    }
    first_layer += counts[static_cast<std::size_t>(i)];
    out.chunk_at.push_back(same);
    if (i + 1 < chunks) {
      out.sent_forward.push_back(cutter.sent_forward(i));
      out.sent_backward.push_back(cutter.sent_backward(i));
    }
  }
  // Parameters of the first chunk that the last has too: each holds a copy, whose gradients must be summed.
  if (chunks > 1) {
    std::vector<NameId> last;  // names are the model's: the same number is the same parameter
    for (const Tensor& tensor : out.chunks[out.chunk_at.back()].forward.tensors)
      if (tensor.role == Role::parameter && tensor.name.valid()) last.push_back(tensor.name);
    for (const Tensor& tensor : out.chunks.front().forward.tensors)
      if (tensor.role == Role::parameter && tensor.requires_grad && std::find(last.begin(), last.end(), tensor.name) != last.end()) out.tied_elements += tensor.shape.elements();
  }
  return out;
}

}  // namespace precog
