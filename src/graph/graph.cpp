#include "graph/graph.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

namespace precog {
namespace {
constexpr std::size_t kMaxOperands = 65535;  // what a counter of sixteen bits holds
}

std::string to_text(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape.extents(), ",")); }

Shape broadcast(const Shape& a, const Shape& b) {
  const Shape& longer = a.rank() >= b.rank() ? a : b;
  const Shape& shorter = a.rank() >= b.rank() ? b : a;
  Shape out = longer;
  for (int axis = 1; axis <= shorter.rank(); ++axis) {
    std::int64_t x = longer[-axis], y = shorter[-axis];
    ensure(x == y || x == 1 || y == 1, "operands of a pointwise operator have shapes that broadcast");
    out.set(-axis, x == 1 ? y : x);
  }
  return out;
}

TensorId Graph::add_tensor(Tensor tensor) {
  TensorId id = tensors.add(tensor);
  if (!tensors[id].storage.valid()) tensors[id].storage = id;
  return id;
}

OpId Graph::add_op(Op op, std::span<const TensorId> inputs, std::span<const TensorId> outputs) {
  ensure(inputs.size() <= kMaxOperands && outputs.size() <= kMaxOperands, "an operator has at most 65535 operands");
  const auto first = static_cast<std::uint32_t>(edges_.size());
  const auto input_count = static_cast<std::uint16_t>(inputs.size()), output_count = static_cast<std::uint16_t>(outputs.size());
  // The spans may point into edges_ itself (a pass copying one of its own operators), which moves as it grows.
  const std::size_t count = inputs.size() + outputs.size();
  if (edges_.size() + count > edges_.capacity()) {
    std::vector<TensorId> larger;
    larger.reserve(2 * (edges_.size() + count));
    larger.insert(larger.end(), edges_.begin(), edges_.end());
    larger.insert(larger.end(), inputs.begin(), inputs.end());
    larger.insert(larger.end(), outputs.begin(), outputs.end());
    edges_ = std::move(larger);
  } else {
    for (TensorId id : inputs) edges_.push_back(id);
    for (TensorId id : outputs) edges_.push_back(id);
  }
  const OpId id = ops.add(op);
  Op& added = ops[id];  // written where it stays: a copy right after a write waits for it
  added.first_edge = first;
  added.input_count = input_count;
  added.output_count = output_count;
  return id;
}

Graph Graph::empty_with_names() const {
  Graph out;
  out.names_ = names_;
  out.recipes = recipes;
  return out;
}

std::string_view to_text(OpKind kind) {
  static constexpr std::array kNames = {
#define PRECOG_OPERATOR(name) std::string_view(#name),
#include "graph/operators.def"
#undef PRECOG_OPERATOR
  };
  return kNames[static_cast<std::size_t>(kind)];
}

bool is_generic(OpKind kind) {
  switch (kind) {
    case OpKind::pointwise: case OpKind::reduction: case OpKind::copy: case OpKind::gather: case OpKind::scatter: case OpKind::sort:
    case OpKind::scan: case OpKind::random: case OpKind::pool: case OpKind::pool_backward: case OpKind::unknown: return true;
    default: return false;
  }
}

std::string_view name_of(const Graph& graph, const Op& op) {
  return is_generic(op.kind) && op.label.valid() ? graph.name(op.label) : to_text(op.kind);
}

std::string_view to_text(Phase phase) {
  static constexpr std::array<std::string_view, 7> kNames = {"forward",       "recompute",    "backward", "accumulate",
                                                             "gradient_sync", "loss_scaling", "optimizer"};
  return kNames[static_cast<std::size_t>(phase)];
}

std::string_view to_text(AttentionBackend backend) {
  static constexpr std::array<std::string_view, 5> kNames = {"undecided", "flash", "cudnn", "memory_efficient", "math"};
  return kNames[static_cast<std::size_t>(backend)];
}

std::string to_text(const Graph& graph, TensorId id) {
  const Tensor& tensor = graph.tensors[id];
  if (tensor.name.valid()) return fmt::format("@{}", graph.name(tensor.name));
  return fmt::format("%{}", id.value);
}

namespace {

struct AttributeText {
  const Graph& graph;
  std::string operator()(std::monostate) const { return ""; }
  std::string operator()(const CopyAttributes& a) const {
    return a.only == OnlyFor::any ? "" : a.only == OnlyFor::fp32 ? " only=fp32" : " only=16-bit";
  }
  std::string operator()(const GemmAttributes& a) const {
    return fmt::format(" b={} m={} n={} k={}{}", a.batch, a.m, a.n, a.k, a.bias ? " bias" : "");
  }
  std::string operator()(const ConvAttributes& a) const {
    auto sizes = [&](const std::array<std::int64_t, 3>& all) {
      return std::span(all).first(static_cast<std::size_t>(std::clamp(a.axes, 1, 3)));
    };
    auto one = [&](const std::array<std::int64_t, 3>& all) {  // once where it is the same along every axis
      const auto used = sizes(all);
      const bool same = std::all_of(used.begin(), used.end(), [&](std::int64_t v) { return v == used[0]; });
      return fmt::format("{}", fmt::join(same ? used.first(1) : used, "x"));
    };
    return fmt::format(" kernel={} stride={} padding={}{} groups={}{}", fmt::join(sizes(a.kernel), "x"), one(a.stride), one(a.padding),
                       one(a.dilation) == "1" ? "" : " dilation=" + one(a.dilation), a.groups, a.transposed ? " transposed" : "");
  }
  std::string operator()(const AttentionAttributes& a) const {
    return fmt::format(" b={} heads={}/{} q={} kv={} d={}{}{} backend={}", a.batch, a.heads, a.kv_heads, a.q_len, a.kv_len,
                       a.head_dim, a.causal ? " causal" : "", a.mask ? " mask" : "", to_text(a.backend));
  }
  std::string operator()(const CastAttributes& a) const {
    if (a.door != Autocast::none) return a.door == Autocast::fp32 ? " door=fp32" : " door=lower";
    if (a.like.valid()) return fmt::format(" like={}", to_text(graph, a.like));
    return fmt::format(" to={}", to_text(a.to));
  }
  std::string operator()(const ViewAttributes& a) const {
    static constexpr std::array<std::string_view, 4> kNames = {"reshape", "transpose", "slice", "expand"};
    static constexpr std::array<std::string_view, 3> kCopies = {"", " gradient_copied=fp32", " gradient_copied"};
    return fmt::format(" {}{}", kNames[static_cast<std::size_t>(a.kind)], kCopies[static_cast<std::size_t>(a.gradient)]);
  }
  std::string operator()(const RnnAttributes& a) const {
    return fmt::format(" batch={} steps={} input={} hidden={} layers={} directions={}", a.batch, a.steps, a.input, a.hidden, a.layers,
                       a.directions);
  }
  std::string operator()(const NormAttributes& a) const {
    return fmt::format("{}{}{}", a.width > 0 ? fmt::format(" width={}", a.width) : "", a.groups > 0 ? fmt::format(" groups={}", a.groups) : "",
                       a.training ? "" : " evaluating");
  }
  std::string operator()(const PoolAttributes& a) const {
    return fmt::format(" kernel={} stride={} padding={}", a.kernel, a.stride, a.padding);
  }
  std::string operator()(const MultiTensorAttributes& a) const {
    return fmt::format(" tensors={} elements={} launches={} bytes/element={}", a.tensors, a.elements, a.launches,
                       a.element_bytes_moved);
  }
  std::string operator()(const CollectiveAttributes& a) const {
    std::string out = a.bytes.value > 0 ? fmt::format(" bytes={}", a.bytes.value) : std::string();
    out += fmt::format(" participants={}", a.participants);
    if (a.stride > 1) out += fmt::format(" stride={}", a.stride);
    return a.copies > 0 ? out + fmt::format(" copies={}", a.copies) : out;
  }
  std::string operator()(const ShardCopyAttributes& a) const {
    return fmt::format(" elements={} read={} written={}", a.elements, a.read.value, a.written.value);
  }
};

}  // namespace

std::string to_text(const Graph& graph, const Op& op) {
  std::string out;
  for (TensorId id : graph.outputs(op)) {
    const Tensor& tensor = graph.tensors[id];
    if (!out.empty()) out += ", ";
    out += fmt::format("{}:{}{}", to_text(graph, id), to_text(tensor.dtype), to_text(tensor.shape));
  }
  if (!out.empty()) out += " = ";
  out += to_text(op.kind);
  if (op.label.valid()) out += fmt::format(".{}", graph.name(op.label));
  if (op.in_place) out += '_';
  std::vector<std::string> operands;
  for (TensorId id : graph.inputs(op)) operands.push_back(to_text(graph, id));
  out += fmt::format("({})", fmt::join(operands, ", "));
  out += std::visit(AttributeText{graph}, op.attributes);
  if (op.math != DType::model) out += fmt::format(" math={}", to_text(op.math));
  if (op.reason.valid()) out += fmt::format("  # {}", graph.name(op.reason));
  return out;
}

std::string to_text(const Graph& graph) {
  std::string out;
  Phase phase{};
  NameId module;
  bool first = true;
  for (const Op& op : graph.ops) {
    if (first || op.phase != phase) out += fmt::format("== {}\n", to_text(op.phase));
    if (first || op.module != module) out += fmt::format("-- {}\n", op.module.valid() ? graph.name(op.module) : "(model)");
    first = false;
    phase = op.phase;
    module = op.module;
    out += fmt::format("{}\n", to_text(graph, op));
  }
  return out;
}

std::string verify(const Graph& graph) {
  std::vector<char> made(graph.tensors.size(), 0);
  for (std::size_t i = 0; i < graph.tensors.size(); ++i) {
    const Tensor& tensor = graph.tensors[graph.tensors.id_at(i)];
    if (!graph.tensors.contains(tensor.storage)) return fmt::format("tensor %{} has no storage", i);
    if (tensor.shape.elements() < 0) return fmt::format("tensor %{} has a negative extent", i);
    if (tensor.role != Role::activation && tensor.role != Role::gradient) made[i] = 1;
  }
  for (const Op& op : graph.ops) {
    for (TensorId id : graph.inputs(op)) {
      if (!graph.tensors.contains(id)) return fmt::format("{} reads a tensor that does not exist", to_text(op.kind));
      if (!made[id.index()]) return fmt::format("{} reads %{} before it is made", to_text(op.kind), id.value);
    }
    for (TensorId id : graph.outputs(op)) {
      if (!graph.tensors.contains(id)) return fmt::format("{} makes a tensor that does not exist", to_text(op.kind));
      if (made[id.index()] && graph.tensors[id].role == Role::activation)
        return fmt::format("%{} is made twice, again by {}", id.value, to_text(op.kind));
      made[id.index()] = 1;
    }
    if (op.in_place && graph.tensors[graph.output(op)].storage != graph.tensors[graph.input(op, 0)].storage)
      return fmt::format("in-place {} writes other memory than its input's", to_text(op.kind));
  }
  return "";
}

std::int64_t parameter_count(const Graph& graph) {
  std::int64_t count = 0;
  for (const Tensor& tensor : graph.tensors)
    if (tensor.role == Role::parameter) count += tensor.shape.elements();
  return count;
}

}  // namespace precog
