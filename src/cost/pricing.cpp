#include "cost/pricing.h"

#include <algorithm>
#include <cmath>

#include "cost/least_cost.h"

namespace precog {
namespace {

// What a relative's figures may be off by beyond its own spread: a model of matrix products fitted without an H100 was off
// by 5 to 9% on it in the median. Too small: intervals of GPUs without a profile miss too often.
constexpr double kRelativeSpread = 0.09;

constexpr double kMostGain = 0.3;  // of what a kernel takes: L2 is about three times as fast as memory

// The family whose correction the kernel takes, if measurements have it.
const FamilyResidual* family_of(const Kernel& kernel, const FittedProfile* fitted) {
  const FamilyResidual* family = fitted ? fitted->find(residual_family(kernel)) : nullptr;
  return family && family->kind == feature_kind(kernel) ? family : nullptr;
}

KernelCost times(KernelCost cost, double factor) {
  cost.compute = cost.compute * factor;
  cost.memory = cost.memory * factor;
  cost.launch = cost.launch * factor;
  cost.total = cost.total * factor;
  return cost;
}

KernelCost at_least(const KernelCost& cost, Seconds least) { return least > cost.total ? times(cost, least / cost.total) : cost; }

KernelCost corrected(KernelCost cost, double correction, const FamilyResidual& family, bool own) {
  cost = times(cost, std::exp(correction));
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

KernelPrices::KernelPrices(const GpuSpec& gpu, const ArchitectureProfile& physics, const FittedProfile* fitted, PriceBook* book)
    : gpu_(gpu), physics_(physics), fitted_(fitted), own_(fitted && fitted->gpu == gpu.name), book_(book) {}

// Only what was timed both ways says what a full cache is worth.
bool KernelPrices::asks_warm(const Kernel& kernel, double cached) const {
  const std::int64_t bytes = (kernel.read.value + kernel.written.value) / std::max(1, kernel.launches);
  return cached > 0 && fitted_ && bytes > kAlwaysCached;
}

void KernelPrices::work_out(const PricedKernels& wanted, bool warm) const {
  std::unordered_map<const FamilyResidual*, std::vector<std::size_t>> families;
  std::vector<KernelCost> costs;
  std::vector<Seconds> least;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    costs.push_back(kernel_cost(*wanted[i].first, gpu_, physics_));
    least.push_back(least_cost(*wanted[i].first, costs[i], gpu_, physics_));
    if (const auto product = product_alike(*wanted[i].first)) least.back() = corrected_cost(*product, gpu_, physics_, fitted_, own_, warm).total;
    if (const FamilyResidual* family = family_of(*wanted[i].first, fitted_)) families[family].push_back(i);
  }
  for (const auto& [family, members] : families) {
    std::vector<CorrectedKernel> asked;
    for (std::size_t i : members) asked.push_back({wanted[i].first, features_of(*wanted[i].first, costs[i], gpu_, warm)});
    family->correct(asked);
    for (std::size_t k = 0; k < members.size(); ++k) costs[members[k]] = corrected(costs[members[k]], asked[k].correction, *family, own_);
  }
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    KernelPrice* price = wanted[i].second;
    costs[i] = at_least(costs[i], std::max(least[i], costs[i].total + idle_blocks_cost(*wanted[i].first, gpu_)));
    // More than the datasheet's bound could lose is not believed.
    if (warm) price->warm = std::clamp(costs[i].total / price->cold->total, kMostGain, 1.0);
    else price->cold = costs[i];
  }
}

KernelCost KernelPrices::at(const KernelPrice& price, double cached) {
  return times(*price.cold, std::pow(*price.warm, cached));
}

KernelCost KernelPrices::operator()(const Kernel& kernel, double cached) {
  const auto known = known_.try_emplace(kernel).first;
  KernelPrice& price = known->second;
  if (!price.cold) work_out({{&known->first, &price}}, false);
  if (!asks_warm(kernel, cached)) return *price.cold;
  if (!price.warm) work_out({{&known->first, &price}}, true);
  return at(price, cached);
}

std::vector<KernelCost> KernelPrices::operator()(std::span<const Kernel> kernels, std::span<const double> cached) {
  std::vector<KernelPrice*> prices(kernels.size(), nullptr);
  PricedKernels fresh, asked;  // the first time here; of those that the cache may serve
  PricedKernels cold, warm;    // to be worked out
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    if (std::holds_alternative<CollectiveShape>(kernels[i].shape)) continue;
    const auto [known, first] = known_.try_emplace(kernels[i]);
    prices[i] = &known->second;
    if (first) fresh.emplace_back(&known->first, &known->second);
    if (asks_warm(kernels[i], cached[i])) asked.emplace_back(&known->first, &known->second);
  }
  if (book_) book_->recall(fresh);
  for (const auto& [kernel, price] : fresh)
    if (!price->cold) cold.emplace_back(kernel, price);
  for (const auto& [kernel, price] : asked) {
    if (price->warm) continue;
    price->warm = 1;  // until it is known
    warm.emplace_back(kernel, price);
  }
  work_out(cold, false);
  work_out(warm, true);
  cold.insert(cold.end(), warm.begin(), warm.end());
  if (book_ && !cold.empty()) book_->remember(cold);

  std::vector<KernelCost> out(kernels.size());
  for (std::size_t i = 0; i < kernels.size(); ++i)
    if (prices[i]) out[i] = asks_warm(kernels[i], cached[i]) ? at(*prices[i], cached[i]) : *prices[i]->cold;
  return out;
}

}  // namespace precog
