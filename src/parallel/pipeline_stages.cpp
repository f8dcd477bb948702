#include "parallel/pipeline_stages.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include <fmt/format.h>

namespace precog {
namespace {

// Layers of each chunk. An even split where there is one; else, as torchtitan does and Megatron can be told to
// (--account-for-embedding-in-pipeline-split and its like for the loss), embedding and head count as a layer each, and what
// is left over goes to the first chunks. A first or last chunk may have no layer, only embedding or head.
Result<std::vector<int>> layers_of_chunks(const Plan& plan, int layers) {
  const int chunks = plan.pp * plan.vpp;
  if (layers == 0) return fail("plan.pp", fmt::format("is {}, but the model has no repeated layers to cut between", plan.pp));
  if (!plan.stage_layers.empty()) {
    const int given = std::accumulate(plan.stage_layers.begin(), plan.stage_layers.end(), 0);
    if (static_cast<int>(plan.stage_layers.size()) != chunks)
      return fail("plan.stage_layers", fmt::format("has {} entries; pp x vpp = {} x {} = {} chunks need one each", plan.stage_layers.size(), plan.pp, plan.vpp, chunks));
    if (given != layers) return fail("plan.stage_layers", fmt::format("adds up to {} layers; the model has {}", given, layers));
    return plan.stage_layers;
  }
  if (layers + 2 == chunks) {  // embedding and head have chunks of their own (Llama 3's 126 layers: Dubey et al. 2024, section 3.3.2)
    std::vector<int> out(static_cast<std::size_t>(chunks), 1);
    out.front() = out.back() = 0;
    return out;
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

int count_layers(const Graph& forward) {
  int layers = 0;
  std::int16_t block = -1;
  for (const Op& op : forward.ops)
    if (op.block >= 0 && op.block != block) ++layers, block = op.block;
  return layers;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// "layers.9.mlp" and "layers.10.mlp".
bool equal_but_for_numbers(std::string_view a, std::string_view b) {
  std::size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    if (is_digit(a[i]) && is_digit(b[j])) {
      while (i < a.size() && is_digit(a[i])) ++i;
      while (j < b.size() && is_digit(b[j])) ++j;
    } else if (a[i++] != b[j++]) {
      return false;
    }
  }
  return i == a.size() && j == b.size();
}

class Cutter {
 public:
  Cutter(const Graph& graph, const std::vector<int>& layers) : graph_(graph), chunk_of_(graph.ops.size()), maker_(graph.tensors.size()) {
    // Which chunk an operator is in: its block's; outside of any, its predecessor's.
    std::vector<int> of_layer;
    for (std::size_t chunk = 0; chunk < layers.size(); ++chunk) of_layer.insert(of_layer.end(), static_cast<std::size_t>(layers[chunk]), static_cast<int>(chunk));
    const std::size_t head = head_of(graph);
    int layer = -1, block = -1;
    for (std::size_t i = 0; i < graph.ops.size(); ++i) {
      const Op& op = graph.ops[graph.ops.id_at(i)];
      if (op.block >= 0 && op.block != block) ++layer, block = op.block;
      chunk_of_[i] = layer < 0 ? 0 : i >= head && layers.back() == 0 ? static_cast<int>(layers.size()) - 1 : of_layer[static_cast<std::size_t>(layer)];
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
      out.received_types[static_cast<std::size_t>(tensor.dtype)] += graph_.bytes(id);
      moved_[id.index()] = made.add_tensor(tensor);
    }
    // What it makes again for itself comes first, in the model's order.
    const std::size_t end = end_[static_cast<std::size_t>(which)];
    const std::size_t own = end - begin_[static_cast<std::size_t>(which)];
    made.ops.reserve(5 * own), made.tensors.reserve(6 * own);  // with backward, which is added to it
    std::vector<char> again(end, 0);
    for (std::size_t i = end; i-- > 0;) {
      if (chunk_of_[i] != which && !again[i]) continue;
      for (TensorId id : graph_.inputs(op(i))) {
        const OpId maker = maker_[id.index()];
        if (maker.valid() && maker.index() < i && chunk_of_[maker.index()] < which && remade_[id.index()]) again[maker.index()] = 1;
      }
    }
    std::int16_t block = -1, number = -1;
    std::vector<TensorId> inputs, outputs;
    for (std::size_t i = 0; i < end; ++i) {
      if (chunk_of_[i] != which && !again[i]) continue;
      Op copy = op(i);
      if (copy.block >= 0 && chunk_of_[i] == which) {
        if (copy.block != block) block = copy.block, ++number;
        copy.block = number;
      } else {
        copy.block = -1;
      }
      inputs.clear(), outputs.clear();
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
      if (x.kind != y.kind || x.phase != y.phase || x.math != y.math || x.autocast != y.autocast || x.in_place != y.in_place || x.strided != y.strided || x.label != y.label || x.recipe != y.recipe ||
          x.recipe_16bit != y.recipe_16bit || x.input_count != y.input_count || x.output_count != y.output_count || (x.block < 0) != (y.block < 0))
        return false;
      if (i > begin_[ca] && (x.block == op(i - 1).block) != (y.block == op(j - 1).block)) return false;
      const auto *cast = std::get_if<CastAttributes>(&x.attributes), *other = std::get_if<CastAttributes>(&y.attributes);
      if (cast && other ? cast->to != other->to || cast->by_autocast != other->by_autocast || cast->door != other->door : !(x.attributes == y.attributes)) return false;
      if (cast && other && (cast->like.valid() != other->like.valid() || (cast->like.valid() && !pair(cast->like, other->like)))) return false;
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

  // All of them inside layers, and called the same but for the layers' numbers.
  bool called_alike(int a, int b) const {
    const auto ca = static_cast<std::size_t>(a), cb = static_cast<std::size_t>(b);
    NameId left, right;
    for (std::size_t i = begin_[ca], j = begin_[cb]; i < end_[ca] && j < end_[cb]; ++i, ++j) {
      if (op(i).block < 0 || op(j).block < 0) return false;
      if (op(i).module == left && op(j).module == right) continue;
      left = op(i).module, right = op(j).module;
      if (!equal_but_for_numbers(graph_.name(left), graph_.name(right))) return false;
    }
    return true;
  }

  // The graph of these chunks only, where a chunk that is left out equals the one that was kept before it: what it would have
  // handed on, that one does. None where a chunk reads something else of one that is left out.
  std::optional<Graph> only(const std::vector<int>& kept) const {
    std::vector<TensorId> instead(graph_.tensors.size());  // of a tensor that is left out: what stands for it
    const auto now = [&](TensorId id) { return instead[id.index()].valid() ? instead[id.index()] : id; };
    for (std::size_t k = 1; k < kept.size(); ++k) {
      const auto &gone = crossing_[static_cast<std::size_t>(kept[k] - 1)], &here = crossing_[static_cast<std::size_t>(kept[k - 1])];
      for (std::size_t i = 0; i < gone.size() && i < here.size(); ++i) {
        if (gone[i] == here[i]) continue;
        instead[gone[i].index()] = now(here[i]);
        const TensorId memory = graph_.tensors[gone[i]].storage, other = graph_.tensors[here[i]].storage;
        if (memory != gone[i] && memory != other) instead[memory.index()] = now(other);
      }
    }
    std::vector<char> stays(begin_.size(), 0), used(graph_.tensors.size(), 0);
    for (int chunk : kept) stays[static_cast<std::size_t>(chunk)] = 1;
    const auto left_out = [&](TensorId id) { return maker_[id.index()].valid() && !stays[static_cast<std::size_t>(chunk_of_[maker_[id.index()].index()])]; };
    const auto use = [&](TensorId id) {
      if (used[id.index()]) return true;
      const TensorId memory = now(graph_.tensors[id].storage);
      used[id.index()] = used[memory.index()] = 1;
      return !left_out(id) && !left_out(memory);
    };
    const auto chosen = [&](auto visit) {
      for (int chunk : kept)
        for (std::size_t i = begin_[static_cast<std::size_t>(chunk)]; i < end_[static_cast<std::size_t>(chunk)]; ++i)
          if (!visit(op(i))) return false;
      return true;
    };
    const auto like = [](const Op& op) {
      const auto* cast = std::get_if<CastAttributes>(&op.attributes);
      return cast ? cast->like : TensorId{};
    };
    if (!chosen([&](const Op& op) {
          bool known = !like(op).valid() || use(now(like(op)));
          for (TensorId id : graph_.inputs(op)) known = use(now(id)) && known;
          for (TensorId id : graph_.outputs(op)) known = use(id) && known;
          return known;
        }))
      return std::nullopt;

    Graph out = graph_.empty_with_names();
    std::vector<TensorId> moved(graph_.tensors.size());  // in the old order
    for (std::size_t i = 0, next = 0; i < used.size(); ++i)
      if (used[i]) moved[i] = out.tensors.id_at(next++);
    for (std::size_t i = 0; i < used.size(); ++i) {
      if (!used[i]) continue;
      Tensor tensor = graph_.tensors[graph_.tensors.id_at(i)];
      tensor.storage = moved[now(tensor.storage).index()];
      out.add_tensor(tensor);
    }
    std::vector<TensorId> inputs, outputs;
    chosen([&](const Op& op) {
      inputs.clear(), outputs.clear();
      for (TensorId id : graph_.inputs(op)) inputs.push_back(moved[now(id).index()]);
      for (TensorId id : graph_.outputs(op)) outputs.push_back(moved[id.index()]);
      const OpId added = out.add_op(op, inputs, outputs);
      if (auto* cast = std::get_if<CastAttributes>(&out.ops[added].attributes); cast && cast->like.valid()) cast->like = moved[now(cast->like).index()];
      return true;
    });
    return out;
  }

  // What enters it is what it hands on, as far as anybody's decision may depend on it.
  bool steady(int chunk) const {
    if (chunk == 0) return false;
    const auto &in = crossing_[static_cast<std::size_t>(chunk - 1)], &out = crossing_[static_cast<std::size_t>(chunk)];
    return std::equal(in.begin(), in.end(), out.begin(), out.end(), [&](TensorId a, TensorId b) {
      const Tensor &x = graph_.tensors[a], &y = graph_.tensors[b];
      return x.shape == y.shape && x.dtype == y.dtype && x.requires_grad == y.requires_grad;
    });
  }

  // The blocks of a chunk.
  template <class Visit>
  void each_block(int chunk, Visit visit) const {
    std::int16_t block = -1;
    for (std::size_t i = begin_[static_cast<std::size_t>(chunk)]; i < end_[static_cast<std::size_t>(chunk)]; ++i)
      if (op(i).block >= 0 && op(i).block != block) visit(block = op(i).block);
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

std::size_t head_of(const Graph& forward) {
  std::size_t head = forward.ops.size();
  while (head > 0 && forward.ops[forward.ops.id_at(head - 1)].block < 0) --head;
  return head;
}

DistinctChunks foreseen_chunks(const Plan& plan, const std::vector<int>& layer_kinds) {
  if (plan.pp < 2 || layer_kinds.empty()) return {};
  const auto counts = layers_of_chunks(plan, static_cast<int>(layer_kinds.size()));
  if (!counts || counts->size() < 3) return {};  // what is wrong with them is said when the model is there
  DistinctChunks out;
  out.layers_at = *counts;
  out.left_out.assign(layer_kinds.size(), 0);
  out.times.assign(layer_kinds.size(), 0);
  std::size_t first = 0, kept = 0;  // layers: of this chunk, of the last one that stays
  for (std::size_t i = 0; i < counts->size(); ++i) {
    const auto layers = static_cast<std::size_t>((*counts)[i]);
    // The first has the embedding, the last the loss.
    const bool repeats = i > 1 && i + 1 < counts->size() && (*counts)[i] == (*counts)[i - 1] &&
                         std::equal(layer_kinds.begin() + static_cast<std::ptrdiff_t>(first), layer_kinds.begin() + static_cast<std::ptrdiff_t>(first + layers),
                                    layer_kinds.begin() + static_cast<std::ptrdiff_t>(kept));
    if (!repeats) kept = first;
    out.chunk_at.push_back(out.chunk_at.empty() ? 0 : out.chunk_at.back() + (repeats ? 0 : 1));
    for (std::size_t k = 0; k < layers; ++k) {
      ++out.times[kept + k];
      if (repeats) out.left_out[first + k] = 1;
    }
    first += layers;
  }
  return out.chunk_at.back() + 1 < counts->size() ? out : DistinctChunks{};
}

Result<DistinctChunks> distinct_chunks(const Plan& plan, Graph forward, bool each) {
  PRECOG_TRY(counts, layers_of_chunks(plan, count_layers(forward)));
  if (const auto bare = [&](std::size_t i) { return forward.ops[forward.ops.id_at(i)].block >= 0; }; (counts.front() == 0 && bare(0)) || (counts.back() == 0 && bare(forward.ops.size() - 1)))
    return fail("plan.stage_layers", fmt::format("has 0 layers in the {} chunk, and this model has nothing else there", counts.front() == 0 && bare(0) ? "first" : "last"));
  DistinctChunks out;
  out.layers_at = counts;
  const int chunks = static_cast<int>(counts.size());
  if (!each && chunks > 2) {
    const Cutter cutter(forward, counts);
    std::vector<int> kept, times;
    for (int i = 0; i < chunks; ++i) {
      const bool repeats = i > 0 && i + 1 < chunks && cutter.alike(kept.back(), i) && cutter.called_alike(kept.back(), i);
      if (!repeats) kept.push_back(i), times.push_back(0);
      ++times.back();
      out.chunk_at.push_back(kept.size() - 1);
    }
    bool numbered = true;  // every layer has a number of its own
    for (std::size_t k = 0; k < kept.size(); ++k)
      cutter.each_block(kept[k], [&](int block) {
        if (out.times.size() <= static_cast<std::size_t>(block)) out.times.resize(static_cast<std::size_t>(block) + 1, 0);
        int& of_block = out.times[static_cast<std::size_t>(block)];
        numbered = numbered && of_block == 0;
        of_block = times[k];
      });
    if (auto shorter = numbered && kept.size() < counts.size() ? cutter.only(kept) : std::nullopt) {
      out.forward = std::move(*shorter);
      return out;
    }
  }
  out.forward = std::move(forward);
  out.times.clear();
  out.chunk_at.resize(counts.size());
  std::iota(out.chunk_at.begin(), out.chunk_at.end(), std::size_t{0});
  return out;
}

PipelineStages cut_into_stages(const DistinctChunks& distinct, const Graph& forward) {
  const std::vector<int>& counts = distinct.layers_at;
  const std::vector<std::size_t>& at = distinct.chunk_at;
  PipelineStages out;
  out.layers_at = counts;
  out.even = std::all_of(counts.begin(), counts.end(), [&](int count) { return count == counts.front(); });
  std::vector<int> kept;  // layers of each chunk that the graph has
  std::vector<int> first_layer;
  for (std::size_t i = 0, layer = 0; i < at.size(); layer += static_cast<std::size_t>(counts[i++])) {
    if (at[i] == kept.size()) kept.push_back(counts[i]), first_layer.push_back(static_cast<int>(layer));
  }
  Cutter cutter(forward, kept);
  const int chunks = static_cast<int>(kept.size());
  std::vector<int> first_at;           // of each distinct chunk: its first place
  std::vector<std::size_t> which;      // of each that the graph has: the distinct one
  for (int i = 0; i < chunks; ++i) {
    std::size_t same = i + 1 < chunks ? 0 : out.chunks.size();
    while (same < out.chunks.size() && !cutter.alike(first_at[same], i)) ++same;
    if (same == out.chunks.size()) {
      out.chunks.push_back(cutter.chunk(i, i + 1 == chunks));
      out.chunks.back().first_layer = first_layer[static_cast<std::size_t>(i)];
      first_at.push_back(i);
    }
    which.push_back(same);
  }
  for (std::size_t i = 0; i < at.size(); ++i) {
    const int here = static_cast<int>(at[i]);
    out.chunk_at.push_back(which[at[i]]);
    if (i > 0 && at[i] == at[i - 1]) out.steady = out.steady && cutter.steady(here);
    if (i + 1 < at.size()) {
      out.sent_forward.push_back(cutter.sent_forward(here));
      out.sent_backward.push_back(cutter.sent_backward(here));
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

Result<PipelineStages> cut_into_stages(const Plan& plan, const Graph& forward) {
  PRECOG_TRY(distinct, distinct_chunks(plan, forward, true));
  return cut_into_stages(distinct, distinct.forward);
}

}  // namespace precog
