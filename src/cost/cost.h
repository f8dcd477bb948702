// Time of one kernel on one GPU, and of one collective on one cluster: physics from the datasheet with
// efficiencies per architecture (data/profiles). Pure functions of their arguments; no state, no clock.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/units.h"
#include "kernel/kernel.h"
#include "spec/cluster_spec.h"
#include "spec/gpu_spec.h"

namespace precog {

enum class Bound : std::uint8_t { compute, memory, launch, network };

// Where a cost comes from, for the report's provenance.
enum class CostSource : std::uint8_t { measured, fitted, scaled, datasheet, estimate };

struct KernelCost {  // per kernel as listed, all its launches together
  Seconds compute, memory, launch, total;
  Bound bound = Bound::memory;
  CostSource source = CostSource::datasheet;
  float sm_share = 0, bandwidth_share = 0;  // of the GPU, that a collective takes from kernels beside it
  double low = 0, high = 0;  // 10th and 90th percentile of the true time over `total`, where measurements tell; else 0
};

struct ArchitectureProfile;  // the coefficients of one architecture; see profile.h

class CostProfile {  // every architecture's coefficients, from data/profiles/<name>.json
 public:
  static Result<CostProfile> parse(const Json& json, const std::string& where);
  const std::string& name() const { return name_; }
  // The architecture's own coefficients, or nullptr when the file has none.
  const ArchitectureProfile* find(std::string_view architecture) const;

 private:
  std::string name_;
  std::map<std::string, std::shared_ptr<const ArchitectureProfile>, std::less<>> architectures_;
};

KernelCost kernel_cost(const Kernel& kernel, const GpuSpec& gpu, const ArchitectureProfile& profile);
KernelCost collective_cost(const CollectiveShape& collective, const ClusterSpec& cluster, const GpuSpec& gpu);
// How long the GPU idles between the end of a kernel and the start of the next one queued. No part of kernel_cost.
Seconds kernel_gap(const ArchitectureProfile& profile);

std::string_view to_text(Bound bound);
std::string_view to_text(CostSource source);

}  // namespace precog
