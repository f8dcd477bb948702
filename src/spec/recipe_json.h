// Recipes made of recipes, before anybody reads their fields: "extends" names what a recipe starts from, and
// "amp-bf16+optimizer-8bit" is one after the other. Objects are merged key by key, null takes a key away, rules are
// appended, everything else is replaced. A recipe's own name, title, source and aliases are never inherited.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/json.h"

namespace precog {

using NamedJson = std::pair<std::string, Json>;  // a recipe's name and its file as written

// `recipe` with everything that it extends filled in. `known` are the files as written; a name there that is missing, or
// a recipe that extends itself, is an error.
Result<Json> extended(const Json& recipe, const std::vector<NamedJson>& known, const std::string& where);

}  // namespace precog
