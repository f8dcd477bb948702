#include "base/text.h"

#include <algorithm>
#include <cctype>
#include <numeric>

#include <fmt/format.h>

namespace precog {
namespace {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      std::size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row.back();
}

}  // namespace

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  return fmt::format("{}", fmt::join(parts, separator));
}

std::string normalised_name(std::string_view name) {
  std::string out(name);
  for (char& c : out) {
    c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (c == '_' || c == ' ') c = '-';
  }
  return out;
}

std::vector<std::string> nearest_names(std::string_view name, const std::vector<std::string>& known, std::size_t count) {
  std::string wanted = normalised_name(name.substr(0, 64));
  std::vector<std::pair<std::size_t, std::string>> ranked;
  for (const std::string& candidate : known) {
    std::string folded = normalised_name(candidate);
    std::size_t distance = 2 * edit_distance(wanted, folded);
    if (!wanted.empty() && folded.find(wanted) != std::string::npos) distance = std::min<std::size_t>(distance, 1);
    // The beginning of a longer name, mistyped: h1000 of h100-sxm.
    for (std::size_t dash = folded.find('-', 1); dash != std::string::npos; dash = folded.find('-', dash + 1))
      distance = std::min(distance, 2 * edit_distance(wanted, std::string_view(folded).substr(0, dash)) + 1);
    ranked.emplace_back(distance, candidate);
  }
  std::stable_sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> out;
  for (const auto& [distance, candidate] : ranked)
    if (out.size() < count) out.push_back(candidate);
  return out;
}

bool differ_by_one(std::string_view a, std::string_view b) { return a.size() <= 64 && edit_distance(a, b) == 1; }

std::string unknown_name(std::string_view what, std::string_view name, const std::vector<std::string>& known,
                         std::string_view list_command) {
  std::string shown(name.substr(0, 80));
  std::string out = fmt::format("unknown {} '{}'", what, shown);
  if (auto near = nearest_names(name, known); !near.empty()) out += fmt::format("; nearest known: {}", join(near, ", "));
  if (!list_command.empty()) out += fmt::format(" (all: {})", list_command);
  return out;
}

// The usual two-pointer match: on a mismatch go back to the last star and let it swallow one character more.
bool matches_pattern(std::string_view name, std::string_view pattern) {
  std::size_t n = 0, p = 0, star = std::string_view::npos, resume = 0;
  while (n < name.size()) {
    if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n]) && pattern[p] != '*') {
      ++n;
      ++p;
    } else if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace precog
