// Normalisation, softmax, dropout.
#include <fmt/format.h>

#include "frontend/onnx_import.h"
#include "frontend/onnx_wire.h"

namespace precog::onnx {
namespace {

// (x, weight?, bias?) -> y, mean, rstd. The kernel wants its rows in order and copies them otherwise, each way.
void layer_norm(Importer& im, const Node& node) {
  const Value x = im.in(node, 0);
  const int axis = axis_of(node, node.integer("axis", -1), x.shape.rank());
  std::int64_t width = 1;
  for (int i = axis; i < x.shape.rank(); ++i) width *= x.shape[i];
  if (width == 0) throw OnnxError(fmt::format("{}: rows of no elements", node.label()));
  std::vector<TensorId> inputs = {im.tensor(x)};
  for (std::size_t i = 1; i < 3; ++i)
    if (im.has(node, i)) inputs.push_back(im.tensor(im.in(node, i)));
  const Shape rows{x.shape.elements() / width};
  const std::vector<TensorId> outputs = {im.make(x.shape, DType::model, inputs), im.make(rows, DType::fp32, {}),
                                         im.make(rows, DType::fp32, {})};
  Attributes attributes;
  if (axis != x.shape.rank() - 1) attributes = NormAttributes{.width = width};
  im.emit_to(OpKind::layer_norm, inputs, outputs, attributes);
  if (!is_contiguous(x)) im.mark_strided();
  im.out(node, 0, im.wrap(outputs[0]));
}

// Root mean square: as PyTorch code writes it out, in fp32 whatever the model's type; then the weight.
void rms_norm(Importer& im, const Node& node) {
  const Value x = im.in(node, 0);
  const TensorId given = im.tensor(x);
  const Shape rows = [&] {
    Shape shape = x.shape;
    shape.set(-1, 1);
    return shape;
  }();
  const TensorId wide = im.emit(OpKind::cast, {given}, x.shape, DType::fp32, CastAttributes{.to = DType::fp32}).id;
  const TensorId square = im.emit(OpKind::pow, {wide}, x.shape, DType::fp32).id;
  const TensorId variance = im.emit(OpKind::mean, {square}, rows, DType::fp32).id;
  const TensorId scale =
      im.emit(OpKind::rsqrt, {im.emit(OpKind::add_scalar, {variance}, rows, DType::fp32).id}, rows, DType::fp32).id;
  const TensorId normal = im.emit(OpKind::mul, {wide, scale}, x.shape, DType::fp32).id;
  Value y = im.emit(OpKind::cast, {normal}, x.shape, DType::model, CastAttributes{.like = given});
  if (im.has(node, 1)) y = im.emit(OpKind::mul, {im.tensor(im.in(node, 1)), y.id}, x.shape, DType::model);
  im.out(node, 0, im.pointwise_like(y, x));
  im.note("root-mean-square norms are taken to be computed in fp32, as Llama's code does: an fp32 export no longer says");
}

void batch_norm(Importer& im, const Node& node) {
  const Value x = im.in(node, 0);
  if (x.shape.rank() < 2) throw OnnxError(fmt::format("{}: {} has no channels", node.label(), to_text(x.shape)));
  const Shape channels{x.shape[1]};
  for (std::size_t i = 1; i < 5; ++i)
    if (!(im.in(node, i).shape == channels))
      throw OnnxError(fmt::format("{}: operand {} is not of shape {}", node.label(), i, to_text(channels)));
  im.out(node, 0,
         batch_normalised(im, x, im.tensor(im.in(node, 1)), im.tensor(im.in(node, 2)), im.buffer(im.in(node, 3)),
                          im.buffer(im.in(node, 4)), im.in(node, 3).name));
}

// Instance norm is a group norm of one channel a group.
void group_norm(Importer& im, const Node& node) {
  const Value x = im.contiguous(im.in(node, 0));
  if (x.shape.rank() < 2) throw OnnxError(fmt::format("{}: {} has no channels", node.label(), to_text(x.shape)));
  const std::int64_t groups = node.op == "InstanceNormalization" ? x.shape[1] : node.integer("num_groups", 0);
  if (groups < 1 || x.shape[1] % groups != 0)
    throw OnnxError(fmt::format("{}: {} channels in {} groups", node.label(), x.shape[1], groups));
  std::vector<TensorId> inputs = {im.tensor(x)};
  for (std::size_t i = 1; i < 3; ++i)
    if (im.has(node, i)) inputs.push_back(im.tensor(im.in(node, i)));
  const Shape rows{x.shape[0] * groups};
  const std::vector<TensorId> outputs = {im.make(x.shape, DType::model, inputs), im.make(rows, DType::fp32, {}),
                                         im.make(rows, DType::fp32, {})};
  im.emit_to(OpKind::group_norm, inputs, outputs, NormAttributes{.width = x.shape.elements() / rows.elements(), .groups = groups});
  im.out(node, 0, im.wrap(outputs[0]));
}

void softmax(Importer& im, const Node& node) {
  const Value& x = im.in(node, 0);
  axis_of(node, node.integer("axis", -1), x.shape.rank());
  im.out(node, 0, im.emit(node.op == "LogSoftmax" ? OpKind::log_softmax : OpKind::softmax, {im.tensor(x)}, x.shape));
}

// In training dropout is on: the file's own switch is inference's business.
void dropout(Importer& im, const Node& node) {
  const Value& x = im.in(node, 0);
  double ratio = node.real("ratio", 0.5);
  if (im.has(node, 1))
    if (const auto given = scalar(im.in(node, 1))) ratio = *given;
  if (ratio <= 0) return im.out(node, 0, x);
  const std::vector<TensorId> inputs = {im.tensor(x)};
  const std::vector<TensorId> outputs = {im.make(x.shape, DType::model, inputs), im.make(x.shape, DType::boolean, {})};
  im.emit_to(OpKind::dropout, inputs, outputs);
  im.out(node, 0, im.pointwise_like(im.wrap(outputs[0]), x));
  im.out(node, 1, im.wrap(outputs[1]));
}

}  // namespace

Value batch_normalised(Importer& im, const Value& x, TensorId weight, TensorId bias, TensorId mean, TensorId variance,
                       const std::string& name) {
  const Shape channels{x.shape[1]};
  const TensorId counter =
      im.buffer(name + ".num_batches_tracked", {}, DType::int64);  // stepped in every forward; no file holds it
  im.emit_to(OpKind::integer_pointwise, {counter}, {im.make({}, DType::int64, {counter})}, {}, true);
  const std::vector<TensorId> inputs = {im.tensor(x), weight, bias, mean, variance};
  const std::vector<TensorId> outputs = {im.make(x.shape, DType::model, inputs), im.make(channels, DType::fp32, {}),
                                         im.make(channels, DType::fp32, {})};
  im.emit_to(OpKind::batch_norm, inputs, outputs);
  return im.wrap(outputs[0]);
}

const Handlers& normalization_handlers() {
  static const Handlers kAll = {{"LayerNormalization", layer_norm},
                                {"precog.RmsNorm", rms_norm},
                                {"RMSNormalization", rms_norm},
                                {"SimplifiedLayerNormalization", rms_norm},
                                {"BatchNormalization", batch_norm},
                                {"InstanceNormalization", group_norm},
                                {"GroupNormalization", group_norm},
                                {"Softmax", softmax},
                                {"LogSoftmax", softmax},
                                {"Dropout", dropout}};
  return kAll;
}

}  // namespace precog::onnx
