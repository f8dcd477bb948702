#include <algorithm>
#include <random>

#include <doctest/doctest.h>

#include "base/ensure.h"
#include "sim/simulate.h"

using namespace precog;

TEST_CASE("AQueueRunsItsTasksOneAfterAnother") {
  TaskGraph graph(1);
  graph.add(0, 5, {});
  graph.add(0, 7, {});
  CHECK(simulate(graph).end == 12);
}

TEST_CASE("ATaskWaitsForWhatItDependsOn") {
  TaskGraph graph(2);
  const auto a = graph.add(0, 5, {});
  const auto b = graph.add(1, 3, {a});
  graph.add(0, 1, {b, -1});
  const Timeline timeline = simulate(graph);
  CHECK(timeline.spans[1].start == 5);
  CHECK(timeline.spans[2].start == 8);
  CHECK(timeline.end == 9);
}

TEST_CASE("NonsenseIsABrokenPromise") {
  TaskGraph graph(1);
  CHECK_THROWS_AS(graph.add(1, 1, {}), BrokenPromise);
  CHECK_THROWS_AS(graph.add(0, -1, {}), BrokenPromise);
  CHECK_THROWS_AS(graph.add(0, 1, {0}), BrokenPromise);
}

TEST_CASE("RandomGraphsKeepTheRulesOfQueues") {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    auto below = [&](int limit) { return static_cast<std::int32_t>(random() % static_cast<unsigned>(limit)); };
    TaskGraph graph(3);
    const int tasks = 1 + below(60);
    for (std::int32_t i = 0; i < tasks; ++i) graph.add(below(3), below(100), {i > 0 ? below(i) : -1, i > 0 ? below(i) : -1});
    const Timeline timeline = simulate(graph);
    std::vector<Picoseconds> last(3, 0), chain(static_cast<std::size_t>(tasks), 0), work(3, 0);
    Picoseconds critical = 0;
    for (std::size_t i = 0; i < graph.tasks().size(); ++i) {
      const Task& task = graph.tasks()[i];
      const Span span = timeline.spans[i];
      const auto resource = static_cast<std::size_t>(task.resource);
      CHECK(span.end - span.start == task.duration);
      CHECK(span.start >= last[resource]);  // no queue runs two tasks at once
      last[resource] = span.end;
      work[resource] += task.duration;
      for (std::int32_t dependency : graph.dependencies(task)) {
        CHECK(span.start >= timeline.spans[static_cast<std::size_t>(dependency)].end);
        chain[i] = std::max(chain[i], chain[static_cast<std::size_t>(dependency)]);
      }
      chain[i] += task.duration;
      critical = std::max(critical, chain[i]);
    }
    CHECK(timeline.end >= critical);
    CHECK(timeline.end >= *std::max_element(work.begin(), work.end()));
  }
}

TEST_CASE("ATaskBesideATakingOneRunsAtTheRateThatIsLeft") {
  TaskGraph graph(3);
  graph.add(1, 40, {}, {0.25f, 0.5f, true});                       // a collective: a quarter of the units, half the traffic
  const auto by_units = graph.add(0, 30, {}, {1.0f, 0.0f});        // needs all units: 3/4 of its rate
  const auto by_traffic = graph.add(0, 30, {}, {0.0f, 1.0f});      // starts at 40: nothing is taken any more
  const Timeline timeline = simulate(graph);
  CHECK(timeline.spans[static_cast<std::size_t>(by_units)].end == 40);
  CHECK(timeline.spans[static_cast<std::size_t>(by_traffic)].end == 70);
}

TEST_CASE("ATaskIsSlowedOnlyWhileTheOtherRuns") {
  TaskGraph graph(2);
  graph.add(1, 10, {}, {0.5f, 0.0f, true});
  graph.add(0, 20, {}, {1.0f, 0.0f});  // 10 at half its rate, then 15 alone
  CHECK(simulate(graph).spans[1].end == 25);
  TaskGraph unneeding(2);
  unneeding.add(1, 10, {}, {0.5f, 0.5f, true});
  unneeding.add(0, 20, {});
  CHECK(simulate(unneeding).spans[1].end == 20);
}

TEST_CASE("TwoTakingTasksShareOnePath") {
  TaskGraph graph(3);
  graph.add(1, 20, {}, {0, 0, true});
  graph.add(2, 10, {}, {0, 0, true});                   // half its rate while the first runs: until 20
  const auto next = graph.add(1, 5, {}, {0, 0, true});  // the first queue pays for the half that it lost: ten
  const Timeline timeline = simulate(graph);
  CHECK(timeline.spans[1].end == 20);
  CHECK(timeline.spans[static_cast<std::size_t>(next)].start == 30);
  CHECK(timeline.end == 35);  // 35 of work on one path
}
