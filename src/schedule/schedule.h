// Puts costed kernels on queues: the host enqueues calls, the compute stream drains them, the communication stream
// runs collectives beside it. Several consecutive steps are laid out so that the steady state can be read off:
// the host may run ahead of the GPU into the next step unless something makes it wait.
#pragma once

#include <span>
#include <vector>

#include "cost/cost.h"
#include "kernel/kernel.h"
#include "schedule/host_times.h"
#include "sim/simulate.h"
#include "spec/input_spec.h"

namespace precog {

// Each communicator has a stream of its own: gradients and parameters of replicas on one, what the layers of a split model
// exchange on another, sums of shards over groups that hold copies on a third.
enum Resource : std::int32_t { kHost = 0, kCompute = 1, kCommunication = 2, kLayerCommunication = 3, kGroupCommunication = 4, kResourceCount = 5 };
// Views draw all kinds of communication on one track.
constexpr std::size_t kTrackCount = 3;
constexpr std::size_t track_of(std::int32_t resource) { return static_cast<std::size_t>(resource < kLayerCommunication ? resource : kCommunication); }
constexpr std::int32_t kInput = kResourceCount;  // the data loader's workers, as one queue; no track of a report's

constexpr std::int32_t kNoCall = -1, kInputCall = -2;  // labels of tasks that no call makes: the step's own, a batch's

struct TaskLabel {
  std::int32_t call = kNoCall;    // index into KernelProgram::calls
  std::int16_t step = 0;          // which of the simulated steps
  std::int16_t micro_batch = 0;
};

struct Schedule {
  TaskGraph graph{kResourceCount + 1};
  std::vector<TaskLabel> labels;            // one per task
  std::vector<std::int32_t> last_task;      // of each simulated step: what ends it on the GPU
  std::int64_t micro_batches_laid_out = 1;  // the rest repeat the second one
  std::vector<std::int32_t> last_of_micro_batch;  // in the last step: the last compute task of each micro-batch
  struct Fetch { std::int32_t before, taken, copied; };  // tasks: the host's last before it asks for a batch, its taking it, the copy (or -1)
  std::vector<Fetch> fetches;                     // in the last step, one per micro-batch; empty where nothing is said of input
};

// `costs` is one per kernel of the program; `gap` is the stream's idle time between two queued kernels;
// `micro_batches` make one optimizer step. `input`, where it is said: each micro-batch waits for its data; `copy` is the time
// of its way to the GPU.
Schedule make_schedule(const KernelProgram& program, const std::vector<KernelCost>& costs, Seconds gap, const Graph& graph,
                       const HostSpec& host, std::int64_t micro_batches, const InputSpec* input = nullptr, Seconds copy = {});

// Parts of a step by themselves, each on idle queues: of every call, whether the part has it. A pipeline's stage waits between
// its pieces of work, so that each begins with nothing issued. What the step itself takes of the host is in none of them.
std::vector<Schedule> make_segments(const KernelProgram& program, const std::vector<KernelCost>& costs, Seconds gap, const Graph& graph,
                                    const HostSpec& host, std::span<const std::vector<char>> segments);

// When the last simulated step begins: the one before it has ended on the GPU. The host has issued some of it by then.
Picoseconds begin_of_last_step(const Schedule& schedule, const Timeline& timeline);

// The part of the last step in which the GPU had nothing to do because a batch was not there: the host waited for it (or made
// it itself), or it was on its way, and neither stream ran. `from` and `to` bound the step; in_second is the second
// micro-batch's alone.
struct InputWait {
  Picoseconds all = 0, in_second = 0;
};
InputWait input_wait(const Schedule& schedule, const Timeline& timeline, Picoseconds from, Picoseconds to);

}  // namespace precog
