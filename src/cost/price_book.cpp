#include "cost/price_book.h"

#include "cost/residual.h"

namespace precog {
namespace {

constexpr std::size_t kMost = 1 << 18;  // kernels that a book holds: tens of megabytes; a service that runs for months begins again

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

// Every field that a price may depend on.
bool SameKernel::operator()(const Kernel& a, const Kernel& b) const {
  return a.shape == b.shape && a.math == b.math && a.input == b.input && a.output == b.output && a.emulated == b.emulated && a.flops == b.flops &&
         a.read == b.read && a.written == b.written && a.launches == b.launches && a.name == b.name && a.estimated == b.estimated && a.fused == b.fused &&
         a.zeros == b.zeros && a.idle_blocks == b.idle_blocks && a.unknown == b.unknown;
}

std::size_t KernelHash::operator()(const Kernel& kernel) const {
  return std::visit(ShapeHash{}, kernel.shape) ^ ShapeHash::mix({kernel.read.value, kernel.written.value, kernel.launches, static_cast<int>(kernel.math), static_cast<int>(kernel.input)});
}

void PriceBook::recall(const PricedKernels& wanted) {
  const std::lock_guard lock(mutex_);
  for (const auto& [kernel, price] : wanted)
    if (const auto known = prices_.find(*kernel); known != prices_.end()) *price = known->second;
}

void PriceBook::remember(const PricedKernels& known) {
  const std::lock_guard lock(mutex_);
  if (prices_.size() + known.size() > kMost) prices_.clear(), names_.clear();
  for (const auto& [kernel, price] : known) {
    if (const auto at = prices_.find(*kernel); at != prices_.end()) {
      at->second = *price;
      continue;
    }
    Kernel kept = *kernel;
    kept.name = *names_.emplace(kernel->name).first;
    prices_.emplace(kept, *price);
  }
}

PriceBook& PriceBooks::of(const GpuSpec& gpu, const FittedProfile* fitted) const {
  const std::lock_guard lock(shelf_->mutex);
  return shelf_->books[{gpu.name, fitted ? fitted->gpu : std::string()}];
}

}  // namespace precog
