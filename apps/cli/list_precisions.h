// `precog precisions`: recipes in three tables (whole ones, whole ones that `compare` tries only when asked, parts), and
// one of them with everything that it extends.
#pragma once

#include <string>
#include <vector>

#include "cli.h"

namespace precog::cli {

struct TitledTable {
  std::string title;  // empty where there is only one
  Table table;
};

std::vector<TitledTable> precision_tables(const Catalog& catalog);

struct ExtendedRecipe {
  std::string name, source;
};
// What a recipe stands on, nearest first, each once.
std::vector<ExtendedRecipe> extended_by(const Catalog& catalog, const std::string& name);
// The recipe with everything that it extends filled in.
Result<Json> whole_recipe(const Catalog& catalog, const std::string& name);

}  // namespace precog::cli
