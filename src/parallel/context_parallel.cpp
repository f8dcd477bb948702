// Context parallelism: each rank has 1/cp of every sequence, so that all layers but attention are simply shorter (the graph was
// built so). In attention every query must still meet every key.
// Ring (Liu et al. 2023; Transformer Engine's "p2p"): cp steps of attention over one rank's keys and values, each beside the
// message that brings the next rank's; results are merged step by step. Causal sequences are cut into 2 cp pieces of which each
// rank has one from either end, so that every step after the first is half of the square on every rank. Keys and values that
// came by are not kept: backward sends them round again, beside the gradients that go back.
// All-to-all (DeepSpeed Ulysses): before attention tokens of all ranks are exchanged for 1/cp of the heads, after it back. So any
// attention of one rank will do, a written-out one too (Megatron-DeepSpeed's DistributedAttention around its CoreAttention), where a
// ring merges the results of fused kernels only (Megatron-Core's own DotProductAttention refuses it).
#include <fmt/format.h>

#include <map>

#include "parallel/forward_rewrite.h"
#include "parallel/layer_plans.h"
#include "parallel/split_recipes.h"

namespace precog {
namespace {

class ContextParallel {
 public:
  ContextParallel(const Plan& plan, Graph forward) : plan_(plan), graph_(std::move(forward)) {}

  Result<Graph> run() {
    find_written_out();
    bool found = !written_out_.empty();
    if (found && plan_.exchange == ContextExchange::ring)
      return fail("plan.cp", fmt::format("{}: attention that is written out cannot go round a ring, which merges results of fused kernels; use fused attention, or cp_exchange all_to_all", graph_.in.name(written_out_.begin()->first.first)));
    for (const Op& op : graph_.in.ops) {
      if (op.kind != OpKind::scaled_dot_product_attention || op.input_count < 3) {
        if (const auto scores = written_out_.find({op.module, op.block}); scores == written_out_.end()) graph_.keep(op);
        else if (std::string why = part_of_written_out(op, scores->second); !why.empty()) return fail("plan.cp", fmt::format("{}: {}", graph_.in.name(op.module), why));
        continue;
      }
      found = true;
      const auto& a = std::get<AttentionAttributes>(op.attributes);
      const std::string where(graph_.in.name(op.module));
      if (op.input_count > 3) return fail("plan.cp", fmt::format("{}: {}", where, kOwnMask));
      if (plan_.exchange == ContextExchange::ring) {
        if (a.causal && a.kv_len % 2 != 0) return fail("plan.cp", fmt::format("{}: {} tokens a rank cannot be halved; take a seq that is a multiple of 2 x cp", where, a.kv_len));
        ring(op, a);
      } else {
        const std::int64_t ranks = plan_.cp * plan_.tp;
        if (a.heads % ranks != 0 || a.kv_heads % ranks != 0)
          return fail("plan.cp", fmt::format("{}: {} heads of queries and {} of keys cannot be shared out to tp x cp = {} ranks; a ring can (cp_exchange: ring)", where, a.heads, a.kv_heads, ranks));
        all_to_all(op, a);
      }
    }
    if (!found) return fail("plan.cp", fmt::format("is {}, but this model has no attention over a sequence", plan_.cp));
    return std::move(graph_.out);
  }

 private:
  CollectiveAttributes group() const { return {{}, plan_.cp, plan_.tp, false}; }
  // PyTorch's context_parallel and Transformer Engine know causal ones, and DeepSpeed's Ulysses for transformers takes none.
  static constexpr std::string_view kOwnMask = "has attention with a mask of its own, which context parallelism does not take (frameworks' is for causal attention, or all tokens with all)";

  // softmax over scores of tokens with tokens
  void find_written_out() {
    for (const Op& op : graph_.in.ops) {
      if (op.kind != OpKind::softmax || op.block < 0) continue;
      const Shape shape = graph_.in.tensors[graph_.in.input(op, 0)].shape;
      if (shape.rank() >= 3 && shape[-1] == shape[-2] && shape[-1] > 1) written_out_.try_emplace({op.module, op.block}, shape);
    }
  }
  // An operator of a layer's attention, on all tokens and this rank's heads. Says what is wrong, if anything is.
  std::string part_of_written_out(const Op& op, const Shape& scores) {
    const std::int64_t ranks = plan_.cp;
    if (scores.rank() != 4) return "attention that is written out over batch and heads together is not modelled with context parallelism; use fused attention";
    if (scores[1] % (ranks * plan_.tp) != 0) return fmt::format("{} heads cannot be shared out to tp x cp = {} ranks", scores[1], ranks * plan_.tp);
    const auto shape_of = [&](TensorId id) -> Shape { return graph_.in.tensors[id].shape; };
    const bool product = op.kind == OpKind::matmul || op.kind == OpKind::bmm;
    const TensorId result = graph_.in.output(op);
    const bool makes_scores = shape_of(result) == scores, mixes = product && shape_of(graph_.in.input(op, 0)) == scores;
    if (!makes_scores && !mixes) return graph_.keep(op), "";
    std::vector<TensorId> inputs(graph_.in.inputs(op).begin(), graph_.in.inputs(op).end());
    Op local = op;
    if (product) {
      auto& gemm = std::get<GemmAttributes>(local.attributes);
      gemm.batch /= ranks, gemm.m *= ranks, (makes_scores ? gemm.n : gemm.k) *= ranks;
      for (std::size_t i = mixes ? 1 : 0; i < 2; ++i) inputs[i] = exchanged(op, inputs[i], i == 1 && makes_scores ? 3 : 2);
    } else {
      for (TensorId id : inputs) {  // a mask: of all tokens
        const Shape shape = shape_of(id);
        if (shape == scores || shape.rank() < 2 || shape[-1] != scores[-1]) continue;
        if (graph_.in.tensors[id].role == Role::activation || (shape.rank() == 4 && shape[1] > 1)) return std::string(kOwnMask);
        for (int axis : {-1, -2})
          if (shape[axis] == scores[axis]) graph_.out.tensors[id].shape.set(shape.rank() + axis, shape[axis] * ranks);
      }
    }
    std::vector<TensorId> outputs(graph_.in.outputs(op).begin(), graph_.in.outputs(op).end());
    Resized resized;
    for (TensorId& id : outputs) {
      if (shape_of(id) != scores) continue;
      graph_.out.tensors[id].shape = Shape{scores[0], scores[1] / ranks, scores[2] * ranks, scores[3] * ranks};
      resized.emplace_back(scores, graph_.out.tensors[id].shape);
    }
    for (RecipeId* recipe : {&local.recipe, &local.recipe_16bit})
      if (recipe->valid()) *recipe = definition(op.kind).gradient ? RecipeId{} : graph_.out.recipes.add(resized_recipe(graph_.out.recipes[*recipe], resized));
    if (!mixes) return graph_.out.add_op(local, inputs, outputs), "";
    const TensorId mixed = turned(result, 2);
    graph_.put(local, {inputs[0], inputs[1]}, {mixed});
    graph_.put(graph_.beside(op, OpKind::all_to_all, group(), "context"), {mixed}, {result});
    return "";
  }
  // [b, h, s, d] -> [b, h / cp, s cp, d], tokens along `axis`
  TensorId turned(TensorId id, int axis) {
    Shape shape = graph_.in.tensors[id].shape;
    shape.set(1, shape[1] / plan_.cp);
    shape.set(axis, shape[axis] * plan_.cp);
    return graph_.like(id, shape);
  }
  TensorId exchanged(const Op& op, TensorId id, int axis) {
    const TensorId made = turned(id, axis);
    graph_.put(graph_.beside(op, OpKind::all_to_all, group(), "context"), {id}, {made});
    return made;
  }

  void ring(const Op& op, const AttentionAttributes& whole) {
    const TensorId q = graph_.in.input(op, 0), result = graph_.in.output(op);
    TensorId k = graph_.in.input(op, 1), v = graph_.in.input(op, 2), merged;
    for (int step = 0; step < plan_.cp; ++step) {
      TensorId next_k, next_v;
      if (step + 1 < plan_.cp) {
        next_k = graph_.like(k);
        next_v = graph_.like(v);
        graph_.put(graph_.beside(op, OpKind::send_recv, group(), "context"), {k, v}, {next_k, next_v});
      }
      Op attention = op;
      attention.recipe = attention.recipe_16bit = {};
      auto& a = std::get<AttentionAttributes>(attention.attributes);
      a.causal = whole.causal && step == 0;
      a.ring = step == 0 ? AttentionAttributes::Ring::first : AttentionAttributes::Ring::later;
      if (whole.causal && step > 0) a.kv_len = whole.kv_len / 2;
      const TensorId part = graph_.like(result), sums = graph_.like(graph_.in.output(op, 1));
      graph_.put(attention, {q, k, v}, {part, sums});
      if (step == 0) {
        merged = part;
      } else {  // each result weighted by its share of the exponentials, and added
        const TensorId sum = step + 1 == plan_.cp ? result : graph_.like(result);
        graph_.put(graph_.beside(op, OpKind::add), {merged, part}, {sum});
        merged = sum;
      }
      k = next_k;
      v = next_v;
    }
  }

  void all_to_all(const Op& op, const AttentionAttributes& local) {
    const std::int64_t ranks = plan_.cp;
    TensorId operands[3];
    for (std::size_t i = 0; i < 3; ++i) operands[i] = exchanged(op, graph_.in.input(op, i), 2);
    Op attention = op;
    attention.recipe = attention.recipe_16bit = {};
    auto& a = std::get<AttentionAttributes>(attention.attributes);
    a.heads = local.heads / ranks;
    a.kv_heads = local.kv_heads / ranks;
    a.q_len = local.q_len * ranks;
    a.kv_len = local.kv_len * ranks;
    const TensorId result = graph_.in.output(op), mixed = turned(result, 2);
    const TensorId sums = graph_.like(graph_.in.output(op, 1), Shape{a.batch, a.heads, a.q_len});
    graph_.put(attention, {operands[0], operands[1], operands[2]}, {mixed, sums});
    graph_.put(graph_.beside(op, OpKind::all_to_all, group(), "context"), {mixed}, {result});
  }

  const Plan& plan_;
  ForwardRewrite graph_;
  std::map<std::pair<NameId, int>, Shape> written_out_;  // by module and layer: scores of its attention
};

}  // namespace

Result<Graph> share_sequences(const Plan& plan, Graph forward) { return ContextParallel(plan, std::move(forward)).run(); }

}  // namespace precog
