#include "list_precisions.h"

#include <algorithm>

#include <fmt/format.h>

namespace precog::cli {
namespace {

const Json* file_of(const Catalog& catalog, const std::string& name) {
  for (const NamedJson& file : catalog.recipe_files)
    if (file.first == name) return &file.second;
  return nullptr;
}

// What products run in: "fp8 delayed", "amp bf16", "tf32", or the type of the weights.
std::string arithmetic(const PrecisionRecipe& recipe) {
  if (recipe.fp8) {
    const std::string type(to_text(recipe.fp8->arithmetic())), scaling(to_text(recipe.fp8->scaling));
    return type.find(scaling) == std::string::npos && recipe.fp8->arithmetic() == DType::fp8 ? type + " " + scaling : type;
  }
  if (recipe.autocast) return fmt::format("amp {}{}", to_text(*recipe.autocast), recipe.loss_scaling ? ", scaled" : "");
  if (recipe.tf32_matmul) return recipe.tf32_convolution ? "tf32" : "tf32 matmul";
  if (recipe.parameters == DType::fp32 && recipe.tf32_convolution) return "fp32, tf32 conv";
  return fmt::format("{}{}", to_text(recipe.parameters), recipe.loss_scaling ? ", scaled" : "");
}

// "bf16" or, where the optimizer updates another copy, "bf16+fp32".
std::string weights(const PrecisionRecipe& recipe) {
  if (!recipe.master_weights) return std::string(to_text(recipe.parameters));
  return fmt::format("{}+{}", to_text(recipe.parameters), to_text(recipe.master_weights->dtype));
}

// "fp32", or "bf16>fp32" where they travel in another type than the optimizer reads.
std::string gradients(const PrecisionRecipe& recipe) {
  const std::string read(to_text(recipe.optimizer_gradients()));
  return recipe.reduced_gradients && to_text(*recipe.reduced_gradients) != read ? fmt::format("{}>{}", to_text(*recipe.reduced_gradients), read) : read;
}

Table whole_table(const Catalog& catalog, bool listed) {
  Table table({{"precision"}, {"weights"}, {"runs in"}, {"gradients"}, {"states"}, {"what it is"}});
  for (const PrecisionRecipe& recipe : catalog.precisions)
    if (!recipe.is_part && recipe.listed == listed)
      table.add({{recipe.name, Ink::bold}, {weights(recipe)}, {arithmetic(recipe)}, {gradients(recipe)}, {std::string(to_text(recipe.optimizer_state))},
                 {recipe.title, Ink::dim}});
  return table;
}

void follow(const Catalog& catalog, const Json& file, std::vector<ExtendedRecipe>& out) {
  const auto extends = file.find("extends");
  if (extends == file.end()) return;
  for (const Json& base : extends->is_array() ? *extends : Json::array({*extends})) {
    if (!base.is_string()) continue;
    const auto recipe = catalog.precision(base.get<std::string>());
    if (!recipe || std::any_of(out.begin(), out.end(), [&](const ExtendedRecipe& one) { return one.name == (*recipe)->name; })) continue;
    out.push_back({(*recipe)->name, (*recipe)->source});
    if (const Json* next = file_of(catalog, (*recipe)->name)) follow(catalog, *next, out);
  }
}

}  // namespace

std::vector<TitledTable> precision_tables(const Catalog& catalog) {
  Table parts({{"part"}, {"what it adds"}});
  for (const PrecisionRecipe& recipe : catalog.precisions)
    if (recipe.is_part) parts.add({{recipe.name, Ink::bold}, {recipe.title, Ink::dim}});
  return {{"Recipes", whole_table(catalog, true)},
          {"Recipes that compare tries when asked (--all, --precisions)", whole_table(catalog, false)},
          {"Parts, to be added to a recipe: amp-bf16+PART", std::move(parts)}};
}

std::vector<ExtendedRecipe> extended_by(const Catalog& catalog, const std::string& name) {
  std::vector<ExtendedRecipe> out;
  if (const Json* file = file_of(catalog, name)) follow(catalog, *file, out);
  return out;
}

Result<Json> whole_recipe(const Catalog& catalog, const std::string& name) {
  const Json* file = file_of(catalog, name);
  if (!file) return fail(name, "has no file");
  return extended(*file, catalog.recipe_files, name);
}

}  // namespace precog::cli
