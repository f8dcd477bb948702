// The recipe: a name, several, a file or an object, and the request's own rules.
#include <algorithm>

#include "precision/precision.h"
#include "predict/request_reader.h"
#include "spec/recipe_json.h"

namespace precog {

// "PATTERN=TYPE" for modules, "op:PATTERN=TYPE" for operators.
Result<Json> RequestReader::rule_of(const std::string& text) {
  const std::size_t equals = text.rfind('=');
  if (equals == std::string::npos || equals == 0) return fail("", fmt::format("'{}': wants PATTERN=TYPE, as in lm_head=fp32 or op:layer_norm=bf16", text.substr(0, 80)));
  std::string pattern = text.substr(0, equals);
  const std::string what = text.substr(equals + 1);
  Json rule = Json::object();
  if (pattern.starts_with("op:")) rule["operators"] = pattern.substr(3);
  else rule["modules"] = pattern.starts_with("module:") ? pattern.substr(7) : pattern;
  if (what == "fp32" || what == "fp16" || what == "bf16") rule["run_in"] = what;
  else if (what == "off") rule["autocast"] = "off";
  else if (what == "fp8" || what == "no-fp8") rule["fp8"] = what == "fp8";
  else return fail("", fmt::format("'{}': '{}' is not known; known: fp32, fp16, bf16, off (no autocast), fp8, no-fp8", text.substr(0, 80), what.substr(0, 40)));
  return rule;
}

// A name from the catalog, several names to be put together ("fp8+optimizer-8bit"), a recipe's file, or the recipe itself.
void RequestReader::read_precision() {
  request_.allow_emulated = root_.boolean("allow_emulated").value_or(false);
  const Json* given = root_.raw("precision");
  const Json* overrides = root_.raw("overrides");
  if (!given) return root_.problem("precision", "is missing: a name from `precog precisions`");
  if (given->is_string() && !overrides && catalog_.precision(given->get<std::string>())) {
    request_.precision = *catalog_.precision(given->get<std::string>());
    if (request_.precision->is_part)
      root_.problem("precision", fmt::format("'{0}' is only a part of a recipe: add it to another, as in amp-bf16+{0}", request_.precision->name));
  } else if (auto recipe = recipe_of(*given)) {
    if (overrides) add_overrides(*recipe, *overrides);
    own_recipe(*recipe, given->is_string() && !overrides ? *given : *recipe);
  }
  if (!request_.precision || !request_.gpu || request_.allow_emulated) return;
  for (DType dtype : request_.precision->required_types())
    if (!request_.gpu->computes(dtype))
      root_.problem("precision", fmt::format("'{}' needs {} arithmetic, which {} has no hardware for; supported: {} (or --allow-emulated)",
                                             request_.precision->name, to_text(dtype), request_.gpu->name, supported_names()));
}

std::optional<Json> RequestReader::recipe_of(const Json& given) {
  if (given.is_object()) {
    if (!given.contains("parameters") && !given.contains("extends")) {
      root_.problem("precision.parameters", "is missing: the type a recipe keeps its parameters in (fp32, fp16, bf16), or the name that it extends");
      return std::nullopt;
    }
    return given;
  }
  if (!given.is_string()) {
    root_.problem("precision", "wants a name from `precog precisions`, or a recipe as an object");
    return std::nullopt;
  }
  const std::string text = given.get<std::string>();
  if (text.ends_with(".json")) {
    auto file = read_json_file(folder_ / text);
    if (file && file->is_object()) return *file;
    root_.problem("precision", file ? fmt::format("'{}' holds no recipe: wants an object with the fields of data/precisions", text.substr(0, 200)) : file.error().text());
    return std::nullopt;
  }
  Json names = Json::array(), sources = Json::array();
  std::string title;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('+', begin), text.size());
    const PrecisionRecipe* part = look_up(root_, "precision", catalog_.precision(text.substr(begin, end - begin)));
    if (!part) return std::nullopt;
    if (names.empty() && part->is_part) root_.problem("precision", fmt::format("begins with '{}', which is only a part of a recipe", part->name));
    names.push_back(part->name);
    title += (title.empty() ? "" : "; ") + part->title;
    begin = end + 1;
  }
  std::string name;
  for (const Json& one : names) name += (name.empty() ? "" : "+") + one.get<std::string>();
  return Json{{"extends", names}, {"name", name}, {"title", title}};
}

// Rules of the request: objects as in a recipe, or texts such as "lm_head=fp32" and "op:layer_norm=bf16".
void RequestReader::add_overrides(Json& recipe, const Json& overrides) {
  if (!overrides.is_array()) return root_.problem("overrides", R"(wants a list such as ["lm_head=fp32", "op:layer_norm=bf16"])");
  Json rules = recipe.contains("rules") ? recipe["rules"] : Json::array();
  for (const Json& one : overrides) {
    if (one.is_object()) {
      rules.push_back(one);
      continue;
    }
    auto rule = one.is_string() ? rule_of(one.get<std::string>()) : Result<Json>(fail("", "wants a text or a rule as an object"));
    if (rule) rules.push_back(*rule);
    else root_.problem("overrides", rule.error().text());
  }
  request_.own_rules = overrides.size();
  recipe["rules"] = rules;
}

void RequestReader::own_recipe(Json recipe, Json as_given) {
  const Json name = recipe.contains("name") ? recipe["name"] : Json("inline");
  recipe.erase("name");  // it may be the very name of what it extends: amp-bf16 with overrides is still called so
  auto whole = extended(recipe, catalog_.recipe_files, root_.path("precision"));
  if (whole) (*whole)["name"] = name;
  Result<PrecisionRecipe> parsed = whole ? Result<PrecisionRecipe>(PrecisionRecipe{}) : Result<PrecisionRecipe>(tl::unexpected(whole.error()));
  if (whole) {  // what a data file must say of itself, an inline recipe need not
    for (auto [key, value] : {std::pair<const char*, Json>{"schema", 1}, {"title", "inline recipe"}, {"source", "the request"}})
      if (!whole->contains(key)) (*whole)[key] = value;
    parsed = parse_precision(*whole, root_.path("precision"));
  }
  if (!parsed) {
    problems_.insert(problems_.end(), parsed.error().problems.begin(), parsed.error().problems.end());
    return;
  }
  for (const PrecisionRule& rule : parsed->rules)
    if (rule.fp8.value_or(false) && !parsed->fp8)
      root_.problem("overrides", fmt::format("'{}' is to run in fp8, but the recipe has no fp8 layers to say how: add some, as in {}+fp8-layers", rule.text, parsed->name));
  request_.inline_precision = std::move(as_given);
  request_.own_precision = std::make_shared<const PrecisionRecipe>(std::move(*parsed));
  request_.precision = request_.own_precision.get();
}

std::string RequestReader::supported_names() const {
  std::vector<std::string> names;
  for (const PrecisionRecipe* recipe : supported_precisions(catalog_, *request_.gpu)) names.push_back(recipe->name);
  return join(names, ", ");
}

}  // namespace precog
