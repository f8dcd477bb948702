#include "predict/pipeline.h"

#include <algorithm>
#include <array>
#include <numeric>

#include <fmt/format.h>

#include "memory/peak_bounds.h"

namespace precog {
namespace {

// Segments over the tensors in them, less one, of what micro-batches in flight keep: what recorded steps reserve beyond their peak
// in the median, an estimate here. Too small: pipelines that run out of memory are said to fit.
constexpr double kKeptRounding = 0.02;
constexpr std::int64_t kPiecesDrawn = 8000;  // about so many pieces of work in a trace or a picture

// Which calls a piece of work has.
using Chosen = std::vector<char>;

template <class Wanted>
Chosen choose(const ChunkOfStep& chunk, Wanted wanted) {
  Chosen out(chunk.program.calls.size(), 0);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = wanted(chunk.program.calls[i].phase) ? 1 : 0;
  return out;
}

// Backward operators that lead to a weight's gradient only: they make it, or prepare an operand for what makes it. What makes
// both gradients in one kernel (a norm, an attention) is not one of them.
Chosen weights_only(const ChunkOfStep& chunk) {
  const Graph& graph = chunk.step.graph;
  std::vector<char> wanted(graph.tensors.size(), 0), read(graph.tensors.size(), 0);  // read by something else than weights' work
  for (const ParameterGradient& g : chunk.step.gradients) wanted[graph.tensors[g.gradient].storage.index()] = 1;
  Chosen out(chunk.program.calls.size(), 0);
  for (std::size_t i = out.size(); i-- > 0;) {
    const Call& call = chunk.program.calls[i];
    const Op& op = graph.ops[call.op];
    if (call.phase == Phase::accumulate) out[i] = 1;
    if (call.phase != Phase::backward && call.phase != Phase::accumulate) continue;
    if (op.output_count > 0) {
      bool only = true;
      for (TensorId id : graph.outputs(op)) only = only && wanted[graph.tensors[id].storage.index()] && !read[graph.tensors[id].storage.index()];
      out[i] = only ? 1 : 0;
    } else if (op.kind == OpKind::accumulate_gradient) {
      out[i] = 1;
    }
    const bool prepares = call.family == Family::view || call.family == Family::cast || call.family == Family::copy || call.family == Family::reduction;
    for (TensorId id : graph.inputs(op)) {
      const std::size_t storage = graph.tensors[id].storage.index();
      if (!out[i]) read[storage] = 1;
      else if (prepares || op.kind == OpKind::accumulate_gradient) wanted[storage] = 1;
    }
  }
  return out;
}

PipelinePart part_of(const Schedule& schedule, const ChunkOfStep& chunk, Picoseconds until = -1) {
  const Timeline timeline = simulate(schedule.graph);
  PipelinePart out;
  out.length = until >= 0 ? until : timeline.end;
  out.shown = exposure(schedule, timeline, chunk.program, chunk.step.graph, 0, out.length);
  return out;
}

// What the stage before waits for is there when backward's own work is done; what then is left of the gradients' exchange,
// copies around it included, others may overlap.
PipelinePart last_backward(const Schedule& schedule, const ChunkOfStep& chunk, ChunkParts& parts) {
  const Timeline timeline = simulate(schedule.graph);
  const auto of_backward = [&](std::size_t i) {
    const std::int32_t call = schedule.labels[i].call;
    return call >= 0 && chunk.program.calls[static_cast<std::size_t>(call)].phase <= Phase::accumulate;
  };
  Picoseconds computed = 0;
  for (std::size_t i = 0; i < timeline.spans.size(); ++i)
    if (schedule.graph.tasks()[i].resource != kCommunication && schedule.graph.tasks()[i].resource != kGroupCommunication && of_backward(i)) computed = std::max(computed, timeline.spans[i].end);
  for (std::size_t i = 0; i < timeline.spans.size(); ++i)
    if (schedule.graph.tasks()[i].resource == kCompute) parts.sync_work += std::max<Picoseconds>(0, timeline.spans[i].end - std::max(computed, timeline.spans[i].start));
  parts.sync = std::max<Picoseconds>(0, timeline.end - computed);
  return {computed, exposure(schedule, timeline, chunk.program, chunk.step.graph, 0, computed)};
}

// Updated parameters that are gathered beside the next step's first forward: as much of it as that is long is hidden.
void hide_gathers(const ChunkOfStep& chunk, ChunkParts& parts) {
  Picoseconds gathers = 0;
  for (const Call& call : chunk.program.calls)
    if (call.phase == Phase::optimizer && chunk.step.graph.ops[call.op].kind == OpKind::all_gather)
      for (std::uint32_t i = 0; i < call.kernel_count; ++i) gathers += picoseconds(chunk.costs[call.first_kernel + i].total);
  const Picoseconds hidden = std::min({gathers, parts.forward.length, parts.end.length});
  parts.end.length -= hidden;
  Seconds& shown = parts.end.shown.by_collective["all_gather"];
  shown = std::max(Seconds{}, shown - seconds(hidden));
}

Bytes gradient_bytes(const Request& request, std::int64_t elements, const ChunkOfStep& first) {
  // Those that are converted at the end of the step only (DeepSpeed's fp16 optimizer) are still what backward made.
  const auto& main = request.precision->main_gradients;
  const bool converted = main && (main->made == MainGradients::Made::in_backward || main->made == MainGradients::Made::in_product);
  DType type = main ? main->dtype : DType::fp32;
  if (!converted && !first.step.gradients.empty()) type = first.step.graph.tensors[first.step.gradients.front().gradient].dtype;
  return {elements * bits_of(type) / 8};
}

}  // namespace

PipelineShape pipeline_shape(const Request& request) {
  return {request.plan.schedule, request.plan.pp, request.plan.vpp, request.training.micro_batches};
}

void share_out(const Plan& plan, const PipelineStages& cut, std::vector<ChunkOfStep>& chunks) {
  for (ChunkOfStep& chunk : chunks) chunk.per_gpu = chunk.ends_per_gpu = 0;
  for (std::size_t chunk : cut.chunk_at) {
    chunks[chunk].per_gpu += 1.0 / plan.pp;
    chunks[chunk].ends_per_gpu += (plan.schedule == PipelineSchedule::dualpipe ? 2.0 : 1.0) / plan.pp;
  }
}

PipelineParts pipeline_parts(const Request& request, const PipelineStages& cut, const std::vector<ChunkOfStep>& chunks, Seconds gap, Seconds copy) {
  const PipelineShape shape = pipeline_shape(request);
  PipelineParts out;
  for (const ChunkOfStep& chunk : chunks) {
    const auto back = [](Phase phase) { return phase == Phase::recompute || phase == Phase::backward; };
    const bool accumulates = request.training.micro_batches > 1;
    std::vector<Chosen> pieces(6);
    pieces[0] = choose(chunk, [](Phase phase) { return phase == Phase::forward; });
    pieces[1] = choose(chunk, back);
    pieces[2] = choose(chunk, [&](Phase phase) { return back(phase) || phase == Phase::accumulate; });
    pieces[3] = choose(chunk, [&](Phase phase) { return back(phase) || (accumulates && phase == Phase::accumulate) || phase == Phase::gradient_sync; });
    pieces[4] = choose(chunk, [](Phase phase) { return phase > Phase::gradient_sync; });
    pieces[5].assign(chunk.program.calls.size(), 0);
    if (shape.splits_backward()) pieces[5] = weights_only(chunk);
    const bool same = pieces[2] == pieces[1];  // gradients are added up on the way
    if (same) pieces[2].assign(pieces[2].size(), 0);
    std::vector<Schedule> laid_out = make_segments(chunk.program, chunk.costs, gap, chunk.step.graph, *request.host, pieces);
    ChunkParts& parts = out.chunks.emplace_back();
    parts.forward = part_of(laid_out[0], chunk);
    parts.first_backward = part_of(laid_out[1], chunk);
    parts.backward = same ? parts.first_backward : part_of(laid_out[2], chunk);
    parts.last_backward = last_backward(laid_out[3], chunk, parts);
    parts.end = part_of(laid_out[4], chunk);
    if (request.replicas.overlap_gather) hide_gathers(chunk, parts);
    parts.weights = part_of(laid_out[5], chunk);
    parts.forward_schedule = std::move(laid_out[0]);
    parts.backward_schedule = std::move(laid_out[1]);
    for (const Call& call : chunk.program.calls)
      if (call.collective && call.phase == Phase::gradient_sync && definition(chunk.step.graph.ops[call.op].kind).family == Family::collective)
        parts.sync_collective = to_text(chunk.step.graph.ops[call.op].kind);
  }

  PipelineTimes& times = out.times;
  for (std::size_t position = 0; position < cut.chunk_at.size(); ++position) {
    const ChunkParts& parts = out.chunks[cut.chunk_at[position]];
    ChunkTimes one{parts.forward.length, parts.first_backward.length, parts.backward.length, parts.last_backward.length,
                   std::min(parts.weights.length, parts.first_backward.length), parts.sync, parts.end.length};
    times.chunks.push_back(one);
  }
  // Stages are the slowest to change in the order of ranks: neighbours lie a stage's GPUs apart.
  const int apart = std::max(1, request.cluster.gpus / shape.stages), node = std::max(1, request.cluster.gpus_per_node);
  auto message = [&](std::size_t position, Bytes bytes) {
    if (bytes.value == 0) return Picoseconds{0};
    const int from = shape.stage_of(static_cast<int>(position), 0), to = shape.stage_of(static_cast<int>(position) + 1, 0);
    const bool one_node = from * apart / node == to * apart / node;
    // Ranks that share a layer have all of it, or each its tokens (sequence parallelism). In the first case Megatron and DeepSpeed have each
    // rank send its part, and gather on the other side, where NVLink is (Narayanan et al. 2021, section 4.1; DeepSpeed's PartitionedTensor).
    const int parts = request.stack != Stack::pytorch && !request.plan.sp ? request.plan.tp : 1;
    CollectiveShape sent{bytes * (1.0 / parts), one_node ? 2 : std::max(2, shape.stages), Collective::send_recv, one_node ? 1 : apart};
    Seconds time = collective_cost(sent, request.cluster, *request.gpu).total;
    if (parts > 1) time += collective_cost({bytes, parts, Collective::all_gather}, request.cluster, *request.gpu).total;
    return picoseconds(time);
  };
  for (std::size_t i = 0; i < cut.sent_forward.size(); ++i) {
    times.send_forward.push_back(message(i, cut.sent_forward[i]));
    times.send_backward.push_back(message(i, cut.sent_backward[i]));
  }
  if (cut.tied_elements > 0 && shape.stage_of(shape.positions() - 1, 0) != 0) {  // both ends on one stage need nobody else
    const Bytes bytes = gradient_bytes(request, cut.tied_elements, chunks.front());
    const CollectiveShape sum{bytes, 2, Collective::all_reduce, apart * (shape.stages - 1)};
    times.tied = picoseconds(collective_cost(sum, request.cluster, *request.gpu).total);
  }
  times.step = picoseconds(request.host->step);
  if (const auto& input = request.input) {
    times.input.before = picoseconds(copy + (input->workers > 0 ? Seconds{} : input->per_batch));
    if (input->workers > 0) times.input.every = picoseconds(input->per_batch / input->workers), times.input.ahead = static_cast<std::int64_t>(input->workers) * input->prefetch;
  }
  times.all_wait = request.training.clip_grad_norm || request.precision->loss_scaling;
  return out;
}

StepTimes pipeline_times(const Request& request, const std::vector<ChunkOfStep>& chunks, const PipelineParts& parts) {
  const PipelineShape shape = pipeline_shape(request);
  const auto m = static_cast<double>(shape.micro_batches);
  // The same pipeline with less and less of its communication: what each kind adds is what of it is exposed.
  PipelineTimes fed = parts.times;  // at once
  fed.input = {};
  PipelineTimes silent = fed;
  silent.tied = 0;
  const PipelineTimes untied = silent;
  for (ChunkTimes& chunk : silent.chunks) chunk.sync = 0;
  const PipelineTimes unreduced = silent;
  std::fill(silent.send_forward.begin(), silent.send_forward.end(), 0);
  std::fill(silent.send_backward.begin(), silent.send_backward.end(), 0);
  const Picoseconds bare = pipeline_length(shape, silent), sending = pipeline_length(shape, unreduced);
  const bool reduces = std::any_of(parts.times.chunks.begin(), parts.times.chunks.end(), [](const ChunkTimes& chunk) { return chunk.sync > 0; });
  const Picoseconds reducing = reduces ? pipeline_length(shape, untied) : sending;
  const Picoseconds all = parts.times.tied > 0 ? pipeline_length(shape, fed) : reducing;

  StepTimes out;
  out.length = seconds(all);
  if (request.input) {
    out.length = seconds(std::max(all, pipeline_length(shape, parts.times)));
    out.input = out.length - seconds(all);
  }
  out.exposed["send_recv"] = seconds(sending - bare);
  std::string reduction = "all_reduce";
  for (const ChunkParts& chunk : parts.chunks)
    if (!chunk.sync_collective.empty()) reduction = chunk.sync_collective;
  if (all > reducing) out.exposed["all_reduce"] += seconds(all - reducing);

  const double lasts = shape.schedule == PipelineSchedule::dualpipe ? 2 : 1;  // copies of a chunk: each has a first and a last
  Seconds working;  // of the mean GPU
  out.host = request.host->step;
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    const ChunkParts& p = parts.chunks[c];
    auto add = [&](const PipelinePart& part, double times) {
      working += seconds(part.length) * times;
      out.host += part.shown.host_busy * times;
      for (const auto& [name, exposed] : part.shown.by_collective) out.exposed[name] += exposed * times;
    };
    const double often = chunks[c].per_gpu;
    add(p.forward, m * often);
    // In two pieces or whole: of the pieces, the last one of the weights' gradients has what the last backward has beyond the others.
    if (m > lasts) add(p.first_backward, lasts * often), add(p.backward, (m - 2 * lasts) * often);
    add(p.last_backward, lasts * often);
    add(p.end, chunks[c].ends_per_gpu);
  }
  working += request.host->step;
  // Of what the reduction adds, the copies around it are work; where another stage's wait hides them, they shorten the bubble.
  Seconds copies;
  for (std::size_t c = 0; c < chunks.size(); ++c) copies += seconds(parts.chunks[c].sync_work) * (chunks[c].per_gpu * lasts);
  const Seconds added = seconds(reducing - sending);
  if (added > copies) out.exposed[reduction] += added - copies;
  out.bubble = std::max(Seconds{}, seconds(bare) - working - std::max(Seconds{}, copies - added));
  return out;
}

// Which chunks a stage may be at work on when it has more than any stage ever has: the allocator is asked about those only. Where
// stages have several chunks, each counts beside the others: all.
static std::vector<char> may_have_worst_moment(const PipelineShape& shape, const PipelineOrder& order, const PipelineStages& cut, const std::vector<ChunkOfStep>& chunks,
                                               const std::vector<MemoryTrace>& traces, const std::vector<Bytes>& saved, Allocator allocator) {
  if (shape.positions() > shape.stages || shape.schedule == PipelineSchedule::dualpipe || chunks.size() == 1) return std::vector<char>(chunks.size(), 1);
  std::vector<PeakBounds> bounds;
  for (std::size_t c = 0; c < chunks.size(); ++c) bounds.push_back(peak_bounds(traces[c], chunks[c].step.graph, allocator));
  std::vector<Bytes> most;  // by stage: of what it has at most
  Bytes reached;            // by one of them at least
  for (int stage = 0; stage < shape.stages; ++stage) {
    const std::size_t c = cut.chunk_at[static_cast<std::size_t>(stage)];
    std::array<std::int64_t, 2> others{};  // while forward is at work, and backward
    follow(shape, order[static_cast<std::size_t>(stage)], [&](const PipelineWork& work, const std::vector<std::int64_t>& in_flight) {
      std::int64_t& count = others[work.kind == PipelineWork::Kind::forward ? 0 : 1];
      count = std::max(count, in_flight[static_cast<std::size_t>(work.position)]);
    });
    const auto kept = [&](std::int64_t count) { return saved[c] * static_cast<double>(count); };
    most.push_back(bounds[c].high + kept(std::max(others[0], others[1])));
    reached = std::max(reached, bounds[c].low + (bounds[c].at_work ? kept(std::min(others[0], others[1])) : Bytes{}));
  }
  std::vector<char> out(chunks.size(), 0);
  for (int stage = 0; stage < shape.stages; ++stage) {
    const std::size_t c = cut.chunk_at[static_cast<std::size_t>(stage)];
    if (!bounds[c].at_work || most[static_cast<std::size_t>(stage)] >= reached) out[c] = 1;
  }
  return out;
}

namespace {

using StepMoments = std::array<BytesByCategory, kStepParts>;

// A chunk's own, with what else its stage keeps: of other chunks all along, of other micro-batches where it keeps most itself. One of
// them is the peak.
StepMoments moments_of_stage(StepMoments moments, const MemoryUse& use, Bytes in_flight, std::array<Bytes, 3> others, bool peak_at_work) {
  using enum MemoryCategory;
  Bytes most;
  for (std::size_t m = 0; m < kStepParts; ++m) {
    const auto add = [&](MemoryCategory category, Bytes bytes) { moments[m][static_cast<std::size_t>(category)] += bytes; };
    add(parameters, others[0]), add(gradients, others[1]), add(optimizer_states, others[2]);
    if (m < 3) add(activations, in_flight);
    most = std::max(most, std::accumulate(moments[m].begin(), moments[m].end(), Bytes{}));
  }
  if (most < use.peak) moments[peak_at_work ? 2 : kStepParts - 1] = use.by_category;
  return moments;
}

}  // namespace

// By stage: what one of its GPUs has in the host's memory, with as many micro-batches between forward and backward as it ever has.
static std::vector<Bytes> on_host_by_stage(const PipelineShape& shape, const PipelineOrder& order, const PipelineStages& cut, const std::vector<ChunkOfStep>& chunks) {
  std::vector<Bytes> out;
  for (int stage = 0; stage < shape.stages; ++stage) {
    Bytes all_along, most;
    for (int at : shape.positions_of(stage)) all_along += chunks[cut.chunk_at[static_cast<std::size_t>(at)]].step.on_host;
    follow(shape, order[static_cast<std::size_t>(stage)], [&](const PipelineWork& work, const std::vector<std::int64_t>& in_flight) {
      Bytes now = chunks[cut.chunk_at[static_cast<std::size_t>(work.position)]].step.saved_on_host;
      for (int at : shape.positions_of(stage)) now += chunks[cut.chunk_at[static_cast<std::size_t>(at)]].step.saved_on_host * static_cast<double>(in_flight[static_cast<std::size_t>(at)]);
      most = std::max(most, now);
    });
    out.push_back(all_along + most);
  }
  return out;
}

// Of the node that keeps most: ranks lie stage by stage, so that its GPUs may belong to several.
static Bytes on_host_of_node(const Request& request, const std::vector<Bytes>& by_stage) {
  const int of_stage = std::max(1, request.cluster.gpus / request.plan.pp), node = std::max(1, std::min(request.cluster.gpus_per_node, request.cluster.gpus));
  Bytes most;
  for (int first = 0; first < request.cluster.gpus; first += node) {
    Bytes here;
    for (int rank = first; rank < std::min(first + node, request.cluster.gpus); ++rank) here += by_stage[static_cast<std::size_t>(rank / of_stage)];
    most = std::max(most, here);
  }
  return most;
}

// An optimizer on the host has its states there: the GPU holds as many as one without any. Where it has a part of them only, the step says which.
TrainingOptions resident(const Request& request) {
  TrainingOptions out = request.training;
  if ((request.replicas.offload_optimizer && request.replicas.offload_fraction == 1) || request.replicas.offload_states) out.optimizer = OptimizerKind::sgd;
  return out;
}

Bytes host_capacity(const Request& request) { return request.host->memory.value > 0 ? request.host->memory : request.cluster.host_memory; }

PipelineMemory pipeline_memory(const Request& request, const PipelineStages& cut, const std::vector<ChunkOfStep>& chunks) {
  PipelineShape shape = pipeline_shape(request);
  std::vector<MemoryTrace> traces;
  std::vector<BytesByType> saved_types;
  std::vector<Bytes> saved;
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    traces.push_back(memory_trace(chunks[c].step, chunks[c].program, resident(request), *request.gpu));
    BytesByType& types = saved_types.emplace_back(kept_by_type(traces[c]));
    for (std::size_t type = 0; type < types.size(); ++type) types[type] += cut.chunks[c].received_types[type];
    saved.push_back(std::accumulate(types.begin(), types.end(), Bytes{}));
  }
  // More rounds than these put no more in flight, except where all forwards come first.
  if (shape.schedule != PipelineSchedule::gpipe) {
    const std::int64_t round = shape.round();
    if (shape.micro_batches > 4 * round) shape.micro_batches = 4 * round + shape.micro_batches % round;
  }
  const PipelineOrder order = pipeline_order(shape);
  const std::vector<char> candidates = may_have_worst_moment(shape, order, cut, chunks, traces, saved, request.training.allocator);
  std::vector<MemoryUse> alone(chunks.size());  // of those
  for (std::size_t c = 0; c < chunks.size(); ++c)
    if (candidates[c]) alone[c] = memory_use(traces[c], chunks[c].step, chunks[c].program, resident(request), *request.gpu, request.cluster.gpus);

  std::vector<std::array<Bytes, 4>> most(chunks.size());  // by chunk and part of the step: what it has alone
  for (std::size_t c = 0; c < chunks.size(); ++c)
    for (std::size_t i = 0; i < alone[c].timeline.size(); ++i) {
      Bytes& part = most[c][static_cast<std::size_t>(part_of_step(chunks[c].step.graph.ops[chunks[c].step.graph.ops.id_at(i)].phase))];
      part = std::max(part, std::accumulate(alone[c].timeline[i].begin(), alone[c].timeline[i].end(), Bytes{}));
    }

  struct Moment {  // the worst one so far
    Bytes peak;
    int stage = 0;
    std::size_t position = 0;
    StepPart part = StepPart::end;
    std::vector<std::int64_t> flying;  // by position: other micro-batches
    Bytes others, parameters, gradients, optimizer;  // besides the chunk's own
    std::int64_t in_flight = 0;
  } worst;
  std::vector<Bytes> at_work(static_cast<std::size_t>(shape.stages));  // by stage: the most that other micro-batches keep meanwhile
  for (int stage = 0; stage < shape.stages; ++stage) {
    if (!candidates[cut.chunk_at[static_cast<std::size_t>(stage)]]) continue;
    std::vector<std::size_t> own;  // the stage's positions
    for (int position : shape.positions_of(stage)) own.push_back(static_cast<std::size_t>(position));
    const auto consider = [&](std::size_t position, StepPart part, const std::vector<std::int64_t>& in_flight) {
      Moment now{.stage = stage, .position = position, .part = part};
      for (std::size_t at : own) {
        const MemoryUse& resident = alone[cut.chunk_at[at]];
        now.others += saved[cut.chunk_at[at]] * static_cast<double>(in_flight[at]);
        now.in_flight += in_flight[at];
        if (at != position) now.parameters += resident.parameters, now.gradients += resident.gradients, now.optimizer += resident.optimizer;
      }
      const std::size_t c = cut.chunk_at[position];
      now.peak = most[c][static_cast<std::size_t>(part)] + now.others + now.parameters + now.gradients + now.optimizer;
      at_work[static_cast<std::size_t>(stage)] = std::max(at_work[static_cast<std::size_t>(stage)], now.others);
      if (now.peak <= worst.peak) return;
      worst = std::move(now);
      worst.flying = in_flight;
    };
    follow(shape, order[static_cast<std::size_t>(stage)], [&](const PipelineWork& work, const std::vector<std::int64_t>& in_flight) {
      consider(static_cast<std::size_t>(work.position), work.kind == PipelineWork::Kind::forward ? StepPart::forward : StepPart::backward, in_flight);
    });
    const std::vector<std::int64_t> none(static_cast<std::size_t>(shape.positions()), 0);
    for (std::size_t position : own) consider(position, StepPart::end, none);
  }

  std::vector<ModuleMemory> beside;  // what other micro-batches and the stage's other chunks have
  for (int position : shape.positions_of(worst.stage)) {
    const auto at = static_cast<std::size_t>(position);
    const std::size_t c = cut.chunk_at[at];
    if (worst.flying[at] > 0)
      for (ModuleMemory one : kept_by_module(traces[c], chunks[c].step)) {
        one.activations = one.activations * static_cast<double>(worst.flying[at]);
        beside.push_back(std::move(one));
      }
    if (at != worst.position)
      for (const ModuleMemory& one : alone[c].by_module) beside.push_back({one.module, one.parameters, one.gradients, one.optimizer, {}, {}, {}});
  }

  const std::size_t c = cut.chunk_at[worst.position];
  PipelineMemory out{.drawn = {.stage = worst.stage}};
  for (MemoryUse& one : alone) {
    out.drawn.resident.push_back({one.parameters, one.gradients, one.optimizer});
    out.drawn.by_op.push_back(std::move(one.timeline));
  }
  out.use = std::move(alone[c]);
  MemoryUse& use = out.use;
  const StepMoments moments = use.moments;
  // What is held beyond the peak is what one chunk's work leaves free in its segments, once: parameters and states of other chunks
  // leave nothing, and what other micro-batches keep are whole tensors, most in segments of their own.
  const Bytes more = worst.peak - use.peak + worst.others * (request.training.allocator == Allocator::caching ? kKeptRounding : 0);
  const Phase phase = use.peak_op.valid() ? chunks[c].step.graph.ops[use.peak_op].phase : Phase::optimizer;
  if (part_of_step(phase) != worst.part) describe_part(use, worst.part, traces[c], chunks[c].step, resident(request));
  for (std::size_t at = 0; at < worst.flying.size(); ++at)
    for (std::size_t type = 0; type < kDTypeCount; ++type)
      if (const Bytes bytes = saved_types[cut.chunk_at[at]][type] * static_cast<double>(worst.flying[at]); bytes.value > 0)
        use.activations_by_dtype[std::string(to_text(static_cast<DType>(type)))] += bytes;
  use.parameters += worst.parameters, use.gradients += worst.gradients, use.optimizer += worst.optimizer, use.activations += worst.others;
  use.peak = worst.peak;
  use.device += more;  // the context and the like stay as they are
  use.reserved += more;
  use.fragmentation = use.reserved - use.peak;
  use.fits = use.device <= use.capacity;
  const std::string others = shape.chunks > 1 ? fmt::format("{} chunk{} of other micro-batches", worst.in_flight, worst.in_flight == 1 ? "" : "s")
                                              : fmt::format("{} other micro-batch{}", worst.in_flight, worst.in_flight == 1 ? "" : "es");
  out.peak_at = fmt::format("stage {} of {}, with {} in flight", worst.stage, shape.stages, others);
  out.peak_at += ": " + describe(chunks[c].step.graph, use.peak_op);
  recount(use, request.cluster.gpus, beside);
  use.moments = moments_of_stage(moments, use, at_work[static_cast<std::size_t>(worst.stage)], {worst.parameters, worst.gradients, worst.optimizer}, worst.part != StepPart::end);
  out.drawn.saved = std::move(saved);
  if (request.replicas.offloads()) {
    const std::vector<Bytes> by_stage = on_host_by_stage(shape, order, cut, chunks);
    use.host = *std::max_element(by_stage.begin(), by_stage.end());
    judge_host(use, on_host_of_node(request, by_stage), host_capacity(request));
  }
  return out;
}

PipelineView drawn_pipeline(const Request& request, const PipelineParts& parts) {
  PipelineView out;
  out.shape = pipeline_shape(request);
  out.micro_batches = out.shape.micro_batches;
  const std::int64_t round = 2 * out.shape.stages;  // schedules ask for a multiple of the stages, or for two of each
  const std::int64_t most = round * std::max<std::int64_t>(1, kPiecesDrawn / (2 * out.shape.positions() * round));
  out.shape.micro_batches = std::min(out.shape.micro_batches, most);
  out.times = parts.times;
  return out;
}

PipelineView pipeline_view(const Request& request, const PipelineStages& cut, std::vector<ChunkOfStep> chunks, PipelineParts parts) {
  PipelineView out = drawn_pipeline(request, parts);
  out.chunk_at = cut.chunk_at;
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    PipelineChunkView& view = out.chunks.emplace_back();
    view.graph = std::move(chunks[c].step.graph);
    view.program = std::move(chunks[c].program);
    view.costs = std::move(chunks[c].costs);
    view.forward = std::move(parts.chunks[c].forward_schedule);
    view.backward = std::move(parts.chunks[c].backward_schedule);
  }
  return out;
}

std::string uneven_stages(const PipelineStages& cut) {
  return fmt::format("the pipeline's chunks have different numbers of layers: {}", fmt::join(cut.layers_at, ", "));
}

std::string idle_stages(const Request& request) {
  return fmt::format("{} micro-batch{} for {} pipeline stages: never are all stages at work; a larger global batch, or a smaller batch, gives each replica more",
                     request.training.micro_batches, request.training.micro_batches == 1 ? "" : "es", request.plan.pp);
}

std::string to_text(const PipelineParts& parts) {
  std::string out;
  auto line = [&](std::string_view name, Picoseconds length) { out += fmt::format("  {} {}\n", name, to_text(seconds(length))); };
  for (std::size_t i = 0; i < parts.chunks.size(); ++i) {
    const ChunkParts& p = parts.chunks[i];
    out += fmt::format("chunk {}\n", i);
    line("forward", p.forward.length);
    line("backward, first", p.first_backward.length);
    line("backward", p.backward.length);
    line("backward, last", p.last_backward.length);
    if (p.weights.length > 0) line("of it weights", p.weights.length);
    line("gradient reduction left", p.sync);
    line("end of step", p.end.length);
  }
  for (std::size_t i = 0; i < parts.times.send_forward.size(); ++i)
    out += fmt::format("{} to {}: {}, back {}\n", i, i + 1, to_text(seconds(parts.times.send_forward[i])), to_text(seconds(parts.times.send_backward[i])));
  if (parts.times.tied > 0) out += fmt::format("shared embedding {}\n", to_text(seconds(parts.times.tied)));
  return out;
}

std::string to_text(const PipelineTimeline& timeline) {
  static constexpr std::array kNames = {"forward", "backward", "activations", "weights", "message", "sync", "tied", "end"};
  std::string out;
  for (const PipelineSpan& span : timeline.spans)
    if (span.position >= 0)
      out += fmt::format("stage {} {} chunk {} micro-batch {} at {:.3f} us, {}\n", span.stage, kNames[static_cast<std::size_t>(span.what)], span.position,
                         span.micro_batch, static_cast<double>(span.span.start) * 1e-6, to_text(seconds(span.span.end - span.span.start)));
  return out;
}

}  // namespace precog
