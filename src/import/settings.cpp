#include "import/settings.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "base/text.h"

namespace precog {
namespace {

constexpr int kDeepest = 16;  // objects below that are one value: nothing we know of lies so deep

bool says_nothing(const Json& value) { return value.is_null() || (value.is_string() && (value == "auto" || value == "None" || value == "")); }

std::string excerpt(const Json& value) {
  std::string text = value.is_string() ? value.get<std::string>() : value.dump(-1, ' ', false, Json::error_handler_t::replace);
  return text.size() <= 60 ? text : text.substr(0, 57) + "...";
}

std::optional<double> as_number(const Json& value) {
  if (value.is_number()) return value.get<double>();
  if (!value.is_string()) return std::nullopt;
  std::string text;  // "1_000_000" is how TOML and Python write a million
  for (char c : value.get_ref<const std::string&>())
    if (c != '_') text += c;
  double number = 0;
  const auto [rest, status] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (status != std::errc{} || rest != text.data() + text.size() || !std::isfinite(number)) return std::nullopt;
  return number;
}

}  // namespace

Settings::Settings(const Json& tree, std::string file, std::string prefix) : tree_(tree), file_(std::move(file)), prefix_(std::move(prefix)) {
  flatten(tree_, "", 0);
}

void Settings::flatten(const Json& tree, const std::string& at, int depth) {
  for (const auto& [name, value] : tree.items()) {
    const std::string key = at.empty() ? name : at + "." + name;
    if (value.is_object() && !value.empty() && depth < kDeepest) flatten(value, key, depth + 1);
    else settings_.push_back({key, value});
  }
}

const Settings::Setting* Settings::look(std::string_view key) const {
  const auto found = std::find_if(settings_.rbegin(), settings_.rend(), [&](const Setting& one) { return one.key == key; });
  return found == settings_.rend() ? nullptr : &*found;
}

Settings::Setting* Settings::find(std::string_view key) {
  Setting* last = nullptr;
  for (Setting& one : settings_)
    if (one.key == key) one.use = says_nothing(one.value) ? Use::harmless : Use::taken, last = &one;
  return last && !says_nothing(last->value) ? last : nullptr;
}

bool Settings::has(std::string_view key) const {
  const Setting* found = look(key);
  return found && !says_nothing(found->value);
}

const Json* Settings::raw(std::string_view key) {
  Setting* found = find(key);
  return found ? &found->value : nullptr;
}

const Json* Settings::tree(std::string_view key) {
  const Json* at = &tree_;
  for (std::size_t begin = 0; begin <= key.size();) {
    const std::size_t end = std::min(key.find('.', begin), key.size());
    const auto found = at->is_object() ? at->find(std::string(key.substr(begin, end - begin))) : at->end();
    if (!at->is_object() || found == at->end()) return nullptr;
    at = &*found;
    begin = end + 1;
  }
  if (!at->is_object()) return nullptr;
  for (Setting& one : settings_)
    if (one.key.size() > key.size() && one.key.starts_with(key) && one.key[key.size()] == '.') one.use = Use::taken;
  return at;
}

std::optional<double> Settings::number(std::string_view key) {
  const Json* value = raw(key);
  if (!value) return std::nullopt;
  auto found = as_number(*value);
  if (!found) problem(key, fmt::format("is '{}'; a number is wanted", excerpt(*value)));
  return found;
}

std::optional<std::int64_t> Settings::whole(std::string_view key) {
  const Json* value = raw(key);
  if (!value) return std::nullopt;
  const auto found = as_number(*value);
  if (!found || *found != std::floor(*found) || std::abs(*found) > 9e15) {
    problem(key, fmt::format("is '{}'; a whole number is wanted", excerpt(*value)));
    return std::nullopt;
  }
  return static_cast<std::int64_t>(*found);
}

std::optional<bool> Settings::truth(std::string_view key) {
  const Json* value = raw(key);
  if (!value) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  const std::string text = value->is_string() ? normalised_name(value->get<std::string>()) : value->dump();
  if (text == "true" || text == "yes" || text == "on" || text == "1") return true;
  if (text == "false" || text == "no" || text == "off" || text == "0" || text == "none") return false;
  problem(key, fmt::format("is '{}'; true or false is wanted", excerpt(*value)));
  return std::nullopt;
}

std::optional<std::string> Settings::text(std::string_view key) {
  const Json* value = raw(key);
  if (!value) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  if (value->is_number() || value->is_boolean()) return value->dump();
  problem(key, fmt::format("is '{}'; a text is wanted", excerpt(*value)));
  return std::nullopt;
}

void Settings::section(std::string_view key) {
  const Setting* found = look(key);
  if (!found || says_nothing(found->value) || found->value.is_object()) return;
  find(key);
  problem(key, fmt::format("is {}; a section, {{...}}, is wanted", found->value.is_string() ? "'" + excerpt(found->value) + "'" : excerpt(found->value)));
}

std::optional<std::int64_t> Settings::give(Json& request, const char* field, std::string_view key) {
  const auto found = whole(key);
  if (found) request[field] = *found, said_by_[field] = shown(key);
  else if (const Setting* open = look(key); open && open->value == "auto") said_by_[field] = shown(key) + " (\"auto\")";
  return found;
}

void Settings::harmless(std::initializer_list<const char*> patterns) {
  for (Setting& one : settings_)
    if (one.use == Use::none && std::any_of(patterns.begin(), patterns.end(), [&](const char* pattern) { return matches_pattern(one.key, pattern); }))
      one.use = Use::harmless;
}

void Settings::refuse(std::string_view key, std::string why) {
  const Json* value = raw(key);
  if (!value) return;
  const std::string said = value->is_string() ? normalised_name(value->get<std::string>()) : value->dump();
  for (const char* off : {"false", "no", "none", "off", "0", "0.0", "[]", "{}"})
    if (said == off) return;
  problem(key, fmt::format("is '{}': {}", excerpt(*value), why));
}

void Settings::problem(std::string_view key, std::string message) { problems_.push_back({file_ + ": " + shown(key), std::move(message)}); }

std::vector<std::string> Settings::quiet() const {
  std::vector<std::string> out;
  for (const Setting& one : settings_)
    if (one.use == Use::harmless || (one.use == Use::none && says_nothing(one.value))) out.push_back(shown(one.key));
  return out;
}

std::vector<std::string> Settings::not_taken() const {
  std::vector<std::string> out;
  for (const Setting& one : settings_)
    if (one.use == Use::none && !says_nothing(one.value)) out.push_back(shown(one.key));
  return out;
}

std::vector<std::string> Settings::keys() const {
  std::vector<std::string> out;
  for (const Setting& one : settings_) out.push_back(one.key);
  return out;
}

}  // namespace precog
