#include "frontend/onnx_import.h"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>

#include "frontend/onnx_wire.h"
#include "graph/framework_names.h"
#include "graph/operator.h"

namespace precog::onnx {
namespace {

const Handler* handler_of(const Node& node) {
  static const Handlers kAll = [] {
    Handlers all;
    for (const Handlers* some :
         {&matrix_handlers(), &normalization_handlers(), &pointwise_handlers(), &movement_handlers(), &reduction_handlers()})
      all.insert(some->begin(), some->end());
    return all;
  }();
  const std::string key = node.domain.empty() ? node.op : node.domain + "." + node.op;
  const auto found = kAll.find(key);
  return found == kAll.end() ? nullptr : &found->second;
}

// "model.layers.7.mlp" -> "model.layers.7": the first part that is a number, or a name ending in "_7", makes a repeated layer.
std::string layer_prefix(std::string_view path) {
  for (std::size_t at = 0; at < path.size();) {
    const std::size_t end = std::min(path.find('.', at), path.size());
    const std::string_view part = path.substr(at, end - at);
    const std::size_t digits = part.find_last_not_of("0123456789") + 1;  // npos + 1 == 0: all digits
    if (digits < part.size() && at > 0 && (digits == 0 || part[digits - 1] == '_')) return std::string(path.substr(0, end));
    at = end + 1;
  }
  return {};
}

std::string owner_of(std::string_view parameter) {  // "a.b.weight" -> "a.b"
  const std::size_t dot = parameter.rfind('.');
  return dot == std::string_view::npos ? std::string() : std::string(parameter.substr(0, dot));
}

}  // namespace

Strides contiguous_strides(const Shape& shape) {
  Strides out{};
  std::int64_t step = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    out[static_cast<std::size_t>(i)] = step;
    step *= std::max<std::int64_t>(shape[i], 1);
  }
  return out;
}

bool is_contiguous(const Value& value) {
  const Strides plain = contiguous_strides(value.shape);
  for (int i = 0; i < value.shape.rank(); ++i)
    if (value.shape[i] != 1 && value.strides[static_cast<std::size_t>(i)] != plain[static_cast<std::size_t>(i)]) return false;
  return true;
}

std::optional<double> scalar(const Value& value) {
  if (!value.values || value.values->size() != 1) return std::nullopt;
  return value.values->front();
}

Importer::Importer(const ParsedModel& model, const Sizes& sizes) : model_(model) {
  const auto found = model.opsets.find("");
  opset_ = found == model.opsets.end() ? 0 : found->second;
  auto constant = [&](const TensorData& tensor) {
    Value value;
    value.shape = Shape(tensor.dims);
    value.type = dtype_of(tensor.type);
    value.strides = contiguous_strides(value.shape);
    value.initializer = &tensor;
    value.name = tensor.name;
    // A floating matrix is a weight whatever its size, unless it is a mask (the only matrices whose values were kept).
    const bool weight = precog::is_floating(value.type) && value.shape.rank() > 1 && value.shape.elements() <= 64;
    if (tensor.has_values && !weight) value.values = std::make_shared<const std::vector<double>>(tensor.values);
    return value;
  };
  for (const TensorData& tensor : model.graph.initializers) values_[tensor.name] = constant(tensor);
  for (const ValueInfo& input : model.graph.inputs) {
    Shape shape;
    for (const Dim& dim : input.dims)
      shape.push_back(dim.extent == Extent::batch     ? sizes.batch
                      : dim.extent == Extent::seq     ? sizes.seq
                      : dim.extent == Extent::src_seq ? sizes.src_seq
                                                      : dim.value);
    Node shown;
    shown.op = "input";
    shown.name = input.name;
    shape = checked_shape(shown, shape.extents());
    if (shape.elements() == 0) throw OnnxError(fmt::format("input '{}' has no elements: {}", input.name, to_text(shape)));
    Value value = wrap(
        graph_.add_tensor({.shape = shape, .dtype = dtype_of(input.type), .role = Role::input, .name = graph_.intern(input.name)}));
    value.name = input.name;
    values_[input.name] = value;
  }
}

const Value* Importer::find(const std::string& name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? nullptr : &found->second;
}

const Value& Importer::in(const Node& node, std::size_t i) const {
  const std::string& name = node.input(i);
  if (name.empty()) throw OnnxError(fmt::format("{}: operand {} is missing", node.label(), i));
  const Value* found = find(name);
  if (!found) throw OnnxError(fmt::format("{}: operand '{}' is made by no node before it", node.label(), name.substr(0, 120)));
  return *found;
}

std::vector<const Constant*> Importer::operands(const Node& node) const {
  std::vector<const Constant*> out;
  for (std::size_t i = 0; i < node.inputs.size(); ++i) out.push_back(has(node, i) ? &in(node, i) : nullptr);
  return out;
}

void Importer::out(const Node& node, std::size_t i, Value value) {
  if (i >= node.outputs.size() || node.outputs[i].empty()) return;
  value.name = node.outputs[i];
  values_[node.outputs[i]] = std::move(value);
}

void Importer::note(std::string text) {
  if (std::find(notes_.begin(), notes_.end(), text) == notes_.end()) notes_.push_back(std::move(text));
}

void Importer::enter(const Node& node) {
  std::string path = node.module;
  if (path.empty())  // the modules of its parameters say where it is, and what follows belongs there too
    for (const std::string& name : node.inputs)
      if (const Value* value = find(name); value && value->initializer && value->type == DType::model) path = owner_of(name);
  if (path.empty()) return;
  module_ = graph_.intern(path);
  const std::string prefix = layer_prefix(path);
  if (prefix.empty()) {
    block_ = -1;
    return;
  }
  if (!blocks_.contains(prefix) && blocks_.size() < 30000) blocks_.emplace(prefix, static_cast<int>(blocks_.size()));
  block_ = blocks_.contains(prefix) ? static_cast<std::int16_t>(blocks_.at(prefix)) : std::int16_t{-1};
}

void Importer::run(const std::vector<Node>& nodes) {
  for (const Node& node : nodes) visit(node);
}

void Importer::visit(const Node& node) {
  enter(node);
  if (node.domain.empty() && node.op == "Constant") {
    const Attribute* whole = node.find("value");
    Value value;
    if (whole && whole->tensor) {
      value.shape = Shape(whole->tensor->dims);
      value.type = dtype_of(whole->tensor->type);
      value.initializer = whole->tensor.get();
      if (whole->tensor->has_values) value.values = std::make_shared<const std::vector<double>>(whole->tensor->values);
    } else {
      const Attribute* given = node.attributes.empty() ? nullptr : &node.attributes.front();
      std::vector<double> values;
      if (given && given->name == "value_int") values = {static_cast<double>(given->integer)};
      else if (given && given->name == "value_float") values = {given->real};
      else if (given && given->name == "value_ints") values.assign(given->integers.begin(), given->integers.end());
      else if (given && given->name == "value_floats") values = given->reals;
      else throw OnnxError(fmt::format("{}: a constant that is neither tensor nor number", node.label()));
      if (given->name.ends_with("s")) value.shape = Shape{static_cast<std::int64_t>(values.size())};
      value.type = given->name.starts_with("value_float") ? DType::model : DType::int64;
      value.values = std::make_shared<const std::vector<double>>(std::move(values));
    }
    value.strides = contiguous_strides(value.shape);
    return out(node, 0, value);
  }
  const std::vector<const Constant*> given = operands(node);
  const auto folded = fold(node, given);
  if (folded) {
    // Arithmetic on shapes is done by the host and launches nothing; a tensor of positions, and all made from it, is a kernel.
    bool on_device = node.op == "Range";
    for (const std::string& name : node.inputs)
      if (const Value* value = find(name)) on_device = on_device || (value->id.valid() && node.op != "Shape" && node.op != "Size");
    for (const Constant& result : *folded) on_device = on_device || result.shape.rank() > 1 || !result.values;
    if (!on_device) {
      for (std::size_t i = 0; i < folded->size(); ++i) {
        Value value;
        static_cast<Constant&>(value) = (*folded)[i];
        value.strides = contiguous_strides(value.shape);
        out(node, i, value);
      }
      return;
    }
  }
  if (const Handler* handler = handler_of(node)) {
    (*handler)(*this, node);
  } else {
    std::vector<TensorId> inputs;
    Shape shape;
    bool shaped = false;
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      if (!has(node, i)) continue;
      const Value& value = in(node, i);
      if (value.values && value.shape.elements() <= 1) continue;
      inputs.push_back(tensor(value));
      if (!shaped && precog::is_floating(value.type)) shape = value.shape, shaped = true;
    }
    note(fmt::format(
        "{}{}{} is not an operator precog knows: costed by the bytes it moves, its result taken to have its first operand's shape",
        node.domain, node.domain.empty() ? "" : ".", node.op.substr(0, 60)));
    for (std::size_t i = 0; i < node.outputs.size(); ++i) out(node, i, generic("onnx." + node.op.substr(0, 60), inputs, shape));
  }
  if (folded)
    for (std::size_t i = 0; i < folded->size() && i < node.outputs.size(); ++i) {
      const auto found = values_.find(node.outputs[i]);
      if (found != values_.end() && found->second.shape == (*folded)[i].shape) found->second.values = (*folded)[i].values;
    }
}

TensorId Importer::buffer(const std::string& name, Shape shape, DType type) {
  if (const auto found = made_.find(name); found != made_.end()) return found->second;
  const TensorId id = graph_.add_tensor({.shape = shape, .dtype = type, .role = Role::buffer, .name = graph_.intern(name)});
  made_.emplace(name, id);
  return id;
}

TensorId Importer::parameter(const std::string& name, Shape shape) {
  if (const auto found = made_.find(name); found != made_.end()) return found->second;
  const TensorId id =
      graph_.add_tensor({.shape = shape, .role = Role::parameter, .requires_grad = true, .name = graph_.intern(name)});
  made_.emplace(name, id);
  return id;
}

TensorId Importer::buffer(const Value& value) { return value.id.valid() ? value.id : buffer(value.name, value.shape, value.type); }

TensorId Importer::tensor(const Value& value) {
  if (value.id.valid()) return value.id;
  if (value.turned) {
    Value plain = value;
    plain.turned = false;
    plain.shape = Shape{value.shape[1], value.shape[0]};
    plain.name = value.initializer->name;
    plain.id = tensor(plain);
    plain.strides = contiguous_strides(plain.shape);
    Node shown;
    shown.op = "Transpose";
    return permute(shown, plain, {1, 0}).id;
  }
  const std::string& name = value.initializer && !value.initializer->name.empty() ? value.initializer->name : value.name;
  // Numbers that the file's constants hold, and whatever is known element by element, do not train.
  const bool learned = value.initializer && !value.initializer->name.empty() && precog::is_floating(value.type) &&
                       value.shape.rank() > 0 && value.shape.elements() > 1 && !value.positional;
  if (!learned) return buffer(name, value.shape, precog::is_floating(value.type) && value.positional ? DType::fp32 : value.type);
  return parameter(name, value.shape);
}

Value Importer::wrap(TensorId id) const {
  Value out;
  out.id = id;
  out.shape = graph_.tensors[id].shape;
  out.type = graph_.tensors[id].dtype;
  out.strides = contiguous_strides(out.shape);
  return out;
}

bool Importer::trains(const Value& value) const { return value.id.valid() && graph_.tensors[value.id].requires_grad; }

TensorId Importer::make(Shape shape, DType type, const std::vector<TensorId>& inputs) {
  if (shape.elements() == 0) throw OnnxError(fmt::format("a result of shape {} has no elements", to_text(shape)));
  Tensor tensor{.shape = shape, .dtype = type};
  for (TensorId id : inputs) tensor.requires_grad = tensor.requires_grad || graph_.tensors[id].requires_grad;
  if (!precog::is_floating(type)) tensor.requires_grad = false;
  return graph_.add_tensor(tensor);
}

void Importer::emit_to(OpKind kind, const std::vector<TensorId>& inputs, const std::vector<TensorId>& outputs,
                       Attributes attributes, bool in_place) {
  Op op;
  op.kind = kind;
  op.autocast = definition(kind).autocast;
  op.in_place = in_place;
  op.attributes = std::move(attributes);
  op.module = module_;
  op.block = block_;
  if (in_place) graph_.tensors[outputs.front()].storage = graph_.tensors[inputs.front()].storage;
  graph_.add_op(op, inputs, outputs);
}

Value Importer::emit(OpKind kind, const std::vector<TensorId>& inputs, Shape shape, DType type, Attributes attributes) {
  const TensorId result = make(shape, type, inputs);
  if (kind == OpKind::view) graph_.tensors[result].storage = graph_.tensors[inputs.front()].storage;
  emit_to(kind, inputs, {result}, std::move(attributes));
  return wrap(result);
}

Value Importer::emit(OpKind kind, const std::vector<TensorId>& inputs, Shape shape, Attributes attributes) {
  DType type = DType::fp32;
  bool any = false;
  for (TensorId id : inputs) {
    if (!precog::is_floating(graph_.tensors[id].dtype)) continue;
    any = true;
    if (graph_.tensors[id].dtype == DType::model) type = DType::model;
  }
  Value out = emit(kind, inputs, shape,
                   any              ? type
                   : inputs.empty() ? DType::model
                                    : graph_.tensors[inputs.front()].dtype,
                   std::move(attributes));
  out.positional = any && type == DType::fp32;
  return out;
}

RecipeId Importer::estimated_gradient(const Op& op, const std::vector<TensorId>& inputs, Shape shape) {
  Recipe recipe;
  const OpKind kind = op.kind == OpKind::pointwise                              ? OpKind::pointwise_backward
                      : op.kind == OpKind::pool                                 ? OpKind::pool_backward
                      : op.kind == OpKind::gather || op.kind == OpKind::sort    ? OpKind::scatter
                      : op.kind == OpKind::scatter                              ? OpKind::gather
                      : op.kind == OpKind::reduction || op.kind == OpKind::scan ? OpKind::pointwise_backward
                                                                                : op.kind;
  std::uint32_t made = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!graph_.tensors[inputs[i]].requires_grad) continue;
    const Shape wanted = graph_.tensors[inputs[i]].shape;
    using From = RecipeOperand::From;
    RecipeOp step;
    step.kind = kind;
    step.label = op.label;
    if (kind == OpKind::scatter) {  // a zeroed tensor, then the gradient put where its elements came from
      RecipeOp zeros;
      zeros.kind = OpKind::fill;
      zeros.outputs = {{wanted}};
      recipe.ops.push_back(zeros);
      step.in_place = true;
      step.inputs = {{From::made, made++}};
      for (std::size_t j = 0; j < inputs.size(); ++j)
        if (!precog::is_floating(graph_.tensors[inputs[j]].dtype))
          step.inputs.push_back({From::input, static_cast<std::uint32_t>(j)});
      step.inputs.push_back({From::gradient, 0});
      step.outputs = {{wanted, DType::model, 0}};
    } else {
      step.inputs = {{From::gradient, 0}, {From::input, static_cast<std::uint32_t>(i)}};
      if (kind == OpKind::copy) step.inputs.pop_back();
      // A broadcast operand's gradient is as large as the result, and summed afterwards.
      step.outputs = {{kind == OpKind::pointwise_backward && op.kind == OpKind::pointwise ? shape : wanted}};
    }
    recipe.ops.push_back(step);
    recipe.gifts.push_back({static_cast<std::uint32_t>(i), {From::made, made++}});
  }
  if (recipe.gifts.empty()) return {};
  return graph_.recipes.add(std::move(recipe));
}

Value Importer::generic(std::string_view name, const std::vector<TensorId>& inputs, Shape shape, DType type) {
  const FrameworkName* known = framework_name(name);
  Op op;
  op.kind = known ? known->kind : OpKind::unknown;
  op.autocast = known ? known->autocast : Autocast::none;
  op.label = graph_.intern(name);
  op.module = module_;
  op.block = block_;
  bool floating = false, open = false;
  for (TensorId id : inputs) {
    floating = floating || precog::is_floating(graph_.tensors[id].dtype);
    open = open || graph_.tensors[id].dtype == DType::model;
  }
  if (type == DType::model && floating && !open) type = DType::fp32;
  if (type == DType::model && !floating && !inputs.empty()) type = DType::fp32;
  const TensorId result = make(shape, type, inputs);
  if (graph_.tensors[result].requires_grad && !definition(op.kind).gradient) op.recipe = estimated_gradient(op, inputs, shape);
  graph_.add_op(op, inputs, std::vector{result});
  Value out = wrap(result);
  out.positional = type == DType::fp32;
  return out;
}

Value Importer::pointwise_like(Value result, const Value& of) const {
  if (!(of.shape == result.shape)) return result;
  std::int64_t elements = 1, reach = 1;  // dense: what the strides span is what there is
  for (int i = 0; i < of.shape.rank(); ++i) {
    elements *= of.shape[i];
    reach += (of.shape[i] - 1) * of.strides[static_cast<std::size_t>(i)];
  }
  if (elements == reach) result.strides = of.strides;
  return result;
}

Value Importer::view(const Value& x, Shape shape, ViewKind kind, const Strides& strides) {
  const TensorId of = tensor(x);
  Value out = emit(OpKind::view, {of}, shape, graph_.tensors[of].dtype, ViewAttributes{kind});
  out.strides = strides;
  out.positional = x.positional;
  return out;
}

// As PyTorch's computeStride: runs of axes that lie one within the other in memory can be cut and joined freely.
Value Importer::reshape(const Node& node, const Value& x, Shape shape) {
  if (shape.elements() != x.shape.elements())
    throw OnnxError(fmt::format("{}: {} does not fit into {}", node.label(), to_text(x.shape), to_text(shape)));
  Strides strides = contiguous_strides(shape);
  bool viewable = true;
  int to = shape.rank() - 1;
  std::int64_t run = 1, base = x.shape.rank() > 0 ? x.strides[static_cast<std::size_t>(x.shape.rank() - 1)] : 1, taken = 1;
  for (int i = x.shape.rank() - 1; i >= 0 && viewable; --i) {
    run *= x.shape[i];
    const bool ends = i == 0 || (x.shape[i - 1] != 1 && x.strides[static_cast<std::size_t>(i - 1)] != run * base);
    if (!ends) continue;
    while (to >= 0 && (taken < run || shape[to] == 1)) {
      strides[static_cast<std::size_t>(to)] = taken * base;
      taken *= shape[to--];
    }
    if (taken != run) viewable = false;
    else if (i > 0) {
      base = x.strides[static_cast<std::size_t>(i - 1)];
      run = taken = 1;
    }
  }
  if (viewable && to < 0) return view(x, shape, ViewKind::reshape, strides);
  return view(contiguous(x), shape, ViewKind::reshape, contiguous_strides(shape));
}

Value Importer::permute(const Node& node, const Value& x, const std::vector<int>& order) {
  if (order.size() != static_cast<std::size_t>(x.shape.rank()))
    throw OnnxError(fmt::format("{}: perm of another rank than its operand", node.label()));
  Shape shape;
  Strides strides{};
  std::vector<char> seen(order.size(), 0);
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (seen[static_cast<std::size_t>(order[i])]++) throw OnnxError(fmt::format("{}: perm names an axis twice", node.label()));
    shape.push_back(x.shape[order[i]]);
    strides[i] = x.strides[static_cast<std::size_t>(order[i])];
  }
  return view(x, shape, ViewKind::transpose, strides);
}

Value Importer::expand(const Node& node, const Value& x, Shape shape) {
  shape = broadcast_shapes(node, x.shape, shape);
  if (shape == x.shape) return x;
  Strides strides{};
  const int shift = shape.rank() - x.shape.rank();
  for (int i = 0; i < x.shape.rank(); ++i)
    strides[static_cast<std::size_t>(i + shift)] = x.shape[i] == shape[i + shift] ? x.strides[static_cast<std::size_t>(i)] : 0;
  return view(x, shape, ViewKind::expand, strides);
}

Value Importer::contiguous(const Value& x) {
  if (is_contiguous(x)) return x;
  const TensorId of = tensor(x);
  Value out = emit(OpKind::contiguous, {of}, x.shape, graph_.tensors[of].dtype);
  out.positional = x.positional;
  return out;
}

// Rotary angles end in `.to(x.dtype)`, x being what the embedding made: the parameters' type.
Value Importer::cast_like_parameters(const Value& x) {
  TensorId like;
  for (std::size_t i = 0; i < graph_.tensors.size() && !like.valid(); ++i)
    if (graph_.tensors[graph_.tensors.id_at(i)].role == Role::parameter) like = graph_.tensors.id_at(i);
  if (!like.valid()) return x;
  Value out = emit(OpKind::cast, {tensor(x)}, x.shape, DType::model, CastAttributes{.like = like});
  out.strides = x.strides;
  out.positional = false;
  return out;
}

}  // namespace precog::onnx
