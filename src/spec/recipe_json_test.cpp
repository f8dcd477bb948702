#include <doctest/doctest.h>

#include "spec/precision_recipe.h"
#include "spec/recipe_json.h"

using namespace precog;

namespace {
const std::vector<NamedJson> kKnown = {
    {"base", Json::parse(R"({"schema": 1, "name": "base", "title": "t", "source": "s", "aliases": ["b"], "parameters": "fp32",
                             "autocast": {"dtype": "bf16"}, "rules": [{"operators": "gelu", "run_in": "fp32"}]})")},
    {"part", Json::parse(R"({"schema": 1, "name": "part", "title": "t", "source": "s", "part": true, "optimizer_state": "int8"})")},
    {"circle", Json::parse(R"({"extends": "circle2"})")},
    {"circle2", Json::parse(R"({"extends": "circle"})")}};
Result<Json> made(const char* text) { return extended(Json::parse(text), kKnown, "here"); }
}  // namespace

TEST_CASE("ARecipeStartsFromWhatItExtends") {
  const auto json = made(R"({"extends": ["B", "part"], "name": "mine", "autocast": {"weight_cache": false}, "rules": [{"modules": "head", "run_in": "fp32"}]})");
  REQUIRE(json);
  CHECK((*json)["parameters"] == "fp32");
  CHECK((*json)["autocast"] == Json::parse(R"({"dtype": "bf16", "weight_cache": false})"));  // merged key by key
  CHECK((*json)["optimizer_state"] == "int8");
  CHECK((*json)["rules"].size() == 2);  // appended, the base's first
  CHECK((*json)["rules"][0]["operators"] == "gelu");
  CHECK((*json)["name"] == "mine");
  for (const char* own : {"title", "source", "aliases", "part", "extends"}) CHECK(!json->contains(own));
}

TEST_CASE("NullTakesAKeyAway") {
  const auto json = made(R"({"extends": "base", "autocast": null})");
  REQUIRE(json);
  CHECK(!json->contains("autocast"));
}

TEST_CASE("WhatExtendsNothingKnownOrItselfIsRefused") {
  CHECK(made(R"({"extends": "bose"})").error().text().find("nearest known: base") != std::string::npos);
  CHECK(made(R"({"extends": "circle"})").error().text().find("leads back to itself") != std::string::npos);
  CHECK(made(R"({"extends": 3})").error().text().find("a recipe's name or a list") != std::string::npos);
}

TEST_CASE("ARuleMustSayWhomAndWhat") {
  auto problem = [](const char* rule) {
    Json json = Json::parse(R"({"schema": 1, "name": "n", "title": "t", "source": "s"})");
    json["rules"] = Json::array({Json::parse(rule)});
    auto recipe = parse_precision(json, "f");
    return recipe ? std::string() : recipe.error().text();
  };
  CHECK(problem(R"({"modules": "a", "run_in": "bf16"})").empty());
  CHECK(problem(R"({"run_in": "bf16"})").find("whom the rule is for") != std::string::npos);
  CHECK(problem(R"({"modules": "a"})").find("what the rule changes") != std::string::npos);
  CHECK(problem(R"({"modules": "a", "run_in": "bf61"})").find("rules[0].run_in: is 'bf61'; known: fp32, fp16, bf16") != std::string::npos);
  CHECK(problem(R"("a=fp32")").find("wants an object") != std::string::npos);
}

TEST_CASE("Fp8RecipesNameTheirArithmetic") {
  auto recipe = [](const char* scaling, const char* by) {
    Json json = Json::parse(R"({"schema": 1, "name": "n", "title": "t", "source": "s"})");
    json["fp8"] = {{"scaling", scaling}, {"quantised_by", by}};
    return parse_precision(json, "f");
  };
  CHECK(recipe("blockwise", "one_kernel")->fp8->arithmetic() == DType::fp8_block);
  CHECK(recipe("nvfp4", "one_kernel")->required_types() == std::vector<DType>{DType::nvfp4});
  CHECK(!recipe("mx", "operators"));  // nobody writes it so
  CHECK(recipe("tensor", "operators").error().text().find("known: tensorwise") != std::string::npos);
}
