#include "predict/predict.h"

#include <chrono>

#include <fmt/format.h>

#include "base/ensure.h"
#include "frontend/traced.h"
#include "kernel/fuse.h"
#include "parallel/parallel.h"
#include "parallel/tensor_parallel.h"
#include "precision/precision.h"
#include "predict/summarise.h"

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
    prediction_.stage_times.push_back({std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count()});
    if (name == dump_after_) prediction_.dump = text(made);
    return made;
  }

 private:
  // Every graph that a stage hands on keeps the promises of verify().
  static void check(const Graph& graph) {
    if (const std::string broken = verify(graph); !broken.empty()) throw BrokenPromise(broken);
  }
  static void check(const StepGraph& step) { check(step.graph); }
  static void check(const Result<Graph>& graph) {
    if (graph) check(*graph);
  }
  template <class Other>
  static void check(const Other&) {}

  Prediction& prediction_;
  std::string_view dump_after_;
};

std::string graph_text(const Graph& graph) { return to_text(graph); }

std::string costs_text(const KernelProgram& program, const std::vector<KernelCost>& costs) {
  std::string out;
  for (std::size_t i = 0; i < costs.size(); ++i)
    out += fmt::format("{}: {} ({}, {}; compute {}, memory {}, launch {})\n", to_text(program.kernels[i]), to_text(costs[i].total),
                       to_text(costs[i].bound), to_text(costs[i].source), to_text(costs[i].compute), to_text(costs[i].memory),
                       to_text(costs[i].launch));
  return out;
}

// A model that cannot be built from this request: the message names the request it came from.
Error located(Error error, const std::string& where) {
  for (Problem& problem : error.problems)
    if (!where.empty()) problem.where = problem.where.empty() ? where : where + ": " + problem.where;
  return error;
}

constexpr const char* kResourceNames[] = {"host", "compute", "communication"};

std::string schedule_text(const Schedule& schedule, const KernelProgram& program, const Graph& graph, const Timeline* timeline) {
  std::string out;
  for (std::size_t i = 0; i < schedule.labels.size(); ++i) {
    const TaskLabel& label = schedule.labels[i];
    const Task& task = schedule.graph.tasks()[i];
    const std::string_view what = label.call < 0 ? "step" : to_text(graph.ops[program.calls[static_cast<std::size_t>(label.call)].op].kind);
    out += fmt::format("step {} {} {} {}", label.step, kResourceNames[task.resource], what, to_text(seconds(task.duration)));
    if (timeline) out += fmt::format(" at {:.3f} us", static_cast<double>(timeline->spans[i].start) * 1e-6);
    out += '\n';
  }
  return out;
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

Result<Prediction> predict(const Request& request, const Catalog& catalog, std::string_view dump_after) {
  Prediction out;
  Stages stages(out, dump_after);
  const ArchitectureProfile* profile = catalog.profile.find(request.gpu->architecture);
  ensure(profile != nullptr, "the catalog checked that every GPU's architecture has coefficients");

  auto built = stages.run("frontend", [&] { return build_forward(request); },
                          [](const Result<Graph>& graph) { return graph ? graph_text(*graph) : std::string(); });
  if (!built) return tl::unexpected(located(built.error(), request.where));
  if (request.mode != Mode::eager && builds_masks_when_traced(*request.model)) *built = with_traced_masks(*built, request.model->encoder_decoder);

  auto rank = shard_layers(request.plan, *built);
  if (!rank) return tl::unexpected(located(rank.error(), request.where));
  const Graph decided = stages.run("precision", [&] { return apply_precision(*request.precision, *request.gpu, rank->graph); }, graph_text);
  StepGraph step = stages.run("training", [&] { return make_step(decided, *request.precision, request.training); },
                              [](const StepGraph& s) { return graph_text(s.graph); });
  step.summed_gradients = rank->summed_gradients;
  step = stages.run("parallel", [&] { return apply_plan(request.plan, *request.precision, std::move(step)); },
                    [](const StepGraph& s) { return graph_text(s.graph); });
  FusionPlan fusion;
  out.program = stages.run("kernel", [&] {
    if (request.mode == Mode::eager && request.stack == Stack::pytorch) return make_kernels(step.graph, *request.gpu, request.memory_format);
    compact_indices(step.graph);
    fusion = plan_fusion(step.graph, request.gpu->sms);
    KernelProgram compiled = make_kernels(step.graph, *request.gpu, compiled_memory_format(step.graph, request.memory_format), &fusion);
    compiled.dispatched = request.mode == Mode::eager;
    compiled.cuda_graphs = request.mode == Mode::compile_cudagraphs;
    return compiled;
  },
                           [&](const KernelProgram& program) { return to_text(program, step.graph) + to_text(fusion, step.graph); });
  out.costs = stages.run("cost", [&] {
    std::vector<KernelCost> costs;
    costs.reserve(out.program.kernels.size());
    for (const Kernel& kernel : out.program.kernels) {
      const auto* collective = std::get_if<CollectiveShape>(&kernel.shape);
      costs.push_back(collective ? collective_cost(*collective, request.cluster, *request.gpu, *profile)
                                 : kernel_cost(kernel, *request.gpu, *profile));
    }
    return costs;
  }, [&](const std::vector<KernelCost>& costs) { return costs_text(out.program, costs); });
  out.schedule = stages.run("schedule", [&] {
    return make_schedule(out.program, out.costs, kernel_gap(*profile), step.graph, *request.host, request.training.micro_batches);
  }, [&](const Schedule& schedule) { return schedule_text(schedule, out.program, step.graph, nullptr); });
  out.timeline = stages.run("sim", [&] { return simulate(out.schedule.graph); },
                            [&](const Timeline& timeline) { return schedule_text(out.schedule, out.program, step.graph, &timeline); });
  const MemoryUse memory = stages.run("memory", [&] { return memory_use(step, out.program, request.training, *request.gpu, request.cluster.gpus); },
                                      [](const MemoryUse& use) { return to_text(use); });
  out.report = stages.run("report", [&] { return summarise(request, training_flops(*built) * (1.0 / request.plan.gpus_per_replica()), kernel_gap(*profile), step, out.program, out.costs, out.schedule, out.timeline, memory); },
                          [](const Report& report) { return to_json(report).dump(2) + "\n"; });
  out.report.parameters = parameter_count(*built);
  out.report.warnings.insert(out.report.warnings.end(), rank->notes.begin(), rank->notes.end());
  out.graph = std::move(step.graph);
  return out;
}

}  // namespace precog
