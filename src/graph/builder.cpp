#include "graph/builder.h"

#include <algorithm>

#include "base/ensure.h"
#include "graph/framework_names.h"
#include "graph/operator.h"
#include "graph/permutation.h"

namespace precog {

GraphBuilder::Scope::Scope(GraphBuilder& builder, std::string_view name)
    : builder_(builder), old_length_(builder.path_.size()), old_module_(builder.module_) {
  if (!builder_.path_.empty()) builder_.path_ += '.';
  builder_.path_ += name;
  builder_.module_ = builder_.graph_.intern(builder_.path_);
}
GraphBuilder::Scope::~Scope() {
  builder_.path_.resize(old_length_);
  builder_.module_ = old_module_;
}

std::string GraphBuilder::qualified(std::string_view name) const {
  return path_.empty() ? std::string(name) : path_ + "." + std::string(name);
}

Op GraphBuilder::new_op(OpKind kind, Attributes attributes) const {
  Op op;
  op.kind = kind;
  op.autocast = definition(kind).autocast;
  op.attributes = std::move(attributes);
  op.module = module_;
  op.block = block_;
  if (after_backward_) op.phase = Phase::backward;
  return op;
}

TensorId GraphBuilder::make(Tensor tensor, std::span<const TensorId> inputs) {
  for (TensorId id : inputs) tensor.requires_grad = tensor.requires_grad || graph_.tensors[id].requires_grad;
  if (!is_floating(tensor.dtype)) tensor.requires_grad = false;
  return graph_.add_tensor(tensor);
}

TensorId GraphBuilder::apply(Op op, std::span<const TensorId> inputs, Tensor output) {
  if (op.in_place) output.storage = graph_.tensors[inputs[0]].storage;
  TensorId outputs[] = {make(output, inputs)};
  graph_.add_op(op, inputs, outputs);
  return outputs[0];
}
void GraphBuilder::apply_to(Op op, std::span<const TensorId> inputs, std::span<const TensorId> outputs) {
  graph_.add_op(op, inputs, outputs);
}

TensorId GraphBuilder::input(std::string_view name, Shape shape, DType dtype) {
  if (graph_.tensors.empty()) {  // room for a large model, so that it moves seldom while it grows
    graph_.tensors.reserve(8192);
    graph_.ops.reserve(4096);
  }
  return graph_.add_tensor({.shape = shape, .dtype = dtype, .role = Role::input, .name = graph_.intern(name)});
}
TensorId GraphBuilder::parameter(std::string_view name, Shape shape) {
  return graph_.add_tensor(
      {.shape = shape, .role = Role::parameter, .requires_grad = true, .name = graph_.intern(qualified(name))});
}
TensorId GraphBuilder::buffer(std::string_view name, Shape shape, DType dtype) {
  return graph_.add_tensor({.shape = shape, .dtype = dtype, .role = Role::buffer, .name = graph_.intern(qualified(name))});
}

TensorId GraphBuilder::linear(TensorId x, TensorId weight, TensorId bias) {
  const Shape& w = shape(weight);
  ensure(w.rank() == 2 && shape(x)[-1] == w[1], "linear: the input's last extent is the weight's second");
  GemmAttributes gemm{1, shape(x).elements() / w[1], w[0], w[1], bias.valid()};
  Shape out = shape(x);
  out.set(-1, w[0]);
  TensorId inputs[] = {x, weight, bias};
  return apply(new_op(OpKind::linear, gemm), std::span(inputs).first(bias.valid() ? 3 : 2), {.shape = out});
}

TensorId GraphBuilder::linear_layer(std::string_view name, TensorId x, std::int64_t out, bool bias) {
  auto scope = module(name);
  TensorId weight = parameter("weight", {out, shape(x)[-1]});
  TensorId offset = bias ? parameter("bias", {out}) : TensorId{};
  return linear(x, weight, offset);
}

TensorId GraphBuilder::conv1d_layer(std::string_view name, TensorId x, std::int64_t out) {
  auto scope = module(name);
  const std::int64_t in = shape(x)[-1];
  TensorId weight = parameter("weight", {in, out});
  TensorId offset = parameter("bias", {out});
  // addmm(bias, x.view(-1, in), weight).view(...)
  Shape result = shape(x);
  result.set(-1, out);
  TensorId rows = view(x, {shape(x).elements() / in, in});
  GemmAttributes gemm{1, shape(rows)[0], out, in, true};
  TensorId inputs[] = {rows, weight, offset};
  TensorId product = apply(new_op(OpKind::linear, gemm), inputs, {.shape = {shape(rows)[0], out}});
  return view(product, result);
}

TensorId GraphBuilder::matmul(TensorId a, TensorId b, bool autocast) {
  const Shape &x = shape(a), &y = shape(b);
  ensure(x.rank() >= 2 && y.rank() >= 2 && x[-1] == y[-2], "matmul: inner extents agree");
  GemmAttributes gemm{x.elements() / (x[-1] * x[-2]), x[-2], y[-1], x[-1]};
  ensure(gemm.batch == y.elements() / (y[-1] * y[-2]), "matmul: batch extents agree");
  Shape out = x;
  out.set(-1, y[-1]);
  TensorId inputs[] = {a, b};
  return apply(new_op(autocast ? OpKind::matmul : OpKind::bmm, gemm), inputs,
               {.shape = out, .dtype = autocast ? DType::model : graph_.tensors[a].dtype});
}

TensorId GraphBuilder::grouped_linear(TensorId x, TensorId weight, std::int64_t experts_hit) {
  const Shape& w = shape(weight);
  ensure(w.rank() == 3 && shape(x)[-1] == w[2], "grouped_linear: the input's last extent is the weights' third");
  const std::int64_t tokens = shape(x).elements() / w[2];
  const std::int64_t groups = std::clamp<std::int64_t>(experts_hit, 1, w[0]);
  GemmAttributes gemm{groups, (tokens + groups - 1) / groups, w[1], w[2]};
  Shape out = shape(x);
  out.set(-1, w[1]);
  TensorId inputs[] = {x, weight};
  return apply(new_op(OpKind::grouped_linear, gemm), inputs, {.shape = out});
}

TensorId GraphBuilder::conv2d_layer(std::string_view name, TensorId x, std::int64_t out, std::int64_t kernel,
                                    std::int64_t stride, std::int64_t padding, std::int64_t groups, bool bias) {
  auto scope = module(name);
  const Shape in = shape(x);
  TensorId weight = parameter("weight", {out, in[1] / groups, kernel, kernel});
  TensorId offset = bias ? parameter("bias", {out}) : TensorId{};
  const ConvAttributes conv = ConvAttributes::square(kernel, stride, padding, groups);
  auto extent = [&](std::int64_t size) { return (size + 2 * padding - kernel) / stride + 1; };
  ensure(extent(in[2]) > 0 && extent(in[3]) > 0, "conv2d: the image is at least as large as the kernel");
  TensorId inputs[] = {x, weight, offset};
  return apply(new_op(OpKind::conv2d, conv), std::span(inputs).first(bias ? 3 : 2),
               {.shape = {in[0], out, extent(in[2]), extent(in[3])}});
}

// Scores, scaled, masked, their softmax, dropped out, times the values. Keys and values are repeated for each query head.
TensorId GraphBuilder::written_out_attention(TensorId q, TensorId k, TensorId v, bool causal, TensorId mask, double dropout_probability) {
  const std::int64_t repeats = shape(q)[1] / shape(k)[1];
  for (TensorId* x : {&k, &v}) {
    const Shape s = shape(*x);
    if (repeats == 1) continue;
    *x = contiguous(expand(view(*x, {s[0], s[1], 1, s[2], s[3]}), {s[0], s[1], repeats, s[2], s[3]}));
    *x = view(*x, {s[0], s[1] * repeats, s[2], s[3]});
  }
  TensorId scores = unary(OpKind::mul_scalar, matmul(q, transpose(k, 2, 3)));
  if (mask.valid()) scores = add(scores, mask);
  else if (causal) scores = masked_fill(scores, buffer("causal_mask", {1, 1, shape(q)[2], shape(k)[2]}, DType::boolean));
  return matmul(dropout(cast_like(softmax(scores), v), dropout_probability), v);
}

TensorId GraphBuilder::attention(TensorId q, TensorId k, TensorId v, bool causal, TensorId mask, double dropout_probability) {
  const Shape &qs = shape(q), &ks = shape(k), &vs = shape(v);
  ensure(qs.rank() == 4 && ks.rank() == 4 && vs.rank() == 4, "attention: operands are [batch, heads, sequence, width]");
  if (writes_out_attention_) return written_out_attention(q, k, v, causal, mask, dropout_probability);
  AttentionAttributes a{.batch = qs[0], .heads = qs[1], .kv_heads = ks[1], .q_len = qs[2], .kv_len = ks[2],
                        .head_dim = qs[3], .value_dim = vs[3], .causal = causal, .mask = mask.valid(),
                        .dropout = dropout_probability > 0};
  // The zoo's learned mask (T5's position bias) is a permuted look-up; its heads come from a split of the last axis.
  a.mask_scattered = mask.valid() && graph_.tensors[mask].requires_grad;
  a.scattered = {qs[0] > 1 && qs[1] > 1, ks[0] > 1 && ks[1] > 1, vs[0] > 1 && vs[1] > 1};
  TensorId inputs[] = {q, k, v, mask};
  auto used = std::span(inputs).first(mask.valid() ? 4 : 3);
  TensorId outputs[] = {make({.shape = {qs[0], qs[1], qs[2], vs[3]}}, used),
                        graph_.add_tensor({.shape = {qs[0], qs[1], qs[2]}, .dtype = DType::fp32})};  // log-sum-exp
  apply_to(new_op(OpKind::scaled_dot_product_attention, a), used, outputs);
  return outputs[0];
}

TensorId GraphBuilder::layer_norm_layer(std::string_view name, TensorId x, bool bias, bool strided) {
  auto scope = module(name);
  const std::int64_t width = shape(x)[-1];
  TensorId inputs[] = {x, parameter("weight", {width}), bias ? parameter("bias", {width}) : TensorId{}};
  auto used = std::span(inputs).first(bias ? 3 : 2);
  const Shape rows{shape(x).elements() / width};
  TensorId outputs[] = {make({.shape = shape(x)}, used), graph_.add_tensor({.shape = rows, .dtype = DType::fp32}),
                        graph_.add_tensor({.shape = rows, .dtype = DType::fp32})};
  Op op = new_op(OpKind::layer_norm);
  op.strided = strided;
  apply_to(std::move(op), used, outputs);
  return outputs[0];
}

TensorId GraphBuilder::batch_norm_layer(std::string_view name, TensorId x) {
  auto scope = module(name);
  const std::int64_t channels = shape(x)[1];
  TensorId counter = buffer("num_batches_tracked", {}, DType::int64);
  Op count = new_op(OpKind::integer_pointwise);
  count.in_place = true;
  TensorId counted[] = {counter};
  apply(count, counted, {.shape = {}, .dtype = DType::int64});
  TensorId inputs[] = {x, parameter("weight", {channels}), parameter("bias", {channels}),
                       buffer("running_mean", {channels}), buffer("running_var", {channels})};
  TensorId outputs[] = {make({.shape = shape(x)}, inputs), graph_.add_tensor({.shape = {channels}, .dtype = DType::fp32}),
                        graph_.add_tensor({.shape = {channels}, .dtype = DType::fp32})};
  apply_to(new_op(OpKind::batch_norm), inputs, outputs);
  return outputs[0];
}

TensorId GraphBuilder::softmax(TensorId x) { return unary(OpKind::softmax, x); }
TensorId GraphBuilder::log_softmax(TensorId x) { return unary(OpKind::log_softmax, x); }

TensorId GraphBuilder::nll_loss(TensorId log_probabilities, TensorId target) {
  TensorId inputs[] = {log_probabilities, target};
  TensorId outputs[] = {make({.shape = {}}, inputs), graph_.add_tensor({.shape = {}, .dtype = DType::fp32})};
  apply_to(new_op(OpKind::nll_loss), inputs, outputs);
  return outputs[0];
}
TensorId GraphBuilder::cross_entropy(TensorId logits, TensorId target) { return nll_loss(log_softmax(logits), target); }

TensorId GraphBuilder::unary(OpKind kind, TensorId x, bool in_place) {
  Op op = new_op(kind);
  op.in_place = in_place;
  TensorId inputs[] = {x};
  return apply(op, inputs, {.shape = shape(x), .dtype = graph_.tensors[x].dtype});
}
TensorId GraphBuilder::binary(OpKind kind, TensorId a, TensorId b, bool in_place) {
  Op op = new_op(kind);
  op.in_place = in_place;
  TensorId inputs[] = {a, b};
  return apply(op, inputs, {.shape = broadcast(shape(a), shape(b)), .dtype = graph_.tensors[a].dtype});
}
TensorId GraphBuilder::masked_fill(TensorId x, TensorId mask) {
  TensorId inputs[] = {x, mask};
  return apply(new_op(OpKind::masked_fill), inputs, {.shape = shape(x)});
}
TensorId GraphBuilder::dropout(TensorId x, double probability) {
  if (probability <= 0) return x;
  TensorId inputs[] = {x};
  TensorId outputs[] = {make({.shape = shape(x)}, inputs), graph_.add_tensor({.shape = shape(x), .dtype = DType::boolean})};
  apply_to(new_op(OpKind::dropout), inputs, outputs);
  return outputs[0];
}
TensorId GraphBuilder::integer_op(std::initializer_list<TensorId> inputs, Shape result, DType dtype) {
  return apply(new_op(OpKind::integer_pointwise), {inputs.begin(), inputs.size()}, {.shape = result, .dtype = dtype});
}

TensorId GraphBuilder::fused_cross_entropy(TensorId logits, TensorId target) {
  using From = RecipeOperand::From;
  RecipeOp gradient;
  gradient.kind = OpKind::pointwise;
  gradient.label = graph_.intern("fused_cross_entropy_backward");
  gradient.inputs = {{From::gradient, 0}, {From::input, 0}, {From::input, 1}};
  gradient.outputs.push_back({shape(logits)});
  Op op = new_op(OpKind::reduction);
  op.label = graph_.intern("fused_cross_entropy");
  op.recipe = graph_.recipes.add({{std::move(gradient)}, {{0, {From::made, 0}}}});
  TensorId inputs[] = {logits, target};
  return mean(apply(op, inputs, {.shape = {shape(logits)[0]}}), 0, false);
}
TensorId GraphBuilder::by_name(std::string_view name, std::span<const TensorId> inputs, Shape result, DType dtype) {
  const FrameworkName* known = framework_name(name);
  Op op = new_op(known ? known->kind : OpKind::unknown);
  op.autocast = known ? known->autocast : Autocast::none;
  op.label = graph_.intern(name);
  return apply(op, inputs, {.shape = result, .dtype = dtype});
}

TensorId GraphBuilder::cast_to(TensorId x, DType dtype) {
  TensorId inputs[] = {x};
  return apply(new_op(OpKind::cast, CastAttributes{.to = dtype}), inputs, {.shape = shape(x), .dtype = dtype});
}
TensorId GraphBuilder::cast_like(TensorId x, TensorId like) {
  TensorId inputs[] = {x};
  return apply(new_op(OpKind::cast, CastAttributes{.like = like}), inputs, {.shape = shape(x)});
}

TensorId GraphBuilder::view(TensorId x, Shape result, ViewKind kind, GradientCopy gradient) {
  ensure(kind == ViewKind::slice || kind == ViewKind::expand || result.elements() == shape(x).elements(),
         "a reshape or transpose keeps the number of elements");
  TensorId inputs[] = {x};
  const Tensor& of = graph_.tensors[x];
  return apply(new_op(OpKind::view, ViewAttributes{kind, gradient}), inputs, {.shape = result, .dtype = of.dtype, .storage = of.storage});
}
TensorId GraphBuilder::transpose(TensorId x, int a, int b) {
  Shape result = shape(x);
  const std::int64_t extent = result[a];
  result.set(a, result[b]);
  result.set(b, extent);
  return view(x, result, ViewKind::transpose);
}
TensorId GraphBuilder::slice(TensorId x, int axis, std::int64_t length) {
  Shape result = shape(x);
  ensure(length <= result[axis], "a slice is no longer than its axis");
  result.set(axis, length);
  return view(x, result, ViewKind::slice);
}
TensorId GraphBuilder::expand(TensorId x, Shape result) { return view(x, result, ViewKind::expand); }

std::vector<TensorId> GraphBuilder::split(TensorId x, int axis, const std::vector<std::int64_t>& lengths) {
  std::vector<TensorId> outputs;
  TensorId inputs[] = {x};
  for (std::int64_t length : lengths) {
    Shape piece = shape(x);
    piece.set(axis, length);
    const Tensor of = graph_.tensors[x];
    outputs.push_back(make({.shape = piece, .dtype = of.dtype, .storage = of.storage}, inputs));
  }
  apply_to(new_op(OpKind::split), inputs, outputs);
  return outputs;
}
void GraphBuilder::mark_strided() { graph_.ops[graph_.ops.id_at(graph_.ops.size() - 1)].strided = true; }
TensorId GraphBuilder::contiguous(TensorId x, OnlyFor only) {
  if (only == OnlyFor::any) return unary(OpKind::contiguous, x);
  TensorId inputs[] = {x};
  return apply(new_op(OpKind::contiguous, CopyAttributes{.only = only}), inputs, {.shape = shape(x), .dtype = graph_.tensors[x].dtype});
}
TensorId GraphBuilder::cat(const std::vector<TensorId>& parts, int axis) {
  Shape result = shape(parts.front());
  std::int64_t length = 0;
  for (TensorId part : parts) length += shape(part)[axis];
  result.set(axis, length);
  return apply(new_op(OpKind::cat), parts, {.shape = result, .dtype = graph_.tensors[parts.front()].dtype});
}

TensorId GraphBuilder::embedding(TensorId weight, TensorId indices) {
  Shape result = shape(indices);
  result.push_back(shape(weight)[1]);
  TensorId inputs[] = {weight, indices};
  return apply(new_op(OpKind::embedding), inputs, {.shape = result});
}
TensorId GraphBuilder::embedding_layer(std::string_view name, TensorId indices, std::int64_t rows, std::int64_t width) {
  auto scope = module(name);
  return embedding(parameter("weight", {rows, width}), indices);
}
TensorId GraphBuilder::index_select(TensorId x, TensorId index, Shape result) {
  TensorId inputs[] = {x, index};
  return apply(new_op(OpKind::index_select), inputs, {.shape = result});
}
TensorId GraphBuilder::permute_rows(TensorId x, TensorId index, TensorId inverse, Shape result) {
  TensorId inputs[] = {x, index, inverse};
  Op op = new_op(OpKind::index_select);
  op.recipe = graph_.recipes.add(permutation_gradient(result, shape(x)));
  return apply(op, inputs, {.shape = result});
}
TensorId GraphBuilder::index_add(TensorId base, TensorId index, TensorId source) {
  Op op = new_op(OpKind::index_add);
  op.in_place = true;
  TensorId inputs[] = {base, index, source};
  return apply(op, inputs, {.shape = shape(base)});
}
std::pair<TensorId, TensorId> GraphBuilder::topk(TensorId x, std::int64_t k) {
  Shape result = shape(x);
  result.set(-1, k);
  TensorId inputs[] = {x};
  TensorId outputs[] = {make({.shape = result}, inputs), graph_.add_tensor({.shape = result, .dtype = DType::int64})};
  apply_to(new_op(OpKind::topk), inputs, outputs);
  return {outputs[0], outputs[1]};
}
void GraphBuilder::read_back(TensorId x) {
  TensorId inputs[] = {x};
  apply_to(new_op(OpKind::read_back), inputs, {});
}

namespace {
Shape reduced(const Shape& shape, int axis, bool keep) {
  const int target = axis < 0 ? axis + shape.rank() : axis;
  Shape out;
  for (int i = 0; i < shape.rank(); ++i) {
    if (i != target) out.push_back(shape[i]);
    else if (keep) out.push_back(1);
  }
  return out;
}
}  // namespace

TensorId GraphBuilder::mean(TensorId x, int axis, bool keep) {
  TensorId inputs[] = {x};
  return apply(new_op(OpKind::mean), inputs, {.shape = reduced(shape(x), axis, keep), .dtype = graph_.tensors[x].dtype});
}
TensorId GraphBuilder::sum(TensorId x, int axis, bool keep) {
  TensorId inputs[] = {x};
  return apply(new_op(OpKind::sum), inputs, {.shape = reduced(shape(x), axis, keep), .dtype = graph_.tensors[x].dtype});
}
TensorId GraphBuilder::max_pool2d(TensorId x, std::int64_t kernel, std::int64_t stride, std::int64_t padding) {
  const Shape& in = shape(x);
  auto extent = [&](std::int64_t size) { return (size + 2 * padding - kernel) / stride + 1; };
  const Shape result{in[0], in[1], extent(in[2]), extent(in[3])};
  TensorId inputs[] = {x};
  TensorId outputs[] = {make({.shape = result}, inputs), graph_.add_tensor({.shape = result, .dtype = DType::int64})};
  apply_to(new_op(OpKind::max_pool2d, PoolAttributes{kernel, stride, padding}), inputs, outputs);
  return outputs[0];
}
TensorId GraphBuilder::adaptive_avg_pool2d(TensorId x, std::int64_t out) {
  TensorId inputs[] = {x};
  return apply(new_op(OpKind::adaptive_avg_pool2d), inputs, {.shape = {shape(x)[0], shape(x)[1], out, out}});
}

Graph GraphBuilder::finish() && {
  ensure(!graph_.ops.empty(), "a model calls at least one operator");
  return std::move(graph_);
}

}  // namespace precog
