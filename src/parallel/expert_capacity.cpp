// Experts that take no more than their capacity (Lepikhin et al. 2020; Megatron-LM core, transformer/moe/moe_utils.py,
// --moe-expert-capacity-factor; DeepSpeed's MoE layer, capacity_factor): the mean expert's rows times a factor. What is beyond it is
// dropped. Padded (--moe-pad-expert-input-to-capacity; DeepSpeed always), every expert has exactly so many rows, real or not: sizes are
// known beforehand, and nobody reads counts back. Not padded, experts have what they get: on average the mean, or the capacity where
// that is less. Which rows are dropped (the least probable, the last) is a choice that costs the same: the capacity's best of each
// expert's column of the routing map, and a mask of them.
// Takes a forward graph whose experts are grouped products; only the rows between permutation and back change.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "graph/permutation.h"
#include "parallel/forward_rewrite.h"
#include "parallel/layer_plans.h"

namespace precog {
namespace {

class Limiter {
 public:
  Limiter(const ExpertCapacity& capacity, Graph forward) : capacity_(capacity), graph_(std::move(forward)), resized_(graph_.in.tensors.size(), 0) {}

  Result<Graph> run() {
    const Graph& in = graph_.in;
    int layers = 0;
    for (std::size_t i = 0; i < in.ops.size(); ++i) {
      const Op& op = in.ops[in.ops.id_at(i)];
      if (i >= end_ && begins_layer(i)) ++layers;
      i < end_ ? visit(op, i) : graph_.keep(op);
    }
    if (layers == 0) return fail("plan.expert_capacity", "limits experts, and this model has none that are run as one grouped product");
    if (capacity_.factor > most_) return fail("plan.expert_capacity", fmt::format("is {:g}; an expert gets each token once at most, which is {:.4g} times the mean expert's here", capacity_.factor, most_));
    return std::move(graph_.out);
  }

 private:
  const Op& op(std::size_t i) const { return graph_.in.ops[graph_.in.ops.id_at(i)]; }
  std::int64_t extent(TensorId id) const {
    const Shape& shape = graph_.in.tensors[id].shape;
    return shape.rank() > 0 ? shape[0] : 0;
  }

  // A module with grouped products: from here to its last operator.
  bool begins_layer(std::size_t first) {
    const Graph& in = graph_.in;
    const std::string_view module = in.name(op(first).module);
    if (!module.ends_with("experts")) return false;
    std::size_t end = first;
    last_product_ = 0;
    const Op* product = nullptr;
    for (; end < in.ops.size() && in.name(op(end).module).starts_with(module); ++end)
      if (op(end).kind == OpKind::grouped_linear) last_product_ = end, product = &op(end);
    if (!product) return false;
    rows_ = extent(in.input(*product, 0));
    const std::int64_t experts = in.tensors[in.input(*product, 1)].shape[0];
    const double factor = capacity_.padded ? capacity_.factor : std::min(1.0, capacity_.factor);
    each_ = static_cast<std::int64_t>(std::ceil(static_cast<double>(rows_) * factor / static_cast<double>(experts)));
    kept_ = std::max<std::int64_t>(1, each_ * experts);
    if (factor == 1) kept_ = rows_;
    end_ = end;
    travels_ = false;
    choose(first, experts);
    return true;
  }

  // The best of each column, by their weights or their places, and the mask that they make.
  void choose(std::size_t first, std::int64_t experts) {
    const Op& at = op(first);
    std::int64_t tokens = rows_;  // the rows once
    for (std::size_t i = first; i < end_; ++i)
      if (op(i).kind == OpKind::index_select && graph_.in.tensors[graph_.in.output(op(i))].shape.rank() == 2 && extent(graph_.in.output(op(i))) == rows_)
        tokens = std::min(tokens, std::max<std::int64_t>(1, extent(graph_.in.input(op(i), 0))));
    most_ = std::min(most_, static_cast<double>(tokens) * static_cast<double>(experts) / static_cast<double>(std::max<std::int64_t>(1, rows_)));
    const std::int64_t taken = std::clamp<std::int64_t>(static_cast<std::int64_t>(std::ceil(static_cast<double>(rows_) * capacity_.factor / static_cast<double>(experts))), 1, tokens);
    Graph& out = graph_.out;
    const TensorId columns = out.add_tensor({.shape = {experts, tokens}, .dtype = DType::fp32}), best = out.add_tensor({.shape = {experts, taken}, .dtype = DType::fp32});
    const TensorId which = out.add_tensor({.shape = {experts, taken}, .dtype = DType::int64}), mask = out.add_tensor({.shape = {tokens, experts}, .dtype = DType::boolean});
    const TensorId limited = out.add_tensor({.shape = {tokens, experts}, .dtype = DType::boolean});
    graph_.put(graph_.beside(at, OpKind::integer_pointwise), {}, {columns});
    graph_.put(graph_.beside(at, OpKind::topk), {columns}, {best, which});
    graph_.put(graph_.beside(at, OpKind::integer_pointwise), {which}, {mask});
    graph_.put(graph_.beside(at, OpKind::integer_pointwise), {mask}, {limited});
  }

  void visit(const Op& from, std::size_t i) {
    const Graph& in = graph_.in;
    Op made = from;
    const bool permutes = from.kind == OpKind::index_select && in.tensors[in.output(from)].shape.rank() == 2 && extent(in.output(from)) == rows_;
    if (permutes && i > last_product_) {  // the way back: rows that were dropped come back as zeros, padding does not
      if (made.recipe.valid() && kept_ != rows_) {
        Shape shape = in.tensors[in.output(from)].shape;
        shape.set(0, kept_);
        made.recipe = graph_.out.recipes.add(permutation_gradient(shape, shape));
      }
      travels_ = false;
    } else {
      travels_ = travels_ || permutes;
      if (travels_) resize(from);
    }
    if (auto* gemm = std::get_if<GemmAttributes>(&made.attributes); gemm && from.kind == OpKind::grouped_linear && kept_ != rows_)
      gemm->m = (kept_ + gemm->batch - 1) / gemm->batch;
    const std::vector<TensorId> inputs(in.inputs(from).begin(), in.inputs(from).end()), outputs(in.outputs(from).begin(), in.outputs(from).end());
    graph_.out.add_op(made, inputs, outputs);
  }

  // A view of what was not resized stays what it is.
  void resize(const Op& from) {
    if (from.kind == OpKind::view && !resized_[graph_.in.input(from, 0).index()]) return;
    for (TensorId id : graph_.in.outputs(from))
      if (extent(id) == rows_) {
        graph_.out.tensors[id].shape.set(0, kept_);
        resized_[id.index()] = 1;
      }
  }

  const ExpertCapacity& capacity_;
  ForwardRewrite graph_;
  std::vector<char> resized_;       // by tensor
  std::size_t end_ = 0, last_product_ = 0;
  std::int64_t rows_ = 0, each_ = 0, kept_ = 0;  // of a layer's experts: as the model has them; of one expert, of all, as they are left
  double most_ = 1e9;               // the capacity that takes every token
  bool travels_ = false;            // rows are with their experts
};

}  // namespace

double dropped_share(const ExpertCapacity& capacity, double imbalance) {
  const double c = capacity.factor, most = std::max(1.0, imbalance);
  if (c <= 0 || c >= most) return 0;
  if (most == 1) return 1 - c;
  const double full = std::pow(c / most, 1 / (most - 1));  // from here on places are full
  return 1 - c + c * full * (1 - 1 / most);
}

Result<Graph> limit_experts(const ExpertCapacity& capacity, Graph forward) { return Limiter(capacity, std::move(forward)).run(); }

}  // namespace precog
