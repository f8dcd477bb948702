#include "report/inspection.h"

#include <algorithm>

namespace precog {
namespace {

bool is_view(const Op& op) { return definition(op.kind).family == Family::view; }

std::size_t forward_end(const Graph& graph) {
  std::size_t end = 0;
  while (end < graph.ops.size() && graph.ops[graph.ops.id_at(end)].phase == Phase::forward) ++end;
  return end;
}

// One of the operators that quantise an fp8 layer's operand: the precision pass wrote the layer out, all with its reason.
bool quantises_for(const Op& op, const Op& product) {
  return product.kind == OpKind::scaled_mm && op.kind != OpKind::scaled_mm && op.module == product.module && op.reason == product.reason;
}

// What of an fp8 layer's gradient is the gradient itself; the rest quantises.
bool is_gradient_itself(OpKind kind) { return kind == OpKind::scaled_mm || kind == OpKind::sum || kind == OpKind::add; }

// Whom each forward operator works for: itself, or for an inserted cast the operator that reads it, through views and casts.
std::vector<OpId> owners(const Graph& graph, std::size_t end) {
  std::vector<OpId> reader(graph.tensors.size()), owner(end);
  for (std::size_t i = end; i-- > 0;) {
    const OpId id = graph.ops.id_at(i);
    const Op& op = graph.ops[id];
    owner[i] = id;
    for (TensorId output : graph.outputs(op)) {
      const OpId first = reader[output.index()];
      if (!first.valid()) continue;
      const OpId whose = owner[first.index()];
      if (inserted_cast(op) || is_view(op) || quantises_for(op, graph.ops[whose])) owner[i] = whose;
    }
    // The first reader stays: we come from the end. A view belongs to itself; what is cast in front of it, to whom it is for.
    for (TensorId input : graph.inputs(op)) reader[input.index()] = id;
  }
  for (std::size_t i = 0; i < end; ++i)
    if (is_view(graph.ops[graph.ops.id_at(i)])) owner[i] = graph.ops.id_at(i);
  return owner;
}

bool of_weight(const Graph& graph, const Op& cast) {
  for (TensorId id : graph.inputs(cast))
    if (graph.tensors[id].role == Role::parameter) return true;
  for (TensorId id : graph.outputs(cast))
    if (graph.tensors[id].role == Role::gradient) return true;
  return false;
}

}  // namespace

bool inserted_cast(const Op& op) {
  const auto* cast = std::get_if<CastAttributes>(&op.attributes);
  return op.kind == OpKind::cast && cast && cast->by_autocast;
}

std::string_view shown_name(const Graph& graph, const Op& op) { return op.kind == OpKind::scaled_mm ? "linear" : name_of(graph, op); }

Casts Inspection::all_casts() const {
  Casts all = at_the_end;
  for (const InspectedOp& op : ops) all += op.casts();
  return all;
}

Inspection inspect_step(const Graph& graph, const KernelProgram& program, const std::vector<KernelCost>& costs, std::int64_t micro_batches) {
  const std::size_t end = forward_end(graph);
  const std::vector<OpId> owner = owners(graph, end);
  Inspection out;
  std::vector<std::size_t> entry(end, 0);
  for (std::size_t i = 0; i < end; ++i) {
    const OpId id = graph.ops.id_at(i);
    if (owner[i] != id) continue;
    entry[i] = out.ops.size();
    out.ops.push_back({.op = id, .forward = {}, .backward = {}, .in = {}, .back = {}});
  }
  auto entry_of = [&](OpId id) -> InspectedOp& { return out.ops[entry[owner[id.index()].index()]]; };

  for (const Call& call : program.calls) {
    const Op& op = graph.ops[call.op];
    const auto times = static_cast<double>(runs_per_step(call.phase, micro_batches));
    Seconds spent;
    double kernels = 0;
    for (std::uint32_t i = 0; i < call.kernel_count; ++i) {
      spent += costs[call.first_kernel + i].total * times;
      kernels += times * program.kernels[call.first_kernel + i].launches;
    }
    if (call.waits_for_gpu) ++out.waits;
    if (call.collective) continue;
    const OpId forward = call.op.index() < end ? call.op : op.origin;
    bool cast = call.family == Family::cast;
    if (cast && of_weight(graph, op)) out.of_weights.add(kernels, spent);
    if (forward.valid() && forward.index() < end) {
      const bool quantised = graph.ops[forward].kind == OpKind::scaled_mm && call.op != forward && op.phase == Phase::backward;
      cast = cast || owner[forward.index()] != forward || (quantised && !is_gradient_itself(op.kind));
    }
    if (forward.valid() && forward.index() < end) {
      InspectedOp& at = entry_of(forward);
      const bool ahead = call.op.index() < end;
      if (cast) {
        (ahead || op.phase == Phase::recompute ? at.in : at.back).add(kernels, spent);
        if (ahead && at.cast_from == DType::model && op.input_count > 0) at.cast_from = graph.tensors[graph.input(op, 0)].dtype;
      } else {
        (ahead ? at.forward : at.backward) += spent;
      }
    } else if (cast) {
      out.at_the_end.add(kernels, spent);
    } else if (op.kind == OpKind::accumulate_gradient) {
      out.accumulation += spent;
    } else if (call.phase == Phase::loss_scaling) {
      out.loss_scaling += spent;
      out.scaling_kernels += kernels;
    } else if (call.phase == Phase::optimizer) {
      out.optimizer += spent;
      out.optimizer_kernels += kernels;
    }
  }

  // Memory that forward makes and backward (or recomputation) still reads.
  std::vector<char> made(graph.tensors.size(), 0);
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    const Op& op = graph.ops[graph.ops.id_at(i)];
    if (op.phase == Phase::forward) {
      for (TensorId id : graph.outputs(op))
        if (graph.tensors[id].storage == id && graph.tensors[id].role == Role::activation) made[id.index()] = 1;
      continue;
    }
    if (op.phase != Phase::backward && op.phase != Phase::recompute) continue;
    for (TensorId id : graph.inputs(op)) {
      const TensorId storage = graph.tensors[id].storage;
      if (!made[storage.index()]) continue;
      made[storage.index()] = 0;
      out.saved[std::string(to_text(graph.tensors[storage].dtype))] += graph.bytes(storage);
    }
  }
  return out;
}

std::vector<KeptWide> kept_in_fp32(const Graph& graph, const Inspection& inspection) {
  bool narrow = false;
  std::map<std::string, KeptWide> by_name;
  for (const InspectedOp& at : inspection.ops) {
    const Op& op = graph.ops[at.op];
    if (is_view(op) || op.kind == OpKind::cast) continue;
    narrow = narrow || (is_matrix_work(op.kind) && bits_of(op.math) <= 16);
    if (op.math != DType::fp32 || at.own().value <= 0) continue;
    bool floating = false;
    for (TensorId id : graph.inputs(op)) floating = floating || is_floating(graph.tensors[id].dtype);
    if (!floating) continue;
    KeptWide& kept = by_name[std::string(precog::name_of(graph, op))];
    kept.name = precog::name_of(graph, op);
    ++kept.count;
    kept.own += at.own();
    kept.casts += at.casts();
  }
  std::vector<KeptWide> out;
  if (narrow)
    for (auto& [name, kept] : by_name) out.push_back(std::move(kept));
  std::stable_sort(out.begin(), out.end(), [](const KeptWide& a, const KeptWide& b) { return a.own + a.casts.time > b.own + b.casts.time; });
  return out;
}

}  // namespace precog
