// Lines of products, convolutions, attention and recurrent layers.
#include "calibrate/operator_line.h"

#include <algorithm>

namespace precog {
namespace {

void product(const Line& line, const std::string& op, Calls& calls) {
  if (op.find("sustained") != std::string::npos) throw Unusable{"ran long enough to lower the clock: not for costs of single kernels"};
  const std::int64_t b = line.extent("b", 1), m = line.extent("m"), n = line.extent("n"), k = line.extent("k");
  GemmAttributes attributes{.batch = b, .m = m, .n = n, .k = k};
  const auto made = [&](std::int64_t rows, std::int64_t columns) { return b > 1 ? calls.tensor({b, rows, columns}) : calls.tensor({rows, columns}); };
  if (op.starts_with("bmm")) {
    // The named layout is how each operand lies, (m,k) and (k,n) being "nn".
    const TensorId x = op == "bmm tn" ? calls.view(made(k, m), b > 1 ? Shape{b, m, k} : Shape{m, k}, ViewKind::transpose) : made(m, k);
    const TensorId w = op == "bmm nt" ? calls.view(made(n, k), b > 1 ? Shape{b, k, n} : Shape{k, n}, ViewKind::transpose) : made(k, n);
    calls.add(OpKind::matmul, {x, w}, {made(m, n)}, attributes);
  } else if (op.starts_with("nt") || op == "plain") {
    if (op.find("relu") != std::string::npos || op.find("gelu") != std::string::npos) throw Unusable{"has an activation in its epilogue, which PyTorch's layers do not use"};
    attributes.bias = op == "nt+bias";
    std::vector<TensorId> inputs{made(m, k), made(n, k)};
    if (attributes.bias) inputs.push_back(calls.tensor({n}));
    calls.add(OpKind::linear, inputs, {made(m, n)}, attributes);
  } else if (op == "nn" || op == "nn+bias") {
    calls.add(OpKind::mm, {made(m, k), made(k, n)}, {made(m, n)}, attributes).phase = Phase::backward;
  } else if (op == "tn") {
    attributes.transposed_a = true;
    calls.add(OpKind::mm, {made(m, k), made(k, n)}, {made(m, n)}, attributes).phase = Phase::backward;
  } else throw Unusable{"is no product that is known; like: nt, nn, tn, nt+bias, bmm nt"};
}

void scaled_product(const Line& line, const std::string& op, Calls& calls) {
  if (op == "plain") return product(line, op, calls);
  const std::int64_t m = line.extent("m"), n = line.extent("n"), k = line.extent("k");
  const auto scale = [&](std::int64_t count) { return calls.tensor({count}, DType::fp32); };
  const bool blocks = op.starts_with("block");
  Op& made = calls.add(OpKind::scaled_mm, {calls.tensor({m, k}, DType::fp8), calls.tensor({k, n}, DType::fp8), scale(blocks ? m * k / 128 : op.starts_with("row") ? m : 1), scale(1)},
                       {calls.tensor({m, n}, DType::bf16)}, GemmAttributes{.m = m, .n = n, .k = k});
  if (blocks) made.math = DType::fp8_block;
  if (!op.ends_with("fast")) made.phase = Phase::backward;
}

// Of one to three axes. Padding is half the filter, and none for filters of 16 (patches), unless the line says.
void convolution(const Line& line, const std::string& op, Calls& calls) {
  const std::string family = line.text("family");
  const std::int64_t batch = line.extent("batch"), in = line.extent("cin"), out = line.extent("cout"), groups = line.extent("groups"), dilation = line.extent("dilation", 1);
  ConvAttributes a;
  a.axes = family == "conv1d" ? 1 : family == "conv3d" ? 3 : static_cast<int>(std::min<std::int64_t>(3, line.extent("dims", 2)));
  a.groups = groups;
  a.transposed = family == "conv_transpose";
  const auto axes = static_cast<std::size_t>(a.axes);
  const auto kernel = line.each("kernel", axes), stride = line.each("stride", axes), size = line.each("size", axes);
  std::vector<std::int64_t> padding, result;
  if (line.has("padding")) padding = line.each("padding", axes);
  else for (std::int64_t filter : kernel) padding.push_back(filter == 16 ? 0 : filter / 2);
  for (std::size_t i = 0; i < axes; ++i) {
    a.kernel[i] = kernel[i], a.stride[i] = stride[i], a.padding[i] = padding[i], a.dilation[i] = dilation;
    if (kernel[i] < 1 || stride[i] < 1 || size[i] < 1) throw Unusable{"filter, stride and size must be at least 1"};
    const std::int64_t reach = dilation * (kernel[i] - 1) + 1;
    result.push_back(a.transposed ? (size[i] - 1) * stride[i] - 2 * padding[i] + reach : (size[i] + 2 * padding[i] - reach) / stride[i] + 1);
    if (result[i] < 1 || in % groups != 0 || out % groups != 0) throw Unusable{"is no convolution: filter, image and groups do not fit together"};
  }
  const auto image = [&](std::int64_t channels, const std::vector<std::int64_t>& sides) {
    Shape shape{batch, channels};
    for (std::int64_t side : sides) shape.push_back(side);
    return calls.tensor(shape);
  };
  const auto weight = [&] {
    Shape shape = a.transposed ? Shape{in, out / groups} : Shape{out, in / groups};
    for (std::int64_t filter : kernel) shape.push_back(filter);
    return calls.tensor(shape);
  };
  const TensorId x = image(in, size), w = weight(), y = image(out, result);
  if (op == "forward") calls.add(OpKind::conv2d, {x, w}, {y}, a);
  else if (op == "dgrad") calls.add(OpKind::conv2d_backward, {y, x, w}, {image(in, size)}, a).phase = Phase::backward;
  else if (op == "wgrad") calls.add(OpKind::conv2d_backward, {y, x, w}, {weight()}, a).phase = Phase::backward;
  else throw Unusable{"must be forward, dgrad or wgrad"};
}

void attention(const Line& line, const std::string& op, Calls& calls) {
  const std::size_t space = op.find(' ');
  const std::string backend = op.substr(0, space), direction = space == std::string::npos ? "" : op.substr(space + 1);
  AttentionAttributes a;
  a.batch = line.extent("b"), a.heads = line.extent("heads"), a.kv_heads = line.extent("kv_heads", a.heads);
  a.q_len = line.extent("seq"), a.kv_len = line.extent("kv_seq", a.q_len), a.head_dim = a.value_dim = line.extent("dim");
  a.causal = line.flag("causal");
  if (backend == "flash") a.backend = AttentionBackend::flash;
  else if (backend == "cudnn") a.backend = AttentionBackend::cudnn;
  else if (backend == "efficient") a.backend = AttentionBackend::memory_efficient;
  else if (backend == "math") throw Unusable{"the math path is products and a softmax, each with a cost of its own"};
  else throw Unusable{"is no attention that is known; like: flash forward, cudnn backward, efficient forward"};
  a.dropout = line.flag("dropout");
  a.mask = line.has("mask");
  const TensorId q = calls.tensor({a.batch, a.heads, a.q_len, a.head_dim}), k = calls.tensor({a.batch, a.kv_heads, a.kv_len, a.head_dim}),
                 v = calls.tensor({a.batch, a.kv_heads, a.kv_len, a.value_dim}), y = calls.tensor({a.batch, a.heads, a.q_len, a.value_dim}),
                 sums = calls.tensor({a.batch, a.heads, a.q_len}, DType::fp32);
  if (direction == "forward") {
    std::vector<TensorId> inputs{q, k, v};
    if (a.mask) inputs.push_back(calls.tensor({a.batch, 1, a.q_len, a.kv_len}, line.text("mask") == "bool" ? DType::boolean : calls.stored()));
    calls.add(OpKind::scaled_dot_product_attention, inputs, {y, sums}, a);
  } else if (direction == "backward") {
    const auto like = [&](TensorId id) { return calls.tensor(calls.graph().tensors[id].shape); };
    // Flash kernels' backward takes the result and its gradient with the heads inside the sequence, as a model's projections have
    // them ("lies": "bshd"); both lie as the query does, and PyTorch copies them first where that is otherwise.
    if (a.backend == AttentionBackend::flash && !line.has("lies")) {
      const Shape inside{a.batch, a.q_len, a.heads, a.value_dim}, outside{a.heads * a.q_len * a.value_dim, a.value_dim, a.q_len * a.value_dim, 1};
      for (int copies = 0; copies < 2; ++copies) {
        Op& copy = calls.add(OpKind::contiguous, {calls.laid(inside, outside, calls.stored())}, {calls.tensor(inside)});
        copy.phase = Phase::backward, copy.strided = true;
      }
    }
    calls.add(OpKind::attention_backward, {like(y), q, k, v, y, sums}, {like(q), like(k), like(v)}, a).phase = Phase::backward;
  } else throw Unusable{"must be forward or backward"};
}

void recurrent(const Line& line, const std::string& op, Calls& calls) {
  RnnAttributes a{.batch = line.extent("batch"), .steps = line.extent("steps"), .input = line.extent("width"), .hidden = line.extent("hidden"), .layers = line.extent("layers")};
  a.directions = line.text("family") == "recurrent_bidirectional" ? 2 : 1;
  a.gates = op.starts_with("lstm") ? 4 : op.starts_with("gru") ? 3 : 1;
  a.batch_first = line.flag("batch_first");
  const Shape x = a.batch_first ? Shape{a.batch, a.steps, a.input} : Shape{a.steps, a.batch, a.input};
  const Shape y = a.batch_first ? Shape{a.batch, a.steps, a.hidden * a.directions} : Shape{a.steps, a.batch, a.hidden * a.directions};
  if (op.ends_with(" forward")) calls.add(OpKind::rnn, {calls.tensor(x)}, {calls.tensor(y)}, a);
  else if (op.ends_with(" backward")) calls.add(OpKind::rnn_backward, {calls.tensor(y), calls.tensor(y), calls.tensor({1}), calls.tensor(x)}, {calls.tensor(x)}, a).phase = Phase::backward;
  else throw Unusable{"must be forward or backward"};
}

constexpr LineFamily kComputeLines[] = {{"gemm", product}, {"ragged", product}, {"scaled_mm", scaled_product}, {"sdpa", attention}, {"sdpa_gqa", attention}, {"sdpa_cross", attention},
                                  {"sdpa_mask", attention}, {"conv", convolution}, {"depthwise", convolution}, {"grouped", convolution}, {"conv1d", convolution},
                                  {"conv3d", convolution}, {"conv_dilated", convolution}, {"conv_transpose", convolution}, {"recurrent", recurrent},
                                  {"recurrent_bidirectional", recurrent}};

}  // namespace

std::span<const LineFamily> compute_lines() { return kComputeLines; }

}  // namespace precog
