#include "graph/operator.h"
#include "parallel/layer_plans.h"

namespace precog {
namespace {

// What training_flops and parameter_count would say of the model if the graph had all of its chunks, added up in the model's order.
void sum_up(const Graph& graph, const DistinctChunks& chunks, Flops& flops, std::int64_t& parameters) {
  std::vector<std::vector<Flops>> of_chunk(chunks.chunk_at.back() + 1);  // of each product
  std::vector<int> layers;  // of each chunk that the graph has, as far as they are not counted yet
  for (std::size_t i = 0; i < chunks.chunk_at.size(); ++i)
    if (chunks.chunk_at[i] == layers.size()) layers.push_back(chunks.layers_at[i]);
  std::vector<char> counted(graph.tensors.size(), 0);
  std::size_t chunk = 0;
  int block = -1;
  const std::size_t head = chunks.layers_at.back() == 0 ? head_of(graph) : graph.ops.size();
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    const Op& op = graph.ops[graph.ops.id_at(i)];
    if (op.block >= 0 && op.block != block) {
      if (layers[chunk]-- == 0) --layers[++chunk];
      block = op.block;
    }
    if (i == head) ++chunk;
    for (TensorId id : graph.inputs(op))
      if (graph.tensors[id].role == Role::parameter && !counted[id.index()]) {
        counted[id.index()] = 1;
        parameters += graph.tensors[id].shape.elements() * chunks.times_of(op.block);
      }
    if (!is_matrix_work(op.kind)) continue;
    int products = 1;
    for (std::size_t k = 0; k < 2 && k < op.input_count; ++k) products += graph.tensors[graph.input(op, k)].requires_grad ? 1 : 0;
    of_chunk[chunk].push_back(work_of(graph, op).flops * products);
  }
  for (std::size_t i = 0; i < counted.size(); ++i)  // those that nobody reads
    if (const Tensor& tensor = graph.tensors[graph.tensors.id_at(i)]; tensor.role == Role::parameter && !counted[i]) parameters += tensor.shape.elements();
  for (std::size_t at : chunks.chunk_at)
    for (Flops one : of_chunk[at]) flops += one;
}

// What experts compute of the step, of which what is dropped is no part.
Flops flops_of_experts(const Graph& forward, const DistinctChunks& chunks) {
  Flops total;
  for (const Op& op : forward.ops) {
    if (op.kind != OpKind::grouped_linear) continue;
    int products = 1;
    for (std::size_t i = 0; i < 2 && i < op.input_count; ++i) products += forward.tensors[forward.input(op, i)].requires_grad ? 1 : 0;
    total += work_of(forward, op).flops * (products * chunks.times_of(op.block));
  }
  return total;
}

}  // namespace

Result<ShardedLayers> shard_layers(const Plan& plan, Graph forward, bool each_chunk, DistinctChunks foreseen, const ExpertCapacity& capacity) {
  ShardedLayers sums;  // of the rank's tokens, with the layers as the model has them
  if (plan.cp > 1) {
    PRECOG_TRY(shared, share_sequences(plan, std::move(forward)));
    forward = std::move(shared);
  }
  DistinctChunks chunks = std::move(foreseen);
  if (chunks.left_out.empty()) {
    sums.model_flops = training_flops(forward);
    sums.parameters = parameter_count(forward);
    if (plan.pp > 1) {
      PRECOG_TRY(distinct, distinct_chunks(plan, std::move(forward), each_chunk));
      chunks = std::move(distinct);
      forward = std::move(chunks.forward);
    }
  } else {
    sum_up(forward, chunks, sums.model_flops, sums.parameters);
  }
  if (capacity.factor > 0) {
    sums.model_flops = sums.model_flops - flops_of_experts(forward, chunks) * dropped_share(capacity, plan.expert_imbalance);
    PRECOG_TRY(limited, limit_experts(capacity, std::move(forward)));
    forward = std::move(limited);
  }
  if (plan.ep > 1 || plan.experts_apart()) {
    PRECOG_TRY(shared, share_experts(plan, capacity, std::move(forward)));
    forward = std::move(shared);
  }
  ShardedLayers out;
  if (plan.tp > 1) {
    PRECOG_TRY(split, split_layers(plan, std::move(forward), chunks));
    out = std::move(split);
  } else {
    out.graph = std::move(forward);
  }
  if (plan.experts_apart() && plan.ranks_per_expert() > 1) {
    PRECOG_TRY(split, split_experts(plan, std::move(out.graph), chunks));
    out.graph = std::move(split);
  }
  out.chunks = std::move(chunks);
  out.model_flops = sums.model_flops * (1.0 / plan.tp);
  out.parameters = sums.parameters;
  return out;
}

}  // namespace precog
