// A discrete-event engine for in-order queues. It knows tasks, resources and dependencies, nothing of GPUs.
// Each resource (the host, a stream) runs its tasks one at a time in the order they were added; a task also waits
// for its dependencies, all added before it. Under those two rules the event order is decided by the input, so one
// pass in sequence order yields the very times an event queue would. Time is integer picoseconds.
// Tasks may also share what lies behind the queues: see Sharing.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/ensure.h"
#include "base/units.h"

namespace precog {

using Picoseconds = std::int64_t;

inline Picoseconds picoseconds(Seconds seconds) { return static_cast<Picoseconds>(seconds.value * 1e12 + 0.5); }
inline Seconds seconds(Picoseconds ps) { return {static_cast<double>(ps) * 1e-12}; }

// What tasks on different queues share. A taking task (a collective) holds a part of two goods, units and traffic, while it
// runs; a task beside it that needs them (a kernel) then runs at the rate that is left: 1 - max(need x held). Two taking tasks
// on different queues share one path: while both run, each moves at half its rate; the earlier one's end is already known
// by then, so that its queue is held up after it.
// In one pass a task meets only those added before it: of queues fed in program order, the others are few.
struct Sharing {
  float units = 0, traffic = 0;  // held by a taking task; needed by any other
  bool takes = false;
};

struct Task {
  std::int32_t resource = 0;
  Picoseconds duration = 0;
  Sharing sharing;
  std::uint32_t first_dependency = 0, dependency_count = 0;
};

class TaskGraph {
 public:
  explicit TaskGraph(std::int32_t resources) : resources_(resources) {}

  // Returns the task's number. Dependencies are numbers returned before; negative ones are ignored.
  std::int32_t add(std::int32_t resource, Picoseconds duration, std::initializer_list<std::int32_t> dependencies, Sharing sharing = {});
  std::span<const Task> tasks() const { return tasks_; }
  std::span<const std::int32_t> dependencies(const Task& task) const {
    return {dependencies_.data() + task.first_dependency, task.dependency_count};
  }
  std::int32_t resources() const { return resources_; }
  void reserve(std::size_t tasks) {
    tasks_.reserve(tasks);
    dependencies_.reserve(2 * tasks);
  }

  bool anything_taken() const { return taken_; }

 private:
  bool taken_ = false;
  std::int32_t resources_;
  std::vector<Task> tasks_;
  std::vector<std::int32_t> dependencies_;
};

inline std::int32_t TaskGraph::add(std::int32_t resource, Picoseconds duration, std::initializer_list<std::int32_t> dependencies, Sharing sharing) {
  ensure(resource >= 0 && resource < resources_, "a task runs on a resource of its graph");
  ensure(duration >= 0, "a task takes no negative time");
  const auto number = static_cast<std::int32_t>(tasks_.size());
  Task& task = tasks_.emplace_back();  // written where it stays: there are ten thousands of them
  task.resource = resource;
  task.duration = duration;
  task.sharing = sharing;
  task.first_dependency = static_cast<std::uint32_t>(dependencies_.size());
  taken_ = taken_ || sharing.takes;
  for (std::int32_t dependency : dependencies) {
    if (dependency < 0) continue;
    ensure(dependency < number, "a task depends on earlier tasks only");
    dependencies_.push_back(dependency);
    ++task.dependency_count;
  }
  return number;
}

struct Span {
  Picoseconds start = 0, end = 0;
};

struct Timeline {
  std::vector<Span> spans;  // one per task
  Picoseconds end = 0;
};

Timeline simulate(const TaskGraph& graph);

}  // namespace precog
