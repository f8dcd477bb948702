#include "predict/sustained.h"

#include <algorithm>

#include "cost/power.h"

namespace precog {

double keep_within_power(const Request& request, const ArchitectureProfile& profile, Seconds gap, std::vector<ChunkOfStep>& chunks) {
  if (profile.power.exponent <= 0) return 1;
  const HostTimes host_time(*request.host);
  double busy = 0, idle = 0, host = 0, energy = 0;
  for (const ChunkOfStep& chunk : chunks) {
    for (const Call& call : chunk.program.calls) {
      const auto times = static_cast<double>(runs_per_step(call.phase, request.training.micro_batches)) *
                         (call.phase >= Phase::gradient_sync ? chunk.ends_per_gpu : chunk.per_gpu);
      host += times * host_time(call, chunk.program, chunk.step.graph).value;
      if (call.collective) continue;
      for (std::uint32_t i = 0; i < call.kernel_count; ++i) {
        const Kernel& kernel = chunk.program.kernels[call.first_kernel + i];
        const KernelCost& cost = chunk.costs[call.first_kernel + i];
        busy += times * cost.total.value;
        idle += times * gap.value * kernel.launches;
        energy += times * cost.total.value * full_clock_power(kernel, cost, *request.gpu, profile.power).value;
      }
    }
  }
  const auto micro_batches = static_cast<double>(request.training.micro_batches);
  const double bubble = (micro_batches * request.plan.vpp + request.plan.pp - 1) / (micro_batches * request.plan.vpp);
  const double step = std::max(busy + idle, host) * bubble;
  if (step <= 0) return 1;
  const double clock = kept_clock({(energy + (step - busy) * profile.power.idle.value) / step}, *request.gpu, profile);
  if (clock < 1)
    for (ChunkOfStep& chunk : chunks)
      for (std::size_t i = 0; i < chunk.costs.size(); ++i) chunk.costs[i] = at_clock(chunk.costs[i], clock);
  return clock;
}

}  // namespace precog
