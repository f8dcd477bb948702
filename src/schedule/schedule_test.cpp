#include <doctest/doctest.h>

#include "kernel/fuse.h"
#include "precision/precision.h"
#include "schedule/schedule.h"
#include "support.h"
#include "training/step_graph.h"

using namespace precog;
using namespace precog::testing;

namespace {

HostSpec host(double op_us) {
  HostSpec host;
  host.forward = host.backward = {{"default", microseconds(op_us)}, {"view", {}}};
  host.autocast_cast = host.optimizer_op = microseconds(op_us);
  host.synchronise = microseconds(1);
  return host;
}

struct Run {
  double step_us, host_us, gpu_us;
};

// Every kernel takes kernel_us; the steady step's length, and what the host and the GPU need for it.
Run run(const PrecisionRecipe& recipe, double op_us, double kernel_us) {
  const StepGraph step = make_step(apply_precision(recipe, gpu(), two_layers()), recipe, {});
  const KernelProgram program = make_kernels(step.graph, gpu(), MemoryFormat::contiguous);
  std::vector<KernelCost> costs(program.kernels.size());
  for (KernelCost& cost : costs) cost.total = microseconds(kernel_us);
  const Schedule schedule = make_schedule(program, costs, {}, step.graph, host(op_us), 1);
  const Timeline timeline = simulate(schedule.graph);
  auto end = [&](std::size_t i) { return timeline.spans[static_cast<std::size_t>(schedule.last_task[i])].end; };
  Run out{static_cast<double>(end(2) - end(1)) * 1e-6, 0, kernel_us * static_cast<double>(program.kernels.size())};
  const HostSpec spec = host(op_us);
  const HostTimes host_time(spec);
  for (const Call& call : program.calls) out.host_us += host_time(call, program, step.graph).value * 1e6;
  return out;
}

}  // namespace

TEST_CASE("SlowKernelsHideTheHost") {
  const Run r = run(uniform(DType::fp32), 1, 100);
  CHECK(r.step_us == doctest::Approx(r.gpu_us));
}

TEST_CASE("ASlowHostHidesTheKernels") {
  const Run r = run(uniform(DType::fp32), 100, 1);
  CHECK(r.step_us == doctest::Approx(r.host_us));
}

TEST_CASE("TheLossScalersReadBackKeepsTheHostFromRunningAhead") {
  const Run with = run(amp(DType::fp16), 10, 10);
  PrecisionRecipe without_scaler = amp(DType::fp16);
  without_scaler.loss_scaling = false;
  const Run without = run(without_scaler, 10, 10);
  // With as much host work as GPU work, waiting once makes the step longer than either alone.
  CHECK(with.step_us > std::max(with.host_us, with.gpu_us) * 1.02);
  CHECK(without.step_us == doctest::Approx(std::max(without.host_us, without.gpu_us)).epsilon(0.01));
}

TEST_CASE("ACompiledGraphPaysForLaunchesAndLibraryCallsAndOnceForItself") {
  const StepGraph step = make_step(apply_precision(uniform(DType::fp32), gpu(), two_layers()), uniform(DType::fp32), {});
  const FusionPlan plan = plan_fusion(step.graph, gpu().sms);
  KernelProgram program = make_kernels(step.graph, gpu(), MemoryFormat::contiguous, &plan);
  HostSpec spec = host(1000);  // what eager calls cost must not matter but for the optimizer
  spec.compiled = {.kernel = microseconds(1), .library_call = microseconds(10), .graph = microseconds(100), .replay = microseconds(7)};
  auto host_us = [&] {
    const std::vector<KernelCost> costs(program.kernels.size());
    const Schedule schedule = make_schedule(program, costs, {}, step.graph, spec, 1);
    double total = 0;
    for (std::size_t i = 0; i < schedule.labels.size(); ++i) {
      const TaskLabel& label = schedule.labels[i];
      if (label.step != 0 || label.call < 0 || schedule.graph.tasks()[i].resource != kHost) continue;
      if (program.calls[static_cast<std::size_t>(label.call)].compiled) total += static_cast<double>(schedule.graph.tasks()[i].duration) * 1e-6;
    }
    return total;
  };
  int library = 0, generated = 0;
  for (const Call& call : program.calls)
    for (std::uint32_t k = 0; call.compiled && k < call.kernel_count; ++k) {
      const Kernel& kernel = program.kernels[call.first_kernel + k];
      if (kernel.fused) generated += kernel.launches;
      else ++library;
    }
  CHECK(library == 5);  // two products forward, three backward
  CHECK(host_us() == doctest::Approx(2 * 100 + library * 10 + generated));
  program.cuda_graphs = true;
  CHECK(host_us() == doctest::Approx(2 * 7));
}
