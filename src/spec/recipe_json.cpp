#include "spec/recipe_json.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/text.h"

namespace precog {
namespace {

constexpr std::size_t kMaxExtended = 16;  // recipes that stand on each other; deeper is a mistake

void merge(Json& base, const Json& over) {
  for (const auto& [key, value] : over.items()) {
    if (value.is_null()) base.erase(key);
    else if (key == "rules" && value.is_array() && base.contains(key) && base[key].is_array()) base[key].insert(base[key].end(), value.begin(), value.end());
    else if (value.is_object() && base.contains(key) && base[key].is_object()) merge(base[key], value);
    else base[key] = value;
  }
}

Result<Json> resolve(const Json& recipe, const std::vector<NamedJson>& known, const std::string& where, std::vector<std::string>& on_the_way) {
  if (!recipe.is_object()) return fail(where, "wants an object");
  std::vector<std::string> bases;
  if (const auto extends = recipe.find("extends"); extends != recipe.end()) {
    if (extends->is_string()) bases.push_back(extends->get<std::string>());
    else if (extends->is_array() && std::all_of(extends->begin(), extends->end(), [](const Json& name) { return name.is_string(); }))
      bases = extends->get<std::vector<std::string>>();
    else return fail(where + ": extends", "wants a recipe's name or a list of names");
  }
  Json out = Json::object();
  for (const std::string& name : bases) {
    const std::string wanted = normalised_name(name);
    const auto found = std::find_if(known.begin(), known.end(), [&](const NamedJson& one) {
      if (normalised_name(one.first) == wanted) return true;
      const auto aliases = one.second.find("aliases");
      return aliases != one.second.end() && aliases->is_array() &&
             std::any_of(aliases->begin(), aliases->end(), [&](const Json& alias) { return alias.is_string() && normalised_name(alias.get<std::string>()) == wanted; });
    });
    if (found == known.end()) {
      std::vector<std::string> names;
      for (const NamedJson& one : known) names.push_back(one.first);
      return fail(where + ": extends", unknown_name("precision", name, names, "precog precisions"));
    }
    if (on_the_way.size() >= kMaxExtended || std::find(on_the_way.begin(), on_the_way.end(), found->first) != on_the_way.end())
      return fail(where + ": extends", fmt::format("'{}' leads back to itself: {}", found->first, join(on_the_way, " -> ")));
    on_the_way.push_back(found->first);
    PRECOG_TRY(base, resolve(found->second, known, where, on_the_way));
    on_the_way.pop_back();
    for (const char* own : {"name", "title", "source", "aliases", "part", "listed"}) base.erase(own);
    merge(out, base);
  }
  Json own = recipe;
  own.erase("extends");
  merge(out, own);
  return out;
}

}  // namespace

Result<Json> extended(const Json& recipe, const std::vector<NamedJson>& known, const std::string& where) {
  std::vector<std::string> on_the_way;
  if (recipe.is_object() && recipe.contains("name") && recipe["name"].is_string()) on_the_way.push_back(recipe["name"].get<std::string>());
  return resolve(recipe, known, where, on_the_way);
}

}  // namespace precog
