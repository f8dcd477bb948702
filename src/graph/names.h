// The texts that a graph's NameIds stand for. A table only grows, and the graphs that passes make of one another share one: an
// id means the same in all of them, and none of them copies thousands of module paths. One prediction, one table, one thread.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/id.h"

namespace precog {

using NameId = Id<struct NameTag>;

class Names {
 public:
  Names() = default;
  Names(const Names&) = delete;  // the index points into the texts
  Names& operator=(const Names&) = delete;

  NameId intern(std::string_view name) {
    if (const auto known = index_.find(name); known != index_.end()) return NameId{known->second};
    const auto id = static_cast<std::int32_t>(texts_.size());
    index_.emplace(texts_.emplace_back(name), id);
    return NameId{id};
  }
  std::string_view operator[](NameId id) const { return texts_[id.index()]; }

 private:
  std::deque<std::string> texts_;  // stay where they are
  std::unordered_map<std::string_view, std::int32_t> index_;
};

}  // namespace precog
