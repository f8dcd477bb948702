// Trees as a profile's texts: a third of the size of their numbers written out. A node is three characters: which of the family's
// splits (a feature and its limit) it is, or a leaf's value in steps of a unit, in the order of a walk that goes left first.
// The splits are a text too: "feature how-many limit limit ...", feature after feature.
// Not here: what trees are for (residual.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace precog {

struct TreeNode {
  std::int32_t feature = -1;  // -1: a leaf
  std::int32_t right = 0;     // where the larger values go; the others go to the next node
  double number = 0;          // the leaf's value, or the largest feature value that goes left
};
using Tree = std::vector<TreeNode>;  // in the order of a walk that goes left first

inline constexpr std::size_t kMostTreeNodes = 4096;
inline constexpr int kDeepestTree = 32;

struct TreeTexts {
  std::string splits;
  double unit = 0;  // of leaves
  std::vector<std::string> trees;
};
TreeTexts tree_texts(const std::vector<Tree>& trees);

using TreeSplits = std::vector<std::pair<std::int32_t, double>>;  // feature, limit

// False where a text is none of the above. `features`: how many there are.
bool read_splits(std::string_view text, std::size_t features, TreeSplits& out);
bool read_tree(std::string_view text, const TreeSplits& splits, double unit, Tree& out);

}  // namespace precog
