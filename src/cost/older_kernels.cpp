#include "cost/older_kernels.h"

namespace precog {
namespace {

// Shares of the A100's peak at best, as the second one's paper gives them (Dao 2023, arXiv 2307.08691, sections 1, 3.3 and 4): the
// first reaches 50% forward and 35% backward, the second 73% and 63%. Too high: long sequences of 2022 and 2023 too slow.
constexpr double kForward = 0.73 / 0.50, kBackward = 0.63 / 0.35;

}  // namespace

KernelCost by_flash1(const Kernel& kernel, KernelCost cost) {
  const auto* attention = std::get_if<AttentionShape>(&kernel.shape);
  if (!attention || attention->backend == AttentionBackend::math) return cost;
  const double slower = attention->backward ? kBackward : kForward;
  cost.compute = cost.compute * slower;
  cost.total = cost.launch + (cost.total - cost.launch) * slower;
  cost.source = CostSource::estimate;
  return cost;
}

}  // namespace precog
