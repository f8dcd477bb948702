#include "report/trace.h"

#include "report/pipeline_view.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/ensure.h"
#include "base/json.h"
#include "report/parts.h"
#include "report/precision_colours.h"

namespace precog {
namespace {

constexpr std::array<const char*, kResourceCount> kTrackNames = {"host", "compute stream", "communication stream", "communication of split layers", "across groups, to and from the host"};

std::string json_text(std::string_view text) {
  return Json(std::string(text)).dump(-1, ' ', false, Json::error_handler_t::replace);
}

// What held the call's longest kernel back.
std::string_view bound_of(const TimelineParts& parts, const Call& call) {
  const KernelCost* longest = nullptr;
  for (std::uint32_t k = call.first_kernel; k < call.first_kernel + call.kernel_count; ++k)
    if (!longest || parts.costs[k].total > longest->total) longest = &parts.costs[k];
  return longest ? to_text(longest->bound) : std::string_view("none");
}

// Microseconds, cut to the nanoseconds that viewers keep: what lies inside another slice must not stick out of it by a rounding.
std::string when(Picoseconds start, Picoseconds end) {
  const Picoseconds from = start / 1000, to = end / 1000;
  return fmt::format(R"("ts":{:.3f},"dur":{:.3f})", static_cast<double>(from) * 1e-3, static_cast<double>(to - from) * 1e-3);
}

// In a step of many micro-batches the ones that were not laid out repeat the second: as much later is what follows them.
struct Repeats {
  std::int64_t times = 0;
  Picoseconds each = 0;
  Picoseconds later(const TaskLabel& label) const { return label.micro_batch >= 2 ? times * each : 0; }
};
Repeats repeats_of(const TimelineParts& parts, std::int64_t micro_batches) {
  const auto& last = parts.schedule.last_of_micro_batch;
  if (last.size() < 2 || micro_batches <= parts.schedule.micro_batches_laid_out) return {};
  const auto end_of = [&](std::size_t i) { return parts.timeline.spans[static_cast<std::size_t>(last[i])].end; };
  return {micro_batches - parts.schedule.micro_batches_laid_out, end_of(1) - end_of(0)};
}

std::string event(const TimelineParts& parts, std::size_t task, Picoseconds origin, int process, int track) {
  const Span& span = parts.timeline.spans[task];
  const TaskLabel& label = parts.schedule.labels[task];
  std::string name = label.call == kInputCall ? "next batch" : "step overhead", args;
  if (label.call >= 0) {
    const Call& call = parts.program.calls[static_cast<std::size_t>(label.call)];
    if (call.op.valid()) {
      const Op& op = parts.graph.ops[call.op];
      name = std::string(to_text(op.kind));
      if (op.label.valid()) name += fmt::format(".{}", parts.graph.name(op.label));
      args = fmt::format(R"("dtype":"{}","module":{},)", to_text(op.math), json_text(parts.graph.name(op.module)));
      if (op.reason.valid()) args += fmt::format(R"("why":{},)", json_text(parts.graph.name(op.reason)));
    }
    args += fmt::format(R"("phase":"{}","bound":"{}","kernels":{},"micro_batch":{})", to_text(call.phase), bound_of(parts, call),
                        call.kernel_count, label.micro_batch);
  }
  return fmt::format(R"({{"ph":"X","pid":{},"tid":{},{},"name":{},"cat":"{}","args":{{{}}}}})", process, track, when(span.start - origin, span.end - origin),
                     json_text(name), to_text(activity_of(parts, task)), args);
}

// Around the operators of the compute stream that run one after another in one arithmetic, a slice that is called after it: the
// precision as a coloured band above their names.
std::string precision_bands(const TimelineParts& parts, const std::vector<std::size_t>& tasks, Picoseconds origin, int process, int track, const Repeats& repeats = {}) {
  constexpr Picoseconds kIdle = 20'000'000;  // a stream that waits longer than 20 us is shown waiting
  std::string out;
  const auto& spans = parts.timeline.spans;
  const auto arithmetic = [&](std::size_t task) {
    const std::int32_t call = parts.schedule.labels[task].call;
    return call < 0 ? precision_colours().size() : precision_class(arithmetic_of(parts, parts.program.calls[static_cast<std::size_t>(call)]));
  };
  for (std::size_t first = 0, end = 0; first < tasks.size(); first = end) {
    const std::size_t kind = arithmetic(tasks[first]);
    for (end = first + 1; end < tasks.size() && arithmetic(tasks[end]) == kind && spans[tasks[end]].start - spans[tasks[end - 1]].end <= kIdle &&
         repeats.later(parts.schedule.labels[tasks[end]]) == repeats.later(parts.schedule.labels[tasks[first]]);) ++end;
    if (kind == precision_colours().size()) continue;
    const PrecisionColour& precision = precision_colours()[kind];
    const Picoseconds from = origin - repeats.later(parts.schedule.labels[tasks[first]]);
    out += fmt::format(",\n" R"({{"ph":"X","pid":{},"tid":{},{},"name":"{}","cat":"precision","cname":"{}","args":{{"operators":{}}}}})", process, track,
                       when(spans[tasks[first]].start - from, spans[tasks[end - 1]].end - from), precision.name, precision.legacy, end - first);
  }
  return out;
}

// Memory by category as a counter track; `from`: where its times begin.
std::string memory_counter(const std::vector<MemoryPoint>& memory, int process, Seconds from = {}) {
  std::string out;
  for (const MemoryPoint& point : memory) {
    std::string bytes;
    for (const MemoryLayer& layer : memory_layers()) bytes += fmt::format(R"({}"{}":{})", bytes.empty() ? "" : ",", layer.name, layer_bytes(layer, point.bytes).value);
    out += fmt::format(",\n" R"({{"ph":"C","pid":{},"ts":{:.6f},"name":"memory in bytes","args":{{{}}}}})", process, (from + point.at).value * 1e6, bytes);
  }
  return out;
}

}  // namespace

std::string chrome_trace(const TimelineParts& parts, const std::string& title, const std::vector<MemoryPoint>& memory, std::int64_t micro_batches) {
  const auto& labels = parts.schedule.labels;
  ensure(labels.size() == parts.timeline.spans.size(), "a timeline has one span per task");
  std::int16_t last = 0;
  for (const TaskLabel& label : labels) last = std::max(last, label.step);
  Picoseconds origin = parts.timeline.end;
  for (std::size_t i = 0; i < labels.size(); ++i)
    if (labels[i].step == last && parts.schedule.graph.tasks()[i].resource < kResourceCount) origin = std::min(origin, parts.timeline.spans[i].start);

  std::string out = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  out += fmt::format(R"({{"ph":"M","pid":1,"name":"process_name","args":{{"name":{}}}}})", json_text(title));
  const auto tasks = parts.schedule.graph.tasks();
  const bool layers = std::any_of(tasks.begin(), tasks.end(), [](const Task& task) { return task.resource >= kLayerCommunication && task.resource < kResourceCount; });
  for (std::size_t track = 0; track < (layers ? kTrackNames.size() : kTrackCount); ++track) {
    out += fmt::format(
        ",\n"
        R"({{"ph":"M","pid":1,"tid":{},"name":"thread_name","args":{{"name":"{}"}}}})",
        track, kTrackNames[track]);
    out += fmt::format(
        ",\n"
        R"({{"ph":"M","pid":1,"tid":{0},"name":"thread_sort_index","args":{{"sort_index":{0}}}}})",
        track);
  }
  const Repeats repeats = repeats_of(parts, micro_batches);
  std::string events;
  std::vector<std::size_t> computing;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    if (labels[i].step != last || tasks[i].resource >= kResourceCount || parts.timeline.spans[i].end <= parts.timeline.spans[i].start) continue;
    if (tasks[i].resource == kCompute) computing.push_back(i);
    events += ",\n" + event(parts, i, origin - repeats.later(labels[i]), 1, tasks[i].resource);
  }
  if (repeats.times > 0) {
    const Picoseconds from = parts.timeline.spans[static_cast<std::size_t>(parts.schedule.last_of_micro_batch[1])].end - origin;
    events += fmt::format(",\n" R"({{"ph":"X","pid":1,"tid":{},{},"name":"{} more micro-batches like the second","cat":"other","args":{{}}}})", static_cast<int>(kCompute),
                          when(from, from + repeats.times * repeats.each), repeats.times);
  }
  out += precision_bands(parts, computing, origin, 1, kCompute, repeats) + events;  // viewers nest what begins at the same time in this order
  out += memory_counter(memory, 1, seconds(begin_of_last_step(parts.schedule, parts.timeline) - origin));  // the host is ahead of the step
  out += "\n]}\n";
  return out;
}

std::string pipeline_trace(const PipelineView& view, const std::string& title, const std::vector<MemoryPoint>& memory, int memory_stage) {
  enum Track { kWork, kOperators, kCollectives, kMessages, kReductions, kIssue };
  static constexpr std::array kTracks = {"stage", "compute stream", "communication stream", "messages", "gradient reduction", "host"};
  static constexpr std::array kWhat = {"forward", "backward", "backward (activations)", "backward (weights)", "send", "reduce gradients", "shared embedding", "end of step"};
  std::string out = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  for (int stage = 0; stage < view.shape.stages; ++stage) {
    out += fmt::format("{}" R"({{"ph":"M","pid":{},"name":"process_name","args":{{"name":{}}}}})", stage == 0 ? "" : ",\n", stage + 1,
                       json_text(fmt::format("stage {} of {}", stage, title)));
    out += fmt::format(",\n" R"({{"ph":"M","pid":{0},"name":"process_sort_index","args":{{"sort_index":{0}}}}})", stage + 1);
    for (std::size_t track = 0; track < kTracks.size(); ++track) {
      out += fmt::format(",\n" R"({{"ph":"M","pid":{},"tid":{},"name":"thread_name","args":{{"name":"{}"}}}})", stage + 1, track, kTracks[track]);
      out += fmt::format(",\n" R"({{"ph":"M","pid":{0},"tid":{1},"name":"thread_sort_index","args":{{"sort_index":{1}}}}})", stage + 1, track);
    }
  }
  using What = PipelineSpan::What;
  std::vector<std::array<Timeline, 2>> alone;  // of each chunk's forward and backward
  for (const PipelineChunkView& chunk : view.chunks) alone.push_back({simulate(chunk.forward.graph), simulate(chunk.backward.graph)});
  const PipelineTimeline timeline = view.timeline();
  for (const PipelineSpan& span : timeline.spans) {
    if (span.position < 0 || span.span.end <= span.span.start) continue;
    const int track = span.what == What::message ? kMessages : span.what == What::sync || span.what == What::tied ? kReductions : kWork;
    out += fmt::format(",\n" R"({{"ph":"X","pid":{},"tid":{},{},"name":"{} {}","cat":"pipeline","args":{{"micro_batch":{},"chunk":{}}}}})", span.stage + 1,
                       track, when(span.span.start, span.span.end), kWhat[static_cast<std::size_t>(span.what)], span.micro_batch, span.micro_batch, span.position);
    const bool forward = span.what == What::forward;
    if (span.micro_batch != 0 || (!forward && span.what != What::backward)) continue;
    const std::size_t which = view.chunk_at[static_cast<std::size_t>(span.position)];
    const PipelineChunkView& chunk = view.chunks[which];
    const Schedule& schedule = forward ? chunk.forward : chunk.backward;
    const TimelineParts parts{chunk.graph, chunk.program, chunk.costs, schedule, alone[which][forward ? 0 : 1]};
    std::string events;
    std::vector<std::size_t> computing;
    for (std::size_t i = 0; i < schedule.labels.size(); ++i) {
      const Resource resource = static_cast<Resource>(schedule.graph.tasks()[i].resource);
      if (parts.timeline.spans[i].end <= parts.timeline.spans[i].start) continue;
      if (resource == kCompute) computing.push_back(i);
      events += ",\n" + event(parts, i, -span.span.start, span.stage + 1, resource == kHost ? kIssue : resource == kCompute ? kOperators : kCollectives);
    }
    out += precision_bands(parts, computing, -span.span.start, span.stage + 1, kOperators) + events;
  }
  out += memory_counter(memory, memory_stage + 1);
  out += "\n]}\n";
  return out;
}

}  // namespace precog
