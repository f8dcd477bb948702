// Expert parallelism (Lepikhin et al. 2020; Megatron-LM core, transformer/moe/token_dispatcher.py, "alltoall" and "flex"): ranks of a
// stage share the experts out. Every rank routes its own tokens; how many go where is told to all, and read back, since
// the sizes of messages must be known; then tokens travel to their experts' ranks and the results back. What arrives by all_to_all lies
// in the order of the ranks it came from: with several experts on a rank it is sorted by expert, and back. Shared experts and the
// router stay on every rank.
// Experts that are split otherwise than their layers (etp other than tp) have a grid of their own over the stage's ranks, each of which
// sends its own tokens: what arrived is gathered by the etp ranks that share an expert, and their sums are scattered before they travel
// back (MoEAlltoAllTokenDispatcher over get_expert_tensor_parallel_group; parallel_state.py, expert_decoder_rank_generator). Where etp is
// tp the ranks of a layer do so by themselves (tensor_parallel.cpp).
// On average a rank gets as many tokens as it has. The busiest sets the pace: expert_imbalance is its tokens over the mean.
#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "graph/permutation.h"
#include "parallel/forward_rewrite.h"
#include "parallel/layer_plans.h"

namespace precog {
namespace {

class ExpertParallel {
 public:
  ExpertParallel(const Plan& plan, const ExpertCapacity& capacity, Graph forward) : plan_(plan), capacity_(capacity), graph_(std::move(forward)) {}

  Result<Graph> run() {
    const Graph& in = graph_.in;
    int layers = 0;
    for (std::size_t i = 0; i < in.ops.size(); ++i) {
      const Op& op = in.ops[in.ops.id_at(i)];
      if (op.kind != OpKind::grouped_linear) {
        visit(op);
        continue;
      }
      const TensorId weight = in.input(op, 1);
      const std::int64_t experts = in.tensors[weight].shape[0];
      if (experts % plan_.ep != 0)
        return fail("plan.ep", fmt::format("is {}; {} has {} experts, which cannot be shared out so", plan_.ep, in.name(op.module), experts));
      if (in.tensors[weight].role == Role::parameter) split(weight);
      const bool first = !last_of_layer_.valid();
      if (first) {
        ++layers;
        last_of_layer_ = last_product(i);
        dispatch(op);
      }
      product(op, experts, i == last_of_layer_.index());
      if (i == last_of_layer_.index()) last_of_layer_ = {};
    }
    if (layers == 0) {
      const bool shared = plan_.ep > 1;
      return fail(shared ? "plan.ep" : "plan.etp", fmt::format("is {}, but this model has no experts that are run as one grouped product", shared ? plan_.ep : plan_.etp));
    }
    return std::move(graph_.out);
  }

 private:
  CollectiveAttributes group() const { return {{}, plan_.ep, plan_.ranks_per_expert(), false}; }
  CollectiveAttributes tokens_group() const {
    CollectiveAttributes out = group();
    if (plan_.dispatch == ExpertDispatch::per_node) out.copies = copies_;
    return out;
  }
  // Ranks that share an expert and gather its tokens; 1 where those of the layer do.
  int gathering() const { return plan_.experts_apart() ? plan_.ranks_per_expert() : 1; }
  std::int64_t at_experts() const { return arriving(rows_) * gathering(); }
  // A whole number for each rank that layers are split over: with sequence parallelism they share these as well.
  std::int64_t arriving(std::int64_t rows) const {
    const double share = static_cast<double>(rows) * busiest() / plan_.tp;
    return busiest() == 1 ? rows : static_cast<std::int64_t>(std::ceil(share)) * plan_.tp;
  }

  // Its rows over what a rank sends. Experts take no more than their capacity (expert_capacity.cpp), padded ones all the same.
  double busiest() const {
    if (capacity_.factor <= 0) return plan_.expert_imbalance;
    if (capacity_.padded) return 1;
    return std::min(plan_.expert_imbalance, capacity_.factor) / std::min(1.0, capacity_.factor);
  }

  OpId last_product(std::size_t from) const {
    const Graph& in = graph_.in;
    const std::string_view module = in.name(in.ops[in.ops.id_at(from)].module);  // its own modules, an activation's, belong to it
    OpId last;
    for (std::size_t i = from; i < in.ops.size() && in.name(in.ops[in.ops.id_at(i)].module).starts_with(module); ++i)
      if (in.ops[in.ops.id_at(i)].kind == OpKind::grouped_linear) last = in.ops.id_at(i);
    return last;
  }
  void split(TensorId weight) {
    Shape shape = graph_.in.tensors[weight].shape;
    shape.set(0, shape[0] / plan_.ep);
    graph_.out.tensors[weight].shape = shape;
  }
  // Between the products there are the tokens of this rank's experts.
  void resize(TensorId id) {
    Shape& shape = graph_.out.tensors[id].shape;
    if (shape.rank() > 0 && shape[0] == rows_) shape.set(0, at_experts());
  }
  void visit(const Op& op) {
    if (last_of_layer_.valid())
      for (TensorId id : graph_.in.outputs(op)) resize(id);
    if (op.kind == OpKind::index_select) {  // a token for each of its experts
      const Shape &from = graph_.in.tensors[graph_.in.input(op, 0)].shape, &to = graph_.in.tensors[graph_.in.output(op)].shape;
      if (from.rank() == 2 && to.rank() == 2 && from[1] == to[1] && to[0] >= from[0]) copies_ = static_cast<int>(to[0] / from[0]);
    }
    // The code looks at a weight from another side before it multiplies: the view follows.
    if (op.kind == OpKind::view && op.input_count == 1 && is_expert_parameter(graph_.in, graph_.in.input(op, 0))) {
      const TensorId from = graph_.in.input(op, 0), to = graph_.in.output(op);
      Shape shape = graph_.out.tensors[to].shape;
      if (shape.rank() > 0 && shape[0] == graph_.in.tensors[from].shape[0]) {
        split(from);
        shape.set(0, shape[0] / plan_.ep);
        graph_.out.tensors[to].shape = shape;
      }
    }
    if (last_of_layer_.valid() && gathering() > 1) keep_with_gathered(op);
    else graph_.keep(op);
  }

  void dispatch(const Op& op) {
    const TensorId tokens = graph_.in.input(op, 0);
    rows_ = graph_.in.tensors[tokens].shape[0];
    const std::int64_t experts = graph_.in.tensors[graph_.in.input(op, 1)].shape[0];
    if (capacity_.padded) return send(op, tokens, experts);  // everybody knows the sizes
    CollectiveAttributes counts = group();
    if (plan_.experts_apart()) counts.participants = static_cast<int>(plan_.ranks_of_experts()), counts.stride = 1;
    if (counts.participants == 1) return;  // nobody else has anything for these experts
    counts.bytes = {experts * counts.participants * 8};
    const TensorId told = graph_.out.add_tensor({.shape = {counts.participants, experts}, .dtype = DType::int64});
    const TensorId own = graph_.out.add_tensor({.shape = {experts}, .dtype = DType::int64});
    graph_.put(graph_.beside(op, OpKind::integer_pointwise), {}, {own});
    graph_.put(graph_.beside(op, OpKind::all_gather, counts, "experts"), {own}, {told});
    graph_.put(graph_.beside(op, OpKind::read_back), {told}, {});
    send(op, tokens, experts);
  }
  void send(const Op& op, TensorId tokens, std::int64_t experts) {
    Shape shape = graph_.in.tensors[tokens].shape;
    shape.set(0, arriving(rows_));
    arrived_ = tokens;
    if (plan_.ep > 1) {
      arrived_ = graph_.like(tokens, shape);
      graph_.put(graph_.beside(op, OpKind::all_to_all, tokens_group(), "experts"), {tokens}, {arrived_});
    }
    if (gathering() > 1) arrived_ = gathered(op, arrived_);
    if (sorts(experts)) arrived_ = sorted(op, arrived_);
  }
  CollectiveAttributes sharing_an_expert() const { return {{}, gathering(), 1, false}; }
  TensorId gathered(const Op& at, TensorId rows) {
    Shape shape = graph_.out.tensors[rows].shape;
    shape.set(0, at_experts());
    const TensorId made = graph_.like(rows, shape);
    graph_.put(graph_.beside(at, OpKind::all_gather, sharing_an_expert(), kSplitExperts), {rows}, {made});
    return made;
  }
  // What else goes with each row, weights of the routing: gathered like the rows.
  void keep_with_gathered(const Op& op) {
    std::vector<TensorId> inputs(graph_.in.inputs(op).begin(), graph_.in.inputs(op).end());
    for (TensorId& id : inputs) {
      const Tensor& tensor = graph_.out.tensors[id];
      if (tensor.role != Role::activation || tensor.shape.rank() == 0 || tensor.shape[0] != rows_ || rows_ == at_experts()) continue;
      auto [known, first] = with_rows_.try_emplace(id.value);
      if (first) known->second = gathered(op, id);
      id = known->second;
    }
    const std::vector<TensorId> outputs(graph_.in.outputs(op).begin(), graph_.in.outputs(op).end());
    graph_.out.add_op(op, inputs, outputs);
  }
  bool sorts(std::int64_t experts) const { return plan_.dispatch == ExpertDispatch::all_to_all && experts > plan_.ep && plan_.ep * gathering() > 1; }
  TensorId sorted(const Op& at, TensorId rows) {
    const Shape shape = graph_.out.tensors[rows].shape;
    const TensorId order = graph_.out.add_tensor({.shape = {shape[0]}, .dtype = DType::int64}), made = graph_.like(rows, shape);
    graph_.put(graph_.beside(at, OpKind::integer_pointwise), {}, {order});
    Op permute = graph_.beside(at, OpKind::index_select);
    permute.recipe = graph_.out.recipes.add(permutation_gradient(shape, shape));
    graph_.put(permute, {rows, order, order}, {made});
    return made;
  }

  void product(const Op& op, std::int64_t experts, bool last) {
    Op local = op;
    auto& gemm = std::get<GemmAttributes>(local.attributes);
    const std::int64_t groups = std::clamp<std::int64_t>(experts / plan_.ep, 1, rows_ * gathering());
    gemm.batch = groups;
    gemm.m = (at_experts() + groups - 1) / groups;
    const TensorId result = graph_.in.output(op);
    std::vector<TensorId> inputs(graph_.in.inputs(op).begin(), graph_.in.inputs(op).end());
    if (arrived_.valid()) inputs[0] = std::exchange(arrived_, {});
    local.recipe = local.recipe_16bit = {};
    if (!last) {
      resize(result);
      graph_.out.add_op(local, inputs, std::array{result});
      return;
    }
    if (plan_.ranks_of_experts() == 1) {
      graph_.out.add_op(local, inputs, std::array{result});
      return;
    }
    Shape shape = graph_.in.tensors[result].shape;
    shape.set(0, at_experts());
    TensorId made = graph_.like(result, shape);
    graph_.out.add_op(local, inputs, std::array{made});
    if (sorts(experts)) made = sorted(op, made);
    if (gathering() > 1) {
      shape.set(0, arriving(rows_));
      const TensorId own = plan_.ep > 1 ? graph_.like(result, shape) : result;
      graph_.put(graph_.beside(op, OpKind::reduce_scatter, sharing_an_expert(), kSplitExperts), {made}, {own});
      made = own;
    }
    if (plan_.ep > 1) graph_.put(graph_.beside(op, OpKind::all_to_all, tokens_group(), "experts"), {made}, {result});
    with_rows_.clear();
  }

  const Plan& plan_;
  const ExpertCapacity& capacity_;
  ForwardRewrite graph_;
  OpId last_of_layer_;        // the layer's last product, while its tokens are with their experts
  TensorId arrived_;          // what the first product reads
  std::map<std::int32_t, TensorId> with_rows_;  // gathered with the rows
  std::int64_t rows_ = 0;     // tokens of one rank, once for each expert they meet
  int copies_ = 1;            // how many experts that are
};

}  // namespace

bool is_expert_parameter(const Graph& graph, TensorId parameter) {
  const Tensor& tensor = graph.tensors[parameter];
  return tensor.role == Role::parameter && tensor.shape.rank() == 3 && graph.name(tensor.name).find("experts.") != std::string_view::npos;
}

int ranks_sharing(const StepGraph& step, TensorId parameter, int replicas) {
  return ranks_sharing(step, parameter, {replicas, step.expert_sharers(replicas)});
}

int ranks_sharing(const StepGraph& step, TensorId parameter, const Shards::Sharers& ranks) {
  return step.experts_own_replicas() && is_expert_parameter(step.graph, parameter) ? ranks.experts : ranks.replicas;
}

Bytes masters_kept(const StepGraph& step, const Shards::Sharers& ranks) {
  double all = 0, kept = 0;
  for (const ParameterGradient& g : step.gradients) {
    const auto elements = static_cast<double>(step.graph.tensors[g.parameter].shape.elements());
    all += elements;
    kept += elements / ranks_sharing(step, g.parameter, ranks);
  }
  if (!step.experts_own_replicas() || all == 0) return {step.master_weights.value / ranks.replicas};
  return step.master_weights * (kept / all);
}

Result<Graph> share_experts(const Plan& plan, const ExpertCapacity& capacity, Graph forward) { return ExpertParallel(plan, capacity, std::move(forward)).run(); }

}  // namespace precog
