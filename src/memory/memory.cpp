#include "memory/memory.h"

#include <algorithm>
#include <array>
#include <optional>

#include <fmt/format.h>

#include "memory/allocator.h"

namespace precog {
namespace {

// The CUDA context with loaded modules: 0.80 to 0.82 GB on an H200 (PyTorch 2.11, CUDA 13; data/measured/2026-11-15-h200-memory),
// taken for every GPU; older libraries load less. NCCL's channel buffers for a handful of peers are an estimate, and marked
// so in the report.
constexpr std::int64_t kContext = 810'000'000;
constexpr std::int64_t kNcclBuffers = 600'000'000;
// What the driver keeps of the memory it reports: an H200 says 143771 MiB and gives CUDA 143156. Other cards keep 0 to 1%.
constexpr double kDriverShare = 0.0043;

// An 80% interval of what must fit. Of 368 recorded eager steps 90% peak within 1.5% of the prediction and reserve within 8% of
// it; what a compiler keeps, and the workspaces of fp32 convolutions (the library's choice of a transform), are less certain.
// Too narrow a figure shows up as wrong verdicts called certain.
struct Spread {
  double low, high;
};
constexpr Spread kEagerSpread{0.96, 1.04};
constexpr Spread kCompiledSpread{0.90, 1.10};
constexpr Spread kTransformSpread{0.92, 1.20};

Spread spread_of(const KernelProgram& program) {
  if (!program.last_use.empty()) return kCompiledSpread;
  for (const Kernel& kernel : program.kernels)
    if (std::holds_alternative<ConvShape>(kernel.shape) && kernel.math == DType::fp32) return kTransformSpread;
  return kEagerSpread;
}

constexpr int kMostSteps = 4;  // until the allocator's segments no longer grow; two or three do

// Which block falls into which segment hangs on sizes to the byte: a step of 180 samples can take a third more segments than one of
// 179 or 181. We do not know a real program's sizes that well (small tensors of its own, other streams), so that a step that fails
// within the limit is tried with activations this much smaller and larger, the limit in proportion. Steps far apart, so that
// none has the same luck as another; small, so that the step is the same.
constexpr std::array<double, 4> kStretches = {0.996, 1.004, 0.991, 1.009};

struct Replay {
  bool out_of_memory = false;
  std::int64_t peak = 0, reserved = 0, pinned = 0;
  std::int64_t graph_pool = 0;  // of reserved and of pinned: segments of CUDA graphs
  std::size_t peak_op = 0, peak_event = 0;
  BytesByCategory at_peak{};
  std::vector<BytesByCategory> timeline;
  std::vector<std::int64_t> sizes;  // of each block as it came out in the last step, 0 where it does not live
};

class Replayer {
 public:
  // `limit`: of the segments that can be given back.
  Replayer(const MemoryTrace& trace, std::int64_t limit, Allocator kind, double stretch = 1)
      : trace_(trace), allocator_(limit, kind), graph_pool_(std::int64_t{1} << 62, kind), stretch_(stretch), held_(trace.blocks.size(), CachingAllocator::kNone) {}
  // The peak is that of a part of the step.
  Replayer(const MemoryTrace& trace, Allocator kind, const Graph& graph, StepPart part) : Replayer(trace, std::int64_t{1} << 62, kind) {
    graph_ = &graph, part_ = part;
  }

  Replay run() {
    out_.sizes.resize(trace_.blocks.size());
    for (std::int32_t block : trace_.resident)
      if (!take(block)) return out_;
    for (int step = 0; step < kMostSteps; ++step) {
      for (std::int32_t block : trace_.cleared) give(block);
      const std::int64_t before = reserved();
      if (!(step == 0 ? warm_up() : one_step())) return out_;
      if (step > 0 && reserved() == before) break;
      if (step == 1) recorded_ = graph_pool_.reserved();
    }
    out_.reserved = reserved();
    out_.graph_pool = graph_pool();
    return std::move(out_);
  }

 private:
  CachingAllocator& allocator_of(const MemoryBlock& block) { return block.in_graph_pool ? graph_pool_ : allocator_; }
  std::int64_t allocated() const { return allocator_.allocated() + graph_pool_.allocated(); }
  std::int64_t reserved() const { return allocator_.reserved() + graph_pool(); }
  // A graph's memory is at the addresses that were recorded: its pool gives nothing back. The first step warms up, the second records; from then on
  // replays ask the pool for nothing.
  std::int64_t pinned() const { return allocator_.pinned() + graph_pool(); }
  std::int64_t graph_pool() const { return recorded_.value_or(graph_pool_.reserved()); }

  // The first step: what stays from then on is made, and there is always a second.
  bool warm_up() {
    for (const MemoryEvent& event : trace_.events)
      if (event.kind == MemoryEvent::Kind::give) give(event.block);
      else if (!take(event.block)) return false;
    return true;
  }

  bool one_step() {
    const std::size_t ops = trace_.first_event.size() - 1;
    out_.peak = out_.pinned = 0;
    out_.timeline.clear();
    out_.timeline.reserve(ops);
    for (std::size_t op = 0; op < ops; ++op) {
      std::int64_t most = -1;
      std::size_t when = 0;
      for (std::size_t e = trace_.first_event[op]; e < trace_.first_event[op + 1]; ++e) {
        const MemoryEvent& event = trace_.events[e];
        if (event.kind == MemoryEvent::Kind::give) {
          give(event.block);
          continue;
        }
        if (event.kind == MemoryEvent::Kind::take_once) continue;
        if (!take(event.block)) return false;
        if (allocated() > most) most = allocated(), when = e, now_at_most_ = now_;
        out_.pinned = std::max(out_.pinned, pinned());
      }
      if (most < 0) {
        now_at_most_ = now_;
        if (const std::size_t events = trace_.first_event[op + 1]; events > 0) most = allocated(), when = events - 1;
      }
      out_.timeline.push_back(now_at_most_);
      if (most > out_.peak && (part_ == StepPart::whole || part_of_step(graph_->ops[graph_->ops.id_at(op)].phase) == part_)) {
        out_.peak = most;
        out_.peak_op = op;
        out_.peak_event = when;
        out_.at_peak = now_at_most_;
      }
    }
    return true;
  }

  bool take(std::int32_t block) {
    const MemoryBlock& wanted = trace_.blocks[static_cast<std::size_t>(block)];
    CachingAllocator& from = allocator_of(wanted);
    const CachingAllocator::Block got = from.take(bytes_of(wanted));
    if (got == CachingAllocator::kNone) {
      out_.out_of_memory = true;
      return false;
    }
    held_[static_cast<std::size_t>(block)] = got;
    out_.sizes[static_cast<std::size_t>(block)] = from.size(got);
    now_[static_cast<std::size_t>(wanted.category)] += Bytes{from.size(got)};
    return true;
  }
  void give(std::int32_t block) {
    CachingAllocator::Block& held = held_[static_cast<std::size_t>(block)];
    if (held == CachingAllocator::kNone) return;
    const MemoryBlock& known = trace_.blocks[static_cast<std::size_t>(block)];
    CachingAllocator& to = allocator_of(known);
    now_[static_cast<std::size_t>(known.category)] -= Bytes{to.size(held)};
    to.give(held);
    held = CachingAllocator::kNone;
  }

  // What is there whatever the batch is keeps its size.
  std::int64_t bytes_of(const MemoryBlock& block) const {
    const bool with_batch = block.category == MemoryCategory::activations || block.category == MemoryCategory::recomputed ||
                            block.category == MemoryCategory::temporaries || block.category == MemoryCategory::workspaces;
    return with_batch && stretch_ != 1 ? static_cast<std::int64_t>(static_cast<double>(block.bytes) * stretch_) : block.bytes;
  }

  const MemoryTrace& trace_;
  CachingAllocator allocator_, graph_pool_;
  std::optional<std::int64_t> recorded_;  // segments of CUDA graphs when they had been recorded
  double stretch_;
  const Graph* graph_ = nullptr;
  StepPart part_ = StepPart::whole;
  std::vector<CachingAllocator::Block> held_;
  BytesByCategory now_{}, now_at_most_{};
  Replay out_;
};

// The blocks that are there at the peak of the last step.
std::vector<char> alive_at_peak(const MemoryTrace& trace, const Replay& replay) {
  std::vector<char> alive(trace.blocks.size(), 0);
  for (std::int32_t block : trace.resident) alive[static_cast<std::size_t>(block)] = 1;
  for (std::size_t e = 0; e < trace.events.size(); ++e) {
    const MemoryEvent& event = trace.events[e];
    if (event.kind == MemoryEvent::Kind::take_once) alive[static_cast<std::size_t>(event.block)] = 1;
    else if (e <= replay.peak_event) alive[static_cast<std::size_t>(event.block)] = event.kind == MemoryEvent::Kind::take ? 1 : 0;
  }
  return alive;
}

// "encoder.layer.3.output.dense.weight" of a parameter -> "encoder.layer.*.output.dense"
std::string module_path(std::string_view name, bool parameter) {
  if (parameter) name = name.rfind('.') == std::string_view::npos ? std::string_view() : name.substr(0, name.rfind('.'));
  std::string out;
  while (!name.empty()) {
    const std::size_t end = std::min(name.find('.'), name.size());
    const std::string_view part = name.substr(0, end);
    const bool number = !part.empty() && std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!out.empty()) out += '.';
    out += number ? std::string_view("*") : part;
    name.remove_prefix(std::min(end + 1, name.size()));
  }
  return out.empty() ? "(model)" : out;
}

// The report's parts.
Bytes& part_of(ModuleMemory& parts, MemoryCategory category) {
  switch (category) {
    case MemoryCategory::parameters: return parts.parameters;
    case MemoryCategory::gradients:
    case MemoryCategory::gradient_buckets: return parts.gradients;
    case MemoryCategory::optimizer_states:
    case MemoryCategory::master_weights: return parts.optimizer;
    case MemoryCategory::weight_casts:
    case MemoryCategory::gathered_parameters: return parts.weight_copies;
    case MemoryCategory::optimizer_temporaries:
    case MemoryCategory::workspaces:
    case MemoryCategory::libraries: return parts.workspace;
    default: return parts.activations;
  }
}

// What the report calls activations: copies of weights are counted among them.
bool is_activation(MemoryCategory category) {
  ModuleMemory parts;
  part_of(parts, category) = {1};
  return parts.activations.value + parts.weight_copies.value > 0;
}

// Blocks added up by module.
class ByModule {
 public:
  explicit ByModule(const Graph& graph) : graph_(graph) {}
  Bytes& part(const MemoryBlock& block, MemoryCategory category) {
    const auto place = static_cast<std::size_t>(2 * (block.name.value + 1) + (block.parameter ? 1 : 0));
    if (named_.size() <= place) named_.resize(place + 1, nullptr);
    ModuleMemory*& module = named_[place];
    if (!module) {
      const std::string path = module_path(graph_.name(block.name), block.parameter);
      module = &modules_[path];
      module->module = path;
    }
    return part_of(*module, category);
  }
  std::vector<ModuleMemory> take() {
    std::vector<ModuleMemory> out;
    for (auto& [path, module] : modules_) out.push_back(std::move(module));
    return out;
  }

 private:
  const Graph& graph_;
  std::vector<ModuleMemory*> named_;  // by a name's number, twice: of modules, of parameters
  std::map<std::string, ModuleMemory> modules_;
};

void largest_first(std::vector<ModuleMemory>& modules) {
  std::stable_sort(modules.begin(), modules.end(), [](const ModuleMemory& a, const ModuleMemory& b) { return a.total() > b.total(); });
}

void describe_peak(const MemoryTrace& trace, const Replay& replay, const Graph& graph, MemoryUse& use) {
  use.by_category = replay.at_peak;
  ModuleMemory all;
  for (std::size_t i = 0; i < kMemoryCategories; ++i) part_of(all, static_cast<MemoryCategory>(i)) += use.by_category[i];
  use.parameters = all.parameters, use.gradients = all.gradients, use.optimizer = all.optimizer;
  use.weight_copies = all.weight_copies, use.activations = all.activations, use.workspace = all.workspace;
  if (!graph.ops.empty()) use.peak_op = graph.ops.id_at(replay.peak_op);
  use.activations_by_dtype.clear();
  const std::vector<char> alive = alive_at_peak(trace, replay);
  ByModule modules(graph);
  std::array<Bytes, kDTypeCount> activations{};
  for (std::size_t i = 0; i < trace.blocks.size(); ++i) {
    const MemoryBlock& block = trace.blocks[i];
    if (!alive[i]) continue;
    const Bytes bytes{replay.sizes[i]};
    if (is_activation(block.category)) activations[static_cast<std::size_t>(block.dtype)] += bytes;
    modules.part(block, block.category) += bytes;
  }
  for (std::size_t i = 0; i < kDTypeCount; ++i)
    if (activations[i].value > 0) use.activations_by_dtype[std::string(to_text(static_cast<DType>(i)))] = activations[i];
  use.by_module = modules.take();
  largest_first(use.by_module);
}

// Between the first and the last layer of backward what is kept shrinks and gradients grow by the same with each layer: most is there at one end,
// but where layers differ; one between that has more than every end stands for the last.
void find_moments(const Graph& graph, MemoryUse& use) {
  const auto op = [&](std::size_t i) -> const Op& { return graph.ops[graph.ops.id_at(i)]; };
  std::size_t begin = 0, end = use.timeline.size();  // of backward
  while (begin < end && op(begin).phase == Phase::forward) ++begin;
  while (end > begin && op(end - 1).phase >= Phase::loss_scaling) --end;
  std::size_t first = begin, last = end;  // of its layers, where they are known: else of its quarters
  while (first < end && op(first).block < 0) ++first;
  while (last > first && op(last - 1).block < 0) --last;
  std::size_t first_ends = first, last_begins = last;
  if (first < last) {
    while (first_ends < last && (op(first_ends).block < 0 || op(first_ends).block == op(first).block)) ++first_ends;
    while (last_begins > first_ends && (op(last_begins - 1).block < 0 || op(last_begins - 1).block == op(last - 1).block)) --last_begins;
  } else {
    first = begin, last = end;
    first_ends = begin + (end - begin) / 4, last_begins = end - (end - begin) / 4;
  }
  std::array<std::int64_t, kStepParts> most{};
  std::pair<std::int64_t, std::size_t> between{0, 0};
  for (std::size_t i = 0; i < use.timeline.size(); ++i) {
    std::int64_t all = 0;
    for (Bytes bytes : use.timeline[i]) all += bytes.value;
    if (i >= first_ends && i < last_begins) {
      if (all > between.first) between = {all, i};
      continue;
    }
    const std::size_t part = i < begin ? 0 : i < first ? 1 : i < first_ends ? 2 : i < last ? 3 : i < end ? 4 : 5;
    if (all <= most[part]) continue;
    most[part] = all;
    use.moments[part] = use.timeline[i];
  }
  if (between.first > *std::max_element(most.begin(), most.end())) use.moments[3] = use.timeline[between.second];
}

// What the segments take of a step that takes `free` of them where nothing stops it, and more than `limit`, which is all there is: as
// it gets through within the limit, else the median of what it and its like take, each within the limit if it can.
std::int64_t pinned_within(std::int64_t limit, const MemoryTrace& trace, const Replay& free, Allocator kind) {
  if (const Replay tight = Replayer(trace, limit - free.graph_pool, kind).run(); !tight.out_of_memory) return tight.pinned;
  if (kind == Allocator::planned) return free.pinned;
  std::vector<std::int64_t> taken = {free.pinned};
  for (double stretch : kStretches) {
    Replay one = Replayer(trace, std::int64_t{1} << 62, kind, stretch).run();
    const double larger = static_cast<double>(one.peak) / static_cast<double>(free.peak);
    const auto within = static_cast<std::int64_t>(static_cast<double>(limit) * larger);
    if (one.pinned > within)
      if (Replay tight = Replayer(trace, within - one.graph_pool, kind, stretch).run(); !tight.out_of_memory) one = std::move(tight);
    taken.push_back(static_cast<std::int64_t>(static_cast<double>(one.pinned) / larger));
  }
  std::sort(taken.begin(), taken.end());
  return std::min(free.pinned, taken[taken.size() / 2]);
}

// What is taken from the device outside the allocator.
std::int64_t outside_allocator(Bytes capacity, int gpus) {
  return kContext + (gpus > 1 ? kNcclBuffers : 0) + static_cast<std::int64_t>(kDriverShare * static_cast<double>(capacity.value));
}

void judge(MemoryUse& use) {
  use.verdict = use.device_high <= use.capacity || use.device_low > use.capacity ? Certainty::certain : Certainty::likely;
}

}  // namespace

MemoryUse memory_use(const StepGraph& step, const KernelProgram& program, const TrainingOptions& training,
                     const GpuSpec& gpu, int gpus) {
  return memory_use(memory_trace(step, program, training, gpu), step, program, training, gpu, gpus);
}

MemoryUse memory_use(const MemoryTrace& trace, const StepGraph& step, const KernelProgram& program, const TrainingOptions& training,
                     const GpuSpec& gpu, int gpus) {
  const std::int64_t around = outside_allocator(gpu.memory_capacity, gpus);
  Replay replay = Replayer(trace, std::int64_t{1} << 62, training.allocator).run();

  MemoryUse use;
  use.peak = {replay.peak};
  use.reserved = {replay.reserved};
  use.graph_pool = {replay.graph_pool};
  use.fragmentation = use.reserved - use.peak;
  use.capacity = gpu.memory_capacity;
  use.host = step.on_host + step.saved_on_host;
  describe_peak(trace, replay, step.graph, use);
  use.timeline = std::move(replay.timeline);
  find_moments(step.graph, use);

  // Before it gives up, the allocator returns every segment that nothing lives in, and asks again: what must fit is what it
  // cannot return. Where that looks too much, the step is replayed within the limit, which packs it more tightly.
  use.device_pinned = {replay.pinned};
  if (replay.pinned + around > use.capacity.value && replay.peak + around <= use.capacity.value)
    use.device_pinned = {pinned_within(use.capacity.value - around, trace, replay, training.allocator)};
  const Bytes outside{around};
  use.device = use.device_pinned + outside;
  use.fits = use.device <= use.capacity;
  const Spread spread = spread_of(program);
  use.device_low = use.device_pinned * spread.low + outside;
  use.device_high = use.device_pinned * spread.high + outside;
  judge(use);
  return use;
}

void describe_part(MemoryUse& use, StepPart part, const MemoryTrace& trace, const StepGraph& step, const TrainingOptions& training) {
  describe_peak(trace, Replayer(trace, training.allocator, step.graph, part).run(), step.graph, use);
}

void judge_host(MemoryUse& use, Bytes of_node, Bytes capacity) {
  use.host_of_node = of_node;
  use.host_capacity = capacity;
  if (capacity.value == 0 || use.host_of_node <= capacity) return;
  use.fits = false;
  use.verdict = Certainty::certain;
}

std::vector<ModuleMemory> kept_by_module(const MemoryTrace& trace, const StepGraph& step) {
  ByModule modules(step.graph);
  for (std::int32_t kept : trace.kept) {
    const MemoryBlock& block = trace.blocks[static_cast<std::size_t>(kept)];
    modules.part(block, MemoryCategory::activations) += Bytes{CachingAllocator::rounded(block.bytes)};
  }
  return modules.take();
}

void recount(MemoryUse& use, int gpus, const std::vector<ModuleMemory>& beside) {
  const Bytes outside{outside_allocator(use.capacity, gpus)};
  const Bytes before = use.device_pinned;
  use.device_pinned = use.device - outside;
  const double grown = before.value > 0 ? static_cast<double>(use.device_pinned.value) / static_cast<double>(before.value) : 1;
  use.device_low = (use.device_low - outside) * grown + outside;
  use.device_high = (use.device_high - outside) * grown + outside;
  judge(use);
  ModuleMemory known;
  for (std::size_t i = 0; i < kMemoryCategories; ++i) part_of(known, static_cast<MemoryCategory>(i)) += use.by_category[i];
  const ModuleMemory more{"(messages)", use.parameters - known.parameters, use.gradients - known.gradients, use.optimizer - known.optimizer,
                          use.weight_copies - known.weight_copies, use.activations - known.activations, use.workspace - known.workspace};
  for (auto [category, bytes] : {std::pair{MemoryCategory::parameters, more.parameters}, std::pair{MemoryCategory::gradients, more.gradients},
                                 std::pair{MemoryCategory::optimizer_states, more.optimizer}, std::pair{MemoryCategory::weight_casts, more.weight_copies}, std::pair{MemoryCategory::activations, more.activations},
                                 std::pair{MemoryCategory::workspaces, more.workspace}})
    use.by_category[static_cast<std::size_t>(category)] += bytes;
  use.moments.fill(use.by_category);
  std::map<std::string, ModuleMemory> modules;
  const auto add = [&](const ModuleMemory& one, double sign) {
    ModuleMemory& module = modules[one.module];
    module.module = one.module;
    for (auto part : {&ModuleMemory::parameters, &ModuleMemory::gradients, &ModuleMemory::optimizer, &ModuleMemory::weight_copies, &ModuleMemory::activations, &ModuleMemory::workspace})
      module.*part += one.*part * sign;
  };
  for (const ModuleMemory& one : use.by_module) add(one, 1);
  add(more, 1);
  for (ModuleMemory one : beside) {
    add(one, 1);
    one.module = more.module;
    add(one, -1);
  }
  if (modules[more.module].total().value == 0) modules.erase(more.module);
  use.by_module.clear();
  for (auto& [path, module] : modules) use.by_module.push_back(std::move(module));
  largest_first(use.by_module);
}

std::string to_text(const MemoryUse& use) {
  std::string categories;
  for (std::size_t i = 0; i < kMemoryCategories; ++i)
    if (use.by_category[i].value > 0)
      categories += fmt::format("{}{} {}", categories.empty() ? "" : ", ", to_text(static_cast<MemoryCategory>(i)), to_text(use.by_category[i]));
  return fmt::format(
      "peak {}: parameters {}, gradients {}, optimizer {}, weight copies {}, activations {}, workspace {}\n"
      "reserved {} (fragmentation {}){}, device {} of {}: {}\n"
      "at the peak: {}\n",
      to_text(use.peak), to_text(use.parameters), to_text(use.gradients), to_text(use.optimizer), to_text(use.weight_copies), to_text(use.activations),
      to_text(use.workspace), to_text(use.reserved), to_text(use.fragmentation),
      use.graph_pool.value > 0 ? fmt::format(", of it CUDA graphs' {}", to_text(use.graph_pool)) : "", to_text(use.device), to_text(use.capacity),
      use.fits ? "fits" : "does not fit", categories);
}

}  // namespace precog
