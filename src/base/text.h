// Small text helpers: the nearest known names for an unknown one, joining, and aligned tables for a terminal.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace precog {

std::string join(const std::vector<std::string>& parts, std::string_view separator);

// The known names closest to `name` by edit distance, best first, at most `count`.
std::vector<std::string> nearest_names(std::string_view name, const std::vector<std::string>& known, std::size_t count = 3);

// One letter more, less or another: a slip of the finger.
bool differ_by_one(std::string_view a, std::string_view b);

// "unknown GPU 'h10'; nearest: h100-sxm, h100-pcie. All: precog gpus"
std::string unknown_name(std::string_view what, std::string_view name, const std::vector<std::string>& known,
                         std::string_view list_command);

// Case-folded, '_' and ' ' as '-': "H100_SXM" finds "h100-sxm".
std::string normalised_name(std::string_view name);

// Shell-like patterns: '*' is any number of characters, '?' one.
bool matches_pattern(std::string_view name, std::string_view pattern);

}  // namespace precog
