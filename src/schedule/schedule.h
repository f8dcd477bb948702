// Puts costed kernels on queues: the host enqueues calls, the compute stream drains them, the communication stream
// runs collectives beside it. Several consecutive steps are laid out so that the steady state can be read off:
// the host may run ahead of the GPU into the next step unless something makes it wait.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "cost/cost.h"
#include "kernel/kernel.h"
#include "sim/simulate.h"
#include "spec/host_spec.h"

namespace precog {

// Each communicator has a stream of its own: gradients and parameters of replicas on one, what the layers of a split model
// exchange on another.
enum Resource : std::int32_t { kHost = 0, kCompute = 1, kCommunication = 2, kLayerCommunication = 3, kResourceCount = 4 };
// Views draw both kinds of communication on one track.
constexpr std::size_t kTrackCount = 3;
constexpr std::size_t track_of(std::int32_t resource) { return static_cast<std::size_t>(resource < kLayerCommunication ? resource : kCommunication); }

struct TaskLabel {
  std::int32_t call = -1;         // index into KernelProgram::calls
  std::int16_t step = 0;          // which of the simulated steps
  std::int16_t micro_batch = 0;
};

struct Schedule {
  TaskGraph graph{kResourceCount};
  std::vector<TaskLabel> labels;            // one per task
  std::vector<std::int32_t> last_task;      // of each simulated step: what ends it on the GPU
  std::int64_t micro_batches_laid_out = 1;  // the rest repeat the second one
  std::vector<std::int32_t> last_of_micro_batch;  // in the last step: the last compute task of each micro-batch
};

// `costs` is one per kernel of the program; `gap` is the stream's idle time between two queued kernels;
// `micro_batches` make one optimizer step.
Schedule make_schedule(const KernelProgram& program, const std::vector<KernelCost>& costs, Seconds gap, const Graph& graph,
                       const HostSpec& host, std::int64_t micro_batches);

// Parts of a step by themselves, each on idle queues: of every call, whether the part has it. A pipeline's stage waits between
// its pieces of work, so that each begins with nothing issued. What the step itself takes of the host is in none of them.
std::vector<Schedule> make_segments(const KernelProgram& program, const std::vector<KernelCost>& costs, Seconds gap, const Graph& graph,
                                    const HostSpec& host, std::span<const std::vector<char>> segments);

// How long the host needs to issue each call: the host's figure for that operator, else for its family, else its default.
class HostTimes {
 public:
  explicit HostTimes(const HostSpec& host);
  Seconds operator()(const Call& call, const KernelProgram& program, const Graph& graph) const;

 private:
  Seconds compiled(const Call& call, const KernelProgram& program) const;
  Seconds loop_of_products(const Call& call, const KernelProgram& program) const;

  static constexpr std::size_t kKinds = static_cast<std::size_t>(OpKind::kCount);
  const HostSpec& host_;
  std::array<Seconds, kKinds> forward_, backward_;
};

}  // namespace precog
