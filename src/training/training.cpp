#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "base/ensure.h"
#include "graph/operator.h"
#include "training/checkpointed_step.h"
#include "training/made_again.h"
#include "training/optimizer.h"
#include "training/step_graph.h"

namespace precog {
namespace {

constexpr std::size_t kScaledOperands = 4;  // of a product of 8- or 4-bit operands: both, and their scales

// Walks the forward operators backwards and lets each write its gradient.
class Autograd : public GradientContext::Sink {
 public:
  Autograd(Graph forward, const TrainingOptions& options, const Checkpoints& checkpoints) : graph_(std::move(forward)), options_(options), checkpoints_(checkpoints) {}

  // Backward begins at the loss, or at what arrives for the results that other ranks go on from.
  void run(bool loss_scaling, const std::vector<TensorId>* sent) {
    const std::vector<Op> later = take_what_runs_later();
    forward_ops_ = graph_.ops.size();
    graph_.ops.reserve(forward_ops_ * 4);
    graph_.tensors.reserve(graph_.tensors.size() * 3);
    for (std::vector<TensorId>* by_tensor : {&gradient_, &remade_}) {
      by_tensor->reserve(graph_.tensors.size() * 3);
      by_tensor->resize(graph_.tensors.size());
    }
    if (sent) {
      for (TensorId id : *sent) {
        const TensorId arrived = make({.shape = graph_.tensors[id].shape, .dtype = graph_.tensors[id].dtype, .role = Role::input, .name = graph_.intern("received_gradient")});
        gradient_[id.index()] = arrived;
      }
    } else {
      begin_at_loss(loss_scaling);
    }
    walk_back();
    for (const Op& op : later) graph_.ops.add(op);
  }

  // What the forward graph has for after backward (metrics of the results).
  std::vector<Op> take_what_runs_later() {
    std::vector<Op> later;
    if (std::all_of(graph_.ops.begin(), graph_.ops.end(), [](const Op& op) { return op.phase == Phase::forward; })) return later;
    Store<OpId, Op> now;
    now.reserve(graph_.ops.size());
    for (const Op& op : graph_.ops)
      if (op.phase == Phase::forward) now.add(op);
      else later.push_back(op);
    graph_.ops = std::move(now);
    return later;
  }

  void begin_at_loss(bool loss_scaling) {
    const OpId last = graph_.ops.id_at(forward_ops_ - 1);
    TensorId loss = graph_.output(graph_.ops[last]);
    Op seed;
    seed.phase = Phase::backward;
    if (loss_scaling) {  // scaler.scale(loss), whose gradient is one more product
      phase_ = Phase::forward;
      Op scale;
      scale.kind = OpKind::mul_scalar;
      emit(scale, std::array{loss}, graph_.tensors[loss]);
      phase_ = Phase::backward;
    }
    seed.kind = OpKind::fill;
    TensorId ones = emit(seed, {}, {.shape = {}, .dtype = graph_.tensors[loss].dtype});
    if (loss_scaling) {
      Op scale;
      scale.kind = OpKind::mul_scalar;
      ones = emit(scale, std::array{ones}, {.shape = {}, .dtype = graph_.tensors[loss].dtype});
    }
    gradient_[loss.index()] = ones;
  }

  void walk_back() {
    number_blocks();
    find_made_again();
    int recomputed_block = -1;
    std::size_t core_begin = forward_ops_;  // of the attention that was recomputed last
    std::vector<TensorId> incoming;
    bool converts = false;
    for (std::size_t i = 0; i < forward_ops_; ++i) converts = converts || graph_.ops[graph_.ops.id_at(i)].kind == OpKind::quantize;
    for (std::size_t i = 0; i < forward_ops_; ++i) {
      const Op& op = graph_.ops[graph_.ops.id_at(i)];
      const auto* message = std::get_if<CollectiveAttributes>(&op.attributes);
      if ((op.kind == OpKind::all_gather && !message->gradient_is_whole) || op.kind == OpKind::send_recv)
        for (TensorId id : graph_.outputs(op)) gathered_by_[id.value] = graph_.ops.id_at(i);
      if (converts && op.kind == OpKind::view) view_by_[graph_.output(op).value] = graph_.ops.id_at(i);
      if (op.kind == OpKind::quantize && was_gathered(graph_.input(op, 0)))
        for (TensorId id : graph_.outputs(op)) converted_by_[id.value] = graph_.ops.id_at(i);
    }
    for (std::size_t i = forward_ops_; i-- > 0;) {
      const OpId id = graph_.ops.id_at(i);
      const Op op = graph_.ops[id];
      const auto backward = definition(op.kind).gradient;
      bool reached = false, wanted = false;
      incoming.clear();
      for (TensorId output : graph_.outputs(op)) {
        incoming.push_back(gradient_[output.index()]);
        reached = reached || incoming.back().valid();
      }
      for (TensorId input : graph_.inputs(op)) wanted = wanted || graph_.tensors[input].requires_grad;
      if ((!backward && !op.recipe.valid()) || !reached || !wanted) continue;
      if (options_.recompute == Recompute::full && op.block != recomputed_block && checkpointed(op.block)) {
        recomputed_block = op.block;
        std::size_t first = i;
        while (first > 0 && graph_.ops[graph_.ops.id_at(first - 1)].block == op.block) --first;
        recompute(first, i);
      }
      if (options_.recompute == Recompute::selective && i < core_begin && checkpointed(op.block))
        if (const std::size_t first = attention_core(i); first <= i) {
          core_begin = first;
          recompute(first, i);
        }
      if (options_.recompute == Recompute::up_projections && op.kind == OpKind::scaled_dot_product_attention && checkpointed(op.block))
        if (const std::size_t first = first_up_projection(i); first < i) recompute(first, i - 1);
      module_ = op.module;
      block_ = op.block;
      origin_ = id;
      arrived_ = incoming.front();
      GradientContext context(graph_, id, incoming, *this);
      if (op.recipe.valid()) context.run_recipe();
      else backward(context);
    }
    module_ = {};
    block_ = -1;
    origin_ = {};
  }

  // GradientContext::Sink
  TensorId emit(Op op, std::span<const TensorId> inputs, const Tensor& output) override {
    const TensorId id = make(output);
    emit_to(op, inputs, std::array{id});
    return id;
  }
  void emit_to(Op op, std::span<const TensorId> inputs, std::span<const TensorId> outputs) override {
    op.phase = phase_;
    op.module = module_;
    op.block = block_;
    op.origin = origin_;
    if (op.math == DType::model || !(is_matrix_work(op.kind) || op.kind == OpKind::rnn_backward))
      op.math = outputs.empty() ? DType::fp32 : graph_.tensors[outputs[0]].dtype;
    graph_.add_op(op, inputs, outputs);
  }
  TensorId make(const Tensor& tensor) override {
    const TensorId id = graph_.add_tensor(tensor);
    gradient_.emplace_back();
    remade_.emplace_back();
    return id;
  }
  void receive(TensorId forward, TensorId gradient) override {
    const DType wanted = graph_.tensors[forward].dtype;
    if (graph_.tensors[gradient].dtype != wanted) {  // autograd hands every input a gradient of its own type
      Op cast;
      cast.kind = OpKind::cast;
      cast.attributes = CastAttributes{.to = wanted};
      gradient = emit(cast, std::array{gradient}, {.shape = graph_.tensors[gradient].shape, .dtype = wanted});
    }
    const bool known_before = gradient_[forward.index()].valid();
    if (known_before) {
      Op add;
      add.kind = OpKind::add;
      gradient = emit(add, std::array{gradient_[forward.index()], gradient},
                      {.shape = graph_.tensors[gradient].shape, .dtype = wanted});
    }
    gradient_[forward.index()] = gradient;
    if (graph_.tensors[forward].role == Role::parameter) {
      // A shared parameter is complete only after its last use: an earlier entry is struck out.
      auto [place, first] = completed_at_.try_emplace(forward.value, complete_.size());
      if (!first) complete_[place->second].parameter = {};
      place->second = complete_.size();
      complete_.push_back({forward, gradient, graph_.ops.id_at(graph_.ops.size() - 1)});
    }
  }
  TensorId saved(TensorId forward) override {
    if (const auto gathered = gathered_by_.find(forward.value); gathered != gathered_by_.end()) return gather_again(forward, gathered->second);
    if (is_made_again(forward)) return make_again(forward);
    const auto converted = converted_by_.find(forward.value);
    return converted == converted_by_.end() || remade_[forward.index()].valid() ? kept(forward) : convert_again(forward, converted->second);
  }

  Graph take() { return std::move(graph_); }
  std::vector<ParameterGradient> take_gradients() {
    std::erase_if(complete_, [](const ParameterGradient& g) { return !g.parameter.valid(); });
    return std::move(complete_);
  }

 private:
  TensorId kept(TensorId forward) const {
    const TensorId again = remade_[forward.index()];
    return again.valid() ? again : forward;
  }

  // What came from the ranks of a group for a product is not kept: each keeps its own part, and backward gathers it again beside
  // the product that needs it not (Korthikanti et al. 2022, section 4.2.2), or sends it round the ring again. Once for all
  // products that read it.
  TensorId gather_again(TensorId forward, OpId maker) {
    if (const auto known = gathered_again_.find(forward.value); known != gathered_again_.end()) return known->second;
    Op again;
    again.kind = graph_.ops[maker].kind;
    again.attributes = graph_.ops[maker].attributes;
    again.label = graph_.ops[maker].label;
    const std::vector<TensorId> originals(graph_.outputs(graph_.ops[maker]).begin(), graph_.outputs(graph_.ops[maker]).end());
    std::vector<TensorId> inputs, outputs;
    for (std::size_t i = 0; i < originals.size(); ++i) {
      inputs.push_back(kept(own_part(graph_.input(graph_.ops[maker], i), i)));
      Tensor result = graph_.tensors[originals[i]];
      result.storage = {};
      outputs.push_back(make(result));
      gathered_again_[originals[i].value] = outputs.back();
    }
    if (arrived_.valid()) inputs.push_back(arrived_);  // issued when backward has come this far, not before
    emit_to(again, inputs, outputs);
    return gathered_again_[forward.value];
  }
  bool was_gathered(TensorId id) const {
    for (auto view = view_by_.find(id.value); view != view_by_.end(); view = view_by_.find(id.value)) id = graph_.input(graph_.ops[view->second], 0);
    const auto maker = gathered_by_.find(id.value);
    return maker != gathered_by_.end() && graph_.ops[maker->second].kind == OpKind::all_gather;
  }
  // Nor is its conversion to 8 or 4 bits kept: each rank keeps its own part's, and that is what is gathered again (Transformer
  // Engine; that the message is in the narrow type is said where kernels are made).
  TensorId convert_again(TensorId forward, OpId maker) {
    if (const auto known = converted_again_.find(forward.value); known != converted_again_.end()) return known->second;
    const Op op = graph_.ops[maker];
    const std::vector<TensorId> read(graph_.inputs(op).begin(), graph_.inputs(op).end()), originals(graph_.outputs(op).begin(), graph_.outputs(op).end());
    std::vector<TensorId> inputs{seen_again(read[0])}, outputs;
    for (std::size_t i = 1; i < read.size(); ++i) inputs.push_back(kept(read[i]));
    for (TensorId id : originals) {
      Tensor result = graph_.tensors[id];
      result.storage = {};
      outputs.push_back(make(result));
      converted_again_[id.value] = outputs.back();
    }
    emit_to(op, inputs, outputs);
    return converted_again_[forward.value];
  }
  TensorId seen_again(TensorId id) {
    const auto view = view_by_.find(id.value);
    if (view == view_by_.end()) return gather_again(id, gathered_by_.at(id.value));
    const OpId maker = view->second;
    const TensorId of = seen_again(graph_.input(graph_.ops[maker], 0));
    Tensor result = graph_.tensors[id];
    result.storage = graph_.tensors[of].storage;
    const TensorId again = make(result);
    emit_to(Op(graph_.ops[maker]), std::array{of}, std::array{again});
    return again;
  }

  // Behind what was passed on: what this rank had to begin with.
  TensorId own_part(TensorId id, std::size_t place) const {
    for (auto maker = gathered_by_.find(id.value); maker != gathered_by_.end(); maker = gathered_by_.find(id.value))
      id = graph_.input(graph_.ops[maker->second], place);
    return id;
  }

  // Which block of these layers is the how manyth.
  void number_blocks() {
    for (std::size_t i = 0; i < forward_ops_; ++i) {
      const int block = graph_.ops[graph_.ops.id_at(i)].block;
      if (block >= 0) place_of_.try_emplace(block, static_cast<int>(place_of_.size()));
    }
  }
  bool checkpointed(int block) const {
    if (block < 0) return false;
    const int place = place_of_.at(block);
    return (checkpoints_.first == 0 || place < checkpoints_.first) && place % checkpoints_.every == 0;
  }

  // torchtitan's policy for each operator of a checkpointed block (distributed/activation_checkpoint.py): attention, sums that
  // ranks share, and every other matrix product, beginning with the first, are kept; all else runs again.
  bool kept_by_policy(const Op& op, int& products) const {
    if (!checkpoints_.per_operator) return false;
    if (op.kind == OpKind::linear || op.kind == OpKind::mm) return ++products % 2 == 1;
    return op.kind == OpKind::scaled_dot_product_attention || op.kind == OpKind::reduce_scatter;
  }

  // A product of two activations: queries with keys, or their weights with values.
  bool mixes_tokens(std::size_t i) const {
    const Op& op = graph_.ops[graph_.ops.id_at(i)];
    if (op.block < 0 || (op.kind != OpKind::matmul && op.kind != OpKind::bmm) || op.input_count < 2) return false;
    return graph_.tensors[graph_.input(op, 0)].requires_grad && graph_.tensors[graph_.input(op, 1)].role == Role::activation &&
           graph_.tensors[graph_.input(op, 1)].requires_grad;
  }
  // If operator i ends an attention: where that begins, one operator or from the first product to the second. Else i + 1.
  std::size_t attention_core(std::size_t i) const {
    const Op& last = graph_.ops[graph_.ops.id_at(i)];
    if (last.kind == OpKind::scaled_dot_product_attention) return i;
    if (!mixes_tokens(i)) return i + 1;
    for (std::size_t first = i; first-- > 0 && graph_.ops[graph_.ops.id_at(first)].block == last.block;)
      if (mixes_tokens(first)) return first;
    return i + 1;
  }

  // Where queries, keys and values are made from narrow ones (multi-head latent attention): the first operator of that. Else i.
  std::size_t first_up_projection(std::size_t i) const {
    std::size_t found = i;
    const std::int16_t block = graph_.ops[graph_.ops.id_at(i)].block;
    for (std::size_t at = i; at-- > 0 && graph_.ops[graph_.ops.id_at(at)].block == block;) {
      const std::string_view module = graph_.name(graph_.ops[graph_.ops.id_at(at)].module);
      if (module.ends_with("q_b_proj") || module.ends_with("kv_b_proj")) found = at;
    }
    return found;
  }

  // Runs forward operators once more, a checkpointed block's or its attention's; backward then reads the new tensors, so that
  // the first ones need not outlive the forward pass.
  void recompute(std::size_t first, std::size_t last_op) {
    int products = 0;
    for (std::size_t i = first; i <= last_op; ++i) {
      const Op op = graph_.ops[graph_.ops.id_at(i)];
      if (kept_by_policy(op, products)) continue;
      std::vector<TensorId> inputs;
      for (TensorId id : graph_.inputs(op)) inputs.push_back(kept(id));
      run_again(i, inputs);
    }
  }
  void run_again(std::size_t i, const std::vector<TensorId>& inputs) {
    const Op op = graph_.ops[graph_.ops.id_at(i)];
    std::vector<TensorId> outputs;
    const std::vector<TensorId> originals(graph_.outputs(op).begin(), graph_.outputs(op).end());
    for (TensorId id : originals) {
      Tensor again = graph_.tensors[id];
      if (again.role != Role::activation) {  // a counter updated in place
        outputs.push_back(id);
        continue;
      }
      const TensorId base = again.storage;
      again.storage = base == id ? TensorId{} : graph_.tensors[kept(base)].storage;
      const TensorId made = make(again);
      remade_[id.index()] = made;
      outputs.push_back(made);
    }
    Op copy = op;
    copy.phase = Phase::recompute;
    copy.origin = graph_.ops.id_at(i);
    graph_.add_op(copy, inputs, outputs);
  }

  // Parts of layers are made again one operator at a time, where backward first reads what they made (made_again.h).
  void find_made_again() {
    if (!checkpoints_.parts.any() && !checkpoints_.converts_weights_again) return;
    std::vector<char> chosen;
    for (const auto& [block, place] : place_of_) {
      if (static_cast<std::size_t>(block) >= chosen.size()) chosen.resize(static_cast<std::size_t>(block) + 1);
      chosen[static_cast<std::size_t>(block)] = checkpointed(block) ? 1 : 0;
    }
    made_again_ = made_again(graph_, checkpoints_, chosen);
    made_by_.assign(graph_.tensors.size(), -1);
    for (std::size_t i = 0; i < forward_ops_; ++i)
      for (TensorId id : graph_.outputs(graph_.ops[graph_.ops.id_at(i)])) made_by_[id.index()] = static_cast<std::int32_t>(i);
  }
  bool is_made_again(TensorId id) const {
    if (made_by_.empty() || id.index() >= made_by_.size() || remade_[id.index()].valid()) return false;
    const std::int32_t by = made_by_[id.index()], base = made_by_[graph_.tensors[id].storage.index()];
    return (by >= 0 && made_again_[static_cast<std::size_t>(by)]) || (base >= 0 && made_again_[static_cast<std::size_t>(base)]);
  }
  TensorId make_again(TensorId id) {
    const std::size_t by = static_cast<std::size_t>(made_by_[id.index()]);
    const Op& op = graph_.ops[graph_.ops.id_at(by)];
    std::vector<TensorId> read(graph_.inputs(op).begin(), graph_.inputs(op).end());
    if (op.kind == OpKind::scaled_mm && read.size() > kScaledOperands) {  // behind them stands what autograd hands gradients to: not read again
      const TensorId last = read.back();
      read.resize(kScaledOperands);
      if (std::get<GemmAttributes>(op.attributes).bias) read.push_back(last);
    }
    std::vector<TensorId> inputs;
    for (TensorId input : read) inputs.push_back(saved(input));
    if (!remade_[id.index()].valid()) run_again(by, inputs);
    return kept(id);
  }

  Graph graph_;
  const TrainingOptions& options_;
  const Checkpoints checkpoints_;
  std::size_t forward_ops_ = 0;
  std::vector<TensorId> gradient_, remade_;  // per forward tensor
  std::vector<ParameterGradient> complete_;
  std::unordered_map<std::int32_t, OpId> gathered_by_;          // by forward tensor
  std::unordered_map<std::int32_t, TensorId> gathered_again_;
  std::unordered_map<std::int32_t, OpId> view_by_, converted_by_;  // the same, of views, and of conversions of what was gathered
  std::unordered_map<std::int32_t, TensorId> converted_again_;
  std::vector<char> made_again_;      // by forward operator
  std::vector<std::int32_t> made_by_;  // by forward tensor
  std::unordered_map<int, int> place_of_;  // block -> how many come before it
  TensorId arrived_;  // the gradient that the operator at hand works on
  std::unordered_map<std::int32_t, std::size_t> completed_at_;  // parameter -> its place in complete_
  Phase phase_ = Phase::backward;
  NameId module_;
  std::int16_t block_ = -1;
  OpId origin_;
};

// Each gradient is added to what is there as soon as it is complete: from the second micro-batch on, or, where there is a
// buffer of main gradients or gradients were zeroed and kept, in every one. A weight's product can do that itself.
void accumulate_gradients(StepGraph& step, const std::optional<MainGradients>& main, bool always) {
  Graph& graph = step.graph;
  const Store<OpId, Op> before = std::move(graph.ops);
  graph.ops = {};
  graph.ops.reserve(before.size() + step.gradients.size());
  std::vector<std::vector<std::size_t>> completed(before.size());
  for (std::size_t i = 0; i < step.gradients.size(); ++i) completed[step.gradients[i].made_by.index()].push_back(i);
  for (std::size_t i = 0; i < before.size(); ++i) {
    graph.ops.add(before[before.id_at(i)]);
    for (std::size_t gradient : completed[i]) {
      ParameterGradient& g = step.gradients[gradient];
      Op op;
      op.kind = OpKind::accumulate_gradient;
      op.phase = main || always ? Phase::backward : Phase::accumulate;
      Op& maker = graph.ops[graph.ops.id_at(graph.ops.size() - 1)];
      if (main && main->made == MainGradients::Made::in_product && definition(maker.kind).family == Family::gemm && graph.output(maker) == g.gradient) {
        std::get<GemmAttributes>(maker.attributes).accumulates = true;
        graph.tensors[g.gradient].dtype = main->dtype;
        graph.tensors[g.gradient].role = Role::gradient_bucket;  // the buffer itself, held all along
        g.made_by = graph.ops.id_at(graph.ops.size() - 1);
        continue;
      }
      op.math = main ? main->dtype : graph.tensors[g.gradient].dtype;
      TensorId added = g.gradient;
      if (main && main->made == MainGradients::Made::in_backward && graph.tensors[added].dtype != main->dtype) {
        // DeepSpeed: buffer.add_(gradient.to(fp32)), two passes.
        Op cast;
        cast.kind = OpKind::cast;
        cast.phase = op.phase;
        cast.math = main->dtype;
        cast.attributes = CastAttributes{.to = main->dtype};
        const Shape shape = graph.tensors[added].shape;
        const TensorId wide = graph.add_tensor({.shape = shape, .dtype = main->dtype});
        graph.add_op(cast, std::array{added}, std::array{wide});
        added = wide;
      }
      g.made_by = graph.add_op(op, std::array{added}, {});
    }
  }
}

}  // namespace

StepGraph make_step(Graph forward, const PrecisionRecipe& recipe, const TrainingOptions& options, const std::vector<TensorId>* sent) {
  return make_step(std::move(forward), recipe, options, Checkpoints{}, sent);
}

StepGraph make_step(Graph forward, const PrecisionRecipe& recipe, const TrainingOptions& options, const Checkpoints& checkpoints, const std::vector<TensorId>* sent) {
  Autograd autograd(std::move(forward), options, checkpoints);
  autograd.run(recipe.loss_scaling, sent);
  StepGraph step;
  step.graph = autograd.take();
  step.gradients = autograd.take_gradients();
  for (const ParameterGradient& g : step.gradients) step.graph.tensors[g.gradient].role = Role::gradient;
  std::optional<MainGradients> main = recipe.main_gradients;
  if (main && main->made != MainGradients::Made::in_backward && main->made != MainGradients::Made::in_product) main.reset();
  step.gradients_folded = main.has_value();
  const bool zeroed = options.zeroes_gradients && !recipe.master_weights;  // Apex drops the model's own gradients in every step
  if (main || zeroed || options.micro_batches > 1) accumulate_gradients(step, main, zeroed);
  append_loss_scaler_and_optimizer(step, recipe, options);
  return step;
}

}  // namespace precog
