// Operands are converted, the fp32 kernel runs, its result is converted back. An assumption about the library (one pass
// each way, a single further launch), not a measurement: the cost says that it is an estimate.
#include "cost/emulated_cost.h"

#include <algorithm>

namespace precog {
namespace {

Bytes widened(Bytes bytes, DType from) { return {bytes.value * std::max<std::int64_t>(1, bits_of(DType::fp32) / bits_of(from))}; }

KernelCost conversion(const Kernel& kernel, DType from, DType to, Bytes read, Bytes written, const GpuSpec& gpu,
                      const ArchitectureProfile& profile) {
  Kernel cast;
  cast.shape = MemoryShape{MemoryPattern::cast};
  cast.input = from;
  cast.output = to;
  cast.read = read;
  cast.written = written;
  cast.launches = kernel.launches;
  return kernel_cost(cast, gpu, profile);
}

}  // namespace

KernelCost emulated_cost(const Kernel& kernel, const GpuSpec& gpu, const ArchitectureProfile& profile) {
  Kernel wide = kernel;
  wide.emulated = false;
  wide.math = wide.input = wide.output = DType::fp32;
  wide.read = widened(kernel.read, kernel.input);
  wide.written = widened(kernel.written, kernel.output);
  KernelCost cost = kernel_cost(wide, gpu, profile);
  const KernelCost in = conversion(kernel, kernel.input, DType::fp32, kernel.read, wide.read, gpu, profile);
  const KernelCost out = conversion(kernel, DType::fp32, kernel.output, wide.written, kernel.written, gpu, profile);
  cost.memory = cost.memory + in.memory + out.memory;
  cost.launch = cost.launch + in.launch;
  cost.total = cost.total + in.total + (out.total - out.launch);
  cost.source = CostSource::estimate;
  return cost;
}

}  // namespace precog
