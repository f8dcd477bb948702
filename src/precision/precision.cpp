#include "precision/precision.h"

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "base/ensure.h"
#include "base/text.h"
#include "graph/operator.h"
#include "precision/fp8_layers.h"

namespace precog {
namespace {

// A rule for a module holds for all that runs inside it, as a region in its forward would.
bool inside_module(std::string_view module, std::string_view pattern) {
  for (;;) {
    if (matches_pattern(module, pattern)) return true;
    const std::size_t dot = module.rfind('.');
    if (dot == std::string_view::npos) return false;
    module = module.substr(0, dot);
  }
}

class PrecisionPass {
 public:
  PrecisionPass(const PrecisionRecipe& recipe, const GpuSpec& gpu, const Graph& in)
      : recipe_(recipe), gpu_(gpu), in_(in), out_(in.empty_with_names()), mapped_(in.tensors.size()) {
    lower_ = out_.intern("autocast: lower-precision list");
    fp32_ = out_.intern("autocast: fp32 list");
    fp32_result_ = out_.intern("autocast: asks for an fp32 result");
    kept_ = out_.intern("runs in its inputs' type");
    explicit_ = out_.intern("the model's own cast");
    weight_ = out_.intern("weight, cast once per forward (autocast's cache)");
    input_ = out_.intern("input of an operator that autocast runs in another type");
    math_attention_ = out_.intern(kMathPath);
    tf32_ = out_.intern("TF32 allowed");
    mixed_norm_ = out_.intern("rms_norm with weights of another type: the formula, no fused kernel");
  }

  Graph run() {
    if (recipe_.fp8) fp8_.emplace(out_, *recipe_.fp8, gpu_, recipe_.gathers_fp8 && !recipe_.fp8->fused);  // else every rank converts what the optimizer made
    const std::vector<DType> stored = parameter_types();
    out_.tensors.reserve(in_.tensors.size() * 2);
    out_.ops.reserve(in_.ops.size() * 2);
    for (std::size_t i = 0; i < in_.tensors.size(); ++i) {
      const TensorId id = in_.tensors.id_at(i);
      const Tensor& tensor = in_.tensors[id];
      if (tensor.role == Role::activation) continue;  // made when its operator is
      Tensor decided = tensor;
      decided.storage = {};
      if (tensor.dtype == DType::model) decided.dtype = stored[i];
      mapped_[i] = out_.add_tensor(decided);
    }
    cached_.resize(out_.tensors.size());
    if (recipe_.casts_inputs) cast_inputs();
    for (const Op& op : in_.ops) visit(op);
    return std::move(out_);
  }

 private:
  // What of the rules concerns one operator; later rules win.
  struct Ruled {
    std::optional<DType> run_in, autocast;
    bool off = false;
    std::optional<bool> fp8;
    const PrecisionRule* by = nullptr;
  };
  bool concerns(const PrecisionRule& rule, const Op& op) const {
    return inside_module(in_.name(op.module), rule.modules) &&
           (rule.operators == "*" || matches_pattern(precog::name_of(in_, op), rule.operators) || matches_pattern(to_text(op.kind), rule.operators));
  }
  Ruled ruled(const Op& op) const {
    Ruled out;
    if (definition(op.kind).family == Family::view) return out;
    for (const PrecisionRule& rule : recipe_.rules) {
      if (!concerns(rule, op)) continue;
      if (rule.run_in) out.run_in = rule.run_in, out.off = false, out.by = &rule;
      if (rule.autocast_off) out.off = true, out.run_in.reset(), out.by = &rule;
      if (rule.autocast) out.autocast = rule.autocast, out.off = false, out.by = &rule;
      if (rule.fp8) out.fp8 = rule.fp8;
    }
    return out;
  }

  // The type that each tensor which is there before the step has; a rule may store some parameters differently.
  std::vector<DType> parameter_types() const {
    std::vector<DType> out(in_.tensors.size(), recipe_.parameters);
    for (std::size_t i = 0; i < out.size(); ++i) {
      const Role role = in_.tensors[in_.tensors.id_at(i)].role;
      if (role == Role::input) out[i] = recipe_.inputs;
      if (role == Role::buffer) out[i] = recipe_.buffers;
    }
    for (const PrecisionRule& rule : recipe_.rules)
      if (rule.parameters)
        for (const Op& op : in_.ops)
          if (concerns(rule, op))
            for (TensorId id : in_.inputs(op))
              if (in_.tensors[id].role == Role::parameter || in_.tensors[id].role == Role::buffer) out[id.index()] = *rule.parameters;
    return out;
  }

  // FSDP and apex hand every floating input over in the parameters' type.
  void cast_inputs() {
    Op root;
    root.kind = OpKind::cast;
    root.math = recipe_.parameters;
    root.reason = out_.intern("the wrapper casts the model's inputs");
    root.attributes = CastAttributes{.to = recipe_.parameters};
    for (std::size_t i = 0; i < in_.tensors.size(); ++i) {
      const Tensor& tensor = in_.tensors[in_.tensors.id_at(i)];
      if (tensor.role != Role::input || tensor.dtype != DType::model || recipe_.inputs == recipe_.parameters) continue;
      const TensorId result = out_.add_tensor({.shape = tensor.shape, .dtype = recipe_.parameters});
      out_.add_op(root, std::array{mapped_[i]}, std::array{result});
      mapped_[i] = result;
    }
    cached_.resize(out_.tensors.size());
  }

  TensorId mapped(TensorId id) const { return mapped_[id.index()]; }
  DType dtype(TensorId id) const { return out_.tensors[id].dtype; }

  // A cast in front of `consumer`, or the cached copy of a parameter. `already` of that type: nothing.
  TensorId cast(TensorId id, DType to, const Op& consumer) {
    if (dtype(id) == to || !is_floating(dtype(id)) || dtype(id) == DType::fp64) return id;  // autocast leaves fp64 alone
    const bool cacheable = recipe_.weight_cache && out_.tensors[id].role == Role::parameter &&
                           out_.tensors[id].requires_grad && to == recipe_.autocast;
    if (cacheable && cached_[id.index()].valid()) return cached_[id.index()];
    Op op;
    op.kind = OpKind::cast;
    op.math = to;
    op.module = consumer.module;
    op.block = consumer.block;
    op.reason = cacheable ? weight_ : input_;
    op.label = out_.intern(name_of(out_, consumer));
    op.attributes = CastAttributes{.to = to, .by_autocast = true};
    TensorId result = out_.add_tensor({.shape = out_.tensors[id].shape, .dtype = to, .requires_grad = out_.tensors[id].requires_grad});
    TensorId inputs[] = {id}, outputs[] = {result};
    out_.add_op(op, inputs, outputs);
    if (cacheable) cached_[id.index()] = result;
    return result;
  }

  DType arithmetic(const Op& op, DType compute) const {
    if (compute != DType::fp32 || !gpu_.matrix.has(DType::tf32)) return compute;
    const Family family = definition(op.kind).family;
    if (family == Family::gemm && recipe_.tf32_matmul) return DType::tf32;
    if ((family == Family::convolution || family == Family::recurrent) && recipe_.tf32_convolution) return DType::tf32;  // cuDNN's switch
    return compute;
  }

  // The type an operator that autocast leaves alone produces.
  DType natural_type(const Op& op, std::span<const TensorId> inputs) const {
    // A new tensor: of the type of the one that the code took its type from.
    if (const auto* type = std::get_if<CastAttributes>(&op.attributes); type && type->like.valid()) return dtype(mapped(type->like));
    if (inputs.empty()) return recipe_.parameters;
    const bool generic = is_generic(op.kind);
    const Family family = definition(op.kind).family;
    if (op.in_place || family == Family::normalization || family == Family::view || op.kind == OpKind::masked_fill)
      return dtype(inputs[0]);
    // Tensors without dimensions do not widen those that have some; integers never widen floating types.
    DType with_axes = DType::boolean, without = DType::boolean;
    for (TensorId id : inputs)
      if (is_floating(dtype(id))) {
        DType& widest = out_.tensors[id].shape.rank() > 0 ? with_axes : without;
        widest = is_floating(widest) ? promoted(widest, dtype(id)) : dtype(id);
      }
    if (is_floating(with_axes)) return with_axes;
    if (is_floating(without)) return without;
    // A floating result of integers alone (a division, a mean) has the framework's default type.
    const bool floating = op.output_count > 0 && in_.tensors[in_.output(op)].dtype == DType::model;
    return generic || floating ? DType::fp32 : dtype(inputs[0]);
  }

  void visit(const Op& op) {
    if (op.kind == OpKind::cast) return visit_cast(op);
    if (const auto* copy = std::get_if<CopyAttributes>(&op.attributes); copy && copy->only != OnlyFor::any) {
      const TensorId from = mapped(in_.input(op, 0));
      if (is_16bit(dtype(from)) != (copy->only == OnlyFor::half)) {
        mapped_[in_.output(op).index()] = from;
        return;
      }
    }
    inputs_.clear();
    for (TensorId id : in_.inputs(op)) inputs_.push_back(mapped(id));

    Op decided = op;
    const Ruled own = recipe_.rules.empty() ? Ruled{} : ruled(op);
    const std::optional<DType> autocast = own.off ? std::nullopt : own.autocast ? own.autocast : recipe_.autocast;
    Autocast rule = autocast ? op.autocast : Autocast::none;
    if (asks_for_fp32(op)) rule = Autocast::fp32_result;
    DType compute;
    bool any_floating = false;
    for (TensorId id : inputs_) any_floating = any_floating || is_floating(dtype(id));
    const DType lower = lower_type(op, rule, autocast);
    if (any_floating && own.run_in) {
      for (TensorId& id : inputs_) id = cast(id, *own.run_in, op);
      compute = *own.run_in;
      decided.reason = out_.intern(fmt::format("rule: {} in {}", own.by->text, to_text(compute)));
    } else if (any_floating && runs_in_fp8(op, decided, own, lower)) {
      return expand_fp8(op, decided, lower);
    } else switch (any_floating ? rule : Autocast::none) {
      case Autocast::lower:
        compute = lower;
        if (op.kind == OpKind::rnn) flatten_recurrent_weights(op);
        for (TensorId& id : inputs_) id = cast(id, compute, op);
        if (!decided.reason.valid()) decided.reason = own.by ? out_.intern(fmt::format("rule: {}, autocast to {}", own.by->text, to_text(compute))) : lower_;
        break;
      case Autocast::fp32:
        for (TensorId& id : inputs_) id = cast(id, DType::fp32, op);
        compute = DType::fp32;
        decided.reason = fp32_;
        break;
      case Autocast::fp32_result: {
        // Softmax reads fp16 itself; reductions read either 16-bit type. Otherwise the input is converted first.
        const bool reads_itself = dtype(inputs_[0]) == DType::fp16 ||
                                  (definition(op.kind).family == Family::reduction && is_16bit(dtype(inputs_[0])));
        if (!reads_itself) inputs_[0] = cast(inputs_[0], DType::fp32, op);
        compute = DType::fp32;
        decided.reason = fp32_result_;
        break;
      }
      case Autocast::promote: {
        DType widest = *autocast;
        for (TensorId id : inputs_)
          if (is_floating(dtype(id))) widest = promoted(widest, dtype(id));
        for (TensorId& id : inputs_) id = cast(id, widest, op);
        compute = widest;
        decided.reason = kept_;
        break;
      }
      case Autocast::none:
      default:
        if (own.off && op.autocast == Autocast::lower)  // code in such a region converts what comes in: its weights are as stored
          for (TensorId& id : inputs_) id = cast(id, recipe_.parameters, op);
        compute = natural_type(op, inputs_);
        // A type that the code asks for (`sum(x, dtype=float32)`) is what it is computed in.
        if (op.output_count > 0 && definition(op.kind).family == Family::reduction && fixed_type(op)) compute = in_.tensors[in_.output(op)].dtype;
        if (own.off) decided.reason = out_.intern(fmt::format("rule: {} without autocast", own.by->text));
        else if (recipe_.autocast && !decided.reason.valid()) decided.reason = kept_;
        break;
    }
    decided.math = arithmetic(op, compute);
    if (decided.math == DType::tf32) decided.reason = tf32_;
    if (op.kind == OpKind::scaled_dot_product_attention) {
      auto& attention = std::get<AttentionAttributes>(decided.attributes);
      if (inputs_.size() > 3 && dtype(inputs_[3]) == DType::boolean) {  // turned into zeros and minus infinity first
        expanded_ = kept_;
        const TensorId zero = plain(OpKind::fill, op, {}, Shape{}, compute), infinite = plain(OpKind::fill, op, {}, Shape{}, compute);
        inputs_[3] = plain(OpKind::masked_fill, op, {zero, inputs_[3], infinite}, out_.tensors[inputs_[3]].shape, compute);
      }
      const bool learned_mask = inputs_.size() > 3 && out_.tensors[inputs_[3]].requires_grad;
      const bool traced = attention.backend == AttentionBackend::math;  // decided already: by the compiler's tracing
      // Every fused kernel wants four axes (sdp_utils_cpp.h: check_tensor_shapes); windows beside batch and heads make a fifth.
      if (attention.backend == AttentionBackend::undecided)
        attention.backend = out_.tensors[inputs_[0]].shape.rank() > 4 ? AttentionBackend::math : attention_backend(attention, compute, gpu_, learned_mask);
      if (attention.backend == AttentionBackend::math) return expand_math_attention(op, attention, compute, traced);
    }
    if (op.kind == OpKind::rms_norm && inputs_.size() > 1 && dtype(inputs_[1]) != dtype(inputs_[0])) return expand_rms_norm(op, compute);
    if (decided.recipe_16bit.valid() && is_16bit(compute)) decided.recipe = decided.recipe_16bit;
    if (std::holds_alternative<CastAttributes>(decided.attributes)) decided.attributes = {};  // its type is decided
    emit(op, decided, compute);
  }

  // cuDNN's recurrent layers: fp16 whatever autocast's type. Without autocast, the type that the operands have anyway.
  DType lower_type(const Op& op, Autocast rule, std::optional<DType> autocast) const {
    if (rule == Autocast::lower) return op.kind == OpKind::rnn ? DType::fp16 : *autocast;
    const bool product = op.autocast == Autocast::lower || op.kind == OpKind::grouped_linear;
    return product && !inputs_.empty() ? dtype(inputs_[0]) : DType::fp32;
  }

  // A layer: a product of an activation with a parameter. One that does not qualify is told why in `decided.reason`.
  bool runs_in_fp8(const Op& op, Op& decided, const Ruled& own, DType lower) {
    // Of grouped products only a stack of fused kernels has fp8 forms (Transformer Engine's GroupedLinear).
    const bool grouped = op.kind == OpKind::grouped_linear && fp8_ && recipe_.fp8->fused;
    if (!fp8_ || (op.kind != OpKind::linear && !grouped) || out_.tensors[inputs_[1]].role != Role::parameter) return false;
    if (!is_16bit(lower)) {
      decided.reason = out_.intern("not in fp8: only layers that would run in 16 bits are converted");
      return false;
    }
    const std::string_view module = in_.name(op.module);
    auto named = [&](const std::vector<std::string>& patterns) {
      return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) { return matches_pattern(module, pattern); });
    };
    // What replaces nn.Linear modules does not see a product that a larger module makes with its own weights
    // (nn.MultiheadAttention's projections); a stack of its own modules has such products too.
    const std::string_view weight = in_.name(in_.tensors[in_.input(op, 1)].name);
    const bool functional = weight.starts_with(module) && weight.substr(std::min(weight.size(), module.size())) != ".weight" && !module.empty();
    if (functional && !recipe_.fp8->fused && !own.fp8.value_or(false)) {
      decided.reason = out_.intern("not in fp8: no nn.Linear module, but a product that the module around it makes");
      return false;
    }
    const bool chosen = own.fp8.value_or(named(recipe_.fp8->modules) && !named(recipe_.fp8->except));
    if (!chosen) {
      decided.reason = out_.intern(own.fp8 ? "rule: not in fp8" : "not in fp8: the recipe leaves this layer out");
      return false;
    }
    if (const std::string why = fp8_->refusal(std::get<GemmAttributes>(op.attributes)); !why.empty()) {
      decided.reason = out_.intern(why);
      return false;
    }
    decided.reason = out_.intern(fmt::format("{} layer, {} scaling", to_text(recipe_.fp8->arithmetic()), to_text(recipe_.fp8->scaling)));
    return true;
  }

  // The activation is cast as autocast would; the weight is quantised from what it is stored in.
  void expand_fp8(const Op& op, const Op& decided, DType type) {
    const TensorId x = cast(inputs_[0], type, op);
    const TensorId bias = inputs_.size() > 2 ? cast(inputs_[2], type, op) : TensorId{};
    mapped_[in_.output(op).index()] = fp8_->linear(decided, x, inputs_[1], bias, in_.tensors[in_.output(op)].shape);
  }

  // _cudnn_rnn_cast_reflatten: one zeroed buffer for all weights, into which each is then cast.
  void flatten_recurrent_weights(const Op& op) {
    std::int64_t elements = 0;
    for (TensorId id : inputs_)
      if (out_.tensors[id].role == Role::parameter) elements += out_.tensors[id].shape.elements();
    if (elements == 0) return;
    expanded_ = lower_;
    plain(OpKind::fill, op, {}, Shape{elements}, DType::fp16);
  }

  bool fixed_type(const Op& op) const {
    const DType type = in_.tensors[in_.output(op)].dtype;
    return is_floating(type) && type != DType::model;
  }
  // softmax(x, dtype=float32): asked for by the code, whatever autocast does.
  bool asks_for_fp32(const Op& op) const {
    return (op.kind == OpKind::softmax || op.kind == OpKind::log_softmax) && in_.tensors[in_.output(op)].dtype == DType::fp32 &&
           is_16bit(dtype(inputs_[0]));
  }

  void emit(const Op& op, const Op& decided, DType compute) {
    outputs_.clear();
    for (TensorId id : in_.outputs(op)) {
      Tensor tensor = in_.tensors[id];
      if (tensor.dtype == DType::model) tensor.dtype = compute;
      const TensorId base = tensor.storage;
      tensor.storage = base == id ? TensorId{} : out_.tensors[mapped(base)].storage;
      if (decided.in_place) tensor.storage = out_.tensors[inputs_[0]].storage;
      mapped_[id.index()] = out_.add_tensor(tensor);
      outputs_.push_back(mapped(id));
    }
    // A view of a tensor that a cast replaced lives in what it is a view of now.
    if (op.kind == OpKind::view || op.kind == OpKind::split)
      for (TensorId id : outputs_) out_.tensors[id].storage = out_.tensors[inputs_[0]].storage;
    out_.add_op(decided, inputs_, outputs_);
  }

  // `.to(dtype)` and `.to(x.dtype)`: a kernel where the type changes, nothing at all where it does not.
  void visit_cast(const Op& op) {
    const auto& wanted = std::get<CastAttributes>(op.attributes);
    const TensorId from = mapped(in_.input(op, 0));
    if (wanted.door != Autocast::none) {
      const DType type = !recipe_.autocast ? dtype(from) : wanted.door == Autocast::fp32 ? DType::fp32 : *recipe_.autocast;
      mapped_[in_.output(op).index()] = cast(from, type, op);
      return;
    }
    DType to = wanted.like.valid() ? dtype(mapped(wanted.like)) : wanted.to;
    if (to == DType::model) to = recipe_.parameters;  // the model's own type
    if (dtype(from) == to) {
      mapped_[in_.output(op).index()] = from;
      return;
    }
    Op decided = op;
    decided.math = to;
    decided.reason = explicit_;
    decided.attributes = CastAttributes{.to = to};
    Tensor tensor = in_.tensors[in_.output(op)];
    tensor.dtype = to;
    tensor.storage = {};
    TensorId inputs[] = {from}, outputs[] = {out_.add_tensor(tensor)};
    mapped_[in_.output(op).index()] = outputs[0];
    out_.add_op(decided, inputs, outputs);
  }

  TensorId plain(OpKind kind, const Op& near, std::initializer_list<TensorId> inputs, Shape shape, DType type,
                 Attributes attributes = {}, DType math = DType::model) {
    Op op;
    op.kind = kind;
    op.module = near.module;
    op.block = near.block;
    op.reason = expanded_;
    op.math = math == DType::model ? type : math;
    op.attributes = std::move(attributes);
    Tensor tensor{.shape = shape, .dtype = type};
    for (TensorId id : inputs) tensor.requires_grad = tensor.requires_grad || out_.tensors[id].requires_grad;
    if (kind == OpKind::view) tensor.storage = out_.tensors[*inputs.begin()].storage;
    TensorId outputs[] = {out_.add_tensor(tensor)};
    out_.add_op(op, {inputs.begin(), inputs.size()}, outputs);
    return outputs[0];
  }

  TensorId plain_cast(TensorId id, DType to, const Op& near) {
    if (dtype(id) == to || !is_floating(dtype(id))) return id;
    return plain(OpKind::cast, near, {id}, out_.tensors[id].shape, to, CastAttributes{.to = to, .by_autocast = true});
  }

  // What first reads a tensor, through views, is a copy.
  bool is_copied(TensorId id) const {
    for (const Op& op : in_.ops) {
      if (op.kind == OpKind::view) continue;
      for (TensorId input : in_.inputs(op))
        if (in_.tensors[input].storage == in_.tensors[id].storage) return op.kind == OpKind::contiguous || op.kind == OpKind::copy;
    }
    return false;
  }

  // _scaled_dot_product_attention_math: keys and values repeated per query head, both operands scaled, scores
  // materialised, masked, softmaxed, and kept for backward. 16-bit operands are computed in fp32 on this path. The inputs
  // have been cast by autocast already. Where the compiler traces through it, autocast sees its products too and casts their
  // operands again (the programs that Inductor wrote for BERT and T5).
  void expand_math_attention(const Op& op, const AttentionAttributes& a, DType given, bool traced) {
    expanded_ = math_attention_;
    const DType type = DType::fp32;
    const DType product = traced && recipe_.autocast && given == *recipe_.autocast ? *recipe_.autocast : type;
    TensorId q = plain_cast(inputs_[0], type, op), k = plain_cast(inputs_[1], type, op), v = plain_cast(inputs_[2], type, op);
    const Shape keys{a.batch, a.heads, a.kv_len, a.head_dim}, values{a.batch, a.heads, a.kv_len, a.value_dim};
    const Shape scores{a.batch, a.heads, a.q_len, a.kv_len};
    const std::int64_t products = a.batch * a.heads;
    // Traced under autocast, forward's products lie below autocast's door and stay in fp32; backward's are seen by it, so that what
    // is kept for them are casts. Our tensors are those casts, the arithmetic is forward's own.
    const DType math = recipe_.tf32_matmul && gpu_.matrix.has(DType::tf32) ? DType::tf32 : type;
    auto expanded = [&](TensorId id, const Shape& shape, bool copied) {
      id = plain(OpKind::view, op, {id}, shape, type, ViewAttributes{ViewKind::expand});
      return copied ? plain(OpKind::contiguous, op, {id}, shape, type) : id;
    };
    if (a.heads != a.kv_heads && !a.broadcast) {
      k = expanded(k, keys, true);
      v = expanded(v, values, true);
    }
    q = plain(OpKind::mul_scalar, op, {q}, out_.tensors[q].shape, type);
    k = plain(OpKind::mul_scalar, op, {k}, out_.tensors[k].shape, type);
    if (a.broadcast) {  // by the products, which want batch and heads as one axis: of one sample an expanded operand has it
      k = expanded(k, keys, a.batch > 1);
      v = expanded(v, values, a.batch > 1);
    }
    // The batched product wants batch and heads as one axis, and so does each gradient on its way back.
    auto gathered = [&](TensorId id, bool scattered) {
      return scattered ? plain(OpKind::contiguous, op, {id}, out_.tensors[id].shape, type, CopyAttributes{.copies_gradient = true}) : id;
    };
    const bool repeated = a.heads != a.kv_heads;  // then they have been copied just now
    q = gathered(q, a.scattered[0]);
    k = gathered(k, a.scattered[1] && !repeated);
    v = gathered(v, a.scattered[2] && !repeated);
    q = plain_cast(q, product, op);
    k = plain_cast(k, product, op);
    TensorId score = plain(OpKind::matmul, op, {q, plain(OpKind::view, op, {k}, Shape{a.batch, a.heads, a.head_dim, a.kv_len}, product,
                           ViewAttributes{ViewKind::transpose})}, scores, product, GemmAttributes{products, a.q_len, a.kv_len, a.head_dim}, math);
    score = plain_cast(score, type, op);
    if (a.causal) {
      const Shape pairs{a.q_len, a.kv_len};
      const TensorId ones = plain(OpKind::fill, op, {}, pairs, DType::boolean);
      const TensorId lower = plain(OpKind::integer_pointwise, op, {ones}, pairs, DType::boolean);
      const TensorId zero = plain(OpKind::fill, op, {}, Shape{}, type), infinite = plain(OpKind::fill, op, {}, Shape{}, type);
      const TensorId bias = plain(OpKind::masked_fill, op, {zero, lower, infinite}, pairs, type);
      score = plain(OpKind::add, op, {score, bias}, scores, type);
    } else if (a.mask) {
      score = plain(OpKind::add, op, {score, inputs_[3]}, scores, type);
    }
    TensorId weights = plain(OpKind::softmax, op, {score}, scores, type);
    // _safe_softmax: rows that are masked altogether become zero. Its gradient is softmax's own: what comes here is not differentiated.
    auto aside = [&](OpKind kind, std::initializer_list<TensorId> inputs, const Shape& shape, DType to, std::string_view label = "") {
      const TensorId id = plain(kind, op, inputs, shape, to, {}, type);
      out_.tensors[id].requires_grad = false;
      if (!label.empty()) out_.ops[OpId{static_cast<std::int32_t>(out_.ops.size()) - 1}].label = out_.intern(label);
      return id;
    };
    const TensorId masked = aside(OpKind::integer_pointwise, {weights}, scores, DType::boolean);
    const TensorId whole = aside(OpKind::reduction, {masked}, Shape{a.batch, a.heads, a.q_len, 1}, DType::boolean, "all");
    aside(OpKind::masked_fill, {weights, whole}, scores, type);
    if (a.dropout) {
      Op drop;
      drop.kind = OpKind::dropout;
      drop.module = op.module;
      drop.block = op.block;
      drop.math = type;
      drop.reason = math_attention_;
      TensorId inputs[] = {weights};
      TensorId outputs[] = {out_.add_tensor({.shape = scores, .dtype = type, .requires_grad = out_.tensors[weights].requires_grad}),
                            out_.add_tensor({.shape = scores, .dtype = DType::boolean})};
      out_.add_op(drop, inputs, outputs);
      weights = outputs[0];
    }
    const TensorId mixed = plain(OpKind::matmul, op, {plain_cast(weights, product, op), plain_cast(v, product, op)},
                                 Shape{a.batch, a.heads, a.q_len, a.value_dim}, product, GemmAttributes{products, a.q_len, a.value_dim, a.kv_len}, math);
    TensorId result = plain_cast(mixed, given, op);
    // A fused kernel's result lies as the query does; this one by heads, and is copied where the model goes on by positions.
    if (traced && a.scattered[0] && !is_copied(in_.output(op, 0)))
      result = plain(OpKind::contiguous, op, {result}, out_.tensors[result].shape, given, CopyAttributes{.copies_gradient = true});
    mapped_[in_.output(op, 0).index()] = result;
    plain_cast(weights, given, op);  // returned beside the result; nobody reads it, but the cast is run
    // Nothing reads the log-sum-exp of a path that keeps the scores themselves.
    mapped_[in_.output(op, 1).index()] = out_.add_tensor({.shape = {0}, .dtype = DType::fp32, .role = Role::buffer,
                                                          .name = out_.intern("no log-sum-exp on the math path")});
  }

  // rms_norm_composite (aten/src/ATen/native/layer_norm.cpp): in fp32, back to the input's type at the end.
  void expand_rms_norm(const Op& op, DType given) {
    expanded_ = mixed_norm_;
    const DType type = DType::fp32;
    const Shape shape = out_.tensors[inputs_[0]].shape;
    Shape rows = shape;
    std::int64_t width = std::get<NormAttributes>(op.attributes).width;
    for (int axis = rows.rank(); axis-- > 0 && width > 1;) {
      width /= std::max<std::int64_t>(1, rows[axis]);
      rows.set(axis, 1);
    }
    const TensorId x = plain_cast(inputs_[0], type, op);
    const TensorId mean = plain(OpKind::mean, op, {plain(OpKind::pow, op, {x}, shape, type)}, rows, type);
    const TensorId scale = plain(OpKind::rsqrt, op, {plain(OpKind::add_scalar, op, {mean}, rows, type)}, rows, type);
    const TensorId weighted = plain(OpKind::mul, op, {plain(OpKind::mul, op, {x, scale}, shape, type), inputs_[1]}, shape, type);
    mapped_[in_.output(op, 0).index()] = plain_cast(weighted, given, op);
    for (std::size_t i = 1; i < op.output_count; ++i) mapped_[in_.output(op, i).index()] = scale;
  }

  const PrecisionRecipe& recipe_;
  const GpuSpec& gpu_;
  const Graph& in_;
  Graph out_;
  std::vector<TensorId> mapped_;  // in_'s tensors -> out_'s
  std::vector<TensorId> cached_;  // out_'s parameter -> its cast copy
  std::vector<TensorId> inputs_, outputs_;
  std::optional<Fp8Expansion> fp8_;
  NameId lower_, fp32_, fp32_result_, kept_, explicit_, weight_, input_, math_attention_, tf32_, mixed_norm_;
  NameId expanded_;  // why an operator was written as its parts
};

}  // namespace

std::vector<std::string> unmatched_rules(const Graph& forward, std::span<const PrecisionRule> rules) {
  std::vector<std::string> out;
  for (const PrecisionRule& rule : rules) {
    bool module = false, both = false;
    std::vector<std::string> modules, operators;
    for (const Op& op : forward.ops) {
      const bool here = inside_module(forward.name(op.module), rule.modules);
      module = module || here;
      both = both || (here && (matches_pattern(name_of(forward, op), rule.operators) || matches_pattern(to_text(op.kind), rule.operators)));
      if (both) break;
      modules.emplace_back(forward.name(op.module));
      operators.emplace_back(name_of(forward, op));
    }
    if (both) continue;
    for (std::vector<std::string>* names : {&modules, &operators}) {
      std::sort(names->begin(), names->end());
      names->erase(std::unique(names->begin(), names->end()), names->end());
      std::erase(*names, "");  // what the model calls outside any module
    }
    const std::string& pattern = module ? rule.operators : rule.modules;
    const bool is_operator = !module && std::find(operators.begin(), operators.end(), pattern) != operators.end();
    out.push_back(fmt::format("'{}' matches no {} of the model; {}", pattern.substr(0, 80), module ? "operator" : "module",
                              is_operator ? fmt::format("the operator is op:{}", pattern)
                                          : "nearest: " + join(nearest_names(pattern.substr(0, 80), module ? operators : modules), ", ")));
  }
  return out;
}

Graph apply_precision(const PrecisionRecipe& recipe, const GpuSpec& gpu, const Graph& forward) {
  return PrecisionPass(recipe, gpu, forward).run();
}

}  // namespace precog
