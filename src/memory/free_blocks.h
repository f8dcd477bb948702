// The free blocks of one of the allocator's pools, in the order of best fit: by size, then by address. Kept in sorted leaves of a few
// dozen: a pool of ten blocks costs what a sorted array costs, one of thousands (gradients that a step let go) hardly more.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace precog {

struct FreeBlock {
  std::int64_t size = 0, address = 0;
  std::int32_t block = -1;
  friend bool operator<(const FreeBlock& a, const FreeBlock& b) { return a.size != b.size ? a.size < b.size : a.address < b.address; }
};

class FreeBlocks {
 public:
  // Takes the best fit out: the smallest block of at least this size, of several the one with the lowest address. Whether there is one.
  bool take_at_least(std::int64_t size, std::int32_t& block) {
    const FreeBlock wanted{size, -1, -1};
    const std::size_t at = leaf_of(wanted);
    if (at == leaves_.size()) return false;
    const auto found = std::lower_bound(leaves_[at].begin(), leaves_[at].end(), wanted);
    block = found->block;
    remove(at, found);
    return true;
  }

  void insert(const FreeBlock& entry) {
    if (leaves_.empty()) leaves_.emplace_back().reserve(kMost);
    const std::size_t at = std::min(leaf_of(entry), leaves_.size() - 1);
    std::vector<FreeBlock>& leaf = leaves_[at];
    leaf.insert(std::lower_bound(leaf.begin(), leaf.end(), entry), entry);
    if (leaf.size() < kMost) return;
    std::vector<FreeBlock> upper;
    upper.reserve(kMost);
    upper.assign(leaf.begin() + kMost / 2, leaf.end());
    leaf.resize(kMost / 2);
    leaves_.insert(leaves_.begin() + static_cast<std::ptrdiff_t>(at) + 1, std::move(upper));
  }

  void erase(const FreeBlock& entry) {
    const std::size_t at = leaf_of(entry);
    remove(at, std::lower_bound(leaves_[at].begin(), leaves_[at].end(), entry));
  }

  // All of them, in order.
  std::vector<FreeBlock> all() const {
    std::vector<FreeBlock> out;
    for (const std::vector<FreeBlock>& leaf : leaves_) out.insert(out.end(), leaf.begin(), leaf.end());
    return out;
  }

 private:
  static constexpr std::ptrdiff_t kMost = 64;  // of a leaf

  void remove(std::size_t at, std::vector<FreeBlock>::iterator entry) {
    leaves_[at].erase(entry);
    if (leaves_[at].empty() && leaves_.size() > 1) leaves_.erase(leaves_.begin() + static_cast<std::ptrdiff_t>(at));
  }

  // The first leaf that reaches as far as this entry; as many as there are where none does. Only an only leaf may be empty.
  std::size_t leaf_of(const FreeBlock& entry) const {
    if (leaves_.size() == 1) return leaves_[0].empty() || leaves_[0].back() < entry ? 1 : 0;
    return static_cast<std::size_t>(std::lower_bound(leaves_.begin(), leaves_.end(), entry,
                                                     [](const std::vector<FreeBlock>& leaf, const FreeBlock& e) { return leaf.back() < e; }) -
                                    leaves_.begin());
  }

  std::vector<std::vector<FreeBlock>> leaves_;
};

}  // namespace precog
