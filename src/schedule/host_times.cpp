#include "schedule/host_times.h"

#include <algorithm>

#include "precision/precision.h"

namespace precog {
namespace {

constexpr std::string_view kMemset = "memset";  // as lowering calls the driver's own kernel

// Modules whose code is entered on the way from one operator to the next: "a.b.c" after "a.d" enters b and c. What has no operators
// below it is not seen; a list of modules, which is never called, counts once.
std::int64_t modules_entered(std::string_view before, std::string_view now) {
  const auto same = static_cast<std::size_t>(std::mismatch(before.begin(), before.end(), now.begin(), now.end()).second - now.begin());
  const auto ends = [&](std::string_view path) { return same == path.size() || path[same] == '.'; };
  std::size_t shared = same;  // length of the common path, whole names only
  if (!ends(before) || !ends(now)) {
    const std::size_t dot = now.substr(0, same).rfind('.');
    shared = dot == std::string_view::npos ? 0 : dot;
  }
  if (shared == now.size()) return 0;
  return std::count(now.begin() + static_cast<std::ptrdiff_t>(shared), now.end(), '.') + (shared == 0 ? 1 : 0);
}

// Which per-tensor work the optimizer does in Python shows in its calls.
Seconds optimizer_tensor_time(const KernelProgram& program, const Graph& graph, const HostSpec& host) {
  bool adam = false, fused = false;
  for (const Call& call : program.calls) {
    const Op& op = graph.ops[call.op];
    if (op.kind != OpKind::multi_tensor || !op.label.valid()) continue;
    adam = adam || graph.name(op.label) == "addcdiv_";
    fused = fused || graph.name(op.label) == "fused";
  }
  return adam ? host.optimizer_tensor : fused ? host.optimizer_tensor_fused : host.optimizer_tensor_sgd;
}

// What a recurrent call's own time goes with: each layer and direction is set up and launched one after the other.
std::int64_t layers_of(const Op& op) {
  const auto* recurrent = std::get_if<RnnAttributes>(&op.attributes);
  return recurrent ? recurrent->layers * recurrent->directions : 1;
}

// A part of a tensor, taken by its place. Parts of one without elements are as large as it is: there any view counts.
bool is_cut(const Op& op, const Graph& graph) {
  const auto* view = op.kind == OpKind::view ? std::get_if<ViewAttributes>(&op.attributes) : nullptr;
  return view && (view->kind == ViewKind::slice || graph.tensors[graph.output(op)].shape.elements() == 0);
}

// An axis of one element behind all others: torch.einsum's way to line two operands up.
bool adds_axis(const Op& op, const Graph& graph) {
  if (op.kind != OpKind::view) return false;
  const Shape &before = graph.tensors[graph.input(op, 0)].shape, &after = graph.tensors[graph.output(op)].shape;
  return after.rank() > before.rank() && after[-1] == 1;
}

// What autograd does in backward without a node of its own: it adds up the gradients of a tensor that was read twice (InputBuffer::accumulate,
// torch/csrc/autograd/input_buffer.cpp), and cuts a joint's gradient into as many parts as were joined (cat_tensors_backward, FunctionsManual.cpp).
bool has_no_node(const Op& op, const Op* before, const Graph& graph) {
  if (op.kind == OpKind::add) return op.input_count == 2;
  return is_cut(op, graph) && before && is_cut(*before, graph) && graph.input(op, 0) == graph.input(*before, 0);
}

// Of a stack's own kernels: an operator that one of them does beside others has no call of its own; a view has.
bool inside_another(const Call& call, const KernelProgram& program) {
  return program.dispatched && call.compiled && call.kernel_count == 0 && call.family != Family::view;
}

}  // namespace

Seconds HostTimes::known(ByKind& found, const std::map<std::string, Seconds, std::less<>>& table, OpKind kind, const Seconds* otherwise) {
  std::optional<Seconds>& one = found[static_cast<std::size_t>(kind)];
  if (one) return *one;
  auto at = table.find(to_text(kind));
  if (at == table.end()) at = table.find(to_text(definition(kind).family));
  one = at != table.end() ? at->second : otherwise ? *otherwise : table.at("default");
  return *one;
}

Seconds HostTimes::operator()(const Call& call, const KernelProgram& program, const Graph& graph) const {
  const Op& op = graph.ops[call.op];
  const OpKind kind = op.kind;
  const auto times = static_cast<double>(layers_of(op));
  if (inside_another(call, program)) return {};
  if (call.compiled && !call.collective && !program.dispatched) return compiled(call, program, op.kind);
  switch (call.phase) {
    case Phase::forward:
    case Phase::recompute: {
      const auto* cast = std::get_if<CastAttributes>(&op.attributes);
      // With a number or with random ones, in place: what any kernel over a tensor costs (host_calls.jsonl: 26 us both, a sum 24). The figure of fills is of masks and places made anew.
      if (op.in_place && call.family == Family::fill) return forward_of(OpKind::add);
      if (!cast || !cast->by_autocast) return forward_of(kind) * times + more_launches(call, program, graph);  // what Python adds is not the call's own
      const bool parameter = graph.tensors[graph.input(op, 0)].role == Role::parameter;
      if (parameter && op.label.valid() && graph.name(op.label) == "rnn") return host_.recurrent_parameter;
      return host_.autocast_cast + (parameter ? host_.autocast_parameter : Seconds{});
    }
    case Phase::backward:
      // A layer's own collective (its label says of which split) is called from Python there, too; those of gradients from the framework.
      if (call.collective && call.family == Family::collective && op.label.valid()) return forward_of(kind);
      [[fallthrough]];
    case Phase::accumulate:
    case Phase::gradient_sync:
      if (kind == OpKind::bucket_copy) return forward_of(kind);  // from inside the framework: no node of autograd's around it
      return backward_of(kind) * times + more_launches(call, program, graph);
    case Phase::loss_scaling:
    case Phase::optimizer: {
      const auto* many = std::get_if<MultiTensorAttributes>(&op.attributes);
      if (!many) return forward_of(kind) + more_launches(call, program, graph);  // single small operators: of the scaler, of clipping
      if (many->one_by_one) return (forward_of(OpKind::add) + host_.python_call) * static_cast<double>(many->tensors);
      std::int64_t launches = 0;
      for (std::uint32_t i = 0; i < call.kernel_count; ++i) launches += program.kernels[call.first_kernel + i].launches;
      return host_.optimizer_op + host_.kernel_launch * static_cast<double>(std::max<std::int64_t>(0, launches - 1));
    }
  }
  return {};
}

// From inside the framework an operator costs what it costs forward without Python: stacks of modules say 9.9 us for a sum of gradients and 4.3 for a part of one where
// they say 9.2 and 5.6 for forward's operators and views, 17.6 and 10 for backward's (tools/gpu/host_fit.py, figures gradient_sum and gradient_part).
Seconds HostTimes::without_node(const Call& call, const KernelProgram& program, const Graph& graph) const {
  return forward_of(graph.ops[call.op].kind) + more_launches(call, program, graph);
}

// The program that a compiler writes calls kernels and libraries directly: no dispatcher, no autograd, no Python objects.
Seconds HostTimes::compiled(const Call& call, const KernelProgram& program, OpKind kind) const {
  if (program.cuda_graphs || call.kernel_count == 0) return {};
  std::int64_t generated = 0;
  bool library = false;
  for (std::uint32_t i = 0; i < call.kernel_count; ++i) {
    const Kernel& kernel = program.kernels[call.first_kernel + i];
    if (kernel.fused) generated += kernel.launches;
    else library = true;
  }
  return host_.compiled.kernel * static_cast<double>(generated) + (library ? library_of(kind) : Seconds{});
}

// What a call puts on the stream after its first kernel: layout copies around a convolution, the parts of a sort. A grouped product
// without a kernel of its own issues one whole product per group, from inside the framework.
Seconds HostTimes::more_launches(const Call& call, const KernelProgram& program, const Graph& graph) const {
  if (call.kernel_count == 0) return {};
  std::int64_t launches = 0, cleared = 0;
  for (std::uint32_t i = 0; i < call.kernel_count; ++i) {
    const Kernel& kernel = program.kernels[call.first_kernel + i];
    (kernel.name == kMemset ? cleared : launches) += kernel.launches;
  }
  if (launches == 0) --cleared;  // the call's first launch is one of them
  const Seconds clearing = host_.memset * static_cast<double>(cleared);
  if (call.family == Family::recurrent) {
    const Op& op = graph.ops[call.op];
    std::int64_t weights = 0;
    // PyTorch keeps a layer's weights in one buffer for cuDNN, but not those in bf16 (CUDNN_TENSOR_DTYPES, torch/backends/cudnn): they are copied there.
    if (op.math == DType::bf16 && call.phase != Phase::backward)
      for (TensorId id : graph.inputs(op)) weights += graph.tensors[id].role == Role::parameter ? 1 : 0;
    return host_.library_launch * static_cast<double>(std::max<std::int64_t>(0, launches - layers_of(op))) + host_.recurrent_parameter * static_cast<double>(weights) + clearing;
  }
  Seconds products{};
  if (call.family == Family::gemm) {
    const std::int64_t groups = program.kernels[call.first_kernel].launches - 1;
    // Of each the two operands and the result are cut out (_grouped_mm_fallback, aten/src/ATen/native/GroupedMMUtils.h).
    const OpKind kind = graph.ops[call.op].kind;
    const Seconds one = (call.phase == Phase::backward ? backward_of(kind) : forward_of(kind)) + forward_of(OpKind::view) * 3.0;
    products = one * static_cast<double>(groups);
    launches -= groups;
  }
  return products + clearing + host_.kernel_launch * static_cast<double>(std::max<std::int64_t>(0, launches - 1));
}

std::vector<bool> inner_calls(const KernelProgram& program, const Graph& graph) {
  std::vector<bool> out(program.calls.size());
  std::vector<std::int32_t> made_by(graph.tensors.size(), -1);  // tensor -> call
  auto maker = [&](TensorId id) { return made_by[id.index()]; };
  auto kind_of = [&](std::int32_t call) { return graph.ops[program.calls[static_cast<std::size_t>(call)].op].kind; };
  auto first_operand = [&](std::int32_t call) { return graph.input(graph.ops[program.calls[static_cast<std::size_t>(call)].op], 0); };
  auto axes = [&](TensorId id) { return graph.tensors[id].shape.rank(); };
  auto mark = [&](std::int32_t call) { out[static_cast<std::size_t>(call)] = true; };
  bool after_einsum = false;  // its result is being laid out, until the axes that it added are gone
  for (std::size_t i = 0; i < program.calls.size(); ++i) {
    const Op& op = graph.ops[program.calls[i].op];
    if (program.calls[i].phase == Phase::backward) out[i] = has_no_node(op, i > 0 ? &graph.ops[program.calls[i - 1].op] : nullptr, graph);
    if (program.calls[i].phase != Phase::forward) continue;
    if (graph.name(op.reason) == kMathPath) out[i] = true;
    for (TensorId id : graph.outputs(op)) made_by[id.index()] = static_cast<std::int32_t>(i);
    if (op.kind == OpKind::view && i > 0 && maker(graph.input(op, 0)) == static_cast<std::int32_t>(i) - 1 && kind_of(static_cast<std::int32_t>(i) - 1) == OpKind::matmul)
      out[i] = true;
    if (after_einsum && op.kind == OpKind::view && i > 0 && maker(graph.input(op, 0)) == static_cast<std::int32_t>(i) - 1) {
      out[i] = true;
      after_einsum = axes(graph.output(op)) >= axes(graph.input(op, 0));
    } else {
      after_einsum = false;
    }
    // x[a:b, c:d] is one call of Python's however many cuts it takes, and so is what it sets (torch/csrc/autograd/python_variable_indexing.cpp).
    if (i > 0 && op.input_count > 0 && maker(graph.input(op, 0)) == static_cast<std::int32_t>(i) - 1 && is_cut(graph.ops[program.calls[i - 1].op], graph) &&
        (is_cut(op, graph) || (op.in_place && (op.kind == OpKind::fill || op.kind == OpKind::copy))))
      out[i] = true;
    if (op.kind != OpKind::matmul || axes(graph.output(op)) != 3) continue;
    // torch.einsum is one call of Python's: what it lays out before its product and after it is its own (aten/src/ATen/native/Linear.cpp, sumproduct_pair).
    for (std::size_t operand = 0; operand < 2; ++operand) {
      std::vector<std::int32_t> laid_out;
      std::size_t own = 0;
      for (std::int32_t call = maker(graph.input(op, operand)); call >= 0 && (kind_of(call) == OpKind::view || kind_of(call) == OpKind::contiguous); call = maker(first_operand(call))) {
        laid_out.push_back(call);
        if (adds_axis(graph.ops[program.calls[static_cast<std::size_t>(call)].op], graph)) own = laid_out.size();
      }
      for (std::size_t k = 0; k < own; ++k) mark(laid_out[k]);
      after_einsum = after_einsum || own > 0;
    }
    for (std::size_t operand = 0; operand < 2; ++operand) {
      std::int32_t call = maker(graph.input(op, operand));
      if (call < 0 || kind_of(call) != OpKind::view || axes(first_operand(call)) < 4) continue;
      mark(call);
      call = maker(first_operand(call));
      if (call >= 0 && kind_of(call) == OpKind::contiguous) {
        mark(call);
        call = maker(first_operand(call));
      }
      if (call >= 0 && kind_of(call) == OpKind::view) mark(call);
    }
  }
  return out;
}

HostStep host_step(const KernelProgram& program, const Graph& graph, const HostSpec& host) {
  const std::size_t calls = program.calls.size();
  HostStep out{std::vector<Seconds>(calls), host.step};
  const HostTimes one(host);
  const std::vector<bool> inner = inner_calls(program, graph);
  std::size_t first_optimizer = calls, last_backward = calls;
  std::vector<std::size_t> graphs;  // calls that enter a compiled graph
  std::int64_t tensors = 0;
  std::array<bool, 2> entered{};
  NameId module;
  for (std::size_t i = 0; i < calls; ++i) {
    const Call& call = program.calls[i];
    const Op& op = graph.ops[call.op];
    out.calls[i] = inner[i] && call.phase == Phase::backward && !call.compiled ? one.without_node(call, program, graph) : one(call, program, graph);
    if ((call.phase == Phase::forward || call.phase == Phase::recompute) && (!call.compiled || program.dispatched) && !call.collective && !inside_another(call, program)) {
      const auto* cast = std::get_if<CastAttributes>(&op.attributes);
      if (!inner[i] && !(cast && cast->by_autocast)) out.calls[i] += host.python_call;
      if (op.module != module) out.calls[i] += host.module_call * static_cast<double>(modules_entered(graph.name(module), graph.name(op.module)));
      module = op.module;
    }
    // Each of the two compiled graphs is entered once.
    const auto graph_of = static_cast<std::size_t>(call.phase == Phase::forward ? 0 : 1);
    if (call.compiled && !program.dispatched && call.kernel_count > 0 && !entered[graph_of]) {
      entered[graph_of] = true;
      graphs.push_back(i);
      out.calls[i] += program.cuda_graphs ? host.compiled.replay : host.compiled.graph;
    }
    if (call.phase == Phase::backward) last_backward = i;
    const auto* many = std::get_if<MultiTensorAttributes>(&op.attributes);
    if (many) tensors = std::max(tensors, many->tensors);  // some calls of the step's end go over a buffer, not over all tensors
    if (call.phase == Phase::optimizer && first_optimizer == calls) first_optimizer = i;
    if (op.kind == OpKind::unscale_and_check) out.calls[i] += host.loss_scaler + host.loss_scaler_tensor * static_cast<double>(many ? many->tensors : 0);
    // A list of all ranks' parts is made in Python, a view and a question about the rank for each.
    if (op.kind == OpKind::shard_copy && graph.name(op.label) == "rank_parts")
      out.calls[i] += (one.forward_of(OpKind::view) + host.python_call * 2.0) * static_cast<double>(std::get<ShardCopyAttributes>(op.attributes).launches);
    // The host's own update, before it sends the new weights up: as long as its memory takes.
    if (op.kind == OpKind::shard_copy && graph.name(op.label) == "cpu_adam" && host.memory_bandwidth.value > 0)
      out.calls[i] += std::get<ShardCopyAttributes>(op.attributes).read / host.memory_bandwidth;
  }
  const auto parameters = static_cast<double>(tensors);
  out.begin += host.zero_grad_tensor * parameters;
  // Forward is handed every parameter, those that do not train, too.
  std::int64_t handed = 0;
  if (!graphs.empty())
    for (const Tensor& tensor : graph.tensors) handed += tensor.role == Role::parameter ? 1 : 0;
  for (std::size_t i : graphs)
    out.calls[i] += host.compiled.parameter * (program.calls[i].phase == Phase::forward ? std::max(parameters, static_cast<double>(handed)) : parameters);
  if (first_optimizer < calls) out.calls[first_optimizer] += optimizer_tensor_time(program, graph, host) * parameters;
  // Gradients reach their parameters all along backward; where exactly matters little, so it is charged at its end.
  // A compiled backward hands them out all at once.
  const bool at_once = !graphs.empty() && host.compiled.parameter.value > 0;
  if (last_backward < calls && !at_once) out.calls[last_backward] += host.parameter_gradient * parameters;
  return out;
}

}  // namespace precog
