#include "cost/tree_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>

#include <fmt/format.h>

namespace precog {
namespace {

constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+-";
constexpr std::int32_t kLeaf = 1 << 17, kZero = 1 << 16;  // of 2^18: the upper half are leaves, from the lowest value to the highest

void put_node(std::string& out, std::int32_t code) {
  for (int shift : {12, 6, 0}) out += kDigits[static_cast<std::size_t>(code >> shift & 63)];
}

const std::array<std::int8_t, 256>& digit_values() {
  static const auto kValues = [] {
    std::array<std::int8_t, 256> values;
    values.fill(-1);
    for (std::size_t i = 0; i < kDigits.size(); ++i) values[static_cast<unsigned char>(kDigits[i])] = static_cast<std::int8_t>(i);
    return values;
  }();
  return kValues;
}

std::string limit_text(double limit) { return fmt::format("{:.4g}", limit == 0 ? 0.0 : limit); }  // more than any measurement has

template <class Number>
bool take_number(std::string_view& left, Number& value) {
  const auto [rest, status] = std::from_chars(left.data(), left.data() + left.size(), value);
  if (status != std::errc{}) return false;
  left.remove_prefix(static_cast<std::size_t>(rest - left.data()));
  if (left.starts_with(' ')) left.remove_prefix(1);
  return true;
}

bool take_subtree(std::string_view& left, const TreeSplits& splits, double unit, Tree& tree, int depth) {
  if (depth > kDeepestTree || tree.size() >= kMostTreeNodes || left.size() < 3) return false;
  std::int32_t code = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    const std::int32_t digit = digit_values()[static_cast<unsigned char>(left[i])];
    if (digit < 0) return false;
    code = code << 6 | digit;
  }
  left.remove_prefix(3);
  if (code >= kLeaf) {
    tree.push_back({-1, 0, (code - kLeaf - kZero) * unit});
    return true;
  }
  if (static_cast<std::size_t>(code) >= splits.size()) return false;
  const std::size_t here = tree.size();
  const auto& [feature, limit] = splits[static_cast<std::size_t>(code)];
  tree.push_back({feature, 0, limit});
  if (!take_subtree(left, splits, unit, tree, depth + 1)) return false;
  tree[here].right = static_cast<std::int32_t>(tree.size());
  return take_subtree(left, splits, unit, tree, depth + 1);
}

}  // namespace

TreeTexts tree_texts(const std::vector<Tree>& trees) {
  TreeTexts out;
  std::map<std::int32_t, std::vector<double>> limits;
  double largest = 0;
  const auto rounded = [](double limit) { return std::stod(limit_text(limit)); };
  for (const Tree& tree : trees)
    for (const TreeNode& node : tree) {
      if (node.feature >= 0) limits[node.feature].push_back(rounded(node.number));
      else largest = std::max(largest, std::abs(node.number));
    }
  std::map<std::int32_t, std::int32_t> first;  // of a feature's splits
  std::int32_t count = 0;
  for (auto& [feature, values] : limits) {
    std::sort(values.begin(), values.end());
    values.erase(std::unique(values.begin(), values.end()), values.end());
    first[feature] = count;
    count += static_cast<std::int32_t>(values.size());
    out.splits += fmt::format("{}{} {}", out.splits.empty() ? "" : " ", feature, values.size());
    for (double value : values) out.splits += " " + limit_text(value);
  }
  out.unit = largest > 0 ? std::exp2(std::ceil(std::log2(largest / (kZero - 1)))) : 0;  // a power of two: written again it is the same
  for (const Tree& tree : trees) {
    std::string text;
    text.reserve(3 * tree.size());
    for (const TreeNode& node : tree) {
      if (node.feature < 0) {
        const double steps = out.unit > 0 ? std::round(node.number / out.unit) : 0;
        put_node(text, kLeaf + kZero + static_cast<std::int32_t>(std::clamp(steps, -1.0 * kZero, kZero - 1.0)));
        continue;
      }
      const std::vector<double>& values = limits[node.feature];
      put_node(text, first[node.feature] + static_cast<std::int32_t>(std::lower_bound(values.begin(), values.end(), rounded(node.number)) - values.begin()));
    }
    out.trees.push_back(std::move(text));
  }
  return out;
}

bool read_splits(std::string_view text, std::size_t features, TreeSplits& out) {
  while (!text.empty()) {
    std::int64_t feature = 0, count = 0;
    if (!take_number(text, feature) || !take_number(text, count) || feature < 0 || feature >= static_cast<std::int64_t>(features) || count < 1) return false;
    for (std::int64_t i = 0; i < count; ++i) {
      double limit = 0;
      if (!take_number(text, limit) || !std::isfinite(limit) || out.size() >= static_cast<std::size_t>(kLeaf)) return false;
      out.emplace_back(static_cast<std::int32_t>(feature), limit);
    }
  }
  return true;
}

bool read_tree(std::string_view text, const TreeSplits& splits, double unit, Tree& out) {
  out.reserve(text.size() / 3);
  return take_subtree(text, splits, unit, out, 0) && text.empty();
}

}  // namespace precog
