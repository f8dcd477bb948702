// A discrete-event engine for in-order queues. It knows tasks, resources and dependencies, nothing of GPUs.
// Each resource (the host, a stream) runs its tasks one at a time in the order they were added; a task also waits
// for its dependencies, all added before it. Under those two rules the event order is decided by the input, so one
// pass in sequence order yields the very times an event queue would. Time is integer picoseconds.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/units.h"

namespace precog {

using Picoseconds = std::int64_t;

inline Picoseconds picoseconds(Seconds seconds) { return static_cast<Picoseconds>(seconds.value * 1e12 + 0.5); }
inline Seconds seconds(Picoseconds ps) { return {static_cast<double>(ps) * 1e-12}; }

struct Task {
  std::int32_t resource = 0;
  Picoseconds duration = 0;
  std::uint32_t first_dependency = 0, dependency_count = 0;
};

class TaskGraph {
 public:
  explicit TaskGraph(std::int32_t resources) : resources_(resources) {}

  // Returns the task's number. Dependencies are numbers returned before; negative ones are ignored.
  std::int32_t add(std::int32_t resource, Picoseconds duration, std::initializer_list<std::int32_t> dependencies);
  std::span<const Task> tasks() const { return tasks_; }
  std::span<const std::int32_t> dependencies(const Task& task) const {
    return {dependencies_.data() + task.first_dependency, task.dependency_count};
  }
  std::int32_t resources() const { return resources_; }
  void reserve(std::size_t tasks) {
    tasks_.reserve(tasks);
    dependencies_.reserve(2 * tasks);
  }

 private:
  std::int32_t resources_;
  std::vector<Task> tasks_;
  std::vector<std::int32_t> dependencies_;
};

struct Span {
  Picoseconds start = 0, end = 0;
};

struct Timeline {
  std::vector<Span> spans;  // one per task
  Picoseconds end = 0;
};

Timeline simulate(const TaskGraph& graph);

}  // namespace precog
