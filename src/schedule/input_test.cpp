#include <doctest/doctest.h>

#include "precision/precision.h"
#include "schedule/schedule.h"
#include "support.h"
#include "training/step_graph.h"

using namespace precog;
using namespace precog::testing;

namespace {

struct Fed {
  double step_us, gpu_us, input_us;
  std::size_t fetches;
};

// Kernels of 100 us and a host that needs nothing: without input, a step is what the GPU needs.
Fed fed(const InputSpec& input, std::int64_t micro_batches = 1, Seconds copy = {}) {
  const PrecisionRecipe recipe = uniform(DType::fp32);
  TrainingOptions options;
  options.micro_batches = micro_batches;
  const StepGraph step = make_step(apply_precision(recipe, gpu(), two_layers()), recipe, options);
  const KernelProgram program = make_kernels(step.graph, gpu(), MemoryFormat::contiguous);
  std::vector<KernelCost> costs(program.kernels.size());
  for (KernelCost& cost : costs) cost.total = microseconds(100);
  HostSpec host;
  host.forward = host.backward = {{"default", {}}};
  const Schedule schedule = make_schedule(program, costs, {}, step.graph, host, micro_batches, &input, copy);
  const Timeline timeline = simulate(schedule.graph);
  auto end = [&](std::size_t i) { return timeline.spans[static_cast<std::size_t>(schedule.last_task[i])].end; };
  double gpu_us = 0;
  for (const Call& call : program.calls) gpu_us += 100.0 * call.kernel_count * static_cast<double>(runs_per_step(call.phase, micro_batches));
  return {static_cast<double>(end(2) - end(1)) * 1e-6, gpu_us, static_cast<double>(input_wait(schedule, timeline, end(1), end(2)).all) * 1e-6,
          schedule.fetches.size()};
}

}  // namespace

TEST_CASE("WorkersThatKeepUpAreNotWaitedFor") {
  const double gpu_us = fed({}).gpu_us;
  const Fed run = fed({.per_batch = microseconds(7.9 * gpu_us), .workers = 8});
  CHECK(run.step_us == doctest::Approx(gpu_us));
  CHECK(run.input_us == 0);
}

TEST_CASE("AnInputBoundStepIsWhatTheWorkersDeliver") {
  const double gpu_us = fed({}).gpu_us;
  const Fed run = fed({.per_batch = microseconds(40 * gpu_us), .workers = 8});
  CHECK(run.step_us == doctest::Approx(5 * gpu_us));
  CHECK(run.input_us == doctest::Approx(4 * gpu_us));
}

TEST_CASE("ALoopThatLoadsByItselfDoesItWhileTheGpuWorks") {
  // Nothing makes the host wait for the GPU, so that it loads the next batch meanwhile: only what is longer than the step shows.
  const double gpu_us = fed({}).gpu_us;
  CHECK(fed({.per_batch = microseconds(0.5 * gpu_us)}).step_us == doctest::Approx(gpu_us));
  const Fed run = fed({.per_batch = microseconds(3 * gpu_us)});
  CHECK(run.step_us == doctest::Approx(3 * gpu_us));
  CHECK(run.input_us == doctest::Approx(2 * gpu_us));
}

TEST_CASE("EveryMicroBatchWaitsForItsOwnData") {
  const Fed run = fed({.per_batch = microseconds(20'000), .workers = 1}, 3);
  CHECK(run.fetches == 3);
  CHECK(run.step_us == doctest::Approx(3 * 20'000));
  CHECK(run.input_us == doctest::Approx(3 * 20'000 - run.gpu_us));
}

TEST_CASE("TheCopyToTheGpuIsOnTheStepsWay") {
  const Fed run = fed({.workers = 1}, 1, microseconds(50));
  CHECK(run.step_us == doctest::Approx(run.gpu_us + 50));
  CHECK(run.input_us == doctest::Approx(50));
}

TEST_CASE("ModulesAreEnteredOncePerCall") {
  GraphBuilder b;
  TensorId x = b.input("x", {4, 8});
  for (const char* name : {"a.first", "a.second", "b.deep.down"}) x = b.linear_layer(name, x, 8);  // enters 2, 1 and 3 modules
  b.cross_entropy(x, b.input("t", {4}, DType::int64));
  const PrecisionRecipe recipe = uniform(DType::fp32);
  const StepGraph step = make_step(apply_precision(recipe, gpu(), std::move(b).finish()), recipe, {});
  const KernelProgram program = make_kernels(step.graph, gpu(), MemoryFormat::contiguous);
  HostSpec host;
  host.forward = host.backward = {{"default", {}}};
  host.module_call = microseconds(1);
  const Schedule schedule = make_schedule(program, std::vector<KernelCost>(program.kernels.size()), {}, step.graph, host, 1);
  double total = 0;
  for (std::size_t i = 0; i < schedule.labels.size(); ++i)
    if (schedule.labels[i].step == 0 && schedule.graph.tasks()[i].resource == kHost) total += static_cast<double>(schedule.graph.tasks()[i].duration) * 1e-6;
  CHECK(total == doctest::Approx(6));
}
