#include <algorithm>
#include <variant>

#include <doctest/doctest.h>

#include "kernel/fuse.h"
#include "parallel/parallel.h"
#include "parallel/tensor_parallel.h"
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
  int launching_calls = 0;
};

// Every kernel takes kernel_us; the steady step's length, and what the host and the GPU need for it.
Run run(const PrecisionRecipe& recipe, double op_us, double kernel_us, bool blocking = false) {
  const StepGraph step = make_step(apply_precision(recipe, gpu(), two_layers()), recipe, {});
  const KernelProgram program = make_kernels(step.graph, gpu(), MemoryFormat::contiguous);
  std::vector<KernelCost> costs(program.kernels.size());
  for (KernelCost& cost : costs) cost.total = microseconds(kernel_us);
  HostSpec spec = host(op_us);
  spec.blocking_launches = blocking;
  const Schedule schedule = make_schedule(program, costs, {}, step.graph, spec, 1);
  const Timeline timeline = simulate(schedule.graph);
  auto end = [&](std::size_t i) { return timeline.spans[static_cast<std::size_t>(schedule.last_task[i])].end; };
  Run out{static_cast<double>(end(2) - end(1)) * 1e-6, 0, kernel_us * static_cast<double>(program.kernels.size())};
  const HostTimes host_time(spec);
  for (const Call& call : program.calls) out.host_us += host_time(call, program, step.graph).value * 1e6, out.launching_calls += call.kernel_count > 0 ? 1 : 0;
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

TEST_CASE("BlockingLaunchesHideNothing") {
  const Run r = run(uniform(DType::fp32), 10, 10, true);
  CHECK(r.step_us == doctest::Approx(r.host_us + r.gpu_us + r.launching_calls));  // and a microsecond to notice each call's end
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

TEST_CASE("AGroupedProductAsksForItsGroupsBeforeItIssuesThem") {
  GraphBuilder b;
  const TensorId x = b.grouped_linear(b.relu(b.linear_layer("up", b.input("x", {64, 32}), 32)), b.parameter("experts", {8, 16, 32}), 8);
  b.cross_entropy(x, b.input("t", {64}, DType::int64));
  const PrecisionRecipe recipe = uniform(DType::fp32);
  const StepGraph step = make_step(apply_precision(recipe, gpu(), std::move(b).finish()), recipe, {});
  const KernelProgram program = make_kernels(step.graph, gpu(), MemoryFormat::contiguous);
  std::vector<KernelCost> costs(program.kernels.size());
  for (KernelCost& cost : costs) cost.total = microseconds(100);
  const Schedule schedule = make_schedule(program, costs, {}, step.graph, host(1), 1);
  const Timeline timeline = simulate(schedule.graph);
  const auto tasks = schedule.graph.tasks();
  std::size_t grouped = 0;
  while (!program.calls[grouped].waits_for_gpu) ++grouped;
  Picoseconds before = 0, issued = 0, began = 0;  // the last kernel before it; its products issued; and begun
  for (std::size_t i = 0; i < tasks.size() && schedule.labels[i].step == 0; ++i) {
    if (tasks[i].resource == kCompute && schedule.labels[i].call < static_cast<std::int32_t>(grouped)) before = timeline.spans[i].end;
    if (schedule.labels[i].call != static_cast<std::int32_t>(grouped)) continue;
    if (tasks[i].resource == kHost) issued = timeline.spans[i].end;
    else began = timeline.spans[i].start;
  }
  CHECK(before > 0);
  CHECK(issued > before);
  CHECK(began == issued);  // the GPU had nothing to do meanwhile
  CHECK(timeline.spans[static_cast<std::size_t>(schedule.last_task[0])].end > before);
}

namespace {

struct ShardedRun {
  double step_us, compute_us, communication_us;
  Schedule schedule;
  Timeline timeline;
  KernelProgram program;
  StepGraph step;
};

// Four blocks over eight ranks; kernels take 10 us, collectives what is asked for, everything else on their stream nothing.
ShardedRun sharded_run(Sharding sharding, double collective_us, double op_us = 0.1) {
  const PrecisionRecipe recipe = uniform(DType::bf16);
  GraphBuilder b;
  TensorId x = b.input("x", {32, 64});
  for (int block = 0; block < 4; ++block) {
    b.set_block(block);
    x = b.relu(b.linear_layer("l" + std::to_string(block), x, 64));
  }
  b.set_block(-1);
  b.cross_entropy(b.linear_layer("head", x, 10), b.input("t", {32}, DType::int64));
  ShardedRun out;
  out.step = apply_plan({.dp = 8, .fsdp = sharding}, recipe, make_step(apply_precision(recipe, gpu(), std::move(b).finish()), recipe, {}));
  out.program = make_kernels(out.step.graph, gpu(), MemoryFormat::contiguous);
  std::vector<KernelCost> costs(out.program.kernels.size());
  out.compute_us = out.communication_us = 0;
  for (const Call& call : out.program.calls)
    for (std::uint32_t k = 0; k < call.kernel_count; ++k) {
      const bool collective = std::holds_alternative<CollectiveShape>(out.program.kernels[call.first_kernel + k].shape);
      costs[call.first_kernel + k].total = microseconds(collective ? collective_us : call.collective ? 0 : 10);
      (call.collective ? out.communication_us : out.compute_us) += collective ? collective_us : call.collective ? 0 : 10;
    }
  out.schedule = make_schedule(out.program, costs, {}, out.step.graph, host(op_us), 1);
  out.timeline = simulate(out.schedule.graph);
  auto end = [&](std::size_t i) { return out.timeline.spans[static_cast<std::size_t>(out.schedule.last_task[i])].end; };
  out.step_us = static_cast<double>(end(2) - end(1)) * 1e-6;
  return out;
}

}  // namespace

TEST_CASE("ShortCollectivesHideBehindTheBlocks") {
  const ShardedRun none = sharded_run(Sharding::full, 0);
  CHECK(none.step_us == doctest::Approx(none.compute_us).epsilon(0.01));
  // Only what no block is there to hide: the first two gathers (the root's, then block 0's) and the last reductions.
  const ShardedRun some = sharded_run(Sharding::full, 20);
  CHECK(some.step_us > some.compute_us + 2 * 20);
  CHECK(some.step_us < some.compute_us + 5 * 20);
}

TEST_CASE("LongCollectivesSetThePace") {
  const ShardedRun run = sharded_run(Sharding::full, 10'000);
  CHECK(run.step_us >= run.communication_us);
  CHECK(run.step_us < run.communication_us + run.compute_us);
}

TEST_CASE("UpdatedParametersArriveBeforeTheNextStepBegins") {
  const ShardedRun run = sharded_run(Sharding::zero1, 50);
  // One bucket: its reduction and its gather both wait for what they need, and nothing is left to hide them.
  CHECK(run.step_us == doctest::Approx(run.compute_us + 2 * 50).epsilon(0.01));
}

TEST_CASE("NoBlockComputesBeforeItsParametersAreThere") {
  const ShardedRun run = sharded_run(Sharding::full, 500);
  std::vector<Picoseconds> done(run.step.graph.tensors.size(), 0);  // when the last step's gathers had arrived
  int waited = 0;
  for (std::size_t i = 0; i < run.schedule.labels.size(); ++i) {
    const TaskLabel& label = run.schedule.labels[i];
    if (label.call < 0 || label.step != 2 || run.schedule.graph.tasks()[i].resource == kHost) continue;
    const Op& op = run.step.graph.ops[run.program.calls[static_cast<std::size_t>(label.call)].op];
    if (op.kind == OpKind::all_gather) done[run.step.graph.output(op).index()] = run.timeline.spans[i].end;
    if (op.kind != OpKind::shard_copy || run.step.graph.name(op.label) != "split_with_sizes_copy") continue;
    CHECK(run.timeline.spans[i].start >= done[run.step.graph.input(op, 1).index()]);
    CHECK(done[run.step.graph.input(op, 1).index()] > 0);
    ++waited;
  }
  CHECK(waited == 1 + 2 * 4);
}

TEST_CASE("ACompiledGraphPaysForLaunchesAndLibraryCallsAndOnceForItself") {
  StepGraph step = make_step(apply_precision(uniform(DType::fp32), gpu(), two_layers()), uniform(DType::fp32), {});
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
  const double all_alike = host_us();
  spec.compiled.library = {{"mm", microseconds(30)}};  // backward's
  CHECK(host_us() == doctest::Approx(all_alike + 3 * 20));
  spec.parameter_gradient = microseconds(50);
  const double one_by_one = host_us();
  spec.compiled.parameter = microseconds(2);  // in place of it, and of forward's graph too
  const auto parameters = (one_by_one - all_alike - 3 * 20) / 50;
  CHECK(parameters >= 2);
  CHECK(host_us() == doctest::Approx(all_alike + 3 * 20 + 2 * 2 * parameters));
  step.graph.tensors.add({.shape = {8}, .role = Role::parameter});  // that does not train: forward is handed it too
  CHECK(host_us() == doctest::Approx(all_alike + 3 * 20 + 2 * 2 * parameters + 2));
  spec.parameter_gradient = spec.compiled.parameter = {};
  program.cuda_graphs = true;
  CHECK(host_us() == doctest::Approx(2 * 7));
}

TEST_CASE("ACallOfManyLaunchesRunsWhileTheHostIssuesTheRest") {
  const StepGraph step = make_step(apply_precision(uniform(DType::fp32), gpu(), two_layers()), uniform(DType::fp32), {});
  KernelProgram program = make_kernels(step.graph, gpu(), MemoryFormat::contiguous);
  const auto many = std::find_if(program.kernels.begin(), program.kernels.end(), [](const Kernel& kernel) { return std::holds_alternative<MemoryShape>(kernel.shape); });
  REQUIRE(many != program.kernels.end());
  many->launches = 160;
  std::vector<KernelCost> costs(program.kernels.size());
  costs[static_cast<std::size_t>(many - program.kernels.begin())].total = microseconds(160);
  HostSpec spec = host(0);
  spec.kernel_launch = microseconds(1);
  const auto first_step_us = [&] {
    const Schedule schedule = make_schedule(program, costs, {}, step.graph, spec, 1);
    return static_cast<double>(simulate(schedule.graph).spans[static_cast<std::size_t>(schedule.last_task[0])].end) * 1e-6;
  };
  CHECK(first_step_us() >= 160);
  CHECK(first_step_us() < 160 + 160 / 8.0);  // the first of its parts, and then as fast as the slower of the two
  spec.blocking_launches = true;
  CHECK(first_step_us() >= 160 + 159);
}

TEST_CASE("ClearingABufferCostsLessThanALaunch") {
  const StepGraph step = make_step(apply_precision(uniform(DType::fp32), gpu(), two_layers()), uniform(DType::fp32), {});
  KernelProgram program = make_kernels(step.graph, gpu(), MemoryFormat::contiguous);
  HostSpec spec = host(10);
  spec.kernel_launch = microseconds(5);
  spec.memset = microseconds(2);
  Kernel kernel = program.kernels.front();
  const auto call_us = [&](std::string_view second) {
    kernel.name = second;
    KernelProgram two = program;
    Call call = program.calls.front();
    call.first_kernel = static_cast<std::uint32_t>(two.kernels.size());
    call.kernel_count = 2;
    two.kernels.push_back(program.kernels.front());
    two.kernels.push_back(kernel);
    return HostTimes(spec)(call, two, step.graph).value * 1e6;
  };
  CHECK(call_us("other") - call_us("memset") == doctest::Approx(3));
}

TEST_CASE("LayersMessagesDoNotQueueBehindReplicas") {
  // The last layer's gradients fill a bucket, whose message is on its way when the layer before needs a sum of its own.
  GraphBuilder b;
  TensorId x = b.input("x", {32, 64});
  const TensorId target = b.input("target", {32}, DType::int64);
  x = b.relu(b.linear_layer("first", b.linear_layer("whole", x, 64), 262144));
  b.cross_entropy(b.linear_layer("second", x, 10), target);
  const PrecisionRecipe recipe = uniform(DType::bf16);
  const Plan plan{.dp = 2, .tp = 2, .tp_plan = {{"first", TensorSplit::column}}};
  StepGraph step = make_step(apply_precision(recipe, gpu(), shard_layers(plan, std::move(b).finish())->graph), recipe, {});
  step = apply_plan(plan, recipe, std::move(step));
  const KernelProgram program = make_kernels(step.graph, gpu(), MemoryFormat::contiguous);
  std::vector<KernelCost> costs(program.kernels.size());
  for (const Call& call : program.calls)
    for (std::uint32_t k = 0; k < call.kernel_count; ++k) costs[call.first_kernel + k].total = microseconds(call.collective ? 500 : 10);
  const Schedule schedule = make_schedule(program, costs, {}, step.graph, host(1), 1);
  const Timeline timeline = simulate(schedule.graph);
  int layers = 0, at_once = 0;
  const auto tasks = schedule.graph.tasks();
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    if (tasks[i].resource != kLayerCommunication) continue;
    ++layers;
    for (std::size_t j = 0; j < tasks.size(); ++j)
      if (tasks[j].resource == kCommunication && timeline.spans[j].start < timeline.spans[i].end && timeline.spans[i].start < timeline.spans[j].end) ++at_once;
  }
  CHECK(layers == 3 * 2);  // three steps: the second layer's sum forward, the first's input backward
  CHECK(at_once >= 3);
}

TEST_CASE("ALayersCollectiveIsCalledFromPythonBothWays") {
  GraphBuilder b;
  TensorId x = b.input("x", {32, 64});
  const TensorId target = b.input("target", {32}, DType::int64);
  x = b.relu(b.linear_layer("first", b.linear_layer("whole", x, 64), 128));
  b.cross_entropy(b.linear_layer("second", x, 10), target);
  const PrecisionRecipe recipe = uniform(DType::bf16);
  const Plan plan{.dp = 2, .tp = 2, .tp_plan = {{"first", TensorSplit::column}}};
  StepGraph step = make_step(apply_precision(recipe, gpu(), shard_layers(plan, std::move(b).finish())->graph), recipe, {});
  step = apply_plan(plan, recipe, std::move(step));
  const KernelProgram program = make_kernels(step.graph, gpu(), MemoryFormat::contiguous);
  HostSpec spec = host(1);
  spec.forward["collective"] = microseconds(5);
  const HostTimes time(spec);
  int forward = 0, backward = 0, gradients = 0;
  for (const Call& call : program.calls) {
    if (call.family != Family::collective) continue;
    const double us = time(call, program, step.graph).value * 1e6;
    (call.phase == Phase::forward ? forward : call.phase == Phase::backward ? backward : gradients)++;
    CHECK(us == doctest::Approx(call.phase == Phase::forward || call.phase == Phase::backward ? 5 : 1));
  }
  CHECK(forward == 1);
  CHECK(backward == 1);
  CHECK(gradients > 0);
}

TEST_CASE("OneIndexingIsOneCallOfPythons") {
  GraphBuilder b;
  TensorId x = b.relu(b.linear_layer("first", b.input("x", {32, 64}), 128));
  x = b.view(b.view(x, {16, 128}, ViewKind::slice), {16, 64}, ViewKind::slice);  // x[:16, :64]
  x = b.view(x, {8, 128});
  x = b.view(b.view(x, {8, 64}, ViewKind::slice), {64, 8});
  b.cross_entropy(b.linear_layer("second", x, 10), b.input("target", {64}, DType::int64));
  const StepGraph step = make_step(apply_precision(uniform(DType::fp32), gpu(), std::move(b).finish()), uniform(DType::fp32), {});
  const KernelProgram program = make_kernels(step.graph, gpu(), MemoryFormat::contiguous);
  const std::vector<bool> inner = inner_calls(program, step.graph);
  std::vector<bool> views;
  for (std::size_t i = 0; i < program.calls.size(); ++i)
    if (program.calls[i].phase == Phase::forward && program.calls[i].family == Family::view) views.push_back(inner[i]);
  CHECK(views == std::vector<bool>{false, true, false, false, false});
}

TEST_CASE("SumsOfGradientsAndPartsOfAJointHaveNoNodeOfAutograds") {
  GraphBuilder b;
  const TensorId x = b.relu(b.linear_layer("first", b.input("x", {32, 64}), 64));
  const TensorId y = b.relu(b.linear_layer("second", x, 64));
  const TensorId z = b.relu(b.linear_layer("third", b.cat({x, y}, 1), 64));  // x was read twice
  b.cross_entropy(b.linear_layer("last", z, 10), b.input("target", {32}, DType::int64));
  const StepGraph step = make_step(apply_precision(uniform(DType::fp32), gpu(), std::move(b).finish()), uniform(DType::fp32), {});
  const KernelProgram program = make_kernels(step.graph, gpu(), MemoryFormat::contiguous);
  HostSpec spec = host(1);
  spec.forward["add"] = microseconds(5);
  spec.backward["add"] = microseconds(50);
  spec.forward["view"] = microseconds(2);
  spec.backward["view"] = microseconds(20);
  const HostStep times = host_step(program, step.graph, spec);
  std::vector<double> sums, parts;
  for (std::size_t i = 0; i < program.calls.size(); ++i) {
    if (program.calls[i].phase != Phase::backward) continue;
    const Op& op = step.graph.ops[program.calls[i].op];
    const auto* view = std::get_if<ViewAttributes>(&op.attributes);
    if (op.kind == OpKind::add) sums.push_back(times.calls[i].value * 1e6);
    if (view && view->kind == ViewKind::slice) parts.push_back(times.calls[i].value * 1e6);
  }
  REQUIRE(sums.size() == 1);
  CHECK(sums[0] == doctest::Approx(5));
  REQUIRE(parts.size() == 2);
  CHECK(parts[0] == doctest::Approx(20));  // the joint's node
  CHECK(parts[1] == doctest::Approx(2));
}

TEST_CASE("AnEinsumIsOneCallOfPythons") {
  GraphBuilder b;
  TensorId x = b.view(b.relu(b.linear_layer("first", b.input("x", {64, 64}), 32)), {4, 16, 32});  // Python's own
  x = b.view(b.view(b.view(x, {4, 16, 32, 1}), {4, 16, 1, 32}, ViewKind::transpose), {1, 64, 32});
  TensorId w = b.view(b.view(b.view(b.parameter("weight", {32, 8}), {32, 8, 1}), {1, 32, 8}, ViewKind::transpose), {1, 32, 8});
  x = b.view(b.view(b.view(b.matmul(x, w), {4, 16, 1, 8}), {4, 16, 8, 1}, ViewKind::transpose), {4, 16, 8});
  x = b.view(x, {64, 8});  // Python's again
  b.cross_entropy(b.linear_layer("second", x, 10), b.input("target", {64}, DType::int64));
  const StepGraph step = make_step(apply_precision(uniform(DType::fp32), gpu(), std::move(b).finish()), uniform(DType::fp32), {});
  const KernelProgram program = make_kernels(step.graph, gpu(), MemoryFormat::contiguous);
  const std::vector<bool> inner = inner_calls(program, step.graph);
  std::vector<bool> views;
  for (std::size_t i = 0; i < program.calls.size(); ++i)
    if (program.calls[i].phase == Phase::forward && program.calls[i].family == Family::view) views.push_back(inner[i]);
  CHECK(views == std::vector<bool>{false, true, true, true, true, true, true, true, true, true, false});
}
