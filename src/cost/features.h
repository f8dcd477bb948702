// What a learned correction may look at in a kernel: numbers without units, or on a logarithmic scale, so that what was
// learned on one GPU means something on a relative of it. One line per feature in features.cpp: adding one is adding a line
// (profiles fitted before it stay valid: they name the features they use).
// Not here: the correction itself (residual.h) and how it is learned (calibrate).
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cost/cost.h"
#include "kernel/kernel.h"
#include "spec/gpu_spec.h"

namespace precog {

// Whose correction a kernel takes: "gemm", "conv_forward", "softmax_backward", ...; a kernel that is costed by a pattern it
// borrows has its own name. Empty for what is never corrected: collectives, and kernels that a compiler wrote or nobody knows.
std::string_view residual_family(const Kernel& kernel);

// Within a family, the arithmetic that is told apart: the type that a product computes in, the widths that a copy moves.
std::string residual_dtype(const Kernel& kernel);

// What shapes count: products (gemm), convolutions as the products they are, attention, and all that only moves memory.
enum class FeatureKind : std::uint8_t { gemm, convolution, attention, memory };
FeatureKind feature_kind(const Kernel& kernel);

struct FeatureName {
  std::string_view name;
  bool octaves;  // a size on a base-2 logarithmic scale: how far outside of what was seen can be told in octaves
};
std::span<const FeatureName> feature_names(FeatureKind kind);

// Calls that move less find their operands in the L2 cache however they are timed, and in a step as well: not a matter of `warm`.
inline constexpr double kAlwaysCached = 256 * 1024;

// In the order of feature_names. `physics` is the uncorrected cost. `warm`: timed again and again on operands that stayed in
// the L2 cache, which a training step's do not.
std::vector<double> features_of(const Kernel& kernel, const KernelCost& physics, const GpuSpec& gpu, bool warm = false);

}  // namespace precog
