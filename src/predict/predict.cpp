#include "predict/predict.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include <fmt/format.h>

#include "base/ensure.h"
#include "cost/older_kernels.h"
#include "cost/pricing.h"
#include "frontend/attention_rows.h"
#include "frontend/traced.h"
#include "kernel/attention_operands.h"
#include "kernel/cached_reads.h"
#include "kernel/fuse.h"
#include "kernel/loss_pieces.h"
#include "kernel/uneven_products.h"
#include "parallel/parallel.h"
#include "parallel/tensor_parallel.h"
#include "precision/precision.h"
#include "predict/host_copies.h"
#include "predict/layer_exchange.h"
#include "predict/second_copy.h"
#include "predict/memory_points.h"
#include "predict/pipeline.h"
#include "predict/summarise.h"
#include "predict/sustained.h"
#include "predict/whole_run.h"
#include "training/checkpointed_step.h"

namespace precog {
namespace {

// Wraps each stage once: a timer, and its text when asked for.
class Stages {
 public:
  Stages(Prediction& prediction, std::string_view dump_after) : prediction_(prediction), dump_after_(dump_after) {}

  template <class Run, class Text>
  auto run(std::string_view name, Run stage, Text text) {
    const auto begin = std::chrono::steady_clock::now();
    auto made = stage();
    check(made);
    prediction_.stage_times.resize(stage_names().size());
    const auto stage_at = std::find(stage_names().begin(), stage_names().end(), name) - stage_names().begin();
    prediction_.stage_times[static_cast<std::size_t>(stage_at)] += Seconds{std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count()};
    if (name == dump_after_) prediction_.dump = text(made);
    return made;
  }

 private:
  // Every graph that a stage hands on keeps the promises of verify().
  static void check(const Graph& graph) {
    if (const std::string broken = verify(graph); !broken.empty()) throw BrokenPromise(broken);
  }
  static void check(const std::vector<ChunkOfStep>& chunks) {
    for (const ChunkOfStep& chunk : chunks) check(chunk.step.graph);
  }
  static void check(const Result<Graph>& graph) {
    if (graph) check(*graph);
  }
  template <class Other>
  static void check(const Other&) {}

  Prediction& prediction_;
  std::string_view dump_after_;
};

std::string graph_text(const Graph& graph) { return to_text(graph); }

// The chunks of a pipeline one after another; a model that is not cut has no heading.
template <class Text>
std::string chunks_text(const std::vector<ChunkOfStep>& chunks, Text text) {
  if (chunks.size() == 1) return text(chunks.front());
  std::string out;
  for (std::size_t i = 0; i < chunks.size(); ++i) out += fmt::format("chunk {}\n", i) + text(chunks[i]);
  return out;
}

std::string costs_text(const ChunkOfStep& chunk) {
  std::string out;
  const auto& [step, program, costs, per_gpu, ends_per_gpu] = chunk;
  for (std::size_t i = 0; i < costs.size(); ++i)
    out += fmt::format("{}: {} ({}, {}; compute {}, memory {}, launch {})\n", to_text(program.kernels[i]), to_text(costs[i].total),
                       to_text(costs[i].bound), to_text(costs[i].source), to_text(costs[i].compute), to_text(costs[i].memory),
                       to_text(costs[i].launch));
  return out;
}

// loss.item() where the first operator stands that `is_next` says of.
void read_loss(Graph& graph, bool (*is_next)(Phase)) {
  const Store<OpId, Op> before = std::move(graph.ops);
  graph.ops = {};
  graph.ops.reserve(before.size() + 1);
  bool read = false;
  for (std::size_t i = 0; i < before.size(); ++i) {
    const Op& op = before[before.id_at(i)];
    if (!read && is_next(op.phase)) {
      Op item;
      item.kind = OpKind::read_back;
      item.phase = op.phase;
      item.label = graph.intern("loss");
      graph.add_op(item, {}, {});
      read = true;
    }
    graph.ops.add(op);
  }
}

// A model that cannot be built from this request: the message names the request it came from.
Error located(Error error, const std::string& where) {
  for (Problem& problem : error.problems)
    if (!where.empty()) problem.where = problem.where.empty() ? where : where + ": " + problem.where;
  return error;
}

// Whether anything in the request may treat layers differently that differ in nothing but their numbers.
bool tells_layers_apart(const Request& request) {
  const auto by_number = [](std::string_view pattern) { return pattern.find_first_of("0123456789?") != std::string_view::npos; };
  const PrecisionRecipe& recipe = *request.precision;
  return std::any_of(request.plan.tp_plan.begin(), request.plan.tp_plan.end(), [&](const auto& one) { return by_number(one.first); }) ||
         std::any_of(request.frozen.begin(), request.frozen.end(), by_number) ||
         std::any_of(recipe.rules.begin(), recipe.rules.end(), [&](const PrecisionRule& rule) { return by_number(rule.modules); }) ||
         (recipe.fp8 && (std::any_of(recipe.fp8->modules.begin(), recipe.fp8->modules.end(), by_number) ||
                         std::any_of(recipe.fp8->except.begin(), recipe.fp8->except.end(), by_number)));
}

// Numbers of layers in the request, where only the built model says how many it has.
std::vector<Problem> more_layers_than_built(const Request& request, const Graph& forward) {
  if (request.model->layers > 0) return {};  // checked as the request was read
  int layers = 0;
  std::int16_t block = -1;
  for (const Op& op : forward.ops)
    if (op.block >= 0 && op.block != block) ++layers, block = op.block;
  const int offloaded = request.replicas.offload_layers < 4096 ? request.replicas.offload_layers : 0;  // 4096: all
  std::vector<Problem> out;
  for (const auto& [key, count] : {std::pair{"recompute_layers", request.checkpoints.first}, {"recompute_every", request.checkpoints.every > 1 ? request.checkpoints.every : 0},
                                   {"plan.offload_layers", offloaded}})
    if (count > layers)
      out.push_back({key, layers == 0 ? fmt::format("does not apply: {} has no repeated layers to count; leave it out", request.model->name)
                                      : fmt::format("is {}; {} has {} repeated layers", count, request.model->name, layers)});
  return out;
}

bool has_images(const std::vector<ChunkOfStep>& chunks) {
  const auto on_images = [](const Op& op) {
    const Family family = definition(op.kind).family;
    return family == Family::convolution || family == Family::pooling || op.kind == OpKind::batch_norm || op.kind == OpKind::group_norm;
  };
  return std::any_of(chunks.begin(), chunks.end(), [&](const ChunkOfStep& chunk) { return std::any_of(chunk.step.graph.ops.begin(), chunk.step.graph.ops.end(), on_images); });
}

// The chunks of a pipeline that are worth building, where the model can say so of its layers.
DistinctChunks chunks_to_build(const Request& request) {
  if (request.plan.pp < 2 || !request.model->layer_kinds) return {};
  return foreseen_chunks(request.plan, request.model->layer_kinds(inputs_of_rank(request)));
}

constexpr const char* kResourceNames[] = {"host", "compute", "communication", "layer communication", "replicas' communication", "input"};

std::string schedule_text(const Schedule& schedule, const KernelProgram& program, const Graph& graph, const Timeline* timeline) {
  std::string out;
  for (std::size_t i = 0; i < schedule.labels.size(); ++i) {
    const TaskLabel& label = schedule.labels[i];
    const Task& task = schedule.graph.tasks()[i];
    const std::string_view what = label.call == kInputCall ? "batch" : label.call < 0 ? "step" : to_text(graph.ops[program.calls[static_cast<std::size_t>(label.call)].op].kind);
    out += fmt::format("step {} {} {} {}", label.step, kResourceNames[task.resource], what, to_text(seconds(task.duration)));
    if (timeline) out += fmt::format(" at {:.3f} us", static_cast<double>(timeline->spans[i].start) * 1e-6);
    out += '\n';
  }
  return out;
}

// A thread that looks for gradients now and then finds the last of them half a cycle late; what is exchanged before waits beside backward.
void wait_for_cycle(Seconds cycle, const KernelProgram& program, std::vector<KernelCost>& costs) {
  const auto exchanges = [&](const Call& call) {
    return call.phase == Phase::gradient_sync && call.kernel_count > 0 && std::holds_alternative<CollectiveShape>(program.kernels[call.first_kernel].shape);
  };
  const auto last = std::find_if(program.calls.rbegin(), program.calls.rend(), exchanges);
  if (cycle.value > 0 && last != program.calls.rend()) costs[last->first_kernel].total += cycle * 0.5;
}

// What the stream that computes spends on a batch before the step: its copy to the GPU, and what prepares it there.
Seconds prepared_on_gpu(const InputSpec& input, const Request& request, const ArchitectureProfile& profile) {
  const double efficiency = profile.memory[static_cast<std::size_t>(MemoryPattern::pointwise)].efficiency;
  return input.copied / host_link(*request.gpu, *request.host, request.cluster.gpus_per_node) + input.on_gpu / (request.gpu->memory_bandwidth * efficiency);
}

}  // namespace

const std::vector<std::string>& stage_names() {
  static const std::vector<std::string> kNames = {"frontend", "precision", "training", "parallel", "kernel",
                                                  "cost",     "schedule",  "sim",      "memory",   "report"};
  return kNames;
}

Result<Graph> forward_after_precision(const Request& request) {
  auto forward = build_forward(request);
  if (!forward) return tl::unexpected(located(forward.error(), request.where));
  return apply_precision(*request.precision, *request.gpu, *forward);
}

namespace {

// One rank's step as kernels, chunk by chunk: all that memory is told from.
struct BuiltStep {
  ShardedLayers rank;
  PipelineStages cut;
  std::vector<ChunkOfStep> chunks;
};

Result<BuiltStep> build_step(const Request& request, std::string_view dump_after, Stages& stages) {
  const bool pipelined = request.plan.pp > 1;
  Result<ShardedLayers> rank;
  Graph decided;
  PipelineStages cut;
  // Equal chunks of a pipeline go through the passes once (decision 24); whoever wants to see a pass's result sees the whole model.
  for (bool each_chunk = !dump_after.empty() || tells_layers_apart(request);; each_chunk = true) {
    DistinctChunks foreseen = each_chunk ? DistinctChunks() : chunks_to_build(request);
    auto built = stages.run("frontend", [&] { return build_forward(request, foreseen.left_out); },
                            [](const Result<Graph>& graph) { return graph ? graph_text(*graph) : std::string(); });
    if (!built) return tl::unexpected(located(built.error(), request.where));
    if (auto problems = more_layers_than_built(request, *built); !problems.empty()) return tl::unexpected(located({std::move(problems)}, request.where));
    if (request.memory_format == MemoryFormat::contiguous) note_rows_across(*built);
    // transformers leaves masks out but where it is traced. Flash attention takes none, nor does context parallelism.
    const bool masks = (request.attention == Attention::sdpa || request.attention == Attention::eager) && request.plan.cp == 1;
    if (request.mode != Mode::eager && masks) *built = with_traced_masks(*request.model, *built);
    rank = shard_layers(request.plan, std::move(*built), each_chunk, std::move(foreseen), request.expert_capacity);
    if (!rank) return tl::unexpected(located(rank.error(), request.where));
    if (request.stack == Stack::megatron && request.mode == Mode::eager) rank->graph = convert_scores(std::move(rank->graph), request.fused_softmax);
    // A program that plans its memory reads every operand where it lies.
    if (request.stack == Stack::te && request.training.allocator != Allocator::planned) rank->graph = lay_out_operands(std::move(rank->graph));
    decided = stages.run("precision", [&] { return apply_precision(*request.precision, *request.gpu, rank->graph); }, graph_text);
    if (pipelined) cut = cut_into_stages(rank->chunks, decided);
    if (cut.steady) break;
  }
  if (!pipelined) {
    cut.chunks.push_back({.forward = std::move(decided), .layers = 1, .has_loss = true});
    cut.chunk_at = {0};
    cut.layers_at = {1};
  }
  const int layers = std::accumulate(cut.layers_at.begin(), cut.layers_at.end(), 0);

  const auto steps_text = [](const std::vector<ChunkOfStep>& chunks) {
    return chunks_text(chunks, [](const ChunkOfStep& chunk) { return graph_text(chunk.step.graph); });
  };
  std::vector<ChunkOfStep> chunks = stages.run("training", [&] {
    std::vector<ChunkOfStep> made;
    for (PipelineChunk& chunk : cut.chunks) {
      ChunkOfStep& one = made.emplace_back();
      one.step = make_step(std::move(chunk.forward), *request.precision, request.training, request.checkpoints, chunk.has_loss ? nullptr : &chunk.sent);
      one.step.summed_gradients = rank->summed_gradients * chunk.layers / layers;
    }
    return made;
  }, steps_text);
  chunks = stages.run("parallel", [&] {
    for (ChunkOfStep& chunk : chunks) {
      chunk.step = apply_plan(request.plan, request.replicas, *request.precision, std::move(chunk.step));
      if (request.reads_loss) read_loss(chunk.step.graph, [](Phase phase) { return phase == Phase::loss_scaling || phase == Phase::optimizer; });
      if (request.reads_each_loss && &chunk == &chunks.back()) read_loss(chunk.step.graph, [](Phase phase) { return phase == Phase::backward; });
    }
    return std::move(chunks);
  }, steps_text);
  std::vector<FusionPlan> fusions(chunks.size());
  chunks = stages.run("kernel", [&] {
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      Graph& graph = chunks[i].step.graph;
      if (request.mode == Mode::eager && request.stack == Stack::pytorch) {
        chunks[i].program = make_kernels(graph, *request.gpu, request.memory_format);
        continue;
      }
      compact_indices(graph);
      const MemoryFormat format = compiled_memory_format(graph, request.memory_format);
      fusions[i] = plan_fusion(graph, request.gpu->sms, {.given = request.memory_format, .compiled = format},
                               {.norms = request.stack != Stack::pytorch, .softmax_and_loss = request.stack == Stack::megatron, .softmax = request.fused_softmax, .products = request.mode == Mode::eager});
      chunks[i].program = make_kernels(graph, *request.gpu, format, &fusions[i]);
      chunks[i].program.dispatched = request.mode == Mode::eager;
      if (request.stack == Stack::te) gather_converted(graph, chunks[i].program);
      if (request.tp_scatter_fp8) scatter_converted(graph, chunks[i].program);
      // Code that never builds a mask is not transformers', whose GPT-2 ends a trace before its loss.
      chunks[i].program.scores = request.attention == Attention::sdpa_causal ? Scores::returned : request.model->scores;
      chunks[i].program.cuda_graphs = request.mode == Mode::compile_cudagraphs;
    }
    if (request.software && request.software->aligned_tensor_cores)
      for (ChunkOfStep& chunk : chunks) leave_tensor_cores_where_uneven(chunk.program);
    for (ChunkOfStep& chunk : chunks) run_loss_in_pieces(chunk.step.graph, request.training.loss_chunks, chunk.program);
    return std::move(chunks);
  }, [&](const std::vector<ChunkOfStep>& all) {
    return chunks_text(all, [&](const ChunkOfStep& chunk) {
      return to_text(chunk.program, chunk.step.graph) + to_text(fusions[static_cast<std::size_t>(&chunk - all.data())], chunk.step.graph);
    });
  });
  return BuiltStep{std::move(*rank), std::move(cut), std::move(chunks)};
}

MemoryUse step_memory(const Request& request, const ChunkOfStep& whole) {
  MemoryUse memory = memory_use(whole.step, whole.program, resident(request), *request.gpu, request.cluster.gpus);
  judge_host(memory, memory.host * static_cast<double>(std::min(request.cluster.gpus, request.cluster.gpus_per_node)), host_capacity(request));
  return memory;
}

// Simulated time is integer picoseconds, 106 days, over a few steps; sizes are integers too, and what passes 2^63 bytes takes longer than this to move.
constexpr double kLongestMicroBatch = 4 * 86400.0;

std::string beyond_reckoning(const std::vector<ChunkOfStep>& chunks) {
  double longest = 0;
  for (const ChunkOfStep& chunk : chunks)
    longest = std::max(longest, std::accumulate(chunk.costs.begin(), chunk.costs.end(), 0.0, [](double sum, const KernelCost& cost) { return sum + cost.total.value; }));
  if (longest <= kLongestMicroBatch) return {};
  return fmt::format("a micro-batch would take its GPU {:.0f} days: precog reckons up to {:.0f}", longest / 86400, kLongestMicroBatch / 86400);
}

}  // namespace

Result<Prediction> predict(const Request& request, const Catalog& catalog, std::string_view dump_after) {
  Prediction out;
  Stages stages(out, dump_after);
  const ArchitectureProfile* profile = catalog.profile.find(request.gpu->architecture);
  ensure(profile != nullptr, "the catalog checked that every GPU's architecture has coefficients");
  const bool pipelined = request.plan.pp > 1;
  PRECOG_TRY(built, build_step(request, dump_after, stages));
  const ShardedLayers& rank = built.rank;
  const PipelineStages& cut = built.cut;
  std::vector<ChunkOfStep> chunks = std::move(built.chunks);
  const Seconds gap = kernel_gap(*profile);
  const double clock = stages.run("cost", [&] {
    KernelPrices prices(*request.gpu, *profile, request.fitted, request.own_fitted ? nullptr : &catalog.prices.of(*request.gpu, request.fitted));
    for (ChunkOfStep& chunk : chunks) {
      const std::vector<Kernel>& kernels = chunk.program.kernels;
      const bool flash1 = request.attention == Attention::flash1;
      chunk.costs = prices(kernels, flash1 ? std::vector<double>(kernels.size(), 0) : cached_reads(chunk.step.graph, chunk.program, *request.gpu));
      for (std::size_t i = 0; i < kernels.size(); ++i)
        if (const auto* collective = std::get_if<CollectiveShape>(&kernels[i].shape)) chunk.costs[i] = collective_cost(*collective, request.cluster, *request.gpu);
        else if (flash1) chunk.costs[i] = by_flash1(kernels[i], chunk.costs[i]);
      if (request.stack == Stack::te && request.plan.fsdp != Sharding::full)
        convert_weights_once(chunk.step.graph, chunk.program, request.training.micro_batches, chunk.costs);
      if (const auto& zero3 = request.replicas.by_module; zero3 && zero3->secondary > 0)
        gather_from_second_copy(chunk.step.graph, chunk.program, zero3->secondary, request.training.micro_batches, request.cluster, *request.gpu, chunk.costs);
      wait_for_cycle(request.exchange_cycle, chunk.program, chunk.costs);
      price_host_copies(chunk.step.graph, chunk.program, host_link(*request.gpu, *request.host, request.replicas.node_ranks), chunk.costs);
      if (request.tp_overlap) overlap_with_products(chunk.step.graph, chunk.program, chunk.costs);
      if (request.plan.expert_overlap) overlap_with_micro_batches(chunk.step.graph, chunk.program, request.training.micro_batches, chunk.costs);
    }
    if (pipelined) share_out(request.plan, cut, chunks);
    return keep_within_power(request, *profile, gap, chunks);
  }, [&](double) { return chunks_text(chunks, costs_text); });
  if (std::string why = beyond_reckoning(chunks); !why.empty()) return tl::unexpected(located({{{"batch", std::move(why)}}}, request.where));

  StepTimes times;
  MemoryUse memory;
  std::string peak_at;
  PipelineParts parts;
  const Seconds copy = request.input ? prepared_on_gpu(*request.input, request, *profile) : Seconds{};
  if (pipelined) {
    parts = stages.run("schedule", [&] { return pipeline_parts(request, cut, chunks, gap, copy); },
                                           [](const PipelineParts& made) { return to_text(made); });
    times = stages.run("sim", [&] { return pipeline_times(request, chunks, parts); },
                       [&](const StepTimes&) { return to_text(drawn_pipeline(request, parts).timeline()); });
    PipelineMemory made = stages.run("memory", [&] { return pipeline_memory(request, cut, chunks); }, [](const PipelineMemory& of_stage) { return to_text(of_stage.use); });
    memory = std::move(made.use);
    peak_at = std::move(made.peak_at);
    out.stage_memory = std::move(made.drawn);
  } else {
    const ChunkOfStep& whole = chunks.front();
    out.schedule = stages.run("schedule", [&] {
      return make_schedule(whole.program, whole.costs, gap, whole.step.graph, *request.host, request.training.micro_batches,
                           request.input ? &*request.input : nullptr, copy);
    }, [&](const Schedule& schedule) { return schedule_text(schedule, whole.program, whole.step.graph, nullptr); });
    out.timeline = stages.run("sim", [&] { return simulate(out.schedule.graph); },
                              [&](const Timeline& timeline) { return schedule_text(out.schedule, whole.program, whole.step.graph, &timeline); });
    times = steady_step(out.schedule, out.timeline, whole, request.training.micro_batches);
    memory = stages.run("memory", [&] { return step_memory(request, whole); }, [](const MemoryUse& use) { return to_text(use); });
    peak_at = describe(whole.step.graph, memory.peak_op);
    out.memory_by_op = std::move(memory.timeline);
  }
  if (request.jitter > 0) times = with_stragglers(std::move(times), request.jitter, request.cluster.gpus);
  out.report = stages.run("report", [&] {
    Report report = summarise(request, rank.parameters, rank.model_flops * (1.0 / request.plan.pp), gap, chunks, times, memory, peak_at);
    add_failures(request, report.parameters, report);
    return report;
  },
                          [](const Report& report) { return to_json(report).dump(2) + "\n"; });
  out.report.warnings.insert(out.report.warnings.end(), rank.notes.begin(), rank.notes.end());
  out.report.sustained_clock = clock;
  if (request.memory_format == MemoryFormat::channels_last && !has_images(chunks))
    out.report.warnings.push_back(fmt::format("memory_format channels_last has no effect: {} has no convolutions, nor anything else on images", request.model->name));
  if (request.mode == Mode::compile_cudagraphs) out.report.warnings.push_back("memory of CUDA graphs follows PyTorch's source: a pool of their own that is never given back; no such step was measured");
  if (pipelined) {
    if (!cut.even) out.report.warnings.push_back(uneven_stages(cut));
    if (request.training.micro_batches < request.plan.pp) out.report.warnings.push_back(idle_stages(request));
    out.pipeline = pipeline_view(request, cut, std::move(chunks), std::move(parts));
    out.report.memory_stage = out.stage_memory.stage;
    return out;
  }
  out.graph = std::move(chunks.front().step.graph);
  out.program = std::move(chunks.front().program);
  out.costs = std::move(chunks.front().costs);
  return out;
}

void draw_memory(Prediction& p) {
  if (p.pipeline) p.report.memory_points = pipeline_memory_points(*p.pipeline, p.stage_memory, p.report.step);
  else p.report.memory_points = memory_points(p.memory_by_op, p.program, p.schedule, p.timeline, p.report.micro_batches, p.report.step);
}

Result<MemoryUse> predict_memory(const Request& request) {
  Prediction unused;
  Stages stages(unused, {});
  PRECOG_TRY(built, build_step(request, {}, stages));
  if (request.plan.pp > 1) return pipeline_memory(request, built.cut, built.chunks).use;
  return step_memory(request, built.chunks.front());
}

}  // namespace precog
