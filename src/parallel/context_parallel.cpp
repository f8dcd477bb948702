// Context parallelism: each rank has 1/cp of every sequence, so that all layers but attention are simply shorter (the graph was
// built so). In attention every query must still meet every key.
// Ring (Liu et al. 2023; Transformer Engine's "p2p"): cp steps of attention over one rank's keys and values, each beside the
// message that brings the next rank's; results are merged step by step. Causal sequences are cut into 2 cp pieces of which each
// rank has one from either end, so that every step after the first is half of the square on every rank. Keys and values that
// came by are not kept: backward sends them round again, beside the gradients that go back.
// All-to-all (DeepSpeed Ulysses): before attention tokens of all ranks are exchanged for 1/cp of the heads, after it back.
#include <fmt/format.h>

#include "parallel/forward_rewrite.h"
#include "parallel/layer_plans.h"

namespace precog {
namespace {

class ContextParallel {
 public:
  ContextParallel(const Plan& plan, Graph forward) : plan_(plan), graph_(std::move(forward)) {}

  Result<Graph> run() {
    bool found = false;
    for (const Op& op : graph_.in.ops) {
      if (op.kind != OpKind::scaled_dot_product_attention || op.input_count < 3) {
        if (op.kind == OpKind::softmax && op.block >= 0 && written_out(op)) return fail("plan.cp", fmt::format("{}: attention that is written out is not modelled with context parallelism; use fused attention", graph_.in.name(op.module)));
        graph_.keep(op);
        continue;
      }
      found = true;
      const auto& a = std::get<AttentionAttributes>(op.attributes);
      const std::string where(graph_.in.name(op.module));
      if (op.input_count > 3) return fail("plan.cp", fmt::format("{}: attention with a mask of its own is not modelled with context parallelism", where));
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
  // softmax over scores of tokens with tokens
  bool written_out(const Op& op) const {
    const Shape shape = graph_.in.tensors[graph_.in.input(op, 0)].shape;
    return shape.rank() >= 3 && shape[-1] == shape[-2] && shape[-1] > 1;
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
    auto turned = [&](TensorId id) {  // [b, h, s, d] -> [b, h / cp, s cp, d]
      Shape shape = graph_.out.tensors[id].shape;
      shape.set(1, shape[1] / ranks);
      shape.set(2, shape[2] * ranks);
      return graph_.like(id, shape);
    };
    auto exchange = [&](TensorId from, TensorId to) { graph_.put(graph_.beside(op, OpKind::all_to_all, group(), "context"), {from}, {to}); };
    TensorId operands[3];
    for (std::size_t i = 0; i < 3; ++i) {
      const TensorId from = graph_.in.input(op, i);
      exchange(from, operands[i] = turned(from));
    }
    Op attention = op;
    attention.recipe = attention.recipe_16bit = {};
    auto& a = std::get<AttentionAttributes>(attention.attributes);
    a.heads = local.heads / ranks;
    a.kv_heads = local.kv_heads / ranks;
    a.q_len = local.q_len * ranks;
    a.kv_len = local.kv_len * ranks;
    const TensorId result = graph_.in.output(op), mixed = turned(result);
    const TensorId sums = graph_.like(graph_.in.output(op, 1), Shape{a.batch, a.heads, a.q_len});
    graph_.put(attention, {operands[0], operands[1], operands[2]}, {mixed, sums});
    exchange(mixed, result);
  }

  const Plan& plan_;
  ForwardRewrite graph_;
};

}  // namespace

Result<Graph> share_sequences(const Plan& plan, Graph forward) { return ContextParallel(plan, std::move(forward)).run(); }

}  // namespace precog
