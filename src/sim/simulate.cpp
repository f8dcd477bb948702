#include "sim/simulate.h"

#include <algorithm>

#include "base/ensure.h"

namespace precog {

std::int32_t TaskGraph::add(std::int32_t resource, Picoseconds duration, std::initializer_list<std::int32_t> dependencies) {
  ensure(resource >= 0 && resource < resources_, "a task runs on a resource of its graph");
  ensure(duration >= 0, "a task takes no negative time");
  const auto number = static_cast<std::int32_t>(tasks_.size());
  Task task{resource, duration, static_cast<std::uint32_t>(dependencies_.size()), 0};
  for (std::int32_t dependency : dependencies) {
    if (dependency < 0) continue;
    ensure(dependency < number, "a task depends on earlier tasks only");
    dependencies_.push_back(dependency);
    ++task.dependency_count;
  }
  tasks_.push_back(task);
  return number;
}

Timeline simulate(const TaskGraph& graph) {
  Timeline timeline;
  timeline.spans.resize(graph.tasks().size());
  std::vector<Picoseconds> free_at(static_cast<std::size_t>(graph.resources()), 0);
  for (std::size_t i = 0; i < graph.tasks().size(); ++i) {
    const Task& task = graph.tasks()[i];
    Picoseconds& available = free_at[static_cast<std::size_t>(task.resource)];
    Picoseconds start = available;
    for (std::int32_t dependency : graph.dependencies(task))
      start = std::max(start, timeline.spans[static_cast<std::size_t>(dependency)].end);
    available = start + task.duration;
    timeline.spans[i] = {start, available};
    timeline.end = std::max(timeline.end, available);
  }
  return timeline;
}

}  // namespace precog
