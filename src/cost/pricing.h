// Prices of kernels on one GPU: physics, corrected by what was measured on it or on a relative. A step repeats few distinct
// kernels thousands of times, so each is worked out once. Used by one thread; takes kernels, returns costs.
#pragma once

#include <span>
#include <unordered_map>
#include <vector>

#include "cost/cost.h"
#include "cost/price_book.h"
#include "cost/residual.h"

namespace precog {

// Physics alone where `fitted` is null or does not know the kernel's family. `own`: fitted on this very GPU, not on a
// relative of the same architecture. `warm`: what it reads is in the L2 cache.
KernelCost corrected_cost(const Kernel& kernel, const GpuSpec& gpu, const ArchitectureProfile& physics, const FittedProfile* fitted, bool own, bool warm = false);

class KernelPrices {
 public:
  // `book`: prices of earlier predictions for this GPU and profile, where there is one.
  KernelPrices(const GpuSpec& gpu, const ArchitectureProfile& physics, const FittedProfile* fitted, PriceBook* book = nullptr);
  // `cached`: the share of its traffic that the L2 cache saves (kernel/cached_reads.h).
  KernelCost operator()(const Kernel& kernel, double cached = 0);
  // Of many, together: most of the time goes into reading a profile's trees. Those of collectives are left empty.
  std::vector<KernelCost> operator()(std::span<const Kernel> kernels, std::span<const double> cached);

 private:
  static KernelCost at(const KernelPrice& price, double cached);
  bool asks_warm(const Kernel& kernel, double cached) const;
  void work_out(const PricedKernels& wanted, bool warm) const;

  const GpuSpec& gpu_;
  const ArchitectureProfile& physics_;
  const FittedProfile* fitted_;
  bool own_;
  PriceBook* book_;
  std::unordered_map<Kernel, KernelPrice, KernelHash, SameKernel> known_;
};

}  // namespace precog
