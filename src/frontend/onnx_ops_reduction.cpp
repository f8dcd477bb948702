// Reductions, pooling and resampling.
#include <algorithm>

#include <fmt/format.h>

#include "frontend/onnx_import.h"
#include "frontend/onnx_wire.h"

namespace precog::onnx {
namespace {

void reduce(Importer& im, const Node& node) {
  const Value& x = im.in(node, 0);
  auto axes = axes_of(node, im.operands(node), x.shape.rank());
  if (!axes) throw OnnxError(fmt::format("{}: the axes depend on data that only a run would know", node.label()));
  if (axes->empty() && node.integer("noop_with_empty_axes", 0) != 0) return im.out(node, 0, x);
  const bool keep = node.integer("keepdims", 1) != 0;
  Shape shape;
  for (int i = 0; i < x.shape.rank(); ++i) {
    const bool gone = axes->empty() || std::find(axes->begin(), axes->end(), i) != axes->end();
    if (!gone) shape.push_back(x.shape[i]);
    else if (keep) shape.push_back(1);
  }
  if (!precog::is_floating(x.type)) return im.out(node, 0, im.emit(OpKind::integer_pointwise, {im.tensor(x)}, shape, x.type));
  if (node.op == "ReduceMean") return im.out(node, 0, im.emit(OpKind::mean, {im.tensor(x)}, shape));
  if (node.op == "ReduceSum") return im.out(node, 0, im.emit(OpKind::sum, {im.tensor(x)}, shape));
  const char* name = node.op == "ReduceMax"         ? "amax"
                     : node.op == "ReduceMin"       ? "amin"
                     : node.op == "ReduceProd"      ? "prod"
                     : node.op == "ReduceLogSumExp" ? "logsumexp"
                                                    : "linalg_vector_norm";
  im.out(node, 0, im.generic(name, {im.tensor(x)}, shape));
}

void arg(Importer& im, const Node& node) {
  const Value& x = im.in(node, 0);
  const int axis = axis_of(node, node.integer("axis", 0), x.shape.rank());
  Shape shape;
  for (int i = 0; i < x.shape.rank(); ++i)
    if (i != axis) shape.push_back(x.shape[i]);
    else if (node.integer("keepdims", 1) != 0) shape.push_back(1);
  im.out(node, 0, im.generic("argmax", {im.tensor(x)}, shape, DType::int64));
}

void scan(Importer& im, const Node& node) {
  const Value& x = im.in(node, 0);
  if (!precog::is_floating(x.type)) return im.out(node, 0, im.emit(OpKind::integer_pointwise, {im.tensor(x)}, x.shape, x.type));
  im.out(node, 0, im.generic("cumsum", {im.tensor(x)}, x.shape));
}

void pool(Importer& im, const Node& node) {
  const Value& x = im.in(node, 0);
  const auto kernel = node.integers("kernel_shape"), strides = node.integers("strides"), pads = node.integers("pads"),
             dilations = node.integers("dilations");
  const int axes = x.shape.rank() - 2;
  if (axes < 1 || kernel.size() != static_cast<std::size_t>(axes))
    throw OnnxError(fmt::format("{}: a window of {} axes over {}", node.label(), kernel.size(), to_text(x.shape)));
  Shape shape{x.shape[0], x.shape[1]};
  for (int i = 0; i < axes; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const std::int64_t stride = at < strides.size() ? strides[at] : 1, dilation = at < dilations.size() ? dilations[at] : 1;
    std::int64_t padding = pads.size() == 2 * kernel.size() ? pads[at] + pads[at + kernel.size()] : 0;
    constexpr std::int64_t kLimit = std::int64_t{1} << 24;
    if (kernel[at] < 1 || kernel[at] > kLimit || stride < 1 || stride > kLimit || dilation < 1 || dilation > kLimit ||
        padding < 0 || padding > kLimit)
      throw OnnxError(fmt::format("{}: a setting is out of range", node.label()));
    const std::int64_t span = dilation * (kernel[at] - 1) + 1;
    if (node.text("auto_pad", "NOTSET").starts_with("SAME"))
      padding = std::max<std::int64_t>(0, ((x.shape[i + 2] - 1) / stride) * stride + span - x.shape[i + 2]);
    const std::int64_t room = x.shape[i + 2] + padding - span;
    if (room < 0) throw OnnxError(fmt::format("{}: a window of {} over {}", node.label(), kernel[at], to_text(x.shape)));
    shape.push_back((node.integer("ceil_mode", 0) != 0 ? (room + stride - 1) / stride : room / stride) + 1);
  }
  const bool max = node.op == "MaxPool";
  if (max && axes == 2) {
    const std::vector<TensorId> inputs = {im.tensor(x)};
    const std::vector<TensorId> outputs = {im.make(shape, DType::model, inputs), im.make(shape, DType::int64, {})};
    im.emit_to(OpKind::max_pool2d, inputs, outputs,
               PoolAttributes{kernel[0], strides.empty() ? 1 : strides[0], pads.empty() ? 0 : pads[0]});
    return im.out(node, 0, im.wrap(outputs[0]));
  }
  im.out(node, 0, im.generic(fmt::format("{}_pool{}d", max ? "max" : "avg", axes), {im.tensor(x)}, shape));
}

void global_pool(Importer& im, const Node& node) {
  const Value& x = im.in(node, 0);
  if (x.shape.rank() < 3) throw OnnxError(fmt::format("{}: {} is no image", node.label(), to_text(x.shape)));
  Shape shape{x.shape[0], x.shape[1]};
  for (int i = 2; i < x.shape.rank(); ++i) shape.push_back(1);
  if (node.op == "GlobalMaxPool") return im.out(node, 0, im.generic("amax", {im.tensor(x)}, shape));
  im.out(node, 0, im.emit(x.shape.rank() == 4 ? OpKind::adaptive_avg_pool2d : OpKind::mean, {im.tensor(x)}, shape));
}

void resize(Importer& im, const Node& node) {
  const Value& x = im.in(node, 0);
  const bool old = node.op == "Upsample" || im.opset() < 11;
  const std::size_t scales_at = old ? 1 : 2, sizes_at = 3;
  std::vector<std::int64_t> shape;
  if (im.has(node, sizes_at) && im.in(node, sizes_at).values) {
    for (double extent : *im.in(node, sizes_at).values) shape.push_back(to_integer(extent));
  } else if (im.has(node, scales_at) && im.in(node, scales_at).values) {
    const auto& scales = *im.in(node, scales_at).values;
    for (std::size_t i = 0; i < scales.size() && i < 8 && static_cast<int>(i) < x.shape.rank(); ++i)
      shape.push_back(to_integer(static_cast<double>(x.shape[static_cast<int>(i)]) * std::clamp(scales[i], 0.0, 1e6)));
  }
  if (const auto axes = node.integers("axes"); !axes.empty() && axes.size() == shape.size()) {
    std::vector<std::int64_t> whole(x.shape.extents().begin(), x.shape.extents().end());
    for (std::size_t i = 0; i < axes.size(); ++i)
      whole[static_cast<std::size_t>(axis_of(node, axes[i], x.shape.rank()))] = shape[i];
    shape = whole;
  }
  if (shape.size() != static_cast<std::size_t>(x.shape.rank()))
    throw OnnxError(fmt::format("{}: the new size is not known", node.label()));
  const Shape result = checked_shape(node, shape);
  if (result.elements() == 0) throw OnnxError(fmt::format("{}: a new size of {}", node.label(), to_text(result)));
  const std::string mode = node.text("mode", "nearest");
  im.out(node, 0,
         im.generic(mode == "nearest" ? "upsample_nearest2d"
                    : mode == "cubic" ? "upsample_bicubic2d"
                                      : "upsample_bilinear2d",
                    {im.tensor(x)}, result));
}

void one_hot(Importer& im, const Node& node) {
  const Value &index = im.in(node, 0), &depth = im.in(node, 1);
  if (!scalar(depth) || index.shape.rank() >= Shape::kMaxRank)
    throw OnnxError(fmt::format("{}: the number of classes is not known", node.label()));
  std::vector<std::int64_t> shape(index.shape.extents().begin(), index.shape.extents().end());
  shape.push_back(to_integer(*scalar(depth)));
  im.out(node, 0, im.emit(OpKind::integer_pointwise, {im.tensor(index)}, checked_shape(node, shape), DType::fp32));
}

}  // namespace

const Handlers& reduction_handlers() {
  static const Handlers kAll = {{"ReduceMean", reduce},
                                {"ReduceSum", reduce},
                                {"ReduceMax", reduce},
                                {"ReduceMin", reduce},
                                {"ReduceProd", reduce},
                                {"ReduceL1", reduce},
                                {"ReduceL2", reduce},
                                {"ReduceSumSquare", reduce},
                                {"ReduceLogSumExp", reduce},
                                {"ArgMax", arg},
                                {"ArgMin", arg},
                                {"CumSum", scan},
                                {"MaxPool", pool},
                                {"AveragePool", pool},
                                {"LpPool", pool},
                                {"GlobalAveragePool", global_pool},
                                {"GlobalMaxPool", global_pool},
                                {"Resize", resize},
                                {"Upsample", resize},
                                {"OneHot", one_hot}};
  return kAll;
}

}  // namespace precog::onnx
