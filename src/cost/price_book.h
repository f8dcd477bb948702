// Prices that earlier predictions of this process worked out: what a kernel costs on a GPU follows from data that stay the same
// while a catalog lives, and the plans of one model share most of their kernels. A book never changes an answer, it saves working it
// out. Safe from several threads. Not for a profile that a request brings along.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "cost/cost.h"

namespace precog {

struct FittedProfile;

struct KernelPrice {
  std::optional<KernelCost> cold;
  std::optional<double> warm;  // with what it reads in the cache, over cold
};
struct SameKernel {
  bool operator()(const Kernel& a, const Kernel& b) const;
};
struct KernelHash {
  std::size_t operator()(const Kernel& kernel) const;
};
using PricedKernels = std::vector<std::pair<const Kernel*, KernelPrice*>>;

class PriceBook {  // of one GPU, with one profile
 public:
  void recall(const PricedKernels& wanted);
  void remember(const PricedKernels& known);

 private:
  std::mutex mutex_;
  std::unordered_set<std::string> names_;  // kernels' names live as long as their graphs: these stay
  std::unordered_map<Kernel, KernelPrice, KernelHash, SameKernel> prices_;
};

// A catalog's. A copy of a catalog may be changed: it begins with empty ones.
class PriceBooks {
 public:
  PriceBooks() : shelf_(std::make_unique<Shelf>()) {}
  PriceBooks(const PriceBooks&) : PriceBooks() {}
  PriceBooks& operator=(const PriceBooks&) { return *this = PriceBooks(); }
  PriceBooks(PriceBooks&&) = default;
  PriceBooks& operator=(PriceBooks&&) = default;

  PriceBook& of(const GpuSpec& gpu, const FittedProfile* fitted) const;

 private:
  struct Shelf {
    std::mutex mutex;
    std::map<std::pair<std::string, std::string>, PriceBook> books;  // by GPU, and the one that the profile is of
  };
  std::unique_ptr<Shelf> shelf_;
};

}  // namespace precog
