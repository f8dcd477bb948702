#include "parallel/tensor_parallel.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <tuple>

#include <fmt/format.h>

#include "base/ensure.h"
#include "base/text.h"
#include "frontend/pad_vocabulary.h"
#include "graph/operator.h"
#include "graph/permutation.h"
#include "parallel/layer_plans.h"
#include "parallel/placement.h"
#include "parallel/split_recipes.h"

namespace precog {
namespace {

// Megatron-LM's --make-vocab-size-divisible-by, per rank.
constexpr std::int64_t kVocabularyUnit = 128;

class TensorParallel {
 public:
  // `ranks` split layers, or experts alone.
  TensorParallel(const Plan& plan, int ranks, bool experts_alone, Graph forward, const DistinctChunks& chunks)
      : plan_(plan), chunks_(chunks), ranks_(ranks), experts_alone_(experts_alone), in_(std::move(forward)), out_(in_.empty_with_names()) {
    const std::size_t room = in_.tensors.size() * 3 / 2;
    out_.tensors.reserve(room);
    out_.tensors = in_.tensors;
    out_.ops.reserve(in_.ops.size() * 3 / 2);
    placed_.reserve(room);
    view_of_.reserve(room);
    whole_.reserve(room);
    placed_.resize(in_.tensors.size());
    for (const Tensor& tensor : in_.tensors) whole_.push_back(tensor.shape);
    view_of_.resize(in_.tensors.size());
    vocabulary_ = vocabulary_of(in_);
    label_ = out_.intern("tensor");
  }

  Result<ShardedLayers> run() {
    for (std::size_t i = 0; i < in_.ops.size(); ++i) {
      current_ = in_.ops.id_at(i);
      visit(in_.ops[current_]);
      if (!problems_.empty()) return fail(std::move(problems_));
    }
    if (columns_ == 0) return fail("plan.tp", nothing_found());
    ShardedLayers out;
    for (const auto& [id, times] : summed_) out.summed_gradients += out_.tensors[id].shape.elements() * times;
    out.graph = std::move(out_);
    return out;
  }

 private:
  Shape whole(TensorId id) const { return whole_[id.index()]; }  // by value: the next tensor moves them
  Placement placed(TensorId id) const { return placed_[id.index()]; }
  bool is_parameter(TensorId id) const { return out_.tensors[id].role == Role::parameter; }
  bool is_weight(TensorId id) const { return out_.tensors[out_.tensors[id].storage].role == Role::parameter; }  // or looks at one
  bool needs_gradient(TensorId id) const { return out_.tensors[id].requires_grad; }
  std::string_view module(const Op& op) const { return in_.name(op.module); }

  std::string nothing_found() const {
    std::vector<std::string> some;
    for (const Op& op : in_.ops)
      if (op.kind == OpKind::linear && op.module.valid() && some.size() < 6 && std::find(some.begin(), some.end(), module(op)) == some.end())
        some.emplace_back(module(op));
    return fmt::format("is {}, but no layer of this model is known by its name: say which are split in plan.tp_plan, as in {{\"*.to_hidden\": \"column\"}}{}{}",
                       ranks_, some.empty() ? "; it has no linear layers" : "; its linear layers: ", join(some, ", "));
  }
  void refuse(const Op& op, std::string_view why) {
    if (problems_.empty()) problems_.push_back({experts_alone_ ? "plan.etp" : "plan.tp", fmt::format("{}{}{}: {}", module(op), op.module.valid() ? ", " : "", name_of(in_, op), why)});
  }
  bool divides(const Op& op, std::int64_t extent, std::string_view what) {
    if (extent % ranks_ == 0) return true;
    refuse(op, fmt::format("{} {} cannot be shared out to {} ranks; take {} that divides it", extent, what, ranks_, experts_alone_ ? "an etp" : "a tp"));
    return false;
  }

  // What an operator reads now: sums stand for summands, and inside experts what came in through the door.
  TensorId stand_in(TensorId id) const {
    const auto known = stands_for_.find(id.value);
    return known == stands_for_.end() ? id : known->second;
  }
  TensorId operand(const Op& op, std::size_t i) const {
    const TensorId id = in_.input(op, i);
    if (const auto known = door_.find({id.value, op.block}); known != door_.end() && is_experts(module(op))) return known->second;
    return stand_in(id);
  }
  // Of one operator: few, so that they need no memory of their own.
  class Operands {
   public:
    void push_back(TensorId id) {
      if (count_ == few_.size() && many_.empty()) many_.assign(few_.begin(), few_.end());
      if (count_ < few_.size()) few_[count_] = id;
      else many_.push_back(id);
      ++count_;
    }
    std::size_t size() const { return count_; }
    TensorId* begin() { return many_.empty() ? few_.data() : many_.data(); }
    TensorId* end() { return begin() + count_; }
    const TensorId* begin() const { return many_.empty() ? few_.data() : many_.data(); }
    const TensorId* end() const { return begin() + count_; }
    TensorId& operator[](std::size_t i) { return begin()[i]; }
    TensorId operator[](std::size_t i) const { return begin()[i]; }

   private:
    std::array<TensorId, 6> few_{};
    std::vector<TensorId> many_;  // all of them, where they are more
    std::size_t count_ = 0;
  };
  Operands operands(const Op& op) const {
    Operands out;
    for (std::size_t i = 0; i < op.input_count; ++i) out.push_back(operand(op, i));
    return out;
  }

  // --- tensors and operators put in between ---

  TensorId add(Tensor tensor, const Shape& all, Placement placement) {
    tensor.shape = local_shape(all, placement, ranks_);
    const TensorId id = out_.add_tensor(tensor);
    whole_.push_back(all);
    placed_.push_back(placement);
    view_of_.push_back({});
    return id;
  }
  void settle(TensorId id, Placement placement) {
    placed_[id.index()] = placement;
    out_.tensors[id].shape = local_shape(whole(id), placement, ranks_);
  }
  // Another of the same kind as `id`, placed otherwise.
  TensorId like(TensorId id, Placement placement, bool same_memory) {
    Tensor tensor = out_.tensors[id];
    tensor.role = Role::activation;
    tensor.name = {};
    if (!same_memory) tensor.storage = {};
    return add(tensor, whole(id), placement);
  }
  Op beside(const Op& at, OpKind kind, Attributes attributes = {}) const {
    Op op;
    op.kind = kind;
    op.module = at.module;
    op.block = at.block;
    op.autocast = definition(kind).autocast;
    if (std::holds_alternative<CollectiveAttributes>(attributes)) op.label = label_;
    op.attributes = std::move(attributes);
    return op;
  }
  void put(const Op& op, std::initializer_list<TensorId> inputs, TensorId output) {
    out_.add_op(op, std::span(inputs.begin(), inputs.size()), std::span(&output, 1));
  }
  CollectiveAttributes group() const { return {{}, plan_.tp, 1, false}; }

  // Into work that is split by features: each rank's gradient will be a summand.
  TensorId enter(const Op& at, TensorId id) {
    if (experts_alone_ || !needs_gradient(id) || inside_.contains(id.value)) return id;  // what comes to experts was gathered: its gradient is summed there
    auto [known, first] = entries_.try_emplace({id.value, at.block});
    if (!first) return known->second;
    const TensorId made = like(id, {}, true);
    known->second = made;
    put(beside(at, OpKind::enter_region, group()), {id}, made);
    return made;
  }
  TensorId gather(const Op& at, TensorId id, bool gradient_is_whole) {
    auto [known, first] = gathered_.try_emplace({id.value, at.block, gradient_is_whole});
    if (!first) return known->second;
    const TensorId made = like(id, {}, false);
    known->second = made;
    CollectiveAttributes message = group();
    message.gradient_is_whole = gradient_is_whole;
    put(beside(at, OpKind::all_gather, message), {id}, made);
    return made;
  }
  // Partial sums to the sum: in place on every rank, or each rank's tokens.
  void reduce(const Op& at, TensorId partial, TensorId result) {
    Op op = beside(at, plan_.sp ? OpKind::reduce_scatter : OpKind::all_reduce, group());
    if (plan_.sp) {
      settle(result, sequence_of(at, whole(result)));
    } else {
      op.in_place = true;
      settle(result, {});
      out_.tensors[result].storage = out_.tensors[partial].storage;
    }
    put(op, {partial}, result);
  }
  // [.., tokens, features], or rows of all sequences.
  Placement sequence_of(const Op& at, const Shape& shape) {
    const int axis = std::max(0, shape.rank() - 2);
    const std::int64_t extent = shape.rank() == 2 && sequence_ > 0 && shape[0] % sequence_ == 0 ? sequence_ : shape[axis];
    divides(at, extent, "tokens of a sequence");
    return {axis, extent, true, false};
  }
  void sum_gradient(TensorId parameter) {
    if (needs_gradient(parameter)) summed_.try_emplace(parameter, chunks_.times_of(in_.ops[current_].block));
  }
  bool split_parameter(const Op& at, TensorId id, int axis) {
    const Placement now = placed(id), wanted{axis, whole(id)[axis], false, false};
    if (now == wanted) return true;
    if (now.split()) return refuse(at, "its weights are split differently elsewhere"), false;
    settle(id, wanted);
    return true;
  }

  // The operator as it was, on what stands for its operands now. What shared an operand's memory shares its stand-in's.
  void keep(Op op, std::span<const TensorId> inputs) {
    const auto before = in_.inputs(op);
    for (TensorId id : in_.outputs(op)) {
      const TensorId memory = in_.tensors[id].storage;
      if (memory == id) continue;
      for (std::size_t i = 0; i < before.size() && i < inputs.size(); ++i)
        if (in_.tensors[before[i]].storage == memory) out_.tensors[id].storage = out_.tensors[inputs[i]].storage;
    }
    bool resized = false;
    for (TensorId id : inputs) resized = resized || placed(id).split();
    for (TensorId id : in_.outputs(op)) {
      resized = resized || placed(id).split();
      if (op.kind == OpKind::view && !before.empty()) view_of_[id.index()] = ViewOf{inputs[0], &in_.ops[current_]};
    }
    const bool permutes = op.kind == OpKind::index_select && inputs.size() == 3;  // has its own gradient, of the sizes here
    if (resized && op.recipe.valid() && !permutes) split_recipes(op, inputs);
    out_.add_op(op, inputs, in_.outputs(op));
  }
  void split_recipes(Op& op, std::span<const TensorId> inputs) {
    if (definition(op.kind).gradient) {
      op.recipe = op.recipe_16bit = {};
      return;
    }
    Resized resized;
    auto note = [&](TensorId id) {
      if (placed(id).split()) resized.emplace_back(whole(id), out_.tensors[id].shape);
    };
    for (TensorId id : inputs) note(id);
    for (TensorId id : in_.outputs(op)) note(id);
    for (RecipeId* recipe : {&op.recipe, &op.recipe_16bit})
      if (recipe->valid()) *recipe = out_.recipes.add(resized_recipe(out_.recipes[*recipe], resized));
  }

  // What every rank has, in an operator whose other operands are split along `axis` (of this tensor; negative: it has no such axis).
  TensorId match(const Op& at, TensorId id, int axis, bool sequence) {
    const bool has_axis = axis >= 0 && whole(id)[axis] > 1;
    if (!has_axis) {
      if (!is_parameter(id)) return enter(at, id);
      sum_gradient(id);
      return id;
    }
    if (is_parameter(id) && !sequence) {
      split_parameter(at, id, axis);
      return id;
    }
    const Placement part{axis, whole(id)[axis], sequence, false};
    if (!divides(at, whole(id)[axis], sequence ? "tokens" : "elements of an operand")) return id;
    // A repetition is repeated less often, instead of being cut.
    if (const ViewOf view = view_of_[id.index()]; view.op && whole(view.source).rank() == whole(id).rank() && !sequence) {
      const bool repeats = whole(view.source)[axis] == 1, renames = whole(view.source) == whole(id);
      if (repeats || renames) {
        TensorId source = view.source;
        if (placed(source).sequence) source = gather(at, source, false);
        source = repeats ? enter(at, source) : match(at, source, axis, sequence);
        const TensorId made = like(id, part, false);
        out_.tensors[made].storage = out_.tensors[source].storage;
        Op op = *view.op;
        op.recipe = op.recipe_16bit = {};
        put(op, {source}, made);
        return made;
      }
    }
    if (sequence && needs_gradient(id)) {
      const TensorId made = like(id, part, true);
      put(beside(at, OpKind::scatter_region, group()), {id}, made);
      return made;
    }
    const TensorId source = enter(at, id), made = like(id, part, true);
    put(beside(at, OpKind::view, ViewAttributes{ViewKind::slice}), {source}, made);
    return made;
  }

  // --- operators ---

  void visit(const Op& op) {
    if (experts_alone_) return visit_features(op);
    if (is_experts(module(op))) {
      if (plan_.experts_apart()) return plan_.sp ? visit_own_rows(op) : visit_dropped(op);
      return plan_.ep > 1 && plan_.sp ? visit_sent_experts(op) : visit_experts(op);
    }
    complete_sums(op);
    visit_layer(op);
  }
  void visit_layer(const Op& op) {
    switch (op.kind) {
      case OpKind::embedding: return visit_embedding(op);
      case OpKind::linear: return visit_linear(op);
      default: break;
    }
    const Operands inputs = operands(op);
    if (std::none_of(inputs.begin(), inputs.end(), [&](TensorId id) { return placed(id).split(); })) return keep(op, inputs);
    switch (op.kind) {
      case OpKind::matmul:
      case OpKind::bmm: return visit_matmul(op);
      case OpKind::scaled_dot_product_attention: return visit_attention(op);
      case OpKind::layer_norm:
      case OpKind::rms_norm: return visit_norm(op);
      case OpKind::log_softmax: return split_axis(op) + 1 == whole(inputs[0]).rank() ? visit_vocabulary(op) : visit_elementwise(op);
      case OpKind::nll_loss: return visit_loss(op);
      case OpKind::softmax:
      case OpKind::topk: return visit_rows(op);
      case OpKind::view: return visit_view(op);
      case OpKind::split:
      case OpKind::cat: return visit_parts(op);
      case OpKind::mean:
      case OpKind::sum:
      case OpKind::reduction: return visit_reduction(op);
      case OpKind::integer_pointwise: return visit_elementwise(op);
      case OpKind::allocate: return visit_allocation(op);
      case OpKind::all_to_all:
      case OpKind::send_recv: return visit_exchange(op);
      default: break;
    }
    const Family family = definition(op.kind).family;
    if (family == Family::pointwise || family == Family::cast || family == Family::copy) return visit_elementwise(op);
    gather_all(op);
  }
  int split_axis(const Op& op) const { return placed(operand(op, 0)).axis; }

  // An operator that needs whole operands: tokens are gathered for it, features are not.
  void gather_all(const Op& op) {
    Operands inputs = operands(op);
    for (TensorId& id : inputs) {
      if (!placed(id).split()) continue;
      if (!placed(id).sequence) return refuse(op, "needs whole what tensor parallelism has split; name the layers to leave whole in plan.tp_plan");
      id = gather(op, id, true);
    }
    keep(op, inputs);
  }

  // Heads for tokens, or keys and values of another part of the sequence: among ranks that have the same features.
  void visit_exchange(const Op& op) {
    for (std::size_t i = 0; i < op.output_count; ++i) {
      Placement p = placed(operand(op, i));
      const TensorId id = in_.output(op, i);
      if (p.split()) p.extent = whole(id)[p.axis];
      if (p.split() && !divides(op, p.extent, "elements of a part")) return;
      settle(id, p);
    }
    keep(op, operands(op));
  }

  // --- experts: all of them on every rank, each split as an MLP is; all tokens come in, and sums go out ---

  static bool is_experts(std::string_view path) { return path == "experts" || path.ends_with(".experts"); }

  // What of summands leaves the experts is added up before anything else reads it, and what each rank has of rows that all had before is gathered.
  void complete_sums(const Op& op) {
    for (TensorId id : in_.inputs(op)) {
      if (!plan_.sp && !arrived_ && placed(stand_in(id)).sequence) stands_for_[id.value] = gather(op, stand_in(id), true);
      if (!placed(stand_in(id)).partial) continue;
      const TensorId sum = like(id, {}, false);
      reduce(op, stand_in(id), sum);
      stands_for_[id.value] = sum;
    }
  }

  void visit_experts(const Op& op) {
    Operands inputs = operands(op);
    bool partial = false;
    for (TensorId& id : inputs) {
      partial = partial || placed(id).partial;
      if (placed(id).split() && placed(id).sequence) id = gather(op, id, false);
      else if (placed(id).whole() && !is_parameter(id) && !inside_.contains(id.value)) id = enter(op, id);
    }
    for (std::size_t i = 0; i < inputs.size(); ++i)
      if (inputs[i] != stand_in(in_.input(op, i))) door_[{in_.input(op, i).value, op.block}] = inputs[i];
    for (TensorId id : inputs)
      if (placed(id).whole()) inside_.insert(id.value);
    for (TensorId id : in_.outputs(op)) inside_.insert(id.value);
    if (op.kind == OpKind::view && op.input_count == 1 && is_parameter(inputs[0])) return visit_weight_view(op);
    if (partial) {  // nothing but what may be done to summands one by one
      for (TensorId id : in_.outputs(op)) placed_[id.index()].partial = true;
      return keep(op, inputs);
    }
    if (op.kind == OpKind::grouped_linear) return visit_grouped(op, inputs);
    visit_layer(op);
  }
  bool counts_rows(TensorId id) const {
    const Shape shape = whole(id);
    return shape.rank() > 0 && sequence_ > 0 && shape[0] % ranks_ == 0 && (shape[0] % sequence_ == 0 || expert_rows_.contains(shape[0]));
  }
  // Experts on other ranks, each split like an MLP: a rank sends its own tokens of the sequence; those that arrive are gathered by the ranks
  // that share an expert, and their sums scattered before they travel back (Megatron-Core's token dispatcher).
  void visit_sent_experts(const Op& op) {
    if (op.kind == OpKind::all_to_all) {
      complete_sums(op);
      arrived_ = !arrived_;
      return visit_own_rows(op);
    }
    if (op.kind == OpKind::view && op.input_count == 1 && is_parameter(operand(op, 0)) && whole(operand(op, 0)).rank() == 3) return visit_experts(op);  // looked at before tokens arrive
    return arrived_ ? visit_experts(op) : visit_own_rows(op);
  }
  // Whole experts, though every rank of a layer has all tokens: each sends its part of the rows (DeepSpeed's moe/mappings.py, drop_tokens), and
  // what comes back is gathered (gather_tokens).
  void visit_dropped(const Op& op) {
    const bool sends = op.kind == OpKind::all_to_all;
    if (sends || arrived_) {
      arrived_ = arrived_ != sends;
      visit_own_rows(op);
      if (!arrived_) door_.clear();  // rows are all there again
      return;
    }
    complete_sums(op);
    visit_layer(op);
  }
  // Where experts are split and layers are another matter: all tokens of an expert are there, and its sums are scattered (expert_parallel.cpp).
  void visit_features(const Op& op) {
    const Operands inputs = operands(op);
    const auto any = [&](auto is) { return std::any_of(inputs.begin(), inputs.end(), [&](TensorId id) { return is(placed(id)); }); };
    if (any([](const Placement& p) { return p.partial; })) {
      if (op.kind != OpKind::reduce_scatter)
        for (TensorId id : in_.outputs(op)) placed_[id.index()].partial = true;
      return keep(op, inputs);
    }
    if (op.kind == OpKind::grouped_linear) return visit_grouped(op, {inputs.begin(), inputs.end()});
    if (op.kind == OpKind::view && is_experts(module(op)) && op.input_count == 1 && is_parameter(inputs[0])) return visit_weight_view(op);
    if (any([](const Placement& p) { return p.split(); })) return visit_layer(op);
    keep(op, inputs);
  }
  // Where each rank has its own tokens of the sequence: rows are a rank's part, weights whole. Experts with a grid of their own work so throughout.
  void visit_own_rows(const Op& op) {
    Operands inputs = operands(op);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (is_weight(inputs[i]) || placed(inputs[i]).split() || !counts_rows(inputs[i])) continue;
      inputs[i] = match(op, inputs[i], 0, true);
      door_[{in_.input(op, i).value, op.block}] = inputs[i];
    }
    Op local = op;
    if (auto* gemm = std::get_if<GemmAttributes>(&local.attributes)) {
      ++columns_;
      const std::int64_t rows = (gemm->m * gemm->batch + ranks_ - 1) / ranks_;
      gemm->batch = std::clamp<std::int64_t>(gemm->batch, 1, rows);
      gemm->m = (rows + gemm->batch - 1) / gemm->batch;
    }
    for (TensorId id : in_.outputs(op)) {
      if (op.kind == OpKind::all_to_all || (op.kind == OpKind::all_gather && in_.tensors[id].dtype != DType::int64)) expert_rows_.insert(whole(id)[0]);
      const bool weight = op.kind == OpKind::view && op.input_count == 1 && is_weight(inputs[0]);
      if (!weight && counts_rows(id)) settle(id, {0, whole(id)[0] % sequence_ == 0 ? sequence_ : whole(id)[0], true, false});
    }
    if (op.kind == OpKind::index_select && op.recipe.valid())
      local.recipe = out_.recipes.add(permutation_gradient(out_.tensors[in_.output(op)].shape, out_.tensors[inputs[0]].shape));
    keep(local, inputs);
  }
  // [experts, n, k]
  bool split_expert_weight(const Op& op, TensorId weight, bool inner) {
    return divides(op, whole(weight)[inner ? 2 : 1], "columns of an expert") && split_parameter(op, weight, inner ? 2 : 1);
  }
  void visit_grouped(const Op& op, std::span<const TensorId> inputs) {
    const bool row = placed(inputs[0]).split();
    if (is_parameter(inputs[1]) ? !split_expert_weight(op, inputs[1], row) : !placed(inputs[1]).split())
      return refuse(op, "its weights are none that could be split");
    Op product = op;
    auto& gemm = std::get<GemmAttributes>(product.attributes);
    (row ? gemm.k : gemm.n) /= ranks_;
    ++columns_;
    const TensorId result = in_.output(op);
    if (row) placed_[result.index()].partial = true;
    else settle(result, {whole(result).rank() - 1, whole(result)[-1], false, false});
    keep(product, inputs);
  }
  // The code looks at a weight from another side before it multiplies: which one it is says its name.
  void visit_weight_view(const Op& op) {
    const TensorId weight = operand(op, 0), view = in_.output(op);
    const bool inner = in_.name(in_.tensors[weight].name).find("down") != std::string_view::npos;
    if (whole(weight).rank() == 3 && !split_expert_weight(op, weight, inner)) return;
    if (const auto turned = whole(weight).rank() == 3 ? through_transpose(whole(weight), whole(view), placed(weight)) : std::nullopt) settle(view, *turned);
    keep(op, operands(op));
  }

  // A table of tokens: each rank looks up those it has, the others are zero; the sum is the embedding.
  void visit_embedding(const Op& op) {
    const TensorId table = operand(op, 0), ids = operand(op, 1), result = in_.output(op);
    const std::int64_t rows = whole(table).rank() == 2 ? whole(table)[0] : 0;
    if (!is_parameter(table) || rows == 0 || !(rows == vocabulary_ || is_token_table(module(op)))) return keep(op, operands(op));
    if (rows != vocabulary_ && rows % (kVocabularyUnit * ranks_) != 0) {
      const std::int64_t unit = kVocabularyUnit * ranks_;
      whole_[table.index()].set(0, (rows + unit - 1) / unit * unit);
    }
    if (!divides(op, whole(table)[0], "rows of the vocabulary") || !split_parameter(op, table, 0)) return;
    if (whole(ids).rank() > 0) sequence_ = whole(ids)[-1];
    ++columns_;
    const TensorId outside = add({.dtype = DType::boolean}, whole(ids), {}), own = add({.dtype = DType::int64}, whole(ids), {});
    put(beside(op, OpKind::integer_pointwise), {ids}, outside);
    put(beside(op, OpKind::integer_pointwise), {ids, outside}, own);
    const TensorId rows_found = like(result, {}, false), partial = like(result, {}, false);
    Op look_up = op;
    look_up.recipe = look_up.recipe_16bit = {};
    put(look_up, {table, own}, rows_found);
    Shape columns = whole(ids);
    columns.push_back(1);
    const TensorId mask = add({.dtype = DType::boolean, .storage = out_.tensors[outside].storage}, columns, {});
    put(beside(op, OpKind::view, ViewAttributes{}), {outside}, mask);
    put(beside(op, OpKind::masked_fill), {rows_found, mask}, partial);
    reduce(op, partial, result);
  }

  TensorSplit split_of(const Op& op) const {
    for (const auto& [pattern, split] : plan_.tp_plan)
      if (matches_pattern(module(op), pattern) || matches_pattern(module(op), "*." + pattern)) return split;
    const auto& gemm = std::get<GemmAttributes>(op.attributes);
    if (vocabulary_ > 0 && gemm.n == vocabulary_) return TensorSplit::column;
    if (in_.name(in_.tensors[in_.input(op, 1)].name).ends_with("in_proj_weight")) return TensorSplit::column;  // nn.MultiheadAttention's own
    return known_split(module(op));
  }
  int weight_axis(TensorId weight, std::int64_t extent, bool of_inputs) const {
    const Shape shape = whole(weight);  // [n, k], or GPT-2's [k, n]
    const int usual = of_inputs ? 1 : 0;
    return shape[usual] == extent ? usual : 1 - usual;
  }

  void visit_linear(const Op& op) {
    Operands inputs = operands(op);
    const TensorId result = in_.output(op);
    const Placement x = placed(inputs[0]);
    if (x.split() && !x.sequence && x.axis + 1 == whole(inputs[0]).rank()) return visit_row(op);
    if (x.split() && !x.sequence) return refuse(op, "its input is split along an axis that is not its inner extent");
    Op product = op;
    auto& gemm = std::get<GemmAttributes>(product.attributes);
    if (is_parameter(inputs[1]) && split_of(op) == TensorSplit::column) {
      ++columns_;
      if (!divides(op, gemm.n, "columns")) return;
      if (!split_parameter(op, inputs[1], weight_axis(inputs[1], gemm.n, false))) return;
      if (inputs.size() > 2 && !split_parameter(op, inputs[2], 0)) return;
      gemm.n /= ranks_;
      inputs[0] = x.sequence ? gather(op, inputs[0], false) : enter(op, inputs[0]);
      settle(result, {whole(result).rank() - 1, whole(result)[-1], false, false});
      return keep(product, inputs);
    }
    if (x.sequence) {  // every rank has the weights, and its tokens
      if (placed(inputs[1]).split()) return gather_all(op);
      gemm.m /= ranks_;
      settle(result, x);
      for (std::size_t i = 1; i < inputs.size(); ++i)
        inputs[i] = is_parameter(inputs[i]) ? (sum_gradient(inputs[i]), inputs[i]) : enter(op, inputs[i]);
    }
    keep(product, inputs);
  }

  // Each rank's part of the inner extent: summands. The bias is added once, after the sum.
  void visit_row(const Op& op) {
    const TensorId x = operand(op, 0), weight = operand(op, 1), result = in_.output(op);
    if (!is_parameter(weight)) return refuse(op, "multiplies what tensor parallelism has split with something that is no parameter");
    Op product = op;
    product.recipe = product.recipe_16bit = {};
    auto& gemm = std::get<GemmAttributes>(product.attributes);
    if (!split_parameter(op, weight, weight_axis(weight, gemm.k, true))) return;
    gemm.k /= ranks_;
    gemm.bias = false;
    const TensorId partial = like(result, {}, false);
    put(product, {x, weight}, partial);
    if (op.input_count < 3) return reduce(op, partial, result);
    const TensorId sum = like(result, {}, false), bias = operand(op, 2);
    reduce(op, partial, sum);
    settle(result, placed(sum));
    if (placed(sum).split()) sum_gradient(bias);
    put(beside(op, OpKind::add), {sum, bias}, result);
  }

  void visit_matmul(const Op& op) {
    Operands inputs = operands(op);
    if (placed(inputs[0]).sequence || placed(inputs[1]).sequence) return gather_all(op);
    const int rank = whole(in_.output(op)).rank();
    std::optional<Placement> split;
    for (std::size_t i = 0; i < 2; ++i) {
      const Placement p = placed(inputs[i]);
      if (!p.split()) continue;
      const int from_end = p.axis - whole(inputs[i]).rank();
      if (from_end == (i == 0 ? -1 : -2)) return refuse(op, "its inner extent is split, and it is no layer with weights");
      if (split && split->axis != rank + from_end) return refuse(op, "its operands are split along different axes");
      split = Placement{rank + from_end, p.extent, false, false};
    }
    const int from_end = split->axis - rank;
    for (TensorId& id : inputs)
      if (!placed(id).split()) id = match(op, id, from_end <= -3 ? whole(id).rank() + from_end : -1, false);
    settle(in_.output(op), *split);
    Op product = op;
    const Shape a = out_.tensors[inputs[0]].shape, b = out_.tensors[inputs[1]].shape;
    const bool bias = std::get<GemmAttributes>(op.attributes).bias;
    product.attributes = GemmAttributes{.batch = a.elements() / (a[-1] * a[-2]), .m = a[-2], .n = b[-1], .k = a[-1], .bias = bias};
    keep(product, inputs);
  }

  void visit_attention(const Op& op) {
    Operands inputs = operands(op);
    for (std::size_t i = 0; i < 3; ++i)
      if (placed(inputs[i]).sequence) return gather_all(op);
    Op attention = op;
    auto& a = std::get<AttentionAttributes>(attention.attributes);
    if (!divides(op, a.heads, "heads") || !divides(op, a.kv_heads, "heads of keys and values")) return;
    for (std::size_t i = 0; i < 3; ++i) {
      if (!placed(inputs[i]).split()) return refuse(op, "only some of its queries, keys and values are split; name their layers in plan.tp_plan");
      if (placed(inputs[i]).axis != 1) return refuse(op, "is split along another axis than its heads");
    }
    a.heads /= ranks_;
    a.kv_heads /= ranks_;
    for (std::size_t i = 3; i < inputs.size(); ++i)
      if (!placed(inputs[i]).split()) inputs[i] = match(op, inputs[i], whole(inputs[i]).rank() == 4 ? 1 : -1, false);
    for (TensorId id : in_.outputs(op))
      if (whole(id).rank() >= 3 && whole(id)[1] % ranks_ == 0) settle(id, {1, whole(id)[1], false, false});
    keep(attention, inputs);
  }

  void visit_norm(const Op& op) {
    const Operands inputs = operands(op);
    const Placement x = placed(inputs[0]);
    const Shape shape = whole(inputs[0]);
    const auto* norm = std::get_if<NormAttributes>(&op.attributes);
    std::int64_t inside = 1;  // extents after the split axis
    for (int axis = x.axis + 1; axis < shape.rank(); ++axis) inside *= shape[axis];
    const std::int64_t width = norm && norm->width > 0 ? norm->width : shape[-1];
    if (inside < width) return gather_all(op);
    for (std::size_t i = 1; i < inputs.size(); ++i) sum_gradient(inputs[i]);
    for (TensorId id : in_.outputs(op))
      if (whole(id) == shape) settle(id, x);
      else if (const auto rows = through_reshape(shape, shape_of_rows(shape, whole(id)), x, ranks_); rows && whole(id).rank() > 0) settle(id, {0, whole(id)[0], x.sequence, false});
    keep(op, inputs);
  }
  // Statistics are one value a row: [rows], or the shape without its last axis.
  static Shape shape_of_rows(const Shape& shape, const Shape& rows) { return {rows.elements(), shape.elements() / std::max<std::int64_t>(1, rows.elements())}; }

  // Works along the last axis.
  void visit_rows(const Op& op) {
    const TensorId x = operand(op, 0);
    const Placement split = placed(x);
    if (split.axis + 1 == whole(x).rank()) return gather_all(op);
    for (TensorId id : in_.outputs(op))
      if (whole(id).rank() == whole(x).rank()) settle(id, split);
    keep(op, operands(op));
  }

  // Vocabulary-parallel cross entropy (Megatron-LM core, tensor_parallel/cross_entropy.py): of every token the largest score, the
  // target's and the sum of exponentials are summed up over the ranks, one value each; nothing is exchanged backward.
  void visit_vocabulary(const Op& op) {
    const TensorId scores = operand(op, 0), result = in_.output(op);
    const Shape rows{whole(scores).elements() / whole(scores)[-1]};
    const TensorId largest = add({.dtype = in_.tensors[scores].dtype}, rows, {}), agreed = like(largest, {}, true);
    Op maximum = beside(op, OpKind::reduction);
    maximum.label = out_.intern("amax");
    put(maximum, {scores}, largest);
    Op agree = beside(op, OpKind::all_reduce, group());
    agree.in_place = true;
    put(agree, {largest}, agreed);
    settle(result, placed(scores));
    Op own = op;
    own.recipe = own.recipe_16bit = {};
    put(own, {scores, agreed}, result);
    loss_parts_.clear();
    CollectiveAttributes message = group();
    message.bytes = {rows.elements() * 4};
    for (int i = 0; i < 2; ++i) {
      loss_parts_.push_back(add({.dtype = DType::fp32}, rows, {}));
      put(beside(op, OpKind::all_reduce, message), {result}, loss_parts_.back());
    }
  }
  void visit_loss(const Op& op) {
    const Placement x = placed(operand(op, 0));
    if (x.sequence || loss_parts_.empty()) return gather_all(op);
    Operands inputs = operands(op);
    for (TensorId id : loss_parts_) inputs.push_back(id);
    Op loss = op;
    loss.recipe = loss.recipe_16bit = {};
    keep(loss, inputs);
  }

  void visit_view(const Op& op) {
    const TensorId x = operand(op, 0), y = in_.output(op);
    const auto* view = std::get_if<ViewAttributes>(&op.attributes);
    const ViewKind kind = view ? view->kind : ViewKind::reshape;
    const Placement split = placed(x);
    std::optional<Placement> after;
    if (kind == ViewKind::reshape || kind == ViewKind::transpose) {
      // Captured graphs call either so: the same extents in another order are a transposition.
      const bool turned = is_permutation(whole(x), whole(y)) && (kind == ViewKind::transpose || !(whole(x) == whole(y)));
      after = turned ? through_transpose(whole(x), whole(y), split) : through_reshape(whole(x), whole(y), split, ranks_);
    } else if (kind == ViewKind::slice && whole(y).rank() + 1 == whole(x).rank()) {
      after = through_removal(whole(x), whole(y), split);
    } else {  // an expansion adds axes in front
      const int shift = kind == ViewKind::expand ? whole(y).rank() - whole(x).rank() : 0;
      const int axis = split.axis + shift;
      const bool kept = whole(x).rank() + shift == whole(y).rank();
      if (kept && (whole(y)[axis] == whole(x)[split.axis] || !split.sequence)) after = Placement{axis, whole(y)[axis] == whole(x)[split.axis] ? split.extent : whole(y)[axis], split.sequence, false};
    }
    if (!after) return gather_all(op);
    if (!divides(op, whole(y)[after->axis], split.sequence ? "tokens" : "elements of a part")) return;
    settle(y, *after);
    keep(op, operands(op));
  }

  // New memory like another tensor's, perhaps longer along other axes.
  void visit_allocation(const Op& op) {
    const TensorId x = operand(op, 0), y = in_.output(op);
    const Placement split = placed(x);
    if (whole(x).rank() != whole(y).rank() || whole(x)[split.axis] != whole(y)[split.axis]) return keep(op, operands(op));
    settle(y, split);
    keep(op, operands(op));
  }

  // split and cat: the axis is the one in which parts and whole differ.
  void visit_parts(const Op& op) {
    Operands inputs = operands(op);
    Placement split;
    for (TensorId id : inputs)  // features win: tokens can be gathered
      if (placed(id).split() && (!split.split() || !placed(id).sequence)) split = placed(id);
    const Shape one = whole(in_.output(op));
    const auto along = differing_axis(one, whole(inputs[0]));
    if (split.sequence && along && *along == split.axis) return gather_all(op);
    for (TensorId& id : inputs) {
      if (placed(id).split() && placed(id).sequence == split.sequence) {
        if (placed(id).axis != split.axis) return refuse(op, "its operands are split along different axes");
        continue;
      }
      id = match(op, id, split.axis, split.sequence);
    }
    for (TensorId id : in_.outputs(op)) {
      if (!divides(op, whole(id)[split.axis], split.sequence ? "tokens" : "elements of a part")) return;
      Placement after = split;
      if (along && *along == split.axis) after.extent = whole(id)[split.axis];
      settle(id, after);
    }
    keep(op, inputs);
  }

  void visit_reduction(const Op& op) {
    const TensorId x = operand(op, 0), y = in_.output(op);
    const Placement split = placed(x);
    const Shape from = whole(x), to = whole(y);
    std::optional<Placement> after;
    if (from.rank() != to.rank()) after = through_removal(from, to, split);
    else if (to[split.axis] == from[split.axis]) after = split;
    if (!after) return gather_all(op);
    for (TensorId id : in_.outputs(op))
      if (whole(id) == to) settle(id, *after);
    keep(op, operands(op));
  }

  void visit_elementwise(const Op& op) {
    Operands inputs = operands(op);
    if (op.output_count == 0) return gather_all(op);
    const Shape result = whole(in_.output(op));
    std::optional<Placement> split;
    for (TensorId id : inputs) {
      Placement p = placed(id);
      if (!p.split()) continue;
      p.axis += result.rank() - whole(id).rank();
      if (p.axis < 0 || whole(id)[placed(id).axis] != result[p.axis]) return gather_all(op);
      if (!split || (split->sequence && !p.sequence)) split = p;
    }
    for (TensorId& id : inputs) {
      const int axis = split->axis - (result.rank() - whole(id).rank());
      const Placement p = placed(id);
      if (p.split() && p.sequence == split->sequence) {
        if (p.axis != axis) return refuse(op, "its operands are split along different axes");
        continue;
      }
      if (p.split() && !p.sequence) return refuse(op, "some of its operands are split by features, others by tokens");
      if (p.sequence && view_of_[id.index()].op) id = match(op, id, axis, false);
      else id = match(op, p.sequence ? gather(op, id, false) : id, axis, split->sequence);
    }
    for (TensorId id : in_.outputs(op))
      if (whole(id) == result) settle(id, *split);
    keep(op, inputs);
  }

  struct ViewOf {
    TensorId source;         // what is looked at, where this is a view
    const Op* op = nullptr;  // of in_
  };

  const Plan& plan_;
  const DistinctChunks& chunks_;
  const std::int64_t ranks_;
  const bool experts_alone_;
  Graph in_, out_;
  std::vector<Shape> whole_;  // per tensor of out_, as below
  std::vector<Placement> placed_;
  std::vector<ViewOf> view_of_;
  std::map<std::pair<std::int32_t, int>, TensorId> entries_;               // by tensor and block
  std::map<std::pair<std::int32_t, int>, TensorId> door_;                  // into experts, as above
  std::set<std::int64_t> expert_rows_;                                     // that arrive at experts
  std::set<std::int32_t> inside_;                                          // experts; their gradients are summands anyway
  std::map<std::int32_t, TensorId> stands_for_;
  std::map<std::tuple<std::int32_t, int, bool>, TensorId> gathered_;
  std::map<TensorId, int> summed_;  // parameters, and how many of the model's each stands for
  std::vector<TensorId> loss_parts_;
  std::vector<Problem> problems_;
  std::int64_t vocabulary_ = 0, sequence_ = 0;
  OpId current_;  // the operator at hand
  NameId label_;  // whose collectives these are
  int columns_ = 0;
  bool arrived_ = false;  // tokens are with their experts
};

}  // namespace

Result<ShardedLayers> split_layers(const Plan& plan, Graph forward, const DistinctChunks& chunks) {
  const std::int64_t before = vocabulary_of(forward);
  forward = pad_vocabulary(std::move(forward), kVocabularyUnit * plan.tp);
  const std::int64_t after = vocabulary_of(forward);
  auto out = TensorParallel(plan, plan.tp, false, std::move(forward), chunks).run();
  if (out && after != before)
    out->notes.push_back(fmt::format("vocabulary of {} made {}, a multiple of {} for each of {} tensor-parallel ranks, as Megatron does", before, after, kVocabularyUnit, plan.tp));
  return out;
}

Result<Graph> split_experts(const Plan& plan, Graph forward, const DistinctChunks& chunks) {
  PRECOG_TRY(split, TensorParallel(plan, plan.ranks_per_expert(), true, std::move(forward), chunks).run());
  return std::move(split.graph);
}

}  // namespace precog
