#include <cmath>

#include <doctest/doctest.h>

#include "predict/whole_run.h"

using namespace precog;

TEST_CASE("TheLargestOfManyDrawsGrowsSlowly") {
  CHECK(expected_largest(1) == 0);
  CHECK(expected_largest(2) == doctest::Approx(0.564).epsilon(0.05));     // 1 / sqrt(pi)
  CHECK(expected_largest(100) == doctest::Approx(2.508).epsilon(0.01));   // tables of normal order statistics
  CHECK(expected_largest(1000) == doctest::Approx(3.241).epsilon(0.01));
  CHECK(expected_largest(65536) < 4.6);
  CHECK(expected_largest(65536) > expected_largest(16384));
}

TEST_CASE("StragglersDelayWorkAndNotCommunication") {
  StepTimes times{.length = {10}, .host = {}, .exposed = {{"all_reduce", {4}}}, .bubble = {2}};
  CHECK(with_stragglers(times, 0.05, 1).length.value == 10);
  const StepTimes late = with_stragglers(times, 0.05, 1024);
  CHECK(late.length.value == doctest::Approx(10 + 4 * 0.05 * expected_largest(1024)));
  CHECK(late.exposed.at("stragglers").value == doctest::Approx(late.length.value - 10));
}

namespace {
Report run_of(double mtbf_hours, double hours, int gpus, double checkpoint, double restart) {
  Request request;
  PrecisionRecipe recipe;
  request.precision = &recipe;
  request.run.mtbf_hours = mtbf_hours;
  request.run.checkpoint_s = checkpoint;
  request.run.restart_s = restart;
  Report report;
  report.gpus = gpus;
  report.total = Seconds{hours * 3600};
  report.cost_usd = 100.0;
  add_failures(request, 1000, report);
  return report;
}
}  // namespace

TEST_CASE("RareFailuresCostTheYoungDalyShare") {
  // m = 10^6 s, c = 50 s: an interval of sqrt(2 c m) = 10,000 s, and about sqrt(2 c / m) = 1% lost.
  const Report report = run_of(1e6 / 3600 * 8, 1000, 8, 50, 0);
  REQUIRE(report.losses);
  CHECK(report.losses->between_failures.value == doctest::Approx(1e6));
  CHECK(report.losses->interval.value == doctest::Approx(10000 - 50));
  CHECK(report.total->value / (1000 * 3600) == doctest::Approx(1.01).epsilon(0.001));
  CHECK(*report.cost_usd == doctest::Approx(100 * report.total->value / (1000 * 3600)));
  CHECK(report.losses->failures == doctest::Approx(report.total->value / 1e6));
}

TEST_CASE("MoreGpusFailMoreOften") {
  CHECK(run_of(50000, 1000, 16384, 60, 600).total->value > run_of(50000, 1000, 1024, 60, 600).total->value);
  CHECK(run_of(50000, 1000, 1024, 0, 0).total->value == doctest::Approx(3.6e6).epsilon(0.01));  // free checkpoints lose nothing
}

TEST_CASE("AJobThatHardlyAdvancesHasNoTotal") {
  const Report report = run_of(10, 1000, 16384, 60, 600);
  CHECK_FALSE(report.total);
  CHECK_FALSE(report.cost_usd);
  REQUIRE(report.warnings.size() == 1);
}

TEST_CASE("OneReplicaWritesItsCheckpointUnlessStatesAreSharedOut") {
  Request request;
  request.cluster.gpus = 64;
  request.cluster.gpus_per_node = 8;
  CHECK(writing_nodes(request) == 1);  // rank 0
  request.plan.fsdp = Sharding::full;
  CHECK(writing_nodes(request) == 8);
  request.plan.fsdp = Sharding::none;
  request.plan.tp = 8, request.plan.pp = 4;  // a node of each stage's two
  CHECK(writing_nodes(request) == 4);
  request.plan.tp = 2, request.plan.pp = 32;  // four stages to a node: all have a part
  CHECK(writing_nodes(request) == 8);
}
