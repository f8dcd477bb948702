#include "cost/pricing.h"

#include <algorithm>
#include <cmath>

#include "cost/fallback_kernels.h"

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
  std::size_t operator()(const MemoryShape& s) const { return mix({static_cast<int>(s.pattern), s.rows, s.row_length, s.channels_last, s.part}); }
  std::size_t operator()(const GemmShape& s) const { return mix({s.batch, s.m, s.n, s.k, s.transposed_a, s.a_turned, s.b_turned, s.bias, s.row_scales, s.careful_sums}); }
  std::size_t operator()(const ConvShape& s) const { return mix({static_cast<int>(s.direction), s.batch, s.in_channels, s.out_channels, s.in_h, s.out_h, s.kernel_h, s.stride}); }
  std::size_t operator()(const AttentionShape& s) const { return mix({s.batch, s.heads, s.q_len, s.kv_len, s.head_dim, s.backward, static_cast<int>(s.backend)}); }
  std::size_t operator()(const CollectiveShape& s) const { return mix({s.bytes.value, s.participants}); }
};

}  // namespace

namespace {

// The family whose correction the kernel takes, if measurements have it.
const FamilyResidual* family_of(const Kernel& kernel, const FittedProfile* fitted) {
  const FamilyResidual* family = fitted ? fitted->find(residual_family(kernel)) : nullptr;
  return family && family->kind == feature_kind(kernel) ? family : nullptr;
}

KernelCost corrected(KernelCost cost, double correction, const FamilyResidual& family, bool own) {
  const double factor = std::exp(correction);
  cost.compute = cost.compute * factor;
  cost.memory = cost.memory * factor;
  cost.launch = cost.launch * factor;
  cost.total = cost.total * factor;
  own = own && !family.carried;
  cost.source = own ? CostSource::fitted : CostSource::scaled;
  cost.low = family.ratio.least * (own ? 1 : 1 - kRelativeSpread);
  cost.high = family.ratio.most * (own ? 1 : 1 + kRelativeSpread);
  return cost;
}

}  // namespace

KernelCost corrected_cost(const Kernel& kernel, const GpuSpec& gpu, const ArchitectureProfile& physics, const FittedProfile* fitted, bool own, bool warm) {
  const KernelCost cost = kernel_cost(kernel, gpu, physics);
  const FamilyResidual* family = family_of(kernel, fitted);
  return family ? corrected(cost, family->correct(kernel, features_of(kernel, cost, gpu, warm)), *family, own) : cost;
}

KernelPrices::KernelPrices(const GpuSpec& gpu, const ArchitectureProfile& physics, const FittedProfile* fitted)
    : gpu_(gpu), physics_(physics), fitted_(fitted), own_(fitted && fitted->gpu == gpu.name) {}

// Only what was timed both ways says what a full cache is worth.
bool KernelPrices::asks_warm(const Kernel& kernel, double cached) const {
  const std::int64_t bytes = (kernel.read.value + kernel.written.value) / std::max(1, kernel.launches);
  return cached > 0 && fitted_ && bytes > kAlwaysCached;
}

void KernelPrices::work_out(const std::vector<std::pair<const Kernel*, Price*>>& wanted, bool warm) {
  std::unordered_map<const FamilyResidual*, std::vector<std::size_t>> families;
  std::vector<KernelCost> costs;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    costs.push_back(kernel_cost(*wanted[i].first, gpu_, physics_));
    if (const FamilyResidual* family = family_of(*wanted[i].first, fitted_)) families[family].push_back(i);
  }
  for (const auto& [family, members] : families) {
    std::vector<CorrectedKernel> asked;
    for (std::size_t i : members) asked.push_back({wanted[i].first, features_of(*wanted[i].first, costs[i], gpu_, warm)});
    family->correct(asked);
    for (std::size_t k = 0; k < members.size(); ++k) costs[members[k]] = corrected(costs[members[k]], asked[k].correction, *family, own_);
  }
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const auto& [kernel, price] = wanted[i];
    const KernelCost cost = with_fallbacks(*kernel, costs[i]);
    // More than the datasheet's bound could lose is not believed.
    if (warm) price->warm = std::clamp(cost.total / price->cold->total, kMostGain, 1.0);
    else price->cold = cost;
  }
}

void KernelPrices::expect(std::span<const Kernel> kernels, std::span<const double> cached) {
  std::vector<std::pair<const Kernel*, Price*>> cold, warm;
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    if (std::holds_alternative<CollectiveShape>(kernels[i].shape)) continue;
    const auto [at, fresh] = known_.try_emplace(kernels[i]);
    if (fresh) cold.emplace_back(&at->first, &at->second);
    if (at->second.warm || !asks_warm(kernels[i], cached[i])) continue;
    at->second.warm = 1;  // until it is known
    warm.emplace_back(&at->first, &at->second);
  }
  work_out(cold, false);
  work_out(warm, true);
}

KernelCost KernelPrices::operator()(const Kernel& kernel, double cached) {
  const auto at = known_.try_emplace(kernel).first;
  Price& price = at->second;
  if (!price.cold) work_out({{&at->first, &price}}, false);
  if (!asks_warm(kernel, cached)) return *price.cold;
  if (!price.warm) work_out({{&at->first, &price}}, true);
  const double factor = std::pow(*price.warm, cached);
  KernelCost cost = *price.cold;
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
