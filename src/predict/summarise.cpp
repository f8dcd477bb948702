#include "predict/summarise.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "base/text.h"
#include "import/import.h"

namespace precog {
namespace {

FlopsPerSecond peak_of(const GpuSpec& gpu, DType dtype) {
  if (gpu.matrix.has(dtype)) return gpu.matrix[dtype];
  if (gpu.vector.has(dtype)) return gpu.vector[dtype];
  return gpu.vector[DType::fp32];
}

// An 80% interval from what the costs rest on: widths for the parts of the step, mixed by their shares. Of 910 recorded
// steps on an H200 (the fourth to the seventh list), measured over predicted had its 10th and 90th percentile at 0.97 and 1.09
// where the GPU was the bottleneck, at 0.87 and 1.13 where the (measured, unsteady) host was; both are widened here because
// those models had been looked at. Coefficients carried over from another architecture, and a host nobody measured, are
// guesses of how far off one may be. Too narrow a figure shows up in `precog validate` as poor coverage.
struct Spread {
  double low, high;
};
constexpr Spread kFittedSpread{0.88, 1.14};
constexpr Spread kCarriedSpread{0.70, 1.45};
constexpr double kOfOneSign = 0.75;  // of measured kernels' own widths: some are too long, some too short, and a step adds them up
constexpr Spread kMeasuredHostSpread{0.85, 1.20};
constexpr Spread kGuessedHostSpread{0.40, 1.60};  // the default is a slow host: others are faster more often than slower
constexpr Spread kNodeLinkSpread{0.75, 1.35};   // collectives inside a node: fitted to NCCL timings of a few systems
constexpr Spread kNetworkSpread{0.50, 2.00};    // across nodes: the network's latency and efficiency are estimates

// What would remove the wait: as many workers as make a batch within the step that is left without it.
bool anything_again(const std::vector<ChunkOfStep>& chunks) {
  for (const ChunkOfStep& chunk : chunks)
    for (const Op& op : chunk.step.graph.ops)
      if (op.phase == Phase::recompute) return true;
  return false;
}

std::string input_warning(const InputSpec& input, const Report& report) {
  const Seconds without = (report.step - report.breakdown.input) / static_cast<double>(report.micro_batches);
  const std::string share = fmt::format("the GPU waits {} of each step ({}) for its data", to_text(report.breakdown.input), fmt::format("{:.0f}%", 100 * (report.breakdown.input / report.step)));
  const std::string enough = without.value > 0 ? fmt::format("{:.0f}", std::ceil(input.per_batch / without)) : "more";
  if (input.workers == 0) return fmt::format("{}: the training loop loads by itself; {} worker{} beside it would hide it", share, enough, enough == "1" ? "" : "s");
  return fmt::format("{}: {} worker{} make{} a batch every {}; {} would keep up, or faster loading", share, input.workers, input.workers == 1 ? "" : "s",
                     input.workers == 1 ? "s" : "", to_text(input.per_batch / input.workers), enough);
}

// What is shared out, and how: layers first.
std::vector<std::string> split_layers_text(const Plan& plan, std::string replicas) {
  std::vector<std::string> parts;
  if (plan.pp > 1) parts.push_back(fmt::format("{} pipeline stages ({})", plan.pp, plan.vpp > 1 ? fmt::format("{}, {} chunks each", to_text(plan.schedule), plan.vpp) : std::string(to_text(plan.schedule))));
  if (plan.tp > 1) parts.push_back(fmt::format("layers split {} ways{}", plan.tp, plan.sp ? " with sequence parallelism" : ""));
  if (plan.cp > 1) parts.push_back(fmt::format("sequences split {} ways ({})", plan.cp, plan.exchange == ContextExchange::ring ? "ring" : "all-to-all"));
  const std::string each = !plan.experts_apart() ? "" : plan.ranks_per_expert() == 1 ? "each whole" : fmt::format("each split {} ways", plan.ranks_per_expert());
  if (plan.ep == 1 && plan.experts_apart()) parts.push_back("experts " + each);
  if (plan.ep > 1)
    parts.push_back(fmt::format("experts split {} ways{}{}{}{}", plan.ep, each.empty() ? "" : ", ", each,
                                plan.dispatch == ExpertDispatch::per_node ? ", tokens sent once to a node" : "", plan.expert_overlap ? ", beside other micro-batches' work" : ""));
  if (!replicas.empty()) parts.push_back(std::move(replicas));
  return parts;
}

}  // namespace

Exposure exposure(const Schedule& schedule, const Timeline& timeline, const KernelProgram& program, const Graph& graph, Picoseconds begin, Picoseconds end) {
  const auto tasks = schedule.graph.tasks();
  const auto last = static_cast<std::int16_t>(schedule.last_task.size() - 1);
  struct Message {
    Span span;
    TaskLabel label;
  };
  std::vector<Span> compute;
  std::vector<Message> collectives;
  Picoseconds host = 0, host_second = 0;
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    const Span span = timeline.spans[i];
    const TaskLabel& label = schedule.labels[i];
    if (tasks[i].resource == kHost && label.step == last) {
      host += span.end - span.start;
      if (label.micro_batch == 1) host_second += span.end - span.start;
    }
    if (span.end <= begin || span.start >= end) continue;
    if (label.call < 0) continue;  // a batch on its way
    if (tasks[i].resource == kCompute) compute.push_back(span);
    if (tasks[i].resource >= kCommunication) collectives.push_back({span, label});
  }
  Exposure out{.host_busy = seconds(host), .host_busy_second = seconds(host_second)};
  // Both lists in time order; where two messages are on their way at once, the time counts for the earlier one.
  std::stable_sort(collectives.begin(), collectives.end(), [](const Message& a, const Message& b) { return a.span.start < b.span.start; });
  std::size_t next = 0;
  Picoseconds counted = begin;
  for (const auto& [span, label] : collectives) {
    Picoseconds exposed = 0;
    Picoseconds at = std::max(span.start, counted);
    counted = std::max(counted, std::min(span.end, end));
    const Picoseconds until = std::min(span.end, end);
    while (next < compute.size() && compute[next].end <= at) ++next;
    for (std::size_t i = next; at < until; ++i) {
      if (i == compute.size() || compute[i].start >= until) {
        exposed += until - at;
        break;
      }
      exposed += std::max<Picoseconds>(0, compute[i].start - at);
      at = std::max(at, compute[i].end);
    }
    const Op& op = graph.ops[program.calls[static_cast<std::size_t>(label.call)].op];
    std::string name(op.on_communication_stream ? graph.name(op.label) : to_text(op.kind));  // a copy's label: its collective
    if (name == "replicas") name = to_text(OpKind::all_reduce);  // what is done with a sum over groups (parallel/rewrite.h)
    out.by_collective[name] += seconds(exposed);
  }
  return out;
}

StepTimes steady_step(const Schedule& schedule, const Timeline& timeline, const ChunkOfStep& chunk, std::int64_t micro_batches) {
  auto end_of = [&](std::int32_t task) { return timeline.spans[static_cast<std::size_t>(task)].end; };
  const std::size_t last = schedule.last_task.size() - 1;
  const Picoseconds begin = begin_of_last_step(schedule, timeline), end = end_of(schedule.last_task[last]);
  const Exposure shown = exposure(schedule, timeline, chunk.program, chunk.step.graph, begin, end);
  // Micro-batches that were not laid out repeat the second one, which has a predecessor and no gradients to send: the time between the
  // first's last kernel and its own, and what lies in it.
  const double missing = static_cast<double>(micro_batches - schedule.micro_batches_laid_out);
  Seconds one_more;
  std::map<std::string, Seconds> again;
  if (missing > 0) {
    const Picoseconds from = end_of(schedule.last_of_micro_batch[0]), to = end_of(schedule.last_of_micro_batch[1]);
    one_more = seconds(to - from);
    again = exposure(schedule, timeline, chunk.program, chunk.step.graph, from, to).by_collective;
  }
  StepTimes out{.length = seconds(end - begin) + one_more * missing, .host = shown.host_busy + shown.host_busy_second * missing};
  out.start_up = seconds(end - static_cast<Picoseconds>(schedule.last_task.size()) * (end - begin));
  out.exposed = shown.by_collective;
  for (const auto& [name, exposed] : again) out.exposed[name] += exposed * missing;
  const InputWait waited = input_wait(schedule, timeline, begin, end);
  out.input = seconds(waited.all) + seconds(waited.in_second) * missing;
  return out;
}

std::string describe(const Graph& graph, OpId op) {
  if (!op.valid()) return "";
  const Op& at = graph.ops[op];
  return fmt::format("{} {}{}{}", to_text(at.phase), name_of(graph, at), at.module.valid() ? " in " : "", graph.name(at.module));
}

Report summarise(const Request& request, std::int64_t parameters, Flops model_flops, Seconds gap, const std::vector<ChunkOfStep>& chunks, const StepTimes& times_of_step,
                 const MemoryUse& memory, const std::string& peak_at) {
  Report report;
  report.request = request.echo;
  report.model = request.model->name;
  report.gpu = request.gpu->name;
  report.gpu_title = request.gpu->title;
  report.precision = request.precision->name;
  report.precision_title = request.precision->title;
  report.fp32_weights = request.precision->updated_weights() == DType::fp32;
  report.autocast = request.precision->autocast.has_value();
  report.parameters = parameters;
  report.gpus = request.cluster.gpus;
  report.batch = request.inputs.batch;
  report.global_batch = request.global_batch;
  report.micro_batches = request.training.micro_batches;
  report.seq = request.inputs.seq;
  constexpr const char* kShared[] = {"", "optimizer states sharded (ZeRO 1)", "states and gradients sharded (ZeRO 2)", "fully sharded (ZeRO 3, FSDP)"};
  std::string shared = kShared[static_cast<int>(request.plan.fsdp)];
  if (request.replicas.shard_size > 0) shared += fmt::format(" in groups of {}", request.replicas.shard_size);
  std::vector<std::string> on_host;
  for (auto& [name, chosen] : {std::pair{"optimizer", request.replicas.offload_optimizer}, {"optimizer states", request.replicas.offload_states}, {"master weights", request.replicas.offload_master},
                               {"parameters", request.replicas.offload_parameters}, {"activations", request.replicas.offload_layers > 0}})
    if (chosen) on_host.push_back(name);
  if (request.replicas.offload_optimizer && request.replicas.offload_fraction < 1) on_host.front() = fmt::format("{:g}% of the optimizer", 100 * request.replicas.offload_fraction);
  if (!on_host.empty()) shared += (shared.empty() ? "" : ", ") + join(on_host, ", ") + " on the host";
  if (request.cluster.gpus > 1 || !on_host.empty()) report.sharding = join(split_layers_text(request.plan, shared), ", ");
  report.memory = memory;
  report.peak_at = peak_at;

  // Busy time by what it was spent on.
  constexpr std::size_t kFamilies = static_cast<std::size_t>(Family::host) + 1, kSources = static_cast<std::size_t>(CostSource::estimate) + 1;
  std::array<std::array<Seconds, kSources>, kFamilies> sources{};
  std::array<Seconds, kFamilies> by_family{};
  std::array<std::array<bool, kSources>, kFamilies> corrected{};  // by what was measured on a GPU, beyond the physics
  std::array<Seconds, kDTypeCount> by_type{};
  std::array<double, kDTypeCount> matrix_flops{};
  Seconds compute_bound{}, memory_bound{}, unknown{}, low{}, high{};  // the last two: of the 80% interval of the busy time
  double kernels = 0;
  for (const auto& [step, program, costs, per_gpu, ends_per_gpu] : chunks) for (const Call& call : program.calls) {
    const auto times = static_cast<double>(runs_per_step(call.phase, report.micro_batches)) * (call.phase >= Phase::gradient_sync ? ends_per_gpu : per_gpu);
    for (std::uint32_t i = 0; i < call.kernel_count; ++i) {
      const Kernel& kernel = program.kernels[call.first_kernel + i];
      const KernelCost& cost = costs[call.first_kernel + i];
      const Seconds spent = cost.total * times;
      const auto family = static_cast<std::size_t>(call.family == Family::host ? Family::copy : call.family);  // a read-back is a copy
      sources[family][static_cast<std::size_t>(cost.source)] += spent;
      if (cost.high > 0) corrected[family][static_cast<std::size_t>(cost.source)] = true;
      kernels += times * kernel.launches;
      if (call.collective) continue;
      report.gpu_busy += spent;
      report.breakdown.between_kernels += gap * (times * kernel.launches);
      by_family[family] += spent;
      by_type[static_cast<std::size_t>(kernel.math)] += spent;
      (cost.bound == Bound::compute ? compute_bound : memory_bound) += spent;
      const bool carried = cost.source == CostSource::estimate || cost.source == CostSource::scaled;
      const Spread spread = cost.high > 0 ? Spread{cost.low, cost.high} : carried ? kCarriedSpread : kFittedSpread;
      const double share = carried ? 1 : kOfOneSign;
      low += spent * (1 + share * (spread.low - 1));
      high += spent * (1 + share * (spread.high - 1));
      if (kernel.unknown) {
        unknown += spent;
        report.unknown_names.emplace_back(name_of(step.graph, step.graph.ops[call.op]));
      }
      if (call.family == Family::cast) report.breakdown.casts += spent;
      else if (call.phase == Phase::forward) report.breakdown.forward += spent;
      else if (call.phase == Phase::optimizer) report.breakdown.optimizer += spent;
      else if (call.phase == Phase::loss_scaling) report.breakdown.loss_scaling += spent;
      else report.breakdown.backward += spent;
      if (call.family == Family::cast) report.cast_kernels += times;
      if (is_matrix_work(step.graph.ops[call.op].kind))
        matrix_flops[static_cast<std::size_t>(kernel.math)] += kernel.flops.value * times;
    }
  }
  report.kernels = static_cast<std::int64_t>(kernels);
  std::sort(report.unknown_names.begin(), report.unknown_names.end());
  report.unknown_names.erase(std::unique(report.unknown_names.begin(), report.unknown_names.end()), report.unknown_names.end());
  report.unknown_share = report.gpu_busy.value > 0 ? unknown / report.gpu_busy : 0;
  for (std::size_t i = 0; i < kFamilies; ++i)
    if (by_family[i].value > 0) report.by_op_class[std::string(to_text(static_cast<Family>(i)))] = by_family[i];
  for (std::size_t i = 0; i < kDTypeCount; ++i)
    if (by_type[i].value > 0) report.by_dtype[std::string(to_text(static_cast<DType>(i)))] = by_type[i];

  report.step = times_of_step.length;
  report.host = times_of_step.host;
  report.start_up = times_of_step.start_up;
  report.breakdown.exposed_communication = times_of_step.exposed;
  report.breakdown.pipeline_bubble = times_of_step.bubble;
  Seconds exposed_collectives;
  for (const auto& [name, exposed] : times_of_step.exposed) exposed_collectives += exposed;
  // A gap that the host fills with waiting is no gap of the stream's: what is left over bounds it.
  Seconds idle = std::max(Seconds{}, report.step - report.gpu_busy - exposed_collectives - report.breakdown.pipeline_bubble);
  report.breakdown.input = std::min(idle, times_of_step.input);
  idle = idle - report.breakdown.input;
  report.breakdown.between_kernels = std::min(report.breakdown.between_kernels, idle);
  report.breakdown.host = idle - report.breakdown.between_kernels;

  // What bounds it: what the GPU spends most of its time waiting for or working at.
  // A loader that is waited for at all in the steady state decides the step.
  if (report.breakdown.input > report.step * 0.05) report.bound = "input";
  else if (report.breakdown.host > report.step * 0.3) report.bound = "host";
  else if (exposed_collectives > report.step * 0.3) report.bound = "network";
  else report.bound = compute_bound > memory_bound ? "compute" : "memory";

  const double per_s = 1.0 / report.step.value;
  const double samples = static_cast<double>(report.global_batch);
  const auto tokens = static_cast<double>(request.model->tokens_per_sample(request.inputs));
  report.samples_per_s = samples * per_s;
  if (tokens > 0) {
    report.tokens_per_s = samples * tokens * per_s;
    report.tokens_per_s_per_gpu = *report.tokens_per_s / report.gpus;
  }
  // One replica's micro-batches, shared out among the GPUs that it takes.
  const double step_flops = model_flops.value * static_cast<double>(report.micro_batches);
  report.tflops_per_gpu = step_flops * per_s / 1e12;
  std::size_t main_type = static_cast<std::size_t>(DType::fp32);
  for (std::size_t i = 0; i < kDTypeCount; ++i)
    if (matrix_flops[i] > matrix_flops[main_type]) main_type = i;
  report.mfu = step_flops * per_s / peak_of(*request.gpu, static_cast<DType>(main_type)).value;
  const DType sixteen = request.gpu->matrix.has(DType::bf16) ? DType::bf16 : DType::fp16;
  report.mfu_bf16 = step_flops * per_s / peak_of(*request.gpu, sixteen).value;
  report.peak_16bit = to_text(sixteen);

  const double host_share = report.breakdown.host / report.step;
  const double input_share = report.breakdown.input / report.step;  // as the user says: no width of its own
  const double network_share = exposed_collectives / report.step;
  const double gpu_share = std::max(0.0, 1 - host_share - network_share - input_share);
  const bool busy = report.gpu_busy.value > 0;
  const Spread gpu_spread = busy ? Spread{low / report.gpu_busy, high / report.gpu_busy} : kFittedSpread;
  const bool host_estimated = request.mode == Mode::eager ? request.host->estimated : request.host->compiled_estimated;
  const Spread& host_spread = host_estimated ? kGuessedHostSpread : kMeasuredHostSpread;
  const Spread& network_spread = request.cluster.nodes() > 1 ? kNetworkSpread : kNodeLinkSpread;
  auto mixed = [&](double Spread::* side) {
    return gpu_share * gpu_spread.*side + host_share * host_spread.*side + network_share * network_spread.*side + input_share;
  };
  report.step_low = report.step * mixed(&Spread::low);
  report.step_high = report.step * mixed(&Spread::high);

  const RunLength& run = request.run;
  if (run.steps) report.steps = *run.steps;
  if (run.tokens) report.steps = *run.tokens / (samples * tokens);
  if (run.samples) report.steps = *run.samples / samples;
  if (run.epochs) report.steps = *run.epochs * *run.dataset_samples / samples;
  report.price_usd_per_gpu_hour = request.price_usd_per_gpu_hour;
  if (report.steps) {
    report.steps = std::ceil(*report.steps);
    // A dynamic scale grows after so many good steps until one overflows, which is then skipped and made up for. An upper
    // estimate: a scale that overflows less often loses less.
    if (request.precision->loss_scaling) report.skipped_steps = *report.steps / static_cast<double>(request.precision->scale_growth_interval);
    report.total = report.step * (*report.steps + report.skipped_steps.value_or(0));
    if (report.price_usd_per_gpu_hour) report.cost_usd = report.total->value / 3600 * report.gpus * *report.price_usd_per_gpu_hour;
  }

  Seconds kernel_time;  // with copies on the communication stream, which may pass the compute stream's
  for (std::size_t family = 0; family < kFamilies; ++family)
    for (const Seconds& spent : sources[family])
      if (static_cast<Family>(family) != Family::collective) kernel_time += spent;
  for (std::size_t family = 0; family < kFamilies; ++family)
    for (std::size_t source = 0; source < kSources; ++source) {
      const Seconds spent = sources[family][source];
      if (spent.value <= 0) continue;
      const bool collective = static_cast<Family>(family) == Family::collective;
      report.provenance.push_back({std::string(to_text(static_cast<Family>(family))), std::string(to_text(static_cast<CostSource>(source))),
                                   static_cast<Family>(family) == Family::unknown ? std::string("unknown operators, costed by the bytes they move")
                                   : collective && request.cluster.nodes() > 1 ? fmt::format("data/networks/{}.json", request.cluster.network.name)
                                   : collective ? request.cluster.collectives.from
                                                                             : corrected[family][source] ? request.fitted_from : std::string("data/profiles/datasheet.json"),
                                   collective ? request.cluster.system : request.gpu->architecture,
                                   collective ? network_share : kernel_time.value > 0 ? spent / kernel_time : 0});
    }
  report.provenance.push_back({"hardware", "datasheet", fmt::format("data/gpus/{}.json", request.gpu->name), "", 0});
  report.provenance.push_back({"host", host_estimated ? "estimate" : "measured", request.own_host ? request.own_host_path : fmt::format("data/hosts/{}.json", request.host->name),
                               "", host_share});
  report.provenance.push_back({"memory", "estimate", "tensor lifetimes replayed through PyTorch's allocator rules; CUDA context and NCCL buffers are estimates", "", 0});

  for (const std::string& note : request.model->notes) report.warnings.push_back(note);
  report.warnings.insert(report.warnings.end(), request.warnings.begin(), request.warnings.end());
  for (std::string& note : import_notes(request.echo.value("imported", Json()))) report.warnings.push_back(std::move(note));
  if (!report.unknown_names.empty())
    report.warnings.push_back(fmt::format("{:.1f}% of the GPU's time is in {} of unknown cost, estimated by the bytes they move: {}", 100 * report.unknown_share,
                                          report.unknown_names.size() == 1 ? "an operator" : fmt::format("{} operators", report.unknown_names.size()),
                                          join(std::vector<std::string>(report.unknown_names.begin(),
                                                                        report.unknown_names.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(8, report.unknown_names.size()))), ", ")));
  if (memory.device > memory.capacity)
    report.warnings.push_back(fmt::format("does not fit: needs {} of {}", to_text(memory.device), to_text(memory.capacity)));
  if (memory.host_capacity.value > 0 && memory.host_of_node > memory.host_capacity)
    report.warnings.push_back(fmt::format("does not fit in the host's memory: a node's GPUs keep {} there, of {}", to_text(memory.host_of_node), to_text(memory.host_capacity)));
  for (DType dtype : request.precision->required_types())
    if (!request.gpu->computes(dtype))
      report.warnings.push_back(fmt::format("{} has no {} arithmetic: predicted as emulated through fp32", request.gpu->name, to_text(dtype)));
  if (request.precision->parameters == DType::fp16 && !request.precision->loss_scaling)
    report.warnings.push_back("pure fp16 without loss scaling: fast, but training often diverges");
  bool converted = false;
  Seconds wide_products{};
  std::string_view wide_name;
  for (const auto& [step, program, costs, per_gpu, ends_per_gpu] : chunks) for (const Call& call : program.calls) {
    const Op& op = step.graph.ops[call.op];
    converted = converted || op.kind == OpKind::scaled_mm;
    if (call.family != Family::gemm || (op.math != DType::fp32 && op.math != DType::tf32)) continue;
    for (std::uint32_t k = 0; k < call.kernel_count; ++k) wide_products += costs[call.first_kernel + k].total * per_gpu;
    if (op.phase == Phase::forward) wide_name = name_of(step.graph, op);
  }
  if (request.precision->fp8 && !converted)
    report.warnings.push_back(fmt::format("{}: no layer of this model runs in fp8; precog inspect says why", request.precision->name));
  if (request.precision->autocast && wide_products.value > 0.2 * report.gpu_busy.value / static_cast<double>(std::max<std::int64_t>(1, request.training.micro_batches)))
    report.warnings.push_back(fmt::format("autocast leaves {} in fp32 ({} of GPU time per micro-batch): --override op:{}={} would not", wide_name, to_text(wide_products),
                                          wide_name, to_text(*request.precision->autocast)));
  if (request.training.recompute != Recompute::none && !anything_again(chunks))
    report.warnings.push_back(fmt::format("recompute {} does nothing here: {} has none of the layers that it is about; recompute full is about layers of any kind", request.echo.value("recompute", ""), request.model->name));
  if (memory.host.value > 0 && memory.host_capacity.value == 0)
    report.warnings.push_back(fmt::format("{} of a node's host memory are needed, and nobody says how much it has: host_memory of a cluster's file or memory of a --host file", to_text(memory.host_of_node)));
  if (request.replicas.offloads()) report.warnings.push_back("copies from and to the host are an estimate: 85% of the link's datasheet rate, and no more than the host's memory moves");
  if (request.replicas.offload_optimizer && request.host->memory_estimated)
    report.warnings.push_back(fmt::format("the optimizer runs on the host, whose memory is taken to move {} in a node: memory_bandwidth of your own --host file replaces that guess", to_text(request.host->memory_bandwidth)));
  if (report.bound == "input") report.warnings.push_back(input_warning(*request.input, report));
  if (report.bound == "host" && host_estimated)
    report.warnings.push_back("bound by the host, whose speed is a guess: describe it with --host");
  return report;
}

}  // namespace precog
