// Prices of kernels on one GPU: physics, corrected by what was measured on it or on a relative. A step repeats few distinct
// kernels thousands of times, so each is worked out once. Used by one thread; takes kernels, returns costs.
#pragma once

#include <unordered_map>

#include "cost/cost.h"
#include "cost/residual.h"

namespace precog {

// Physics alone where `fitted` is null or does not know the kernel's family. `own`: fitted on this very GPU, not on a
// relative of the same architecture.
KernelCost corrected_cost(const Kernel& kernel, const GpuSpec& gpu, const ArchitectureProfile& physics, const FittedProfile* fitted, bool own);

class KernelPrices {
 public:
  KernelPrices(const GpuSpec& gpu, const ArchitectureProfile& physics, const FittedProfile* fitted);
  const KernelCost& operator()(const Kernel& kernel);

 private:
  struct Same {
    bool operator()(const Kernel& a, const Kernel& b) const;
  };
  struct Hash {
    std::size_t operator()(const Kernel& kernel) const;
  };
  const GpuSpec& gpu_;
  const ArchitectureProfile& physics_;
  const FittedProfile* fitted_;
  bool own_;
  std::unordered_map<Kernel, KernelCost, Hash, Same> known_;
};

}  // namespace precog
