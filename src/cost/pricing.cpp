#include "cost/pricing.h"

#include <algorithm>
#include <cmath>


namespace precog {
namespace {

// What a relative's figures may be off by beyond its own spread: a model of matrix products fitted without an H100 was off
// by 5 to 9% on it in the median. Too small: intervals of GPUs without a profile miss too often.
constexpr double kRelativeSpread = 0.09;

constexpr double kMostGain = 0.3;  // of what a kernel takes: L2 is about three times as fast as memory

struct ShapeHash {
  static std::size_t mix(std::initializer_list<std::int64_t> values) {
    std::uint64_t hash = 1469598103934665603u;
    for (std::int64_t value : values) hash = (hash ^ static_cast<std::uint64_t>(value)) * 1099511628211u, hash ^= hash >> 29;
    return static_cast<std::size_t>(hash);
  }
  std::size_t operator()(const MemoryShape& s) const { return mix({static_cast<int>(s.pattern), s.rows, s.row_length, s.channels_last, s.part, s.axes, s.across}); }
  std::size_t operator()(const GemmShape& s) const { return mix({s.batch, s.m, s.n, s.k, s.transposed_a, s.a_turned, s.b_turned, s.bias, s.row_scales, s.careful_sums}); }
  std::size_t operator()(const ConvShape& s) const { return mix({static_cast<int>(s.direction), s.batch, s.in_channels, s.out_channels, s.in_h, s.out_h, s.kernel_h, s.stride}); }
  std::size_t operator()(const AttentionShape& s) const { return mix({s.batch, s.heads, s.q_len, s.kv_len, s.head_dim, s.backward, static_cast<int>(s.backend)}); }
  std::size_t operator()(const CollectiveShape& s) const { return mix({s.bytes.value, s.participants}); }
};

}  // namespace

KernelCost corrected_cost(const Kernel& kernel, const GpuSpec& gpu, const ArchitectureProfile& physics, const FittedProfile* fitted, bool own, bool warm) {
  KernelCost cost = kernel_cost(kernel, gpu, physics);
  const FamilyResidual* family = fitted ? fitted->find(residual_family(kernel)) : nullptr;
  if (!family || family->kind != feature_kind(kernel)) return cost;
  const double factor = std::exp(family->correct(kernel, features_of(kernel, cost, gpu, warm)));
  cost.compute = cost.compute * factor;
  cost.memory = cost.memory * factor;
  cost.launch = cost.launch * factor;
  cost.total = cost.total * factor;
  own = own && !family->carried;
  cost.source = own ? CostSource::fitted : CostSource::scaled;
  cost.low = family->ratio.least * (own ? 1 : 1 - kRelativeSpread);
  cost.high = family->ratio.most * (own ? 1 : 1 + kRelativeSpread);
  return cost;
}

KernelPrices::KernelPrices(const GpuSpec& gpu, const ArchitectureProfile& physics, const FittedProfile* fitted)
    : gpu_(gpu), physics_(physics), fitted_(fitted), own_(fitted && fitted->gpu == gpu.name) {}

KernelCost KernelPrices::operator()(const Kernel& kernel, double cached) {
  auto [at, fresh] = known_.try_emplace(kernel);
  Price& price = at->second;
  if (fresh) price.cold = corrected_cost(kernel, gpu_, physics_, fitted_, own_);
  const std::int64_t bytes = (kernel.read.value + kernel.written.value) / std::max(1, kernel.launches);
  if (cached <= 0 || !fitted_ || bytes <= kAlwaysCached) return price.cold;
  // Only what was timed both ways says what a full cache is worth; more than the datasheet's bound could lose is not believed.
  if (!price.warm) {
    const double warm = corrected_cost(kernel, gpu_, physics_, fitted_, own_, true).total / price.cold.total;
    price.warm = std::clamp(warm, kMostGain, 1.0);
  }
  const double factor = std::pow(*price.warm, cached);
  KernelCost cost = price.cold;
  cost.compute = cost.compute * factor;
  cost.memory = cost.memory * factor;
  cost.launch = cost.launch * factor;
  cost.total = cost.total * factor;
  return cost;
}

bool KernelPrices::Same::operator()(const Kernel& a, const Kernel& b) const {
  return a.shape == b.shape && a.math == b.math && a.input == b.input && a.output == b.output && a.emulated == b.emulated && a.flops == b.flops &&
         a.read == b.read && a.written == b.written && a.launches == b.launches && a.name == b.name && a.estimated == b.estimated && a.fused == b.fused &&
         a.unknown == b.unknown;
}

std::size_t KernelPrices::Hash::operator()(const Kernel& kernel) const {
  return std::visit(ShapeHash{}, kernel.shape) ^ ShapeHash::mix({kernel.read.value, kernel.written.value, kernel.launches, static_cast<int>(kernel.math), static_cast<int>(kernel.input)});
}

}  // namespace precog
