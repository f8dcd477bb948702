#include "schedule/schedule.h"

#include <algorithm>
#include <deque>

#include "base/ensure.h"

namespace precog {
namespace {

// A stream holds at most about this many launches that have not run; the host waits when it is full.
constexpr std::int64_t kLaunchQueue = 1024;
constexpr int kSteps = 3;          // the first warms up the queues; the last two differ by one steady step
constexpr std::int64_t kMicroBatches = 3;  // laid out in full; more repeat the second

// Streams wait for each other where a tensor made on one is read on the other.
struct CrossWait {
  std::int32_t on_call = -1;  // the last call on the other stream that made one of its operands
  bool ordered = false;       // an operand was made in this step, on whichever stream: nothing else need be waited for
};

std::vector<CrossWait> cross_waits(const KernelProgram& program, const Graph& graph) {
  std::vector<CrossWait> out(program.calls.size());
  if (std::none_of(program.calls.begin(), program.calls.end(), [](const Call& call) { return call.collective; })) return out;
  std::vector<std::int32_t> made_by(graph.tensors.size(), -1);
  for (std::size_t i = 0; i < program.calls.size(); ++i) {
    const Call& call = program.calls[i];
    const Op& op = graph.ops[call.op];
    for (TensorId id : graph.inputs(op)) {
      const std::int32_t maker = made_by[graph.tensors[id].storage.index()];
      if (maker < 0) continue;
      out[i].ordered = true;
      if (program.calls[static_cast<std::size_t>(maker)].collective != call.collective) out[i].on_call = std::max(out[i].on_call, maker);
    }
    if (call.kernel_count == 0) continue;
    for (TensorId id : graph.outputs(op)) made_by[graph.tensors[id].storage.index()] = static_cast<std::int32_t>(i);
  }
  return out;
}

}  // namespace

HostTimes::HostTimes(const HostSpec& host) : host_(host) {
  for (std::size_t i = 0; i < kKinds; ++i) {
    const auto kind = static_cast<OpKind>(i);
    auto look_up = [&](const std::map<std::string, Seconds>& table) {
      auto known = table.find(std::string(to_text(kind)));
      if (known == table.end()) known = table.find(std::string(to_text(definition(kind).family)));
      return known == table.end() ? table.at("default") : known->second;
    };
    forward_[i] = look_up(host.forward);
    backward_[i] = look_up(host.backward);
  }
}

Seconds HostTimes::operator()(const Call& call, const KernelProgram& program, const Graph& graph) const {
  const Op& op = graph.ops[call.op];
  const auto kind = static_cast<std::size_t>(op.kind);
  if (program.dispatched && call.compiled && call.kernel_count == 0) return {};  // inside another's kernel
  if (call.compiled && !call.collective && !program.dispatched) return compiled(call, program);
  switch (call.phase) {
    case Phase::forward:
    case Phase::recompute: {
      const auto* cast = std::get_if<CastAttributes>(&op.attributes);
      return (cast && cast->by_autocast ? host_.autocast_cast : forward_[kind]) + loop_of_products(call, program);
    }
    case Phase::backward:
    case Phase::accumulate:
    case Phase::gradient_sync: return backward_[kind] + loop_of_products(call, program);
    case Phase::loss_scaling:
    case Phase::optimizer: {
      std::int64_t launches = 0;
      for (std::uint32_t i = 0; i < call.kernel_count; ++i) launches += program.kernels[call.first_kernel + i].launches;
      const auto* many = std::get_if<MultiTensorAttributes>(&op.attributes);
      if (many && many->one_by_one) return forward_[static_cast<std::size_t>(OpKind::add)] * static_cast<double>(many->tensors);
      return host_.optimizer_op + host_.kernel_launch * static_cast<double>(std::max<std::int64_t>(0, launches - 1));
    }
  }
  return {};
}

// The program that a compiler writes calls kernels and libraries directly: no dispatcher, no autograd, no Python objects.
Seconds HostTimes::compiled(const Call& call, const KernelProgram& program) const {
  if (program.cuda_graphs || call.kernel_count == 0) return {};
  std::int64_t generated = 0;
  bool library = false;
  for (std::uint32_t i = 0; i < call.kernel_count; ++i) {
    const Kernel& kernel = program.kernels[call.first_kernel + i];
    if (kernel.fused) generated += kernel.launches;
    else library = true;
  }
  return host_.compiled.kernel * static_cast<double>(generated) + (library ? host_.compiled.library_call : Seconds{});
}

// A grouped product without a kernel of its own issues one product per group, from inside the framework.
Seconds HostTimes::loop_of_products(const Call& call, const KernelProgram& program) const {
  if (call.family != Family::gemm || call.kernel_count == 0) return {};
  return backward_[static_cast<std::size_t>(OpKind::mm)] * static_cast<double>(program.kernels[call.first_kernel].launches - 1);
}

Schedule make_schedule(const KernelProgram& program, const std::vector<KernelCost>& costs, Seconds gap, const Graph& graph,
                       const HostSpec& host, std::int64_t micro_batches) {
  ensure(costs.size() == program.kernels.size(), "every kernel has a cost");
  const std::size_t calls = program.calls.size();
  std::vector<Picoseconds> host_ps(calls), gpu_ps(calls);
  std::vector<std::int32_t> launches(calls);
  std::size_t last_collective = calls, first_optimizer = calls, last_backward = calls;
  std::int64_t tensors = 0;
  std::array<bool, 2> entered{};
  const HostTimes host_time(host);
  for (std::size_t i = 0; i < calls; ++i) {
    const Call& call = program.calls[i];
    host_ps[i] = picoseconds(host_time(call, program, graph));
    Seconds busy{};
    for (std::uint32_t k = 0; k < call.kernel_count; ++k) {
      busy += costs[call.first_kernel + k].total;
      launches[i] += program.kernels[call.first_kernel + k].launches;
    }
    gpu_ps[i] = picoseconds(busy + (call.collective ? Seconds{} : gap * static_cast<double>(launches[i])));
    // The gradients are there when the last of them has been exchanged; collectives at the step's very end are others.
    if (call.collective && call.phase <= Phase::gradient_sync) last_collective = i;
    // Each of the two compiled graphs is entered once.
    const auto graph_of = static_cast<std::size_t>(call.phase == Phase::forward ? 0 : 1);
    if (call.compiled && !program.dispatched && call.kernel_count > 0 && !entered[graph_of]) {
      entered[graph_of] = true;
      host_ps[i] += picoseconds(program.cuda_graphs ? host.compiled.replay : host.compiled.graph);
    }
    if (call.phase == Phase::backward) last_backward = i;
    const auto* many = std::get_if<MultiTensorAttributes>(&graph.ops[call.op].attributes);
    if (many) tensors = std::max(tensors, many->tensors);  // some calls of the step's end go over a buffer, not over all tensors
    if (call.phase == Phase::optimizer && first_optimizer == calls) {
      first_optimizer = i;
      host_ps[i] += picoseconds(host.optimizer_tensor * static_cast<double>(tensors));
    }
    if (graph.ops[call.op].kind == OpKind::unscale_and_check) host_ps[i] += picoseconds(host.loss_scaler);
  }
  // Gradients reach their parameters all along backward; where exactly matters little, so it is charged at its end.
  if (last_backward < calls) host_ps[last_backward] += picoseconds(host.parameter_gradient * static_cast<double>(tensors));

  const std::vector<CrossWait> waits = cross_waits(program, graph);
  std::vector<std::int32_t> task_of(calls, -1);

  Schedule schedule;
  schedule.micro_batches_laid_out = std::min(micro_batches, kMicroBatches);
  schedule.graph.reserve(calls * 2 * kSteps * static_cast<std::size_t>(schedule.micro_batches_laid_out));
  schedule.labels.reserve(calls * 2 * kSteps * static_cast<std::size_t>(schedule.micro_batches_laid_out));

  struct InFlight { std::int32_t task; std::int64_t launched_by; };
  std::deque<InFlight> in_flight;
  std::int64_t launched = 0;
  std::int32_t last_compute = -1, last_collective_task = -1, last = -1;
  Picoseconds views = 0;

  auto add = [&](Resource resource, Picoseconds duration, std::initializer_list<std::int32_t> after, TaskLabel label) {
    schedule.labels.push_back(label);
    return schedule.graph.add(resource, duration, after);
  };

  for (std::int16_t step = 0; step < kSteps; ++step) {
    add(kHost, picoseconds(host.step), {}, {-1, step, 0});
    // What the end of a step still sends (updated parameters) the next step's first kernel waits for.
    std::int32_t sent_by_last_step = last == last_collective_task ? last : -1;
    for (std::int64_t micro = 0; micro < schedule.micro_batches_laid_out; ++micro) {
      std::int32_t last_of_this = -1;
      for (std::size_t i = 0; i < calls; ++i) {
        const Call& call = program.calls[i];
        // The end of the step runs with the last micro-batch, accumulation from the second on.
        if (micro + runs_per_step(call.phase, schedule.micro_batches_laid_out) < schedule.micro_batches_laid_out) continue;
        if (call.kernel_count == 0) {  // a view: its issue is part of the next call's
          views += host_ps[i];
          continue;
        }
        const TaskLabel label{static_cast<std::int32_t>(i), step, static_cast<std::int16_t>(micro)};
        std::int32_t room = -1;
        while (!in_flight.empty() && launched + launches[i] - in_flight.front().launched_by > kLaunchQueue) {
          room = in_flight.front().task;
          in_flight.pop_front();
        }
        const std::int32_t issued = add(kHost, host_ps[i] + views, {room}, label);
        views = 0;
        std::int32_t ran = issued;
        if (call.collective) {
          // Without an operand made in this step: after all that the compute stream has been given so far.
          ran = add(kCommunication, gpu_ps[i], {issued, waits[i].on_call >= 0 ? task_of[static_cast<std::size_t>(waits[i].on_call)] : waits[i].ordered ? -1 : last_compute}, label);
          last_collective_task = ran;
        } else {
          // What comes back from buckets waits for the last collective; so does all that follows on the stream.
          const bool for_all = (last_collective < calls && i > last_collective) || call.phase >= Phase::loss_scaling;
          const std::int32_t for_one = waits[i].on_call >= 0 ? task_of[static_cast<std::size_t>(waits[i].on_call)] : -1;
          ran = add(kCompute, gpu_ps[i], {issued, for_all ? last_collective_task : for_one, sent_by_last_step}, label);
          sent_by_last_step = -1;
          last_compute = ran;
        }
        task_of[i] = last = ran;
        launched += launches[i];
        in_flight.push_back({ran, launched});
        if (call.waits_for_gpu) add(kHost, picoseconds(host.synchronise), {ran}, label);
        if (step + 1 == kSteps && call.phase <= Phase::accumulate && !call.collective) last_of_this = last_compute;
      }
      if (step + 1 == kSteps) schedule.last_of_micro_batch.push_back(last_of_this);
    }
    schedule.last_task.push_back(last);
  }
  return schedule;
}

}  // namespace precog
