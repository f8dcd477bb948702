#include "predict/layer_exchange.h"

#include <algorithm>

#include "graph/weights_alone.h"
#include "parallel/layer_plans.h"

namespace precog {
namespace {

// How far from its exchange a layer's product stands at most: views, a conversion, what a compiler put between.
constexpr std::size_t kNear = 12;

const CollectiveShape* exchange_of(const Graph& graph, const KernelProgram& program, std::size_t i) {
  const Call& call = program.calls[i];
  const NameId label = graph.ops[call.op].label;
  if (!call.collective || call.kernel_count == 0 || !label.valid() || graph.name(label) == kSplitExperts) return nullptr;
  return std::get_if<CollectiveShape>(&program.kernels[call.first_kernel].shape);
}

Seconds product_time(const KernelProgram& program, const std::vector<KernelCost>& costs, std::size_t i) {
  const Call& call = program.calls[i];
  Seconds total{};
  for (std::uint32_t k = call.first_kernel; k < call.first_kernel + call.kernel_count; ++k)
    if (std::holds_alternative<GemmShape>(program.kernels[k].shape)) total += costs[k].total;
  return total;
}

}  // namespace

void gather_converted(const Graph& graph, KernelProgram& program) {
  std::vector<std::vector<std::size_t>> readers(graph.tensors.size());  // calls by the memory they read
  for (std::size_t i = 0; i < program.calls.size(); ++i) {
    const Op& op = graph.ops[program.calls[i].op];
    if (definition(op.kind).family == Family::view) continue;
    for (TensorId id : graph.inputs(op)) readers[graph.tensors[id].storage.index()].push_back(i);
  }
  for (std::size_t i = 0; i < program.calls.size(); ++i) {
    const CollectiveShape* gathered = exchange_of(graph, program, i);
    const Op& op = graph.ops[program.calls[i].op];
    if (!gathered || op.kind != OpKind::all_gather) continue;
    const TensorId result = graph.output(op);
    const auto& reading = readers[graph.tensors[result].storage.index()];
    const Op* conversion = nullptr;
    const bool only = std::all_of(reading.begin(), reading.end(), [&](std::size_t reader) {
      const Op& by = graph.ops[program.calls[reader].op];
      if (by.kind == OpKind::quantize) conversion = &by;
      return by.kind == OpKind::quantize || definition(by.kind).family == Family::reduction;  // the largest element
    });
    if (!only || !conversion) continue;
    const double share = 1.0 / static_cast<double>(gathered->participants);
    const double narrower = static_cast<double>(bits_of(graph.tensors[graph.output(*conversion)].dtype)) / static_cast<double>(bits_of(graph.tensors[result].dtype));
    Kernel& message = program.kernels[program.calls[i].first_kernel];
    std::get<CollectiveShape>(message.shape).bytes = std::get<CollectiveShape>(message.shape).bytes * narrower;
    message.read = message.read * narrower;
    message.written = message.written * narrower;
    for (std::size_t reader : reading)
      for (std::uint32_t k = 0; k < program.calls[reader].kernel_count; ++k) {
        Kernel& kernel = program.kernels[program.calls[reader].first_kernel + k];
        kernel.read = kernel.read * share;
        kernel.written = kernel.written * share;
        kernel.flops = kernel.flops * share;
        if (auto* memory = std::get_if<MemoryShape>(&kernel.shape)) {
          std::int64_t& extent = memory->rows > 1 ? memory->rows : memory->row_length;
          extent = std::max<std::int64_t>(1, static_cast<std::int64_t>(static_cast<double>(extent) * share));
        }
      }
  }
}

void scatter_converted(const Graph& graph, KernelProgram& program) {
  for (std::size_t i = 0; i < program.calls.size(); ++i) {
    const CollectiveShape* exchange = exchange_of(graph, program, i);
    if (!exchange || program.calls[i].phase != Phase::forward || graph.ops[program.calls[i].op].kind != OpKind::reduce_scatter) continue;
    bool of_fp8 = false;
    for (std::size_t distance = 1; distance <= std::min(kNear, i) && !of_fp8; ++distance) of_fp8 = graph.ops[program.calls[i - distance].op].kind == OpKind::scaled_mm;
    if (!of_fp8) continue;
    Kernel& message = program.kernels[program.calls[i].first_kernel];
    const double narrower = static_cast<double>(bits_of(DType::fp8)) / static_cast<double>(bits_of(graph.tensors[graph.output(graph.ops[program.calls[i].op])].dtype));
    std::get<CollectiveShape>(message.shape).bytes = std::get<CollectiveShape>(message.shape).bytes * narrower;
    message.read = message.read * narrower;
    message.written = message.written * narrower;
  }
}

void convert_weights_once(const Graph& graph, const KernelProgram& program, std::int64_t micro_batches, std::vector<KernelCost>& costs) {
  if (micro_batches <= 1) return;
  const std::vector<char> of_weights = weights_alone(graph);
  const double share = 1.0 / static_cast<double>(micro_batches);
  for (const Call& call : program.calls) {
    const Op& op = graph.ops[call.op];
    const bool converts = op.kind == OpKind::quantize || definition(op.kind).family == Family::reduction;  // the largest element
    if (call.phase != Phase::forward || !converts || op.output_count == 0 || !of_weights[graph.output(op).index()]) continue;
    for (std::uint32_t k = 0; k < call.kernel_count; ++k) {
      KernelCost& cost = costs[call.first_kernel + k];
      cost.compute = cost.compute * share, cost.memory = cost.memory * share, cost.launch = cost.launch * share, cost.total = cost.total * share;
    }
  }
}

void overlap_with_products(const Graph& graph, const KernelProgram& program, std::vector<KernelCost>& costs) {
  for (std::size_t i = 0; i < program.calls.size(); ++i) {
    const CollectiveShape* exchange = exchange_of(graph, program, i);
    if (!exchange) continue;
    const OpKind kind = graph.ops[program.calls[i].op].kind;
    const bool gathers = kind == OpKind::all_gather;
    // In backward scattering overlaps with the weight's gradient already: nothing waits for it.
    if (!gathers && (kind != OpKind::reduce_scatter || program.calls[i].phase == Phase::backward)) continue;
    Seconds product{};
    for (std::size_t distance = 1; distance <= kNear && product.value == 0; ++distance) {
      if (gathers ? i + distance >= program.calls.size() : distance > i) break;
      product = product_time(program, costs, gathers ? i + distance : i - distance);
    }
    KernelCost& cost = costs[program.calls[i].first_kernel];
    const double pieces = 1.0 - 1.0 / static_cast<double>(exchange->participants);
    cost.total = cost.total - std::min(cost.total, product) * pieces;
  }
}

void overlap_with_micro_batches(const Graph& graph, const KernelProgram& program, std::int64_t micro_batches, std::vector<KernelCost>& costs) {
  Seconds work{}, travel{};
  std::vector<std::uint32_t> exchanges;
  for (std::size_t i = 0; i < program.calls.size(); ++i) {
    const Call& call = program.calls[i];
    if (call.phase > Phase::accumulate) continue;
    const bool of_experts = exchange_of(graph, program, i) && graph.ops[call.op].kind == OpKind::all_to_all && graph.name(graph.ops[call.op].label) == "experts";
    for (std::uint32_t k = call.first_kernel; k < call.first_kernel + call.kernel_count; ++k) {
      if (of_experts) exchanges.push_back(k);
      if (of_experts) travel += costs[k].total;
      else if (!call.collective) work += costs[k].total;
    }
  }
  if (micro_batches < 2 || travel.value <= 0) return;
  const double pairs = static_cast<double>(micro_batches - 1) / static_cast<double>(micro_batches);
  const double hidden = std::min(1.0, work.value / travel.value) * pairs;
  for (std::uint32_t k : exchanges) {
    KernelCost& cost = costs[k];
    cost.total = cost.total * (1 - hidden * (1 - cost.sm_share));
    cost.launch = std::min(cost.launch, cost.total);
    cost.memory = cost.total - cost.launch;
  }
}

}  // namespace precog
