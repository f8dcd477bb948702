#include <yaml-cpp/yaml.h>

#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "base/text.h"
#include "import/read_tree.h"

namespace precog {
namespace {

constexpr int kDeepestNode = 64;
constexpr int kMostNodes = 100'000;  // an alias of an alias of an alias must not fill the memory

class YamlReader {
 public:
  Json value_of(const YAML::Node& node, int depth = 0) {
    if (depth > kDeepestNode) throw std::runtime_error(fmt::format("is nested deeper than {} levels", kDeepestNode));
    if (++nodes_ > kMostNodes) throw std::runtime_error(fmt::format("has more than {} values, aliases followed", kMostNodes));
    if (node.IsMap()) {
      Json out = Json::object();
      for (const auto& entry : node) {
        const std::string key = entry.first.IsScalar() ? entry.first.Scalar() : "?";
        if (key == "<<" && entry.second.IsMap()) {  // what is merged in counts where nothing is said beside it
          const Json merged = value_of(entry.second, depth + 1);
          for (const auto& [name, value] : merged.items())
            if (!out.contains(name)) out[name] = value;
          continue;
        }
        out[key] = value_of(entry.second, depth + 1);
      }
      return out;
    }
    if (node.IsSequence()) {
      Json out = Json::array();
      for (const auto& one : node) out.push_back(value_of(one, depth + 1));
      return out;
    }
    return node.IsScalar() ? scalar(node) : Json(nullptr);
  }

 private:
  // Plain words are what YAML 1.1 (PyYAML's) takes them for, but for "1e-4", which is a number to everyone who writes it.
  static Json scalar(const YAML::Node& node) {
    const std::string& text = node.Scalar();
    if (node.Tag() == "!") return text;  // quoted
    for (const char* word : {"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"})
      if (text == word) return true;
    for (const char* word : {"false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"})
      if (text == word) return false;
    for (const char* word : {"", "~", "null", "Null", "NULL", "None"})
      if (text == word) return nullptr;
    const char *begin = text.data() + (text[0] == '+' ? 1 : 0), *end = text.data() + text.size();
    std::int64_t whole = 0;
    if (auto [rest, status] = std::from_chars(begin, end, whole); status == std::errc{} && rest == end) return whole;
    double number = 0;
    if (auto [rest, status] = std::from_chars(begin, end, number); status == std::errc{} && rest == end && std::isfinite(number)) return number;
    return text;
  }

  int nodes_ = 0;
};

}  // namespace

Result<Json> parse_yaml(std::string_view text, const std::string& where) {
  try {
    return YamlReader().value_of(YAML::Load(std::string(text)));
  } catch (const std::exception& error) {
    return fail(where, fmt::format("is not YAML: {}", error.what()));
  }
}

}  // namespace precog
