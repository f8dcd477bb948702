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
