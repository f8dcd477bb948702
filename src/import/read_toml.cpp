#include <toml++/toml.h>

#include <sstream>

#include <fmt/format.h>

#include "import/read_tree.h"

namespace precog {
namespace {

Json value_of(const toml::node& node) {
  if (const auto* table = node.as_table()) {
    Json out = Json::object();
    for (const auto& [key, value] : *table) out[std::string(key.str())] = value_of(value);
    return out;
  }
  if (const auto* array = node.as_array()) {
    Json out = Json::array();
    for (const auto& value : *array) out.push_back(value_of(value));
    return out;
  }
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* whole = node.as_integer()) return whole->get();
  if (const auto* number = node.as_floating_point()) return number->get();
  if (const auto* truth = node.as_boolean()) return truth->get();
  return "a date";  // no setting of ours is one
}

}  // namespace

Result<Json> parse_toml(std::string_view text, const std::string& where) {
  try {
    return value_of(toml::parse(text));
  } catch (const toml::parse_error& error) {
    return fail(where, fmt::format("is not TOML: line {}: {}", error.source().begin.line, error.description()));
  } catch (const std::exception& error) {
    return fail(where, fmt::format("is not TOML: {}", error.what()));
  }
}

}  // namespace precog
