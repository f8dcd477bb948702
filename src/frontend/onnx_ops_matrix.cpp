// Matrix products, convolutions and attention.
#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "frontend/onnx_import.h"
#include "frontend/onnx_wire.h"
#include "graph/recurrent_space.h"

namespace precog::onnx {
namespace {

bool is_weight(const Value& value) {
  return value.initializer && !value.id.valid() && value.type == DType::model && value.shape.rank() == 2 && !value.values;
}

// x[.., in] times a stored matrix, as F.linear (its weight lies turned in memory) or addmm; `bias` may be null.
Value linear(Importer& im, const Node& node, Value x, const Value& weight, bool turned, const Value* bias) {
  Value stored = weight;
  if (weight.turned) {
    turned = !turned;
    stored.turned = false;
    stored.shape = Shape{weight.shape[1], weight.shape[0]};
  }
  const std::int64_t in = turned ? stored.shape[1] : stored.shape[0], out = turned ? stored.shape[0] : stored.shape[1];
  if (x.shape.rank() < 1 || x.shape[-1] != in || in == 0)
    throw OnnxError(fmt::format("{}: {} meets a weight for {} features", node.label(), to_text(x.shape), in));
  Shape shape = x.shape;
  shape.set(-1, out);
  checked_shape(node, shape.extents());
  // A turned input of three axes or more is no single matrix: F.linear copies it, and adds the bias in a kernel of its own.
  const bool scattered = x.shape.rank() > 2 && !is_contiguous(x);
  if (scattered) x = im.contiguous(x);
  const bool fused = bias && !scattered;
  const GemmAttributes gemm{1, x.shape.elements() / in, out, in, fused};
  std::vector<TensorId> inputs = {im.tensor(x), im.tensor(stored)};
  if (fused) inputs.push_back(im.tensor(*bias));
  Value y = im.emit(OpKind::linear, inputs, shape, DType::model, gemm);
  if (!bias || fused) return y;
  const TensorId offset = im.tensor(*bias);
  const TensorId cast = im.emit(OpKind::cast, {offset}, bias->shape, DType::model, CastAttributes{.like = y.id}).id;
  const TensorId sum = im.make(shape, DType::model, {y.id, cast});
  im.emit_to(OpKind::add, {y.id, cast}, {sum}, {}, true);
  return im.wrap(sum);
}

Value product(Importer& im, const Node& node, Value a, Value b) {
  if (is_weight(b) && !a.positional) return linear(im, node, a, b, false, nullptr);
  const bool row = a.shape.rank() == 1, column = b.shape.rank() == 1;
  if (a.shape.rank() == 0 || b.shape.rank() == 0) throw OnnxError(fmt::format("{}: a product with a scalar", node.label()));
  if (a.positional && !b.id.valid()) b.positional = true;  // rotary frequencies: a buffer that meets positions
  if (b.positional && !a.id.valid()) a.positional = true;
  if (row) a = im.reshape(node, a, Shape{1, a.shape[0]});
  if (column) b = im.reshape(node, b, Shape{b.shape[0], 1});
  if (a.shape[-1] != b.shape[-2] || a.shape[-1] == 0)
    throw OnnxError(fmt::format("{}: {} times {}", node.label(), to_text(a.shape), to_text(b.shape)));
  auto batches = [](const Shape& shape) { return Shape(shape.extents().first(static_cast<std::size_t>(shape.rank() - 2))); };
  Shape shape = broadcast_shapes(node, batches(a.shape), batches(b.shape));
  const GemmAttributes gemm{shape.elements(), a.shape[-2], b.shape[-1], a.shape[-1]};
  shape.push_back(a.shape[-2]);
  shape.push_back(b.shape[-1]);
  checked_shape(node, shape.extents());
  const bool outside = a.positional && b.positional;  // HF makes rotary angles outside autocast
  const TensorId left = im.tensor(a), right = im.tensor(b);
  Value y =
      outside ? im.emit(OpKind::bmm, {left, right}, shape, DType::fp32, gemm) : im.emit(OpKind::matmul, {left, right}, shape, gemm);
  y.positional = outside;
  if (row || column) {
    std::vector<std::int64_t> kept(shape.extents().begin(), shape.extents().end());
    if (row) kept.erase(kept.end() - 2);
    if (column) kept.pop_back();
    y = im.reshape(node, y, Shape(kept));
  }
  return y;
}

void matmul(Importer& im, const Node& node) { im.out(node, 0, product(im, node, im.in(node, 0), im.in(node, 1))); }

// MatMul and the Add of its bias, joined by the patterns.
void linear_with_bias(Importer& im, const Node& node) {
  im.out(node, 0, linear(im, node, im.in(node, 0), im.in(node, 1), false, &im.in(node, 2)));
}

void gemm(Importer& im, const Node& node) {
  Value a = im.in(node, 0), b = im.in(node, 1);
  const bool turned = node.integer("transB", 0) != 0;
  if (a.shape.rank() != 2 || b.shape.rank() != 2) throw OnnxError(fmt::format("{}: operands of rank 2 are wanted", node.label()));
  if (node.integer("transA", 0) != 0) a = im.permute(node, a, {1, 0});
  const bool added = im.has(node, 2);
  if (is_weight(b)) {
    const Value* bias = added ? &im.in(node, 2) : nullptr;
    if (bias && bias->shape.rank() == 1 && bias->initializer && bias->shape[0] == (turned ? b.shape[0] : b.shape[1]))
      return im.out(node, 0, linear(im, node, a, b, turned, bias));
    Value y = linear(im, node, a, b, turned, nullptr);
    if (added) y = im.emit(OpKind::add, {y.id, im.tensor(*bias)}, broadcast_shapes(node, y.shape, bias->shape));
    return im.out(node, 0, y);
  }
  if (turned) b = im.permute(node, b, {1, 0});
  Value y = product(im, node, a, b);
  if (added) y = im.emit(OpKind::add, {y.id, im.tensor(im.in(node, 2))}, broadcast_shapes(node, y.shape, im.in(node, 2).shape));
  im.out(node, 0, y);
}

// Two operands: axes in both and in the result are batches, in both only are summed over.
void einsum(Importer& im, const Node& node) {
  std::string equation = node.text("equation", "");
  std::erase(equation, ' ');
  const std::size_t arrow = equation.find("->"), comma = equation.find(',');
  if (node.inputs.size() != 2 || arrow == std::string::npos || comma == std::string::npos || comma > arrow ||
      equation.find("...") != std::string::npos)
    throw OnnxError(fmt::format("{}: only products of two operands with named axes are read, not \"{}\"", node.label(),
                                equation.substr(0, 60)));
  const Value a = im.in(node, 0), b = im.in(node, 1);
  const std::string left = equation.substr(0, comma), right = equation.substr(comma + 1, arrow - comma - 1),
                    result = equation.substr(arrow + 2);
  std::map<char, std::int64_t> extent;
  auto bind = [&](const std::string& names, const Shape& shape) {
    if (static_cast<int>(names.size()) != shape.rank())
      throw OnnxError(fmt::format("{}: \"{}\" for {}", node.label(), names, to_text(shape)));
    for (std::size_t i = 0; i < names.size(); ++i) {
      const auto [at, fresh] = extent.emplace(names[i], shape[static_cast<int>(i)]);
      if (!fresh && at->second != shape[static_cast<int>(i)])
        throw OnnxError(fmt::format("{}: axis '{}' has two extents", node.label(), names[i]));
    }
  };
  bind(left, a.shape);
  bind(right, b.shape);
  GemmAttributes gemm{1, 1, 1, 1};
  for (auto [name, size] : extent) {
    const bool l = left.find(name) != std::string::npos, r = right.find(name) != std::string::npos,
               o = result.find(name) != std::string::npos;
    (l && r ? (o ? gemm.batch : gemm.k) : l ? gemm.m : gemm.n) *= size;
  }
  std::vector<std::int64_t> shape;
  for (char name : result) {
    if (!extent.contains(name)) throw OnnxError(fmt::format("{}: axis '{}' is in no operand", node.label(), name));
    shape.push_back(extent[name]);
  }
  im.out(node, 0, im.emit(OpKind::matmul, {im.tensor(a), im.tensor(b)}, checked_shape(node, shape), gemm));
}

// Exporters fold a batch norm into the convolution before it, training mode or not. Its weights give it away: torch.export's
// optimizer (onnxscript, rewriter/rules/common/_fuse_batchnorm.py) calls the new bias "<weight>_bias", TorchScript's folding
// leaves two initializers without a module's name, "onnx::Conv_123".
bool folded_norm(const Value& weight, const Value& bias) {
  return bias.name == weight.name + "_bias" || (weight.name.starts_with("onnx::Conv_") && bias.name.starts_with("onnx::Conv_"));
}

void convolution(Importer& im, const Node& node) {
  const Value x = im.in(node, 0), weight = im.in(node, 1);
  const bool transposed = node.op == "ConvTranspose";
  const int axes = x.shape.rank() - 2;
  if (axes < 1 || axes > 3 || weight.shape.rank() != x.shape.rank())
    throw OnnxError(fmt::format("{}: {} with a weight {}; one to three image axes are read", node.label(), to_text(x.shape),
                                to_text(weight.shape)));
  ConvAttributes conv;
  conv.axes = axes;
  conv.groups = node.integer("group", 1);
  conv.transposed = transposed;
  const auto strides = node.integers("strides"), pads = node.integers("pads"), dilations = node.integers("dilations"),
             grows = node.integers("output_padding");
  const std::string automatic = node.text("auto_pad", "NOTSET");
  auto pick = [](const std::vector<std::int64_t>& from, int i, std::int64_t otherwise) {
    return static_cast<std::size_t>(i) < from.size() ? from[static_cast<std::size_t>(i)] : otherwise;
  };
  const std::int64_t channels = transposed ? weight.shape[0] : weight.shape[1] * conv.groups;
  if (conv.groups < 1 || conv.groups > channels || channels % conv.groups != 0 || x.shape[1] != channels)
    throw OnnxError(
        fmt::format("{}: {} channels in {} groups meet a weight {}", node.label(), x.shape[1], conv.groups, to_text(weight.shape)));
  std::vector<std::int64_t> shape = {x.shape[0], transposed ? weight.shape[1] * conv.groups : weight.shape[0]};
  for (int i = 0; i < axes; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const std::int64_t size = x.shape[i + 2], kernel = weight.shape[i + 2];
    conv.kernel[at] = kernel;
    conv.stride[at] = pick(strides, i, 1);
    conv.dilation[at] = pick(dilations, i, 1);
    std::int64_t before = pick(pads, i, 0), after = pick(pads, i + axes, 0);
    constexpr std::int64_t kLimit = std::int64_t{1} << 24;
    for (std::int64_t setting : {kernel, conv.stride[at], conv.dilation[at], before + 1, after + 1})
      if (setting < 1 || setting > kLimit)
        throw OnnxError(fmt::format("{}: a setting of {} is out of range", node.label(), setting));
    const std::int64_t span = conv.dilation[at] * (kernel - 1) + 1;
    if (automatic.starts_with("SAME")) {
      const std::int64_t need = std::max<std::int64_t>(0, ((size - 1) / conv.stride[at]) * conv.stride[at] + span - size);
      before = need / 2;
      after = need - before;
    }
    conv.padding[at] = before;
    const std::int64_t extent = transposed ? (size - 1) * conv.stride[at] - before - after + span + pick(grows, i, 0)
                                : size + before + after < span ? 0
                                                               : (size + before + after - span) / conv.stride[at] + 1;
    if (extent < 1) throw OnnxError(fmt::format("{}: an image of {} is smaller than the kernel", node.label(), to_text(x.shape)));
    shape.push_back(extent);
  }
  std::vector<TensorId> inputs = {im.tensor(x), im.tensor(weight)};
  if (im.has(node, 2) && folded_norm(weight, im.in(node, 2))) {
    const Value y = im.emit(OpKind::conv2d, inputs, checked_shape(node, shape), conv);
    const std::string name = weight.name + ".batch_norm";
    const Shape per_channel{shape[1]};
    im.note("the exporter folded batch normalisations into the convolutions before them: they are put back, as in training");
    return im.out(node, 0,
                  batch_normalised(im, y, im.parameter(name + ".weight", per_channel), im.parameter(name + ".bias", per_channel),
                                   im.buffer(name + ".running_mean", per_channel, DType::model),
                                   im.buffer(name + ".running_var", per_channel, DType::model), name));
  }
  if (im.has(node, 2)) inputs.push_back(im.tensor(im.in(node, 2)));
  im.out(node, 0, im.emit(OpKind::conv2d, inputs, checked_shape(node, shape), conv));
}

// Fused kernels answer in their query's memory order, packed (empty_like).
Strides like_query(const Value& q, const Shape& shape) {
  std::vector<int> order = {0, 1, 2, 3};
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return q.strides[static_cast<std::size_t>(a)] > q.strides[static_cast<std::size_t>(b)]; });
  Strides out{};
  std::int64_t step = 1;
  for (std::size_t i = order.size(); i-- > 0;) {
    out[static_cast<std::size_t>(order[i])] = step;
    step *= shape[order[i]];
  }
  return out;
}

Value attend(Importer& im, const Node& node, Value q, Value k, Value v, const Value* mask, bool causal, double dropout) {
  const bool flat = q.shape.rank() == 3;
  auto spread = [&](Value& x) { x = im.reshape(node, x, Shape{x.shape[0], 1, x.shape[1], x.shape[2]}); };
  if (flat && k.shape.rank() == 3 && v.shape.rank() == 3) spread(q), spread(k), spread(v);
  if (q.shape.rank() != 4 || k.shape.rank() != 4 || v.shape.rank() != 4 || q.shape[3] != k.shape[3] || k.shape[2] != v.shape[2] ||
      k.shape[1] != v.shape[1] || q.shape[0] != k.shape[0] || q.shape[0] != v.shape[0] || k.shape[1] < 1 ||
      q.shape[1] % k.shape[1] != 0)
    throw OnnxError(
        fmt::format("{}: attention of {}, {} and {}", node.label(), to_text(q.shape), to_text(k.shape), to_text(v.shape)));
  AttentionAttributes a{.batch = q.shape[0],
                        .heads = q.shape[1],
                        .kv_heads = k.shape[1],
                        .q_len = q.shape[2],
                        .kv_len = k.shape[2],
                        .head_dim = q.shape[3],
                        .value_dim = v.shape[3],
                        .causal = causal,
                        .mask = mask != nullptr,
                        .dropout = dropout > 0};
  auto scattered = [](const Value& x) { return x.shape[0] > 1 && x.shape[1] > 1 && x.strides[0] != x.strides[1] * x.shape[1]; };
  a.scattered = {scattered(q), scattered(k), scattered(v)};
  if (mask && mask->shape.rank() > 0 && mask->shape[-1] > 1)
    a.mask_scattered = mask->strides[static_cast<std::size_t>(mask->shape.rank() - 1)] != 1;
  std::vector<TensorId> inputs = {im.tensor(q), im.tensor(k), im.tensor(v)};
  if (mask) inputs.push_back(im.tensor(*mask));
  const Shape shape{a.batch, a.heads, a.q_len, a.value_dim};
  const std::vector<TensorId> outputs = {im.make(shape, DType::model, inputs),
                                         im.make(Shape{a.batch, a.heads, a.q_len}, DType::fp32, {})};
  im.emit_to(OpKind::scaled_dot_product_attention, inputs, outputs, a);
  Value y = im.wrap(outputs[0]);
  y.strides = like_query(q, shape);
  return flat ? im.reshape(node, y, Shape{a.batch, a.q_len, a.value_dim}) : y;
}

// What the patterns put together again: q, k (turned by "k_perm" where the exporter had merged two turns), v, mask.
void joined_attention(Importer& im, const Node& node) {
  Value k = im.in(node, 1);
  if (const auto order = node.integers("k_perm"); !order.empty()) {
    std::vector<int> axes;
    for (std::int64_t axis : order) axes.push_back(axis_of(node, axis, k.shape.rank()));
    k = im.permute(node, k, axes);
  }
  std::optional<Value> mask;
  for (std::size_t i = 3; i < node.inputs.size(); ++i) {
    const Value& next = im.in(node, i);
    mask = mask ? im.emit(OpKind::add, {im.tensor(*mask), im.tensor(next)}, broadcast_shapes(node, mask->shape, next.shape)) : next;
  }
  im.out(node, 0,
         attend(im, node, im.in(node, 0), k, im.in(node, 2), mask ? &*mask : nullptr, node.integer("causal", 0) != 0,
                node.real("dropout", 0)));
}

// ONNX's own (version 23): operands [batch, heads, length, width], or [batch, length, heads * width].
void attention(Importer& im, const Node& node) {
  Value x[3] = {im.in(node, 0), im.in(node, 1), im.in(node, 2)};
  const bool packed = x[0].shape.rank() == 3;
  if (packed)
    for (int i = 0; i < 3; ++i) {
      const std::int64_t heads = node.integer(i == 0 ? "q_num_heads" : "kv_num_heads", 0);
      if (heads < 1 || x[i].shape.rank() != 3 || x[i].shape[2] % heads != 0)
        throw OnnxError(fmt::format("{}: the number of heads does not divide the width", node.label()));
      x[i] =
          im.permute(node, im.reshape(node, x[i], Shape{x[i].shape[0], x[i].shape[1], heads, x[i].shape[2] / heads}), {0, 2, 1, 3});
    }
  const Value* mask = im.has(node, 3) ? &im.in(node, 3) : nullptr;
  Value y = attend(im, node, x[0], x[1], x[2], mask, node.integer("is_causal", 0) != 0, 0);
  if (packed) y = im.reshape(node, im.permute(node, y, {0, 2, 1, 3}), Shape{y.shape[0], y.shape[2], y.shape[1] * y.shape[3]});
  im.out(node, 0, y);
}

// LSTM, GRU and RNN: x[steps, batch, in], weights W[directions, gates * hidden, in], R[.., hidden], B.
void recurrent(Importer& im, const Node& node) {
  const Value x = im.in(node, 0), w = im.in(node, 1), r = im.in(node, 2);
  if (x.shape.rank() != 3 || w.shape.rank() != 3 || r.shape.rank() != 3 || r.shape[2] < 1 || w.shape[1] % r.shape[2] != 0)
    throw OnnxError(fmt::format("{}: operands {}, {}, {}", node.label(), to_text(x.shape), to_text(w.shape), to_text(r.shape)));
  const bool batch_first = node.integer("layout", 0) != 0;
  RnnAttributes a{.batch = x.shape[batch_first ? 0 : 1],
                  .steps = x.shape[batch_first ? 1 : 0],
                  .input = x.shape[2],
                  .hidden = r.shape[2],
                  .layers = 1,
                  .directions = w.shape[0],
                  .gates = static_cast<int>(w.shape[1] / r.shape[2])};
  std::vector<TensorId> inputs = {im.tensor(x), im.tensor(w), im.tensor(r)};
  if (im.has(node, 3)) inputs.push_back(im.tensor(im.in(node, 3)));
  const Shape y = batch_first ? Shape{a.batch, a.steps, a.directions, a.hidden} : Shape{a.steps, a.directions, a.batch, a.hidden};
  const Shape state = batch_first ? Shape{a.batch, a.directions, a.hidden} : Shape{a.directions, a.batch, a.hidden};
  checked_shape(node, std::vector<std::int64_t>{a.steps, a.batch, a.directions, (a.gates + 4) * a.hidden});  // that the next line does not overflow
  const Shape reserve = {reserve_elements(a)};
  const std::vector<TensorId> outputs = {im.make(y, DType::model, inputs), im.make(state, DType::model, inputs),
                                         im.make(state, DType::model, inputs), im.make(reserve, DType::model, {})};
  im.emit_to(OpKind::rnn, inputs, outputs, a);
  for (std::size_t i = 0; i < 3; ++i) im.out(node, i, im.wrap(outputs[i]));
}

}  // namespace

const Handlers& matrix_handlers() {
  static const Handlers kAll = {{"MatMul", matmul},
                                {"Gemm", gemm},
                                {"Einsum", einsum},
                                {"Conv", convolution},
                                {"ConvTranspose", convolution},
                                {"Attention", attention},
                                {"LSTM", recurrent},
                                {"GRU", recurrent},
                                {"RNN", recurrent},
                                {"precog.Linear", linear_with_bias},
                                {"precog.Attention", joined_attention}};
  return kAll;
}

}  // namespace precog::onnx
