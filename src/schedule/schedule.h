// Puts costed kernels on queues: the host enqueues calls, the compute stream drains them, the communication stream
// runs collectives beside it. Several consecutive steps are laid out so that the steady state can be read off:
// the host may run ahead of the GPU into the next step unless something makes it wait.
#pragma once

#include <vector>

#include "cost/cost.h"
#include "kernel/kernel.h"
#include "sim/simulate.h"
#include "spec/host_spec.h"

namespace precog {

enum Resource : std::int32_t { kHost = 0, kCompute = 1, kCommunication = 2, kResourceCount = 3 };

struct TaskLabel {
  std::int32_t call = -1;         // index into KernelProgram::calls
  std::int16_t step = 0;          // which of the simulated steps
  std::int16_t micro_batch = 0;
};

struct Schedule {
  TaskGraph graph{kResourceCount};
  std::vector<TaskLabel> labels;            // one per task
  std::vector<std::int32_t> last_task;      // of each simulated step: what ends it on the GPU
  std::int64_t micro_batches_laid_out = 1;  // the rest repeat the last one
};

struct ScheduleOptions {
  bool autocast = false;  // the dispatcher consults autocast for each forward operator
  std::int64_t micro_batches = 1;
};

// `costs` is one per kernel of the program.
Schedule make_schedule(const KernelProgram& program, const std::vector<KernelCost>& costs, const Graph& graph,
                       const HostSpec& host, const ScheduleOptions& options);

// How long the host needs to issue one call.
Seconds host_time(const Call& call, const KernelProgram& program, const Graph& graph, const HostSpec& host, bool autocast);

}  // namespace precog
