// Operators that rename, copy, join and pick: views wherever PyTorch has one.
#include <algorithm>

#include <fmt/format.h>

#include "frontend/onnx_import.h"
#include "frontend/onnx_wire.h"

namespace precog::onnx {
namespace {

OnnxError unknown_operand(const Node& node, const char* what) {
  return OnnxError(fmt::format("{}: {} depends on data that only a run would know", node.label(), what));
}

Shape shape_operand(Importer& im, const Node& node, std::size_t i) {
  const Value& given = im.in(node, i);
  if (!given.values) throw unknown_operand(node, "the wanted shape");
  std::vector<std::int64_t> extents;
  for (double extent : *given.values) extents.push_back(to_integer(extent));
  return checked_shape(node, extents);
}

void reshape(Importer& im, const Node& node) {
  const Value x = im.in(node, 0);
  if (node.find("shape")) {  // an attribute before version 5
    std::vector<double> wanted;
    for (std::int64_t extent : node.integers("shape")) wanted.push_back(static_cast<double>(extent));
    return im.out(node, 0, im.reshape(node, x, reshaped(node, x.shape, wanted)));
  }
  const Value& wanted = im.in(node, 1);
  if (!wanted.values) throw unknown_operand(node, "the wanted shape");
  im.out(node, 0, im.reshape(node, x, reshaped(node, x.shape, *wanted.values)));
}

void flatten(Importer& im, const Node& node) {
  const Value x = im.in(node, 0);
  const std::int64_t axis = node.integer("axis", 1);
  const int cut = axis == x.shape.rank() ? x.shape.rank() : axis_of(node, axis, x.shape.rank());
  std::int64_t rows = 1;
  for (int i = 0; i < cut; ++i) rows *= x.shape[i];
  im.out(node, 0, im.reshape(node, x, Shape{rows, rows == 0 ? 0 : x.shape.elements() / rows}));
}

// Squeeze and Unsqueeze: fold knows the shape that comes of it.
void squeeze(Importer& im, const Node& node) {
  const Value x = im.in(node, 0);
  std::vector<const Constant*> operands = im.operands(node);
  const std::vector<double> nothing;
  Constant blank{x.shape, x.type, std::make_shared<const std::vector<double>>(nothing)};
  operands[0] = &blank;
  const auto folded = fold(node, operands);
  if (!folded) throw unknown_operand(node, "which axes");
  im.out(node, 0, im.reshape(node, x, folded->front().shape));
}

void transpose(Importer& im, const Node& node) {
  Value x = im.in(node, 0);
  std::vector<int> order;
  for (std::int64_t axis : node.integers("perm")) order.push_back(axis_of(node, axis, x.shape.rank()));
  if (order.empty())
    for (int i = x.shape.rank() - 1; i >= 0; --i) order.push_back(i);
  if (x.initializer && !x.id.valid() && x.shape.rank() == 2 &&
      order == std::vector<int>{1, 0}) {  // a weight on its way to a product
    x.shape = Shape{x.shape[1], x.shape[0]};
    x.turned = !x.turned;
    x.values = nullptr;
    return im.out(node, 0, x);
  }
  im.out(node, 0, im.permute(node, x, order));
}

void expand(Importer& im, const Node& node) { im.out(node, 0, im.expand(node, im.in(node, 0), shape_operand(im, node, 1))); }

void tile(Importer& im, const Node& node) {
  const Value& x = im.in(node, 0);
  const Value& repeats = im.in(node, 1);
  if (!repeats.values) throw unknown_operand(node, "the number of repeats");
  std::vector<std::int64_t> shape;
  for (int i = 0; i < x.shape.rank(); ++i)
    shape.push_back(x.shape[i] * std::clamp<std::int64_t>(static_cast<std::size_t>(i) < repeats.values->size()
                                                              ? to_integer((*repeats.values)[static_cast<std::size_t>(i)])
                                                              : 1,
                                                          0, std::int64_t{1} << 31));
  const Shape result = checked_shape(node, shape);
  im.out(node, 0, result == x.shape ? x : im.generic("repeat", {im.tensor(x)}, result, x.type));
}

Value sliced(Importer& im, const Value& x, const SliceRange& range) {
  Shape shape = x.shape;
  shape.set(range.axis, range.length);
  Strides strides = x.strides;
  strides[static_cast<std::size_t>(range.axis)] *= std::max<std::int64_t>(range.step, 1);
  return im.view(x, shape, ViewKind::slice, strides);
}

void slice(Importer& im, const Node& node) {
  Value x = im.in(node, 0);
  const auto ranges = slice_ranges(node, x.shape, im.operands(node));
  if (!ranges) throw unknown_operand(node, "where it cuts");
  for (const SliceRange& range : *ranges) {
    if (range.length == 0)
      throw OnnxError(fmt::format("{}: nothing is left of {} along axis {}", node.label(), to_text(x.shape), range.axis));
    if (range.step < 0) x = im.generic("flip", {im.tensor(x)}, x.shape, x.type);
    if (range.length != x.shape[range.axis]) x = sliced(im, x, range);
  }
  im.out(node, 0, x);
}

void split(Importer& im, const Node& node) {
  const Value x = im.in(node, 0);
  const int axis = axis_of(node, node.integer("axis", 0), x.shape.rank());
  std::vector<std::int64_t> lengths = node.integers("split");
  if (im.has(node, 1)) {
    if (!im.in(node, 1).values) throw unknown_operand(node, "where it cuts");
    for (double length : *im.in(node, 1).values) lengths.push_back(to_integer(length));
  }
  const auto pieces = static_cast<std::int64_t>(node.outputs.size());
  if (lengths.empty() && pieces > 0) {
    const std::int64_t each = (x.shape[axis] + pieces - 1) / pieces;
    for (std::int64_t i = 0; i < pieces; ++i) lengths.push_back(std::min(each, x.shape[axis] - i * each));
  }
  std::int64_t total = 0;
  for (std::int64_t length : lengths) {
    if (length < 1 || length > x.shape[axis]) total = -1;
    if (total >= 0) total += length;
  }
  if (total != x.shape[axis] || lengths.size() != node.outputs.size())
    throw OnnxError(fmt::format("{}: the pieces do not make up an extent of {}", node.label(), x.shape[axis]));
  const TensorId of = im.tensor(x);
  std::vector<TensorId> outputs;
  for (std::int64_t length : lengths) {
    Shape shape = x.shape;
    shape.set(axis, length);
    outputs.push_back(im.make(shape, x.type, {of}));
    im.graph().tensors[outputs.back()].storage = im.graph().tensors[of].storage;
  }
  im.emit_to(OpKind::split, {of}, outputs);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    Value piece = im.wrap(outputs[i]);
    piece.strides = x.strides;
    im.out(node, i, piece);
  }
}

void concat(Importer& im, const Node& node) {
  if (node.inputs.empty()) throw OnnxError(fmt::format("{}: nothing to join", node.label()));
  Shape shape = im.in(node, 0).shape;
  const int axis = axis_of(node, node.integer("axis", 0), shape.rank());
  std::vector<TensorId> parts;
  std::int64_t length = 0;
  for (std::size_t i = 0; i < node.inputs.size(); ++i) {
    const Value& part = im.in(node, i);
    if (part.shape.rank() != shape.rank()) throw OnnxError(fmt::format("{}: operands of different rank", node.label()));
    for (int d = 0; d < shape.rank(); ++d)
      if (d != axis && part.shape[d] != shape[d])
        throw OnnxError(fmt::format("{}: {} beside {}", node.label(), to_text(part.shape), to_text(shape)));
    length += part.shape[axis];
    if (part.shape.elements() > 0) parts.push_back(im.tensor(part));
  }
  shape.set(axis, length);
  checked_shape(node, shape.extents());
  const Value& first = im.in(node, 0);
  im.out(node, 0,
         precog::is_floating(first.type) ? im.emit(OpKind::cat, parts, shape) : im.emit(OpKind::cat, parts, shape, first.type));
}

void gather(Importer& im, const Node& node) {
  const Value x = im.in(node, 0), index = im.in(node, 1);
  const int axis = axis_of(node, node.integer("axis", 0), x.shape.rank());
  if (scalar(index) && !index.id.valid()) {  // x[:, 3]: a view
    Value y = x;
    Shape one = x.shape;
    one.set(axis, 1);
    std::vector<std::int64_t> rest;
    for (int i = 0; i < x.shape.rank(); ++i)
      if (i != axis) rest.push_back(x.shape[i]);
    if (index.shape.rank() > 0) rest.insert(rest.begin() + axis, static_cast<std::size_t>(index.shape.rank()), 1);
    Strides strides{};
    const int skipped = index.shape.rank();
    for (int i = 0, to = 0; i < x.shape.rank(); ++i) {
      if (i == axis) to += skipped;
      else strides[static_cast<std::size_t>(to++)] = x.strides[static_cast<std::size_t>(i)];
    }
    return im.out(node, 0, im.view(y, checked_shape(node, rest), ViewKind::slice, strides));
  }
  std::vector<std::int64_t> shape;
  for (int i = 0; i < axis; ++i) shape.push_back(x.shape[i]);
  for (std::int64_t extent : index.shape.extents()) shape.push_back(extent);
  for (int i = axis + 1; i < x.shape.rank(); ++i) shape.push_back(x.shape[i]);
  const Shape result = checked_shape(node, shape);
  const std::vector<TensorId> inputs = {im.tensor(x), im.tensor(index)};
  if (!precog::is_floating(x.type)) return im.out(node, 0, im.emit(OpKind::integer_pointwise, inputs, result, x.type));
  const bool table = x.initializer && axis == 0 && x.shape.rank() == 2;
  if (table) return im.out(node, 0, im.emit(OpKind::embedding, inputs, result));
  im.out(node, 0, im.emit(OpKind::index_select, inputs, result));
}

void gather_elements(Importer& im, const Node& node) {
  const Value &x = im.in(node, 0), &index = im.in(node, 1);
  const std::vector<TensorId> inputs = {im.tensor(x), im.tensor(index)};
  if (!precog::is_floating(x.type)) return im.out(node, 0, im.emit(OpKind::integer_pointwise, inputs, index.shape, x.type));
  im.out(node, 0, im.generic("gather", inputs, index.shape));
}

void gather_nd(Importer& im, const Node& node) {
  const Value &x = im.in(node, 0), &index = im.in(node, 1);
  const auto batched = static_cast<int>(std::clamp<std::int64_t>(node.integer("batch_dims", 0), 0, 8));
  if (index.shape.rank() < 1 || index.shape[-1] < 1 || index.shape[-1] + batched > x.shape.rank())
    throw OnnxError(fmt::format("{}: indices {} into {}", node.label(), to_text(index.shape), to_text(x.shape)));
  std::vector<std::int64_t> shape(index.shape.extents().begin(), index.shape.extents().end() - 1);
  for (int i = batched + static_cast<int>(index.shape[-1]); i < x.shape.rank(); ++i) shape.push_back(x.shape[i]);
  const Shape result = checked_shape(node, shape);
  const std::vector<TensorId> inputs = {im.tensor(x), im.tensor(index)};
  if (!precog::is_floating(x.type)) return im.out(node, 0, im.emit(OpKind::integer_pointwise, inputs, result, x.type));
  im.out(node, 0, im.generic("index", inputs, result));
}

void scatter(Importer& im, const Node& node) {
  const Value& x = im.in(node, 0);
  const std::vector<TensorId> inputs = {im.tensor(x), im.tensor(im.in(node, 1)), im.tensor(im.in(node, 2))};
  if (!precog::is_floating(x.type)) return im.out(node, 0, im.emit(OpKind::integer_pointwise, inputs, x.shape, x.type));
  im.out(node, 0, im.generic(node.op == "ScatterND" ? "index_put" : "scatter", inputs, x.shape));
}

void pad(Importer& im, const Node& node) {
  const Value& x = im.in(node, 0);
  std::vector<std::int64_t> pads = node.integers("pads"), axes;
  if (im.has(node, 1)) {
    if (!im.in(node, 1).values) throw unknown_operand(node, "how much it pads");
    for (double one : *im.in(node, 1).values) pads.push_back(to_integer(one));
  }
  if (im.has(node, 3) && im.in(node, 3).values)
    for (double axis : *im.in(node, 3).values) axes.push_back(to_integer(axis));
  else
    for (int i = 0; i < x.shape.rank(); ++i) axes.push_back(i);
  if (pads.size() != 2 * axes.size())
    throw OnnxError(fmt::format("{}: {} paddings for {} axes", node.label(), pads.size(), axes.size()));
  Shape shape = x.shape;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const int axis = axis_of(node, axes[i], x.shape.rank());
    const std::int64_t limit = std::int64_t{1} << 31;
    shape.set(axis, shape[axis] + std::clamp(pads[i], -limit, limit) + std::clamp(pads[i + axes.size()], -limit, limit));
  }
  shape = checked_shape(node, shape.extents());
  if (shape.elements() == 0) throw OnnxError(fmt::format("{}: nothing is left of {}", node.label(), to_text(x.shape)));
  im.out(node, 0, shape == x.shape ? x : im.generic("constant_pad_nd", {im.tensor(x)}, shape, x.type));
}

void constant_of_shape(Importer& im, const Node& node) {
  const Attribute* value = node.find("value");
  const DType type = value && value->tensor ? dtype_of(value->tensor->type) : DType::model;
  im.out(node, 0, im.emit(OpKind::fill, {}, shape_operand(im, node, 0), type));
}

void range(Importer& im, const Node& node) {
  const auto folded = fold(node, im.operands(node));
  if (!folded) throw unknown_operand(node, "how far it counts");
  if (folded->front().shape.elements() == 0) throw OnnxError(fmt::format("{}: counts over nothing", node.label()));
  im.out(node, 0,
         im.emit(OpKind::integer_pointwise, {}, folded->front().shape,
                 precog::is_floating(folded->front().type) ? DType::fp32 : folded->front().type));
}

void topk(Importer& im, const Node& node) {
  const Value& x = im.in(node, 0);
  const int axis = axis_of(node, node.integer("axis", -1), x.shape.rank());
  std::int64_t count = node.integer("k", 0);
  if (im.has(node, 1)) {
    if (!scalar(im.in(node, 1))) throw unknown_operand(node, "how many");
    count = to_integer(*scalar(im.in(node, 1)));
  }
  if (count < 1 || count > x.shape[axis]) throw OnnxError(fmt::format("{}: the best {} of {}", node.label(), count, x.shape[axis]));
  Shape shape = x.shape;
  shape.set(axis, count);
  const std::vector<TensorId> inputs = {im.tensor(x)};
  const std::vector<TensorId> outputs = {im.make(shape, x.type, inputs), im.make(shape, DType::int64, {})};
  im.emit_to(OpKind::topk, inputs, outputs);
  im.out(node, 0, im.wrap(outputs[0]));
  im.out(node, 1, im.wrap(outputs[1]));
}

void depth_to_space(Importer& im, const Node& node) {
  const Value& x = im.in(node, 0);
  const std::int64_t size = node.integer("blocksize", 0);
  if (x.shape.rank() != 4 || size < 1 || size > 1 << 15)
    throw OnnxError(fmt::format("{}: blocks of {} in {}", node.label(), size, to_text(x.shape)));
  const Shape shape = node.op == "DepthToSpace"
                          ? Shape{x.shape[0], x.shape[1] / (size * size), x.shape[2] * size, x.shape[3] * size}
                          : Shape{x.shape[0], x.shape[1] * size * size, x.shape[2] / size, x.shape[3] / size};
  if (shape.elements() != x.shape.elements())
    throw OnnxError(fmt::format("{}: blocks of {} in {}", node.label(), size, to_text(x.shape)));
  im.out(node, 0, im.generic("pixel_shuffle", {im.tensor(x)}, shape));
}

// `(count[:, -1] == 0).all()`, and the host looks at the answer.
void read_back(Importer& im, const Node& node) {
  const Value& count = im.in(node, 0);
  if (count.shape.rank() != 2) throw OnnxError(fmt::format("{}: a count of shape {}", node.label(), to_text(count.shape)));
  const Shape rows{count.shape[0]};
  const Value last = im.view(count, rows, ViewKind::slice, count.strides);
  const TensorId none = im.emit(OpKind::integer_pointwise, {last.id}, rows, DType::boolean).id;
  const Value all = im.emit(OpKind::integer_pointwise, {none}, Shape{}, DType::boolean);
  im.emit_to(OpKind::read_back, {all.id}, {});
  im.note("transformers looks for packed sequences when it has no mask: the host waits for that once a step");
  im.out(node, 0, all);
}

void data_dependent(Importer&, const Node& node) { throw unknown_operand(node, "the result's shape"); }

void control_flow(Importer&, const Node& node) {
  throw OnnxError(
      fmt::format("{}: control flow is not read; export the model so that this part is unrolled or traced", node.label()));
}

}  // namespace

const Handlers& movement_handlers() {
  static const Handlers kAll = {{"Reshape", reshape},
                                {"Flatten", flatten},
                                {"Squeeze", squeeze},
                                {"Unsqueeze", squeeze},
                                {"Transpose", transpose},
                                {"Expand", expand},
                                {"Tile", tile},
                                {"Slice", slice},
                                {"Split", split},
                                {"Concat", concat},
                                {"Gather", gather},
                                {"GatherElements", gather_elements},
                                {"GatherND", gather_nd},
                                {"ScatterElements", scatter},
                                {"ScatterND", scatter},
                                {"Scatter", scatter},
                                {"Pad", pad},
                                {"ConstantOfShape", constant_of_shape},
                                {"Range", range},
                                {"TopK", topk},
                                {"DepthToSpace", depth_to_space},
                                {"SpaceToDepth", depth_to_space},
                                {"NonZero", data_dependent},
                                {"Compress", data_dependent},
                                {"Unique", data_dependent},
                                {"precog.ReadBack", read_back},
                                {"If", control_flow},
                                {"Loop", control_flow},
                                {"Scan", control_flow}};
  return kAll;
}

}  // namespace precog::onnx
