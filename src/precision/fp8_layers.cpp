#include "precision/fp8_layers.h"

#include <array>

#include <fmt/format.h>

namespace precog {
namespace {

// Two places to write operators to, one at a time: the graph itself, and a recorded gradient. The same words for both.
class IntoGraph {
 public:
  using Ref = TensorId;
  IntoGraph(Graph& graph, const Op& near) : graph_(graph), near_(near) {}
  Ref put(OpKind kind, std::initializer_list<Ref> inputs, const Shape& shape, DType type, Attributes attributes = {}, std::string_view label = {}) {
    return put_all(kind, inputs, {{shape, type}}, std::move(attributes), label)[0];
  }
  std::vector<Ref> put_all(OpKind kind, std::initializer_list<Ref> inputs, std::initializer_list<std::pair<Shape, DType>> results,
                           Attributes attributes, std::string_view label) {
    Op op;
    op.kind = kind;
    op.module = near_.module;
    op.block = near_.block;
    op.reason = near_.reason;
    op.math = results.begin()->second;
    if (!label.empty()) op.label = graph_.intern(label);
    op.attributes = std::move(attributes);
    std::vector<Ref> outputs;
    for (const auto& [shape, type] : results) outputs.push_back(graph_.add_tensor({.shape = shape, .dtype = type}));
    if (kind == OpKind::view) graph_.tensors[outputs[0]].storage = graph_.tensors[*inputs.begin()].storage;
    graph_.add_op(op, {inputs.begin(), inputs.size()}, outputs);
    return outputs;
  }

 private:
  Graph& graph_;
  const Op& near_;
};

class IntoRecipe {
 public:
  using Ref = RecipeOperand;
  explicit IntoRecipe(Graph& graph) : graph_(graph) {}
  Ref put(OpKind kind, std::initializer_list<Ref> inputs, const Shape& shape, DType type, Attributes attributes = {}, std::string_view label = {}) {
    return put_all(kind, inputs, {{shape, type}}, std::move(attributes), label)[0];
  }
  std::vector<Ref> put_all(OpKind kind, std::initializer_list<Ref> inputs, std::initializer_list<std::pair<Shape, DType>> results,
                           Attributes attributes, std::string_view label) {
    RecipeOp op;
    op.kind = kind;
    if (!label.empty()) op.label = graph_.intern(label);
    op.attributes = std::move(attributes);
    op.inputs.assign(inputs.begin(), inputs.end());
    std::vector<Ref> made;
    for (const auto& [shape, type] : results) {
      op.outputs.push_back({shape, type, kind == OpKind::view ? 0 : -1});
      made.push_back({Ref::From::made, made_++});
    }
    recipe.ops.push_back(std::move(op));
    return made;
  }
  Recipe recipe;

 private:
  Graph& graph_;
  std::uint32_t made_ = 0;
};

// One operand, quantised. `across` is the same with rows and columns exchanged, stored so: what a product reads whose inner
// extent is the other axis. Invalid where nobody needs it.
template <class Ref>
struct Quantised {
  Ref along, across, scale;
};

struct Operand {
  std::int64_t rows = 1, columns = 1;
  DType from = DType::bf16;  // what it is quantised from
  DType to = DType::fp8;
  bool along = true, across = false;
};

Shape turned(const Operand& o) { return {o.columns, o.rows}; }

template <class Sink>
typename Sink::Ref turned_copy(Sink& sink, typename Sink::Ref of, const Shape& shape, DType type) {
  return sink.put(OpKind::contiguous, {sink.put(OpKind::view, {of}, shape, type, ViewAttributes{ViewKind::transpose})}, shape, type);
}

// torchao's tensorwise and rowwise casts as eager PyTorch runs them (float8_scaling_utils.py, float8_tensor.py): abs, largest
// element, the scale in fp64 and back, then the tensor in fp32 times scale, saturated, converted.
template <class Sink>
Quantised<typename Sink::Ref> with_operators(Sink& sink, typename Sink::Ref x, const Operand& o, Scaling scaling) {
  using Ref = typename Sink::Ref;
  const Shape shape{o.rows, o.columns};
  // Rowwise: one scale along the axis that is summed over; `across` sums over the other one.
  Shape scales;
  if (scaling == Scaling::rowwise) scales = o.across ? Shape{1, o.columns} : Shape{o.rows, 1};
  const Ref magnitude = sink.put(OpKind::pointwise, {x}, shape, o.from, {}, "abs");
  const Ref largest = sink.put(OpKind::reduction, {magnitude}, scales, o.from, {}, scaling == Scaling::rowwise ? "amax" : "max");
  const Ref wide = sink.put(OpKind::cast, {largest}, scales, DType::fp64, CastAttributes{.to = DType::fp64});
  const Ref bounded = sink.put(OpKind::pointwise, {wide}, scales, DType::fp64, {}, "clamp");
  const Ref inverse = sink.put(OpKind::pointwise, {bounded}, scales, DType::fp64, {}, "reciprocal");
  const Ref exact = sink.put(OpKind::mul_scalar, {inverse}, scales, DType::fp64);
  Ref scale = sink.put(OpKind::cast, {exact}, scales, DType::fp32, CastAttributes{.to = DType::fp32});
  if (scaling == Scaling::rowwise)  // rounded down to a power of two
    scale = sink.put(OpKind::pointwise, {sink.put(OpKind::pointwise, {sink.put(OpKind::pointwise, {scale}, scales, DType::fp32, {}, "log2")},
                                                  scales, DType::fp32, {}, "floor")}, scales, DType::fp32, {}, "exp2");
  const Ref values = o.from == DType::fp32 ? x : sink.put(OpKind::cast, {x}, shape, DType::fp32, CastAttributes{.to = DType::fp32});
  const Ref scaled = sink.put(OpKind::mul, {values, scale}, shape, DType::fp32);
  const Ref saturated = sink.put(OpKind::pointwise, {scaled}, shape, DType::fp32, {}, "clamp");
  const Ref narrow = sink.put(OpKind::cast, {saturated}, shape, o.to, CastAttributes{.to = o.to});
  Quantised<Ref> out{narrow, narrow, scale};
  if (o.across) out.across = turned_copy(sink, narrow, turned(o), o.to);
  return out;
}

// Transformer Engine: one kernel converts and, where asked, writes the transposed copy beside it. A scale that comes from
// the tensor itself needs its largest element first, a pass of its own; delayed scaling has it from earlier steps, and
// scales per block are found while converting.
template <class Sink>
Quantised<typename Sink::Ref> with_one_kernel(Sink& sink, typename Sink::Ref x, const Operand& o, Scaling scaling) {
  using Ref = typename Sink::Ref;
  const Shape shape{o.rows, o.columns};
  const std::int64_t elements = o.rows * o.columns;
  Ref tensor_scale = x;
  const bool needs_amax = scaling == Scaling::tensorwise || scaling == Scaling::rowwise || scaling == Scaling::nvfp4;
  if (needs_amax) tensor_scale = sink.put(OpKind::reduction, {x}, Shape{}, DType::fp32, {}, "amax");
  Shape scales;
  DType scale_type = DType::fp32;
  if (scaling == Scaling::blockwise) scales = {elements / 128};
  if (scaling == Scaling::rowwise) scales = {o.rows};
  if (scaling == Scaling::mx) scales = {elements / 32}, scale_type = DType::uint8;
  if (scaling == Scaling::nvfp4) scales = {elements / 16}, scale_type = DType::fp8;
  auto convert = [&](std::initializer_list<std::pair<Shape, DType>> results) {
    return needs_amax ? sink.put_all(OpKind::quantize, {x, tensor_scale}, results, {}, {}) : sink.put_all(OpKind::quantize, {x}, results, {}, {});
  };
  if (o.along && o.across) {
    const auto made = convert({{shape, o.to}, {turned(o), o.to}, {scales, scale_type}});
    return {made[0], made[1], made[2]};
  }
  const auto made = convert({{o.across ? turned(o) : shape, o.to}, {scales, scale_type}});
  return {made[0], made[0], made[1]};
}

template <class Sink>
Quantised<typename Sink::Ref> quantised(Sink& sink, typename Sink::Ref x, const Operand& o, const Fp8Layers& layers) {
  return layers.fused ? with_one_kernel(sink, x, o, layers.scaling) : with_operators(sink, x, o, layers.scaling);
}

// Rows and outputs of all groups together: a grouped product's operands are quantised as one (expert by expert, in one call).
struct Extents {
  std::int64_t rows, outputs;
  Extents(const GemmAttributes& p, const Shape& x, const Shape& weight)
      : rows(weight.rank() == 3 ? x[0] : p.m), outputs(weight.rank() == 3 ? weight[0] * p.n : p.n) {}
};

// Operators of the forward product, as its recorded gradient numbers them.
enum ProductInput : std::uint32_t { kA, kB, kScaleA, kScaleB, kX, kWeight, kXAcross, kWeightAcross };

DType stored(const Fp8Layers& layers) { return layers.scaling == Scaling::nvfp4 ? DType::nvfp4 : DType::fp8; }
// Gradients want range more than precision where one scale covers a whole tensor.
DType stored_gradient(const Fp8Layers& layers) {
  return layers.scaling == Scaling::tensorwise || layers.scaling == Scaling::delayed ? DType::fp8_e5m2 : stored(layers);
}

// Products of one scale per tensor read either layout from Blackwell on; Hopper's and Ada's want both operands with the inner
// extent contiguous. Scales along an axis need a copy for each axis wherever they run.
bool needs_across(const Fp8Layers& layers, const GpuSpec& gpu) {
  const bool one_scale = layers.scaling == Scaling::tensorwise || layers.scaling == Scaling::delayed;
  return !(one_scale && layers.fused && gpu.capability() >= 100);
}

}  // namespace

std::string Fp8Expansion::refusal(const GemmAttributes& p) const {
  const std::int64_t multiple = layers_.multiple();
  // An expert's rows are filled up to a multiple (Megatron's --moe-router-padding-for-fp8, or Transformer Engine's Fp8Padding).
  for (auto [name, extent] : {std::pair{"rows", p.m}, std::pair{"outputs", p.n}, std::pair{"inputs", p.k}})
    if (extent % multiple != 0 && !(p.batch > 1 && std::string_view(name) == "rows"))
      return fmt::format("not in fp8: {} {} are no multiple of {}", extent, name, multiple);
  return "";
}

TensorId Fp8Expansion::linear(const Op& near, TensorId x, TensorId weight, TensorId bias, const Shape& result) {
  const auto& p = std::get<GemmAttributes>(near.attributes);
  const DType type = graph_.tensors[x].dtype, weight_type = graph_.tensors[weight].dtype, narrow = stored(layers_);
  const bool across = layers_.fused && needs_across(layers_, gpu_);  // operators quantise again in backward instead
  IntoGraph sink(graph_, near);
  const Extents all(p, graph_.tensors[x].shape, graph_.tensors[weight].shape);
  const auto a = quantised(sink, x, {all.rows, p.k, type, narrow, true, across}, layers_);
  Quantised<TensorId> b;
  if (weights_arrive_quantised_) {  // converted shard by shard, before they were gathered
    b.along = b.across = graph_.add_tensor({.shape = {all.outputs, p.k}, .dtype = narrow, .role = Role::buffer, .name = graph_.intern("gathered fp8 weight")});
    b.scale = graph_.add_tensor({.shape = {}, .dtype = DType::fp32, .role = Role::buffer, .name = graph_.intern("gathered fp8 scale")});
  } else {
    b = quantised(sink, weight, {all.outputs, p.k, weight_type, narrow, true, across}, layers_);
  }
  std::array<TensorId, 2> scales{a.scale, b.scale};
  if (!layers_.fused)  // _scaled_mm multiplies by what undoes the scale
    for (TensorId& scale : scales) scale = sink.put(OpKind::pointwise, {scale}, graph_.tensors[scale].shape, DType::fp32, {}, "reciprocal");

  const bool bias_inside = bias.valid() && layers_.fused;
  Op product;
  product.kind = OpKind::scaled_mm;
  product.math = layers_.arithmetic();
  product.module = near.module;
  product.block = near.block;
  product.reason = near.reason;
  product.attributes = GemmAttributes{.batch = p.batch, .m = p.m, .n = p.n, .k = p.k, .bias = bias_inside};
  std::vector<TensorId> inputs = {a.along, b.along, scales[0], scales[1], x, weight};
  if (layers_.fused) inputs.insert(inputs.end(), {across ? a.across : a.along, across ? b.across : b.along});
  if (bias_inside) inputs.push_back(bias);
  product.recipe = gradient_of(p, graph_.tensors[x].shape, graph_.tensors[weight].shape, type, weight_type, bias_inside);
  bool trains = false;
  for (TensorId id : inputs) trains = trains || graph_.tensors[id].requires_grad;
  const TensorId y = graph_.add_tensor({.shape = result, .dtype = type, .requires_grad = trains});
  graph_.add_op(product, inputs, std::array{y});
  if (!bias.valid() || bias_inside) return y;
  Op add;
  add.kind = OpKind::add;
  add.math = type;
  add.module = near.module;
  add.block = near.block;
  add.reason = near.reason;
  const TensorId sum = graph_.add_tensor({.shape = result, .dtype = type, .requires_grad = true});
  graph_.add_op(add, std::array{y, bias}, std::array{sum});
  return sum;
}

// gradient[m,n]: one product with the weight for the input, one with the input for the weight.
RecipeId Fp8Expansion::gradient_of(const GemmAttributes& p, const Shape& x, const Shape& weight, DType type, DType weight_type, bool bias) {
  const Extents all(p, x, weight);
  RecipeId& known = gradients_[{all.rows, p.m, all.outputs, p.k, x.rank(), type, weight_type, bias}];
  if (known.valid()) return known;
  using From = RecipeOperand::From;
  IntoRecipe sink(graph_);
  const DType narrow = stored(layers_), narrow_gradient = stored_gradient(layers_);
  const Shape rows{all.rows, p.n};
  const RecipeOperand grad = sink.put(OpKind::view, {{From::gradient, 0}}, rows, type, ViewAttributes{});
  const RecipeOperand input{From::input, kX}, weights{From::input, kWeight};
  auto undo = [&](RecipeOperand scale, const Shape& shape) {
    return layers_.fused ? scale : sink.put(OpKind::pointwise, {scale}, shape, DType::fp32, {}, "reciprocal");
  };
  const bool rowwise = layers_.scaling == Scaling::rowwise;
  const GemmAttributes for_input{.batch = p.batch, .m = p.m, .n = p.k, .k = p.n}, for_weight{.batch = p.batch, .m = p.n, .n = p.k, .k = p.m};
  RecipeOperand input_gradient, weight_gradient;
  if (layers_.fused) {
    const bool across = needs_across(layers_, gpu_);
    const auto g = with_one_kernel(sink, grad, {all.rows, p.n, type, narrow_gradient, true, across}, layers_.scaling);
    input_gradient = sink.put(OpKind::scaled_mm, {g.along, {From::input, kWeightAcross}, g.scale, {From::input, kScaleB}}, x, type, for_input);
    weight_gradient = sink.put(OpKind::scaled_mm, {across ? g.across : g.along, {From::input, kXAcross}, g.scale, {From::input, kScaleA}}, weight, type, for_weight);
  } else {  // everything is quantised anew for each product, and brought into the layout that it wants
    const Shape one{}, per_m{p.m, 1}, per_n{1, p.n}, per_k{1, p.k};
    const auto g = with_operators(sink, grad, {p.m, p.n, type, narrow_gradient}, layers_.scaling);
    Quantised<RecipeOperand> w;
    if (weights_arrive_quantised_) w = {{From::input, kB}, turned_copy(sink, RecipeOperand{From::input, kB}, Shape{p.k, p.n}, narrow), {From::input, kScaleB}};
    else w = with_operators(sink, weights, {p.n, p.k, weight_type, narrow, true, true}, layers_.scaling);
    const RecipeOperand scale_g = undo(g.scale, rowwise ? per_m : one), scale_w = undo(w.scale, rowwise ? per_k : one);
    input_gradient = sink.put(OpKind::scaled_mm, {g.along, w.across, scale_g, scale_w}, x, type, for_input);
    const auto again = with_operators(sink, grad, {p.m, p.n, type, narrow_gradient, true, true}, layers_.scaling);
    const auto in = with_operators(sink, input, {p.m, p.k, type, narrow, true, true}, layers_.scaling);
    const RecipeOperand scale_again = undo(again.scale, rowwise ? per_n : one), scale_in = undo(in.scale, rowwise ? per_k : one);
    weight_gradient = sink.put(OpKind::scaled_mm, {again.across, in.across, scale_again, scale_in}, weight, type, for_weight);
  }
  sink.recipe.gifts.push_back({kX, input_gradient});
  sink.recipe.gifts.push_back({kWeight, weight_gradient});
  if (bias) {
    const RecipeOperand sum = sink.put(OpKind::sum, {grad}, Shape{p.n}, type);
    sink.recipe.gifts.push_back({kWeightAcross + 1, sum});
  }
  return known = graph_.recipes.add(std::move(sink.recipe));
}

}  // namespace precog
