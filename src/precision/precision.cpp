#include "precision/precision.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/ensure.h"
#include "graph/operator.h"

namespace precog {
namespace {

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
    math_attention_ = out_.intern("no fused attention kernel for these operands: math path");
    tf32_ = out_.intern("TF32 allowed");
  }

  Graph run() {
    out_.tensors.reserve(in_.tensors.size() * 2);
    out_.ops.reserve(in_.ops.size() * 2);
    for (std::size_t i = 0; i < in_.tensors.size(); ++i) {
      const TensorId id = in_.tensors.id_at(i);
      const Tensor& tensor = in_.tensors[id];
      if (tensor.role == Role::activation) continue;  // made when its operator is
      Tensor decided = tensor;
      decided.storage = {};
      if (tensor.dtype == DType::model) decided.dtype = tensor.role == Role::input ? recipe_.inputs : recipe_.parameters;
      mapped_[i] = out_.add_tensor(decided);
    }
    cached_.resize(out_.tensors.size());
    for (const Op& op : in_.ops) visit(op);
    return std::move(out_);
  }

 private:
  TensorId mapped(TensorId id) const { return mapped_[id.index()]; }
  DType dtype(TensorId id) const { return out_.tensors[id].dtype; }

  // A cast in front of `consumer`, or the cached copy of a parameter. `already` of that type: nothing.
  TensorId cast(TensorId id, DType to, const Op& consumer) {
    if (dtype(id) == to || !is_floating(dtype(id))) return id;
    const bool cacheable = recipe_.weight_cache && out_.tensors[id].role == Role::parameter &&
                           out_.tensors[id].requires_grad && to == recipe_.autocast;
    if (cacheable && cached_[id.index()].valid()) return cached_[id.index()];
    Op op;
    op.kind = OpKind::cast;
    op.math = to;
    op.module = consumer.module;
    op.block = consumer.block;
    op.reason = cacheable ? weight_ : input_;
    op.label = out_.intern(to_text(consumer.kind));
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
    if (family == Family::convolution && recipe_.tf32_convolution) return DType::tf32;
    return compute;
  }

  // The type an operator that autocast leaves alone produces.
  DType natural_type(const Op& op, std::span<const TensorId> inputs) const {
    if (inputs.empty()) return recipe_.parameters;
    const Family family = definition(op.kind).family;
    if (op.in_place || family == Family::normalization || family == Family::view || op.kind == OpKind::masked_fill)
      return dtype(inputs[0]);
    DType result = dtype(inputs[0]);
    for (TensorId id : inputs)
      if (is_floating(dtype(id))) result = promoted(result, dtype(id));
    return result;
  }

  void visit(const Op& op) {
    if (op.kind == OpKind::cast) return visit_cast(op);
    inputs_.clear();
    for (TensorId id : in_.inputs(op)) inputs_.push_back(mapped(id));

    Op decided = op;
    const Autocast rule = recipe_.autocast ? definition(op.kind).autocast : Autocast::none;
    DType compute;
    bool any_floating = false;
    for (TensorId id : inputs_) any_floating = any_floating || is_floating(dtype(id));
    switch (any_floating ? rule : Autocast::none) {
      case Autocast::lower:
        for (TensorId& id : inputs_) id = cast(id, *recipe_.autocast, op);
        compute = *recipe_.autocast;
        decided.reason = lower_;
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
        DType widest = *recipe_.autocast;
        for (TensorId id : inputs_)
          if (is_floating(dtype(id))) widest = promoted(widest, dtype(id));
        for (TensorId& id : inputs_) id = cast(id, widest, op);
        compute = widest;
        decided.reason = kept_;
        break;
      }
      case Autocast::none:
      default:
        compute = natural_type(op, inputs_);
        if (recipe_.autocast) decided.reason = kept_;
        break;
    }
    decided.math = arithmetic(op, compute);
    if (decided.math == DType::tf32) decided.reason = tf32_;
    if (op.kind == OpKind::scaled_dot_product_attention) {
      auto& attention = std::get<AttentionAttributes>(decided.attributes);
      const bool learned_mask = inputs_.size() > 3 && out_.tensors[inputs_[3]].requires_grad;
      attention.backend = attention_backend(attention, compute, gpu_, learned_mask);
      if (attention.backend == AttentionBackend::math) return expand_math_attention(op, attention, compute);
    }
    emit(op, decided, compute);
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
    if (definition(op.kind).family == Family::view)
      for (TensorId id : outputs_) out_.tensors[id].storage = out_.tensors[inputs_[0]].storage;
    out_.add_op(decided, inputs_, outputs_);
  }

  // `.to(dtype)` and `.to(x.dtype)`: a kernel where the type changes, nothing at all where it does not.
  void visit_cast(const Op& op) {
    const auto& wanted = std::get<CastAttributes>(op.attributes);
    const TensorId from = mapped(in_.input(op, 0));
    const DType to = wanted.like.valid() ? dtype(mapped(wanted.like)) : wanted.to;
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
    op.reason = math_attention_;
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

  // _scaled_dot_product_attention_math: keys and values repeated per query head, both operands scaled, scores
  // materialised, masked, softmaxed, and kept for backward. 16-bit operands are computed in fp32 on this path. The inputs
  // have been cast by autocast already.
  void expand_math_attention(const Op& op, const AttentionAttributes& a, DType given) {
    const DType type = DType::fp32;
    TensorId q = plain_cast(inputs_[0], type, op), k = plain_cast(inputs_[1], type, op), v = plain_cast(inputs_[2], type, op);
    const Shape keys{a.batch, a.heads, a.kv_len, a.head_dim}, values{a.batch, a.heads, a.kv_len, a.value_dim};
    const Shape scores{a.batch, a.heads, a.q_len, a.kv_len};
    const std::int64_t products = a.batch * a.heads;
    const DType math = recipe_.tf32_matmul && type == DType::fp32 && gpu_.matrix.has(DType::tf32) ? DType::tf32 : type;
    if (a.heads != a.kv_heads) {
      k = plain(OpKind::contiguous, op, {plain(OpKind::view, op, {k}, keys, type, ViewAttributes{ViewKind::expand})}, keys, type);
      v = plain(OpKind::contiguous, op, {plain(OpKind::view, op, {v}, values, type, ViewAttributes{ViewKind::expand})}, values, type);
    }
    q = plain(OpKind::mul_scalar, op, {q}, out_.tensors[q].shape, type);
    k = plain(OpKind::mul_scalar, op, {k}, keys, type);
    TensorId score = plain(OpKind::matmul, op, {q, plain(OpKind::view, op, {k}, Shape{a.batch, a.heads, a.head_dim, a.kv_len}, type,
                           ViewAttributes{ViewKind::transpose})}, scores, type, GemmAttributes{products, a.q_len, a.kv_len, a.head_dim}, math);
    if (a.causal) {
      TensorId bias = plain(OpKind::fill, op, {}, Shape{a.q_len, a.kv_len}, type);
      score = plain(OpKind::add, op, {score, bias}, scores, type);
    } else if (a.mask) {
      score = plain(OpKind::add, op, {score, inputs_[3]}, scores, type);
    }
    TensorId weights = plain(OpKind::softmax, op, {score}, scores, type);
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
    const TensorId mixed = plain(OpKind::matmul, op, {weights, v}, Shape{a.batch, a.heads, a.q_len, a.value_dim}, type,
                                 GemmAttributes{products, a.q_len, a.value_dim, a.kv_len}, math);
    mapped_[in_.output(op, 0).index()] = plain_cast(mixed, given, op);
    plain_cast(weights, given, op);  // returned beside the result; nobody reads it, but the cast is run
    // Nothing reads the log-sum-exp of a path that keeps the scores themselves.
    mapped_[in_.output(op, 1).index()] = out_.add_tensor({.shape = {0}, .dtype = DType::fp32, .role = Role::buffer,
                                                          .name = out_.intern("no log-sum-exp on the math path")});
  }

  const PrecisionRecipe& recipe_;
  const GpuSpec& gpu_;
  const Graph& in_;
  Graph out_;
  std::vector<TensorId> mapped_;  // in_'s tensors -> out_'s
  std::vector<TensorId> cached_;  // out_'s parameter -> its cast copy
  std::vector<TensorId> inputs_, outputs_;
  NameId lower_, fp32_, fp32_result_, kept_, explicit_, weight_, input_, math_attention_, tf32_;
};

}  // namespace

Graph apply_precision(const PrecisionRecipe& recipe, const GpuSpec& gpu, const Graph& forward) {
  return PrecisionPass(recipe, gpu, forward).run();
}

}  // namespace precog
