#include "schedule/schedule.h"

#include <algorithm>

#include "base/ensure.h"

namespace precog {
namespace {

// A stream holds at most about this many launches that have not run; the host waits when it is full.
constexpr std::int64_t kLaunchQueue = 1024;
// A call of many launches (a recurrent layer's time steps) runs from its first on while the host still issues the others: it is laid out in parts of this many.
constexpr std::int32_t kLaunchesTogether = 16;
constexpr int kSteps = 3;          // the first warms up the queues; the last two differ by one steady step
constexpr std::int64_t kMicroBatches = 3;  // laid out in full; more repeat the second

// Sums over groups that hold copies of the shards, and what is done with them afterwards (parallel/rewrite.h: kAcrossGroups); and
// copies from and to the host, which share that third stream where a plan has both.
bool crosses_groups(const Call& call, const Graph& graph) {
  if (!call.collective) return false;
  const std::string_view label = graph.name(graph.ops[call.op].label);
  return label == "replicas" || label == "to_host" || label == "from_host";
}
// A collective that is part of a layer (its label says of which kind of split) and not of the exchange between replicas.
bool belongs_to_layer(const Call& call, const Graph& graph) {
  return call.collective && call.family == Family::collective && graph.ops[call.op].label.valid() && !crosses_groups(call, graph);
}
Resource stream_of(const Call& call, const Graph& graph) {
  if (!call.collective) return kCompute;
  return crosses_groups(call, graph) ? kGroupCommunication : belongs_to_layer(call, graph) ? kLayerCommunication : kCommunication;
}

// A grouped product without a kernel of its own asks for the groups' sizes before it issues one product after another (_grouped_mm_fallback,
// aten/src/ATen/native/GroupedMMUtils.h: offs.cpu()); other calls read what their own kernels made.
bool reads_first(const Call& call) { return call.waits_for_gpu && call.family == Family::gemm; }

// Streams wait for each other where a tensor made on one is read on the other.
struct CrossWait {
  std::int32_t on_call = -1;  // the last call on the other stream that made one of its operands
  bool ordered = false;       // an operand was made in this step, on whichever stream: nothing else need be waited for
};

std::vector<CrossWait> cross_waits(const KernelProgram& program, const Graph& graph) {
  std::vector<CrossWait> out(program.calls.size());
  if (std::none_of(program.calls.begin(), program.calls.end(), [](const Call& call) { return call.collective; })) return out;
  // By tensor: the last call on each stream that it was made by. What an operator without kernels makes (a view, or what is computed
  // inside another's kernel) was made by whoever made its operands.
  struct Makers {
    std::int32_t on[3] = {-1, -1, -1};  // compute, communication, sums over groups
  };
  const auto place = [&](const Call& call) { return !call.collective ? 0 : crosses_groups(call, graph) ? 2 : 1; };
  std::vector<Makers> made_by(graph.tensors.size());
  for (std::size_t i = 0; i < program.calls.size(); ++i) {
    const Call& call = program.calls[i];
    const Op& op = graph.ops[call.op];
    Makers read;
    for (TensorId id : graph.inputs(op))
      for (int stream : {0, 1, 2}) read.on[stream] = std::max(read.on[stream], made_by[graph.tensors[id].storage.index()].on[stream]);
    out[i].ordered = read.on[0] >= 0 || read.on[1] >= 0 || read.on[2] >= 0;
    const int own = place(call);
    for (int stream : {0, 1, 2})  // of two others the later: it waited for the earlier itself
      if (stream != own) out[i].on_call = std::max(out[i].on_call, read.on[stream]);
    if (call.kernel_count > 0) {
      read = {};
      read.on[own] = static_cast<std::int32_t>(i);
    }
    for (TensorId id : graph.outputs(op))
      if (call.kernel_count > 0 || graph.tensors[id].storage == id) made_by[graph.tensors[id].storage.index()] = read;
  }
  return out;
}

// What each call takes of the host and of its stream, and what it waits for: the same however often it is laid out.
struct CallTimes {
  std::vector<Picoseconds> host, gpu;
  std::vector<Sharing> sharing;
  Picoseconds begin = 0;        // of the host, once per step
  std::vector<std::int32_t> launches;
  std::vector<Resource> stream;
  std::vector<CrossWait> waits;
  std::size_t last_collective;  // of the gradients' exchange
  std::vector<std::int32_t> needs;  // of each call the gather at the end of the step before that brings its parameters; -1: none
  bool overlaps = false;            // there are such gathers: they name their parameters

  CallTimes(const KernelProgram& program, const std::vector<KernelCost>& costs, Seconds gap, const Graph& graph, const HostSpec& host_spec)
      : host(program.calls.size()), gpu(program.calls.size()), sharing(program.calls.size()), launches(program.calls.size()), stream(program.calls.size()), waits(cross_waits(program, graph)),
        last_collective(program.calls.size()), needs(program.calls.size(), -1) {
    find_gathers(program, graph);
    ensure(costs.size() == program.kernels.size(), "every kernel has a cost");
    const HostStep needed = host_step(program, graph, host_spec);
    begin = picoseconds(needed.begin);
    for (std::size_t i = 0; i < program.calls.size(); ++i) {
      const Call& call = program.calls[i];
      host[i] = picoseconds(needed.calls[i]);
      stream[i] = stream_of(call, graph);
      Seconds busy{};
      double units = 0, traffic = 0;  // seconds of SMs and of the memory: needed by a kernel, held by a collective
      for (std::uint32_t k = 0; k < call.kernel_count; ++k) {
        const KernelCost& cost = costs[call.first_kernel + k];
        busy += cost.total;
        units += call.collective ? cost.sm_share * cost.total.value : std::min(cost.compute, cost.total).value;
        traffic += call.collective ? cost.bandwidth_share * cost.total.value : std::min(cost.memory, cost.total).value;
        launches[i] += program.kernels[call.first_kernel + k].launches;
      }
      gpu[i] = picoseconds(busy + (call.collective ? Seconds{} : gap * static_cast<double>(launches[i])));
      if (busy.value > 0) sharing[i] = {static_cast<float>(units / busy.value), static_cast<float>(traffic / busy.value), call.collective};
      // The gradients are there when the last of them has been exchanged; collectives at the step's very end are others.
      if (call.collective && call.phase <= Phase::gradient_sync && stream[i] != kLayerCommunication) last_collective = i;
    }
  }

 private:
  void find_gathers(const KernelProgram& program, const Graph& graph) {
    std::vector<std::int32_t> brought_by;
    for (std::size_t i = 0; i < program.calls.size(); ++i) {
      const Op& op = graph.ops[program.calls[i].op];
      if (op.kind != OpKind::all_gather || op.phase != Phase::optimizer || op.input_count == 0) continue;
      overlaps = true;
      brought_by.resize(graph.tensors.size(), -1);
      for (TensorId id : graph.inputs(op)) brought_by[graph.tensors[id].storage.index()] = static_cast<std::int32_t>(i);
    }
    for (std::size_t i = 0; overlaps && i < program.calls.size(); ++i)
      if (program.calls[i].phase == Phase::forward)
        for (TensorId id : graph.inputs(graph.ops[program.calls[i].op])) needs[i] = std::max(needs[i], brought_by[graph.tensors[id].storage.index()]);
  }
};

// Issues calls one after another: the host's queue, and the stream that each goes to.
class Layout {
 public:
  Layout(const KernelProgram& program, const CallTimes& times, const HostSpec& host, Schedule& schedule)
      : program_(program), times_(times), host_(host), schedule_(schedule), task_of_(program.calls.size(), -1) {
    in_flight_.reserve(program.calls.size());
  }

  std::int32_t last = -1, last_compute = -1;

  void begin_step(std::int16_t step) {
    add(kHost, times_.begin, {}, {kNoCall, step, 0});
    // What the end of a step still sends (updated parameters) the next step's first kernel waits for.
    sent_by_last_step_ = last == last_collective_task_ && !times_.overlaps ? last : -1;
  }

  // Workers make batches in turn, evenly staggered: together one queue that is `workers` times as fast. Each stops when it is
  // `prefetch` batches ahead. A loop that loads by itself has nobody beside it.
  Schedule::Fetch fetch(const InputSpec& input, Seconds copy, std::int16_t step, std::int16_t micro) {
    const TaskLabel label{kInputCall, step, micro};
    const std::int32_t before = last_host_;
    std::int32_t ready = -1, copied = -1;
    if (input.workers > 0) {
      const std::size_t ahead = static_cast<std::size_t>(input.workers) * static_cast<std::size_t>(input.prefetch);
      ready = add(kInput, picoseconds(input.per_batch / input.workers), {taken_.size() >= ahead ? taken_[taken_.size() - ahead] : -1}, label);
    }
    taken_.push_back(add(kHost, input.workers > 0 ? 0 : picoseconds(input.per_batch), {ready}, label));
    if (copy.value > 0) copied = last_compute = add(kCompute, picoseconds(copy), {taken_.back()}, label);
    return {before, taken_.back(), copied};
  }

  // Whether anything was put on a stream: a view is only part of what comes next.
  bool issue(std::size_t i, std::int16_t step, std::int16_t micro) {
    const Call& call = program_.calls[i];
    if (call.kernel_count == 0) {  // a view: its issue is part of the next call's
      views_ += times_.host[i];
      return false;
    }
    const TaskLabel label{static_cast<std::int32_t>(i), step, micro};
    const CrossWait& wait = times_.waits[i];
    if (call.collective) {
      const std::int32_t issued = add(kHost, times_.host[i] + views_, {room_for(times_.launches[i])}, label);
      // Without an operand made in this step: after all that the compute stream has been given so far.
      last = add(times_.stream[i], times_.gpu[i], {issued, wait.on_call >= 0 ? task_of_[static_cast<std::size_t>(wait.on_call)] : wait.ordered ? -1 : last_compute}, label, times_.sharing[i]);
      if (times_.stream[i] != kLayerCommunication) last_collective_task_ = last;
      launched(last, times_.launches[i]);
    } else {
      // What comes back from buckets waits for the last collective; so does all that follows on the stream.
      const bool for_all = (times_.last_collective < program_.calls.size() && i > times_.last_collective) || call.phase >= Phase::loss_scaling;
      const std::int32_t for_one = wait.on_call >= 0 ? task_of_[static_cast<std::size_t>(wait.on_call)] : -1;
      const std::int32_t parameters = times_.needs[i] >= 0 ? task_of_[static_cast<std::size_t>(times_.needs[i])] : -1;  // of the step before: this one's come later
      if (reads_first(call)) add(kHost, picoseconds(host_.synchronise), {last_compute}, label);
      const std::int64_t parts = host_.blocking_launches ? 1 : std::max(1, times_.launches[i] / kLaunchesTogether);
      for (std::int64_t part = 0; part < parts; ++part) {
        const auto share = [&](std::int64_t whole) { return whole * (part + 1) / parts - whole * part / parts; };
        const std::int64_t launches = share(times_.launches[i]);
        const std::int32_t issued = add(kHost, share(times_.host[i] + views_), {room_for(launches)}, label);
        last = add(kCompute, share(times_.gpu[i]), {issued, for_all ? last_collective_task_ : -1, for_one, sent_by_last_step_, parameters}, label, times_.sharing[i]);
        launched(last, launches);
      }
      sent_by_last_step_ = -1;
      last_compute = last;
    }
    views_ = 0;
    task_of_[i] = last;
    if ((call.waits_for_gpu && !reads_first(call)) || host_.blocking_launches) add(kHost, picoseconds(host_.synchronise), {last}, label);
    return true;
  }

 private:
  std::int32_t add(std::int32_t resource, Picoseconds duration, std::initializer_list<std::int32_t> after, TaskLabel label, Sharing sharing = {}) {
    schedule_.labels.push_back(label);
    const std::int32_t task = schedule_.graph.add(resource, duration, after, sharing);
    if (resource == kHost) last_host_ = task;
    return task;
  }

  // The task whose end leaves the stream's queue room for so many launches; -1: there is room.
  std::int32_t room_for(std::int64_t launches) {
    std::int32_t room = -1;
    while (oldest_ < in_flight_.size() && launched_ + launches - in_flight_[oldest_].launched_by > kLaunchQueue) room = in_flight_[oldest_++].task;
    return room;
  }
  void launched(std::int32_t task, std::int64_t launches) {
    launched_ += launches;
    in_flight_.push_back({task, launched_});
  }

  struct InFlight { std::int32_t task; std::int64_t launched_by; };
  const KernelProgram& program_;
  const CallTimes& times_;
  const HostSpec& host_;
  Schedule& schedule_;
  std::vector<std::int32_t> task_of_;
  std::vector<InFlight> in_flight_;  // all that were launched; those before the oldest are known to have run
  std::size_t oldest_ = 0;
  std::int64_t launched_ = 0;
  std::int32_t last_collective_task_ = -1, sent_by_last_step_ = -1, last_host_ = -1;
  std::vector<std::int32_t> taken_;  // the host's taking of each batch so far
  Picoseconds views_ = 0;
};

}  // namespace

Schedule make_schedule(const KernelProgram& program, const std::vector<KernelCost>& costs, Seconds gap, const Graph& graph,
                       const HostSpec& host, std::int64_t micro_batches, const InputSpec* input, Seconds copy) {
  const std::size_t calls = program.calls.size();
  const CallTimes times(program, costs, gap, graph, host);
  Schedule schedule;
  schedule.micro_batches_laid_out = std::min(micro_batches, kMicroBatches);
  schedule.graph.reserve(calls * 2 * kSteps * static_cast<std::size_t>(schedule.micro_batches_laid_out));
  schedule.labels.reserve(calls * 2 * kSteps * static_cast<std::size_t>(schedule.micro_batches_laid_out));
  Layout layout(program, times, host, schedule);
  for (std::int16_t step = 0; step < kSteps; ++step) {
    layout.begin_step(step);
    for (std::int64_t micro = 0; micro < schedule.micro_batches_laid_out; ++micro) {
      std::int32_t last_of_this = -1;
      if (input) {
        const Schedule::Fetch fetched = layout.fetch(*input, copy, step, static_cast<std::int16_t>(micro));
        if (step + 1 == kSteps) schedule.fetches.push_back(fetched);
      }
      for (std::size_t i = 0; i < calls; ++i) {
        const Call& call = program.calls[i];
        // The end of the step runs with the last micro-batch, accumulation from the second on.
        if (micro + runs_per_step(call.phase, schedule.micro_batches_laid_out) < schedule.micro_batches_laid_out) continue;
        const bool ran = layout.issue(i, step, static_cast<std::int16_t>(micro));
        if (ran && step + 1 == kSteps && call.phase <= Phase::accumulate && !call.collective) last_of_this = layout.last_compute;
      }
      if (step + 1 == kSteps) schedule.last_of_micro_batch.push_back(last_of_this);
    }
    schedule.last_task.push_back(times.overlaps ? layout.last_compute : layout.last);  // gathers beside the next forward are its concern
  }
  return schedule;
}

std::vector<Schedule> make_segments(const KernelProgram& program, const std::vector<KernelCost>& costs, Seconds gap, const Graph& graph,
                                    const HostSpec& host, std::span<const std::vector<char>> segments) {
  const CallTimes times(program, costs, gap, graph, host);
  std::vector<Schedule> out;
  for (const std::vector<char>& chosen : segments) {
    ensure(chosen.size() == program.calls.size(), "a segment says of every call whether it has it");
    Schedule& schedule = out.emplace_back();
    const auto count = static_cast<std::size_t>(std::count(chosen.begin(), chosen.end(), char{1}));
    schedule.graph.reserve(count * 2);
    schedule.labels.reserve(count * 2);
    Layout layout(program, times, host, schedule);
    for (std::size_t i = 0; i < chosen.size(); ++i)
      if (chosen[i]) layout.issue(i, 0, 0);
    schedule.last_task.push_back(layout.last);
  }
  return out;
}

Picoseconds begin_of_last_step(const Schedule& schedule, const Timeline& timeline) {
  if (schedule.last_task.size() < 2) return 0;
  return timeline.spans[static_cast<std::size_t>(schedule.last_task[schedule.last_task.size() - 2])].end;
}

}  // namespace precog
