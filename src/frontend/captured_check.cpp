#include "frontend/captured_check.h"

#include <algorithm>

#include <fmt/format.h>

#include "graph/operator.h"
#include "graph/recurrent_space.h"

namespace precog::captured {
namespace {

constexpr std::int64_t kMostSettings = std::int64_t{1} << 50;

// The product, or nothing above 2^50.
std::optional<std::int64_t> product(std::initializer_list<std::int64_t> factors) {
  std::int64_t out = 1;
  for (std::int64_t factor : factors)
    if (factor < 0 || __builtin_mul_overflow(out, factor, &out) || out > kMostSettings) return std::nullopt;
  return out;
}

std::string sizes(const std::vector<Extent>& extents, const Symbols& symbols, std::vector<std::int64_t>& out) {
  for (const Extent& extent : extents) {
    const auto value = evaluate(extent, symbols, kMostSettings);
    if (!value) return "a setting is negative or above 2^50 at these sizes";
    out.push_back(*value);
  }
  return "";
}

std::string gemm_of(const Call& call, const Symbols& symbols, std::span<const Shape> in, Attributes& attributes) {
  std::vector<std::int64_t> values;
  if (call.settings.gemm.size() != 4) return "wants attrs.gemm: [batch, m, n, k]";
  if (std::string problem = sizes(call.settings.gemm, symbols, values); !problem.empty()) return problem;
  GemmAttributes gemm{values[0], values[1], values[2], values[3]};
  if (call.kind == OpKind::grouped_linear) {  // rows are given for all groups together
    gemm.batch = std::clamp<std::int64_t>(values[0], 1, std::max<std::int64_t>(1, values[1]));
    gemm.m = (values[1] + gemm.batch - 1) / gemm.batch;
  }
  gemm.bias = in.size() > 2 && call.kind != OpKind::grouped_linear;
  gemm.transposed_a = call.settings.transposed_a;
  attributes = gemm;
  return "";
}

std::string conv_of(const Call& call, const Symbols& symbols, Attributes& attributes) {
  const Settings& s = call.settings;
  if (s.kernel.empty() || s.kernel.size() > 3) return "wants attrs.kernel: one number for each of one to three image axes";
  ConvAttributes conv;
  conv.axes = static_cast<int>(s.kernel.size());
  conv.transposed = s.transposed;
  const struct { const std::vector<Extent>& from; std::array<std::int64_t, 3>& to; std::int64_t least; const char* name; } lists[] = {
      {s.kernel, conv.kernel, 1, "kernel"}, {s.stride, conv.stride, 1, "stride"}, {s.padding, conv.padding, 0, "padding"},
      {s.dilation, conv.dilation, 1, "dilation"}};
  for (const auto& list : lists) {
    std::vector<std::int64_t> values;
    if (list.from.empty()) continue;
    if (list.from.size() != s.kernel.size()) return fmt::format("attrs.{} wants as many numbers as attrs.kernel", list.name);
    if (std::string problem = sizes(list.from, symbols, values); !problem.empty()) return problem;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (values[i] < list.least || values[i] > 1 << 20) return fmt::format("attrs.{} is {}; it must be from {} to 2^20", list.name, values[i], list.least);
      list.to[i] = values[i];
    }
  }
  if (s.groups) {
    const auto groups = evaluate(*s.groups, symbols, 1 << 24);
    if (!groups || *groups < 1) return "attrs.groups must be from 1 to 2^24";
    conv.groups = *groups;
  }
  attributes = conv;
  return "";
}

// A window, as the last axis has it; without one the reader goes by how much the image shrinks.
std::string pool_of(const Call& call, const Symbols& symbols, Attributes& attributes) {
  const Settings& s = call.settings;
  if (s.kernel.empty()) return s.stride.empty() && s.padding.empty() ? "" : "wants attrs.kernel: one number for each image axis";
  PoolAttributes pool;
  const struct { const std::vector<Extent>& from; std::int64_t& to; std::int64_t least; const char* name; } lists[] = {
      {s.kernel, pool.kernel, 1, "kernel"}, {s.stride, pool.stride, 1, "stride"}, {s.padding, pool.padding, 0, "padding"}};
  for (const auto& list : lists) {
    std::vector<std::int64_t> values;
    if (list.from.size() != s.kernel.size()) return fmt::format("attrs.{} wants as many numbers as attrs.kernel", list.name);
    if (std::string problem = sizes(list.from, symbols, values); !problem.empty()) return problem;
    for (std::int64_t value : values)
      if (value < list.least || value > 1 << 20) return fmt::format("attrs.{} is {}; it must be from {} to 2^20", list.name, value, list.least);
    list.to = values.back();
  }
  attributes = pool;
  return "";
}

// [.., heads, length, width]: with fewer axes there is one head, and one batch.
struct Heads {
  std::int64_t batch = 1, heads = 1, length = 1, width = 1;
  explicit Heads(const Shape& shape) : length(shape[-2]), width(shape[-1]) {
    if (shape.rank() > 3) heads = shape[-3];
    for (int axis = 0; axis < shape.rank() - (shape.rank() > 3 ? 3 : 2); ++axis) batch *= shape[axis];
  }
};

std::string attention_of(const Call& call, const OperandView& shapes, Attributes& attributes) {
  if (shapes.in.size() < 3 || shapes.in.size() > 4 || shapes.out.empty()) return "wants three operands (query, key, value) or four (a mask) and a result";
  for (std::size_t i = 0; i < 3; ++i)
    if (shapes.in[i].rank() < 2) return "wants operands [.., length, width]";
  const Heads q(shapes.in[0]), k(shapes.in[1]), v(shapes.in[2]);
  if (k.length != v.length || q.width != k.width || q.batch != k.batch || k.batch != v.batch || k.heads != v.heads || k.heads < 1 ||
      q.heads % k.heads != 0)
    return fmt::format("has operands that do not fit: {}, {}, {}", to_text(shapes.in[0]), to_text(shapes.in[1]), to_text(shapes.in[2]));
  if (!product({q.batch, q.heads, q.length, k.length}) || !product({q.batch, q.heads, k.length, q.width + v.width, 2}) ||
      !product({q.batch, q.heads, q.length, std::max(q.width, v.width), 4}))
    return "has more than 2^50 scores";
  attributes = AttentionAttributes{.batch = q.batch, .heads = q.heads, .kv_heads = k.heads, .q_len = q.length, .kv_len = k.length,
                                   .head_dim = q.width, .value_dim = v.width, .causal = call.settings.causal,
                                   .mask = shapes.in.size() > 3, .dropout = call.settings.probability > 0,
                                   .broadcast = k.heads == 1 && q.heads > 1 && !call.settings.gqa,
                                   .scattered = call.settings.scattered, .mask_scattered = call.settings.mask_scattered};
  return "";
}

std::string rnn_of(const Call& call, const OperandView& shapes, Attributes& attributes) {
  const Settings& s = call.settings;
  if (shapes.in.empty() || shapes.in[0].rank() < 2 || shapes.in[0].rank() > 3) return "wants its first operand to be [steps, batch, width]";
  if (s.hidden < 1) return "wants attrs.hidden";
  const Shape& x = shapes.in[0];
  RnnAttributes rnn{.input = x[-1], .hidden = s.hidden, .layers = s.layers, .directions = s.directions};
  rnn.gates = call.name == "lstm" ? 4 : call.name == "gru" ? 3 : 1;
  rnn.steps = x.rank() == 2 || !s.batch_first ? x[0] : x[1];
  rnn.batch = x.rank() == 2 ? 1 : s.batch_first ? x[0] : x[1];
  rnn.batch_first = x.rank() == 3 && s.batch_first;
  if (rnn.steps > 1 << 20) return "has more than 2^20 time steps";
  const std::int64_t width = std::max(rnn.input, rnn.hidden * rnn.directions);
  if (!product({rnn.batch, std::max<std::int64_t>(1, rnn.steps), rnn.gates + 4, rnn.hidden, rnn.layers, rnn.directions, 8}) ||
      !product({width, rnn.gates, rnn.hidden, 8}) || !product({rnn.batch, std::max<std::int64_t>(1, rnn.steps), width, 8}))
    return "is too large at these sizes";
  attributes = rnn;
  return "";
}

std::string norm_of(const Call& call, const OperandView& shapes, const Symbols& symbols, Attributes& attributes) {
  const Settings& s = call.settings;
  NormAttributes norm;
  norm.training = s.training;
  if (s.width) {
    const auto width = evaluate(*s.width, symbols, kMostSettings);
    if (!width || *width < 1) return "attrs.width must be at least 1";
    norm.width = *width;
  } else if (!shapes.in.empty() && shapes.in[0].rank() > 0) {
    norm.width = std::max<std::int64_t>(1, shapes.in[0][-1]);
  }
  if (s.groups) {
    const auto groups = evaluate(*s.groups, symbols, 1 << 24);
    if (!groups || *groups < 1) return "attrs.groups must be from 1 to 2^24";
    norm.groups = *groups;
  }
  if (call.kind == OpKind::group_norm && norm.groups < 1) return "wants attrs.groups";
  attributes = norm;
  return "";
}

std::string at_least(const OperandView& shapes, std::size_t in, std::size_t out) {
  if (shapes.in.size() >= in && shapes.out.size() >= out) return "";
  return fmt::format("has {} operands and {} results; it wants at least {} and {}", shapes.in.size(), shapes.out.size(), in, out);
}

std::string check_gemm(OpKind kind, const GemmAttributes& a, const OperandView& shapes) {
  if (std::string problem = at_least(shapes, 2, 1); !problem.empty()) return problem;
  if (!product({a.batch, a.m, a.n}) || !product({a.batch, a.m, a.k}) || !product({a.batch, a.k, a.n}))
    return "attrs.gemm is a product of matrices of more than 2^50 elements";
  if (a.batch > 1 << 30) return "attrs.gemm has more than 2^30 products";
  const bool grouped = kind == OpKind::grouped_linear || kind == OpKind::grouped_mm;
  const std::int64_t elements = shapes.out[0].elements();
  if (!grouped && elements != a.batch * a.m * a.n)
    return fmt::format("attrs.gemm makes {} x {} x {} elements, but the result is {}", a.batch, a.m, a.n, to_text(shapes.out[0]));
  if (kind == OpKind::linear && (a.batch != 1 || shapes.in[0].elements() != a.m * a.k || shapes.in[1].elements() != a.n * a.k))
    return fmt::format("attrs.gemm [{}, {}, {}, {}] does not fit the operands {} and {}", a.batch, a.m, a.n, a.k, to_text(shapes.in[0]), to_text(shapes.in[1]));
  return "";
}

std::string check_conv(const ConvAttributes& a, const OperandView& shapes) {
  if (std::string problem = at_least(shapes, 2, 1); !problem.empty()) return problem;
  const Shape &x = shapes.in[0], &w = shapes.in[1], &y = shapes.out[0];
  bool fits = x.rank() == a.axes + 2 && w.rank() == a.axes + 2 && y.rank() == a.axes + 2 && x[0] == y[0];
  if (fits) {
    const Shape &many = a.transposed ? y : x, &few = a.transposed ? x : y;  // the weight is [few's, many's per group, ...]
    fits = few[1] == w[0] && w[1] <= kMostSettings / a.groups && many[1] == w[1] * a.groups;
    for (int axis = 0; axis < a.axes; ++axis) fits = fits && w[axis + 2] == a.kernel[static_cast<std::size_t>(axis)];
  }
  if (fits) return "";
  return fmt::format("the image {}, the weight {}, the result {} and attrs.kernel and attrs.groups ({}) do not fit", to_text(x), to_text(w), to_text(y), a.groups);
}

std::string check_norm(OpKind kind, const NormAttributes& a, const OperandView& shapes) {
  if (std::string problem = at_least(shapes, 1, 1); !problem.empty()) return problem;
  const Shape& x = shapes.in[0];
  if (shapes.out[0].elements() != x.elements()) return "the result has as many elements as the operand";
  const bool rows = kind == OpKind::layer_norm || kind == OpKind::rms_norm;
  if (rows ? x.rank() < 1 : x.rank() < 2) return fmt::format("cannot normalise a tensor of shape {}", to_text(x));
  if (rows && x.elements() % std::max<std::int64_t>(1, a.width) != 0) return fmt::format("attrs.width {} does not divide {}", a.width, to_text(x));
  if (kind == OpKind::group_norm && x[1] % a.groups != 0) return fmt::format("attrs.groups {} does not divide {} channels", a.groups, x[1]);
  const std::int64_t parameters = rows ? a.width : x[1];
  for (std::size_t i = 1; i < shapes.in.size(); ++i)
    if (shapes.in[i].elements() != parameters) return fmt::format("weights and statistics have {} elements, not {}", parameters, to_text(shapes.in[i]));
  return "";
}

// Our own gradients of pointwise operators hand out tensors of the result's size.
std::string check_elements(const OperandView& shapes, bool equal) {
  for (const Shape& shape : shapes.in)
    if (equal ? shape.elements() != shapes.out[0].elements() : shape.elements() > shapes.out[0].elements())
      return fmt::format("the operand {} does not fit the result {}", to_text(shape), to_text(shapes.out[0]));
  return "";
}

}  // namespace

std::string attributes_of(const Call& call, const OperandView& shapes, const Symbols& symbols, Attributes& attributes) {
  switch (call.kind) {
    case OpKind::linear:
    case OpKind::matmul:
    case OpKind::mm:
    case OpKind::bmm:
    case OpKind::grouped_linear:
    case OpKind::grouped_mm: return gemm_of(call, symbols, shapes.in, attributes);
    case OpKind::conv2d: return conv_of(call, symbols, attributes);
    case OpKind::max_pool2d:
    case OpKind::max_pool2d_backward:
    case OpKind::pool:
    case OpKind::pool_backward: return pool_of(call, symbols, attributes);
    case OpKind::scaled_dot_product_attention: return attention_of(call, shapes, attributes);
    case OpKind::rnn: return rnn_of(call, shapes, attributes);
    case OpKind::layer_norm:
    case OpKind::rms_norm:
    case OpKind::group_norm:
    case OpKind::batch_norm: return norm_of(call, shapes, symbols, attributes);
    case OpKind::cast:
      attributes = CastAttributes{.to = call.settings.to.value_or(call.out.empty() ? DType::model : call.out[0].type), .door = call.settings.door};
      return call.name == "autocast" && call.settings.door == Autocast::none ? "wants attrs.class: fp32 or lower" : "";
    case OpKind::view: {
      ViewKind kind = call.settings.view.value_or(call.known ? call.known->view : ViewKind::reshape);
      // A kind that the name only suggests follows the sizes; one that the file states is checked below.
      if (!call.settings.view && !shapes.in.empty() && !shapes.out.empty()) {
        const std::int64_t from = shapes.in[0].elements(), to = shapes.out[0].elements();
        if (to < from) kind = ViewKind::slice;
        else if (to > from) kind = ViewKind::expand;
      }
      attributes = ViewAttributes{kind};
      return "";
    }
    case OpKind::contiguous:
      if (call.settings.only != OnlyFor::any) attributes = CopyAttributes{.only = call.settings.only};
      return "";
    default: return "";
  }
}

std::string check_operands(OpKind kind, const Attributes& attributes, const OperandView& shapes) {
  switch (kind) {
    case OpKind::linear:
    case OpKind::matmul:
    case OpKind::mm:
    case OpKind::bmm:
    case OpKind::grouped_linear:
    case OpKind::grouped_mm: return check_gemm(kind, std::get<GemmAttributes>(attributes), shapes);
    case OpKind::conv2d: return check_conv(std::get<ConvAttributes>(attributes), shapes);
    case OpKind::scaled_dot_product_attention: {
      const auto& a = std::get<AttentionAttributes>(attributes);
      if (shapes.out[0].elements() != a.batch * a.heads * a.q_len * a.value_dim) return fmt::format("the result {} does not fit the operands", to_text(shapes.out[0]));
      if (a.mask && shapes.in[3].elements() > a.batch * a.heads * a.q_len * a.kv_len) return "the mask is larger than the scores";
      return "";
    }
    case OpKind::rnn: return at_least(shapes, 2, 1);
    case OpKind::layer_norm:
    case OpKind::rms_norm:
    case OpKind::group_norm:
    case OpKind::batch_norm: return check_norm(kind, std::get<NormAttributes>(attributes), shapes);
    case OpKind::nll_loss:
      if (std::string problem = at_least(shapes, 2, 1); !problem.empty()) return problem;
      return shapes.in[0].rank() < 1 ? "wants log-probabilities of at least one axis" : "";
    case OpKind::softmax:
    case OpKind::log_softmax: {
      if (std::string problem = at_least(shapes, 1, 1); !problem.empty()) return problem;
      return check_elements({shapes.in.first(1), shapes.out}, true);
    }
    case OpKind::embedding:
    case OpKind::index_select:
    case OpKind::layer_norm_backward:
    case OpKind::rms_norm_backward:
    case OpKind::group_norm_backward:
    case OpKind::nll_loss_backward:
    case OpKind::embedding_backward: return at_least(shapes, 2, 1);
    case OpKind::view:
    case OpKind::split: {
      if (std::string problem = at_least(shapes, 1, 1); !problem.empty()) return problem;
      if (kind == OpKind::split) return "";
      const std::int64_t from = shapes.in[0].elements(), to = shapes.out[0].elements();
      const ViewKind view = std::get<ViewAttributes>(attributes).kind;
      const bool fits = view == ViewKind::slice ? true : view == ViewKind::expand ? from <= to : from == to;
      return fits ? "" : fmt::format("a view of {} cannot be {}", to_text(shapes.in[0]), to_text(shapes.out[0]));
    }
    case OpKind::cast:
    case OpKind::contiguous:
      if (std::string problem = at_least(shapes, 1, 1); !problem.empty()) return problem;
      return check_elements(shapes, true);
    case OpKind::dropout:
      if (std::string problem = at_least(shapes, 1, 1); !problem.empty()) return problem;
      return check_elements(shapes, true);
    case OpKind::allocate:
    case OpKind::fill:
    case OpKind::random: return at_least(shapes, 0, 1);
    case OpKind::read_back: return "";
    case OpKind::unknown:
    case OpKind::pointwise:
    case OpKind::copy:
    case OpKind::gather:
    case OpKind::scatter: return shapes.in.empty() && shapes.out.empty() ? "has neither operands nor results" : "";
    default: break;
  }
  if (std::string problem = at_least(shapes, 1, 1); !problem.empty()) return problem;
  const bool own_pointwise = definition(kind).family == Family::pointwise && definition(kind).gradient != nullptr;
  return own_pointwise ? check_elements(shapes, false) : "";
}

std::vector<Tensor> left_out(OpKind kind, const Attributes& attributes, const OperandView& shapes) {
  std::vector<Tensor> wanted;  // beside the first result
  auto statistics = [&](std::int64_t count) { wanted.push_back({.shape = {count}, .dtype = DType::fp32}); };
  switch (kind) {
    case OpKind::layer_norm:
    case OpKind::rms_norm: {
      const std::int64_t rows = shapes.in[0].elements() / std::max<std::int64_t>(1, std::get<NormAttributes>(attributes).width);
      statistics(rows);
      if (kind == OpKind::layer_norm) statistics(rows);
      break;
    }
    case OpKind::group_norm:
    case OpKind::batch_norm: {
      const std::int64_t groups = kind == OpKind::batch_norm ? shapes.in[0][1] : shapes.in[0][0] * std::get<NormAttributes>(attributes).groups;
      statistics(groups);
      statistics(groups);
      break;
    }
    case OpKind::scaled_dot_product_attention: {
      const auto& a = std::get<AttentionAttributes>(attributes);
      wanted.push_back({.shape = {a.batch, a.heads, a.q_len}, .dtype = DType::fp32});  // log-sum-exp
      break;
    }
    case OpKind::nll_loss: wanted.push_back({.shape = {}, .dtype = DType::fp32}); break;  // the total weight
    case OpKind::dropout: wanted.push_back({.shape = shapes.out[0], .dtype = DType::boolean}); break;
    case OpKind::max_pool2d: wanted.push_back({.shape = shapes.out[0], .dtype = DType::int64}); break;
    case OpKind::rnn: {
      const auto& a = std::get<RnnAttributes>(attributes);
      // cuDNN's reserve comes last, whatever states the file lists.
      return {Tensor{.shape = {reserve_elements(a)}}};
    }
    default: break;
  }
  wanted.erase(wanted.begin(), wanted.begin() + static_cast<std::ptrdiff_t>(std::min(wanted.size(), shapes.out.size() - std::min<std::size_t>(1, shapes.out.size()))));
  return wanted;
}

}  // namespace precog::captured
