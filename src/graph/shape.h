// A tensor's extents: up to eight dimensions held inline, so that graphs of ten thousand tensors stay cheap to copy.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "base/ensure.h"

namespace precog {

class Shape {
 public:
  static constexpr int kMaxRank = 8;

  Shape() = default;
  Shape(std::initializer_list<std::int64_t> extents) {
    for (std::int64_t extent : extents) push_back(extent);
  }
  explicit Shape(std::span<const std::int64_t> extents) {
    for (std::int64_t extent : extents) push_back(extent);
  }

  int rank() const { return rank_; }
  std::int64_t operator[](int axis) const { return extents_[static_cast<std::size_t>(axis < 0 ? axis + rank_ : axis)]; }
  void set(int axis, std::int64_t extent) { extents_[static_cast<std::size_t>(axis < 0 ? axis + rank_ : axis)] = extent; }
  void push_back(std::int64_t extent) {
    ensure(rank_ < kMaxRank, "a tensor has at most eight dimensions");
    extents_[rank_++] = extent;
  }
  std::int64_t elements() const {
    std::int64_t product = 1;
    for (int axis = 0; axis < rank_; ++axis) product *= extents_[static_cast<std::size_t>(axis)];
    return product;
  }
  std::span<const std::int64_t> extents() const { return {extents_.data(), rank_}; }
  friend bool operator==(const Shape& a, const Shape& b) {
    if (a.rank_ != b.rank_) return false;
    for (std::size_t axis = 0; axis < a.rank_; ++axis)
      if (a.extents_[axis] != b.extents_[axis]) return false;
    return true;
  }

 private:
  std::array<std::int64_t, kMaxRank> extents_{};
  std::uint8_t rank_ = 0;
};

std::string to_text(const Shape& shape);        // "[8,128,1024]"
Shape broadcast(const Shape& a, const Shape& b);  // as NumPy and PyTorch do; ensures that they agree

}  // namespace precog
