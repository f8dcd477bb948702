// Typed indices and the vectors they index.
// An Id<Tag> is an int32 that will not mix with another kind of id; Store<Id, T> is a vector reachable
// by its own id only. Both are plain values: they copy and compare.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace precog {

template <class Tag>
struct Id {
  std::int32_t value = -1;

  constexpr bool valid() const { return value >= 0; }
  constexpr std::size_t index() const { return static_cast<std::size_t>(value); }
  friend constexpr bool operator==(Id, Id) = default;
  friend constexpr auto operator<=>(Id, Id) = default;
};

template <class IdType, class T>
class Store {
 public:
  IdType add(T item) {
    items_.push_back(std::move(item));
    return IdType{static_cast<std::int32_t>(items_.size() - 1)};
  }
  T& operator[](IdType id) { return items_[id.index()]; }
  const T& operator[](IdType id) const { return items_[id.index()]; }
  std::size_t size() const { return items_.size(); }
  bool empty() const { return items_.empty(); }
  void reserve(std::size_t count) { items_.reserve(count); }
  bool contains(IdType id) const { return id.valid() && id.index() < items_.size(); }
  IdType id_at(std::size_t index) const { return IdType{static_cast<std::int32_t>(index)}; }
  auto begin() { return items_.begin(); }
  auto end() { return items_.end(); }
  auto begin() const { return items_.begin(); }
  auto end() const { return items_.end(); }
  const T& back() const { return items_.back(); }
  T& back() { return items_.back(); }
  friend bool operator==(const Store&, const Store&) = default;

 private:
  std::vector<T> items_;
};

}  // namespace precog
