// The commands end to end, on the data folder of the source tree.
#ifdef PRECOG_DATA_DIR
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <doctest/doctest.h>

#include "arguments.h"
#include "predict/predict.h"

using namespace precog;
using namespace precog::cli;

namespace {

const Catalog& catalog() {
  static const Catalog loaded = [] {
    auto result = load_catalog(PRECOG_DATA_DIR);
    if (!result) throw std::runtime_error(result.error().text());
    return std::move(*result);
  }();
  return loaded;
}

Arguments arguments(std::vector<const char*> words) {
  words.insert(words.begin(), "precog");
  Parsed parsed = parse_arguments(static_cast<int>(words.size()), words.data());
  REQUIRE_MESSAGE(!parsed.finished, parsed.problem);
  return parsed.arguments;
}

Context context() { return {catalog(), PRECOG_DATA_DIR, {}, false}; }

std::size_t longest_line(const std::string& text) {
  std::size_t longest = 0;
  std::stringstream stream(text);
  for (std::string line; std::getline(stream, line);) longest = std::max(longest, display_width(line));
  return longest;
}

}  // namespace

TEST_CASE("PredictAnswersInJsonAndInText") {
  std::vector<const char*> job = {"predict",     "--model",  "resnet18", "--gpu", "t4",      "--batch", "8",
                                  "--precision", "amp-fp16", "--price",  "1",     "--steps", "100"};
  auto text = run_predict(arguments(job), context());
  REQUIRE(text);
  CHECK(text->code == kDone);
  CHECK(longest_line(text->text) <= kTextWidth);
  job.push_back("--json");
  auto json = run_predict(arguments(job), context());
  REQUIRE(json);
  Json report = Json::parse(json->text);
  CHECK(report["tokens_per_s"].is_null());
  CHECK(report["total_s"].get<double>() == doctest::Approx((100 + report["skipped_steps"].get<double>()) * report["step_s"].get<double>()));
  CHECK(report["cost_usd"].get<double>() == doctest::Approx(report["total_s"].get<double>() / 3600));
  double sum = report["breakdown"]["host"].get<double>();
  for (const char* part : {"forward", "backward", "optimizer", "casts", "loss_scaling", "pipeline_bubble", "between_kernels", "input"})
    sum += report["breakdown"][part].get<double>();
  for (const Json& time : report["breakdown"]["exposed_communication"]) sum += time.get<double>();
  CHECK(sum == doctest::Approx(report["step_s"].get<double>()).epsilon(1e-6));
  CHECK(run_predict(arguments(job), context())->text == json->text);  // same request, same bytes
}

TEST_CASE("AJobThatDoesNotFitIsStillReported") {
  auto out = run_predict(
      arguments({"predict", "--model", "gpt2", "--gpu", "t4", "--batch", "512", "--precision", "fp32", "--json"}), context());
  REQUIRE(out);
  CHECK(out->code == kDoesNotFit);
  CHECK(Json::parse(out->text)["fits"] == false);
  auto compared = run_compare(arguments({"compare", "--model", "gpt2", "--gpu", "t4", "--batch", "512"}), context());
  REQUIRE(compared);
  CHECK(compared->code == kDoesNotFit);
}

TEST_CASE("CompareTakesWhatTheGpuHasHardwareFor") {
  auto out = run_compare(arguments({"compare", "--model", "resnet18", "--gpu", "v100-pcie", "--batch", "8", "--json"}), context());
  REQUIRE(out);
  Json json = Json::parse(out->text);
  double last = 0;
  for (const Json& report : json["reports"]) {
    CHECK(report["precision"] != "bf16");
    CHECK(report["step_s"].get<double>() >= last);
    last = report["step_s"].get<double>();
  }
  const auto listed = std::count_if(catalog().precisions.begin(), catalog().precisions.end(), [](const PrecisionRecipe& r) { return r.listed; });
  CHECK(json["reports"].size() + json["left_out"].size() == static_cast<std::size_t>(listed));
  auto more = run_compare(arguments({"compare", "--model", "resnet18", "--gpu", "v100-pcie", "--batch", "8", "--all", "--json"}), context());
  REQUIRE(more);
  const auto whole = std::count_if(catalog().precisions.begin(), catalog().precisions.end(), [](const PrecisionRecipe& r) { return !r.is_part; });
  CHECK(Json::parse(more->text)["reports"].size() + Json::parse(more->text)["left_out"].size() == static_cast<std::size_t>(whole));
  auto together = run_compare(arguments({"compare", "--model", "resnet18", "--gpu", "v100-pcie", "--batch", "8", "--precisions",
                                         "fp16,amp-fp16+optimizer-8bit", "--json"}), context());
  REQUIRE(together);
  CHECK(Json::parse(together->text)["reports"].size() == 2);
  auto part = run_compare(arguments({"compare", "--model", "resnet18", "--gpu", "v100-pcie", "--batch", "8", "--precisions", "optimizer-8bit"}), context());
  REQUIRE_FALSE(part);
  CHECK(part.error().text().find("--precisions: 'optimizer-8bit' is only a part") != std::string::npos);
  auto emulated = run_compare(
      arguments({"compare", "--model", "resnet18", "--gpu", "v100-pcie", "--batch", "8", "--allow-emulated", "--json"}), context());
  REQUIRE(emulated);
  CHECK(Json::parse(emulated->text)["reports"].size() > json["reports"].size());
  auto text =
      run_compare(arguments({"compare", "--model", "resnet18", "--gpu", "v100-pcie", "--batch", "8", "--price", "3"}), context());
  REQUIRE(text);
  CHECK(longest_line(text->text) <= kTextWidth);
}

TEST_CASE("EveryStageHasADump") {
  for (const std::string& stage : stage_names()) {
    auto out = run_predict(arguments({"predict", "--model", "bert-base", "--layers", "1", "--gpu", "a100-sxm-80gb", "--gpus", "2",
                                      "--batch", "1", "--precision", "amp-bf16", "--dump-after", stage.c_str()}),
                           context());
    REQUIRE_MESSAGE(out, stage);
    CHECK_MESSAGE(out->text.size() > 20, stage);
  }
}

TEST_CASE("InspectShowsTheCastsOfAutocast") {
  auto out = run_inspect(arguments({"inspect", "bert-base", "--precision", "amp-bf16"}), context());
  REQUIRE(out);
  CHECK(out->text.find("layers 0 to 11, all alike (x 12)") != std::string::npos);
  CHECK(out->text.find("36+36 fp32>") != std::string::npos);
  CHECK(out->text.find("casts cost ") != std::string::npos);
  CHECK(out->text.find("kept in fp32: 26 layer_norm cost ") != std::string::npos);
  CHECK(out->text.find("saved for backward: ") != std::string::npos);
  CHECK(std::count(out->text.begin(), out->text.end(), '\n') < 100);  // a screenful or two
  CHECK(longest_line(out->text) <= kTextWidth);
  auto diff = run_inspect(arguments({"inspect", "bert-base", "--batch", "32", "--diff", "fp32", "amp-fp16"}), context());
  REQUIRE(diff);
  CHECK(diff->text.find("linear") != std::string::npos);
  CHECK(diff->text.find("the largest reasons:\n  1. products -") != std::string::npos);
  CHECK(longest_line(diff->text) <= kTextWidth);
  CHECK(diff->text.rfind("bert-base: fp32 against amp-fp16 on h100-sxm\n", 0) == 0);
  auto unknown = run_inspect(arguments({"inspect", "bert-base", "--diff", "bf16", "nope"}), context());
  REQUIRE(!unknown);
  CHECK(unknown.error().problems.front().where == "--diff");
  auto tf32 = [](const char* gpu) {
    auto shown = run_inspect(arguments({"inspect", "resnet18", "--precision", "tf32", "--gpu", gpu, "--json"}), context());
    return Json::parse(shown.value().text);
  };
  CHECK(tf32("A100-SXM-80GB")["gpu"] == "a100-sxm-80gb");
  CHECK(tf32("a100-sxm-80gb")["summary"]["by_dtype"].contains("tf32"));
  CHECK_FALSE(tf32("v100-pcie")["summary"]["by_dtype"].contains("tf32"));
  CHECK_FALSE(run_inspect(arguments({"inspect", "no-such-model", "--precision", "fp32"}), context()));
}

TEST_CASE("WhatInspectCallsCastsIsWhatTheReportCallsCasts") {
  for (const char* precision : {"amp-bf16", "amp-fp16", "bf16", "fp32"}) {
    auto inspected = run_inspect(arguments({"inspect", "gpt2", "--precision", precision, "--gpu", "a100-sxm-80gb", "--batch", "2", "--global-batch", "6", "--json"}), context());
    auto predicted = run_predict(arguments({"predict", "--model", "gpt2", "--precision", precision, "--gpu", "a100-sxm-80gb", "--batch", "2", "--global-batch", "6", "--json"}), context());
    REQUIRE(inspected);
    REQUIRE(predicted);
    Json inspect = Json::parse(inspected->text), report = Json::parse(predicted->text);
    CHECK(inspect["step_s"] == report["step_s"]);
    CHECK(inspect["summary"]["cast_kernels"].get<double>() == doctest::Approx(report["cast_kernels"].get<double>()));
    CHECK(inspect["summary"]["cast_s"].get<double>() == doctest::Approx(report["breakdown"]["casts"].get<double>()));
    double own = 0;
    for (const Json& op : inspect["operators"])
      if (op.contains("forward_s") && op["operator"] != "cast") own += op["forward_s"].get<double>();
    CHECK(own == doctest::Approx(report["breakdown"]["forward"].get<double>()));
  }
}

TEST_CASE("InspectAccountsForForwardAndBackward") {
  for (const char* precision : {"amp-fp16", "fp8", "fp8-delayed", "bf16-master"}) {
    auto inspected = run_inspect(arguments({"inspect", "gpt2", "--precision", precision, "--batch", "4", "--json"}), context());
    auto predicted = run_predict(arguments({"predict", "--model", "gpt2", "--precision", precision, "--gpu", "h100-sxm", "--batch", "4", "--json"}), context());
    REQUIRE(inspected);
    REQUIRE(predicted);
    Json inspect = Json::parse(inspected->text), parts = Json::parse(predicted->text)["breakdown"];
    double sum = inspect["summary"]["accumulation_s"].get<double>();
    for (const Json& op : inspect["operators"])
      if (op.contains("forward_s"))
        sum += op["forward_s"].get<double>() + op["backward_s"].get<double>() + op["casts"]["in_s"].get<double>() + op["casts"]["back_s"].get<double>();
    CHECK_MESSAGE(sum == doctest::Approx(parts["forward"].get<double>() + parts["backward"].get<double>() + parts["casts"].get<double>()).epsilon(0.002), precision);
  }
  auto text = run_inspect(arguments({"inspect", "gpt2", "--precision", "fp8", "--batch", "4"}), context());
  REQUIRE(text);
  CHECK(text->text.find("fp8: 48 of 49 linear layers; lm_head kept bf16: not in fp8") != std::string::npos);
  CHECK(text->text.find("abs") == std::string::npos);  // what quantises belongs to its layer
  CHECK(longest_line(text->text) <= kTextWidth);
}

TEST_CASE("AdviceIsPredictedAndLargestFirst") {
  auto out = run_compare(arguments({"compare", "--model", "gpt2", "--gpu", "a100-sxm-80gb", "--batch", "4", "--precision", "amp-bf16", "--advise", "--json"}), context());
  REQUIRE(out);
  Json json = Json::parse(out->text);
  CHECK(json["advice_for"]["precision"] == "amp-bf16");
  const double step = json["advice_for"]["step_s"].get<double>();
  REQUIRE(json["advice"].size() >= 3);
  double last = 1;
  bool fused = false, padded = false;
  for (const Json& advice : json["advice"]) {
    CHECK(advice["gain"].get<double>() <= last);
    last = advice["gain"].get<double>();
    CHECK(last > 0);
    CHECK(advice["fits"] == true);
    padded = padded || advice["flags"] == "--pad-vocabulary 64";
    if (advice["flags"] != "--optimizer-impl fused") continue;
    fused = true;
    auto again = run_predict(arguments({"predict", "--model", "gpt2", "--gpu", "a100-sxm-80gb", "--batch", "4", "--precision", "amp-bf16",
                                        "--optimizer-impl", "fused", "--json"}), context());
    CHECK(Json::parse(again.value().text)["step_s"] == advice["step_s"]);  // predicted, not guessed
    CHECK(advice["gain"].get<double>() == doctest::Approx(1 - advice["step_s"].get<double>() / step));
  }
  CHECK(fused);
  CHECK(padded);
  CHECK(json["advice_combined"]["gain"].get<double>() > json["advice"][0]["gain"].get<double>());
  auto text = run_compare(arguments({"compare", "--model", "resnet50", "--gpu", "v100-sxm2-32gb", "--batch", "64", "--advise"}), context());
  REQUIRE(text);
  CHECK(text->text.find("channels_last memory format") != std::string::npos);
  CHECK(text->text.find("vocabulary") == std::string::npos);
  CHECK(longest_line(text->text) <= kTextWidth);
  auto tight = run_compare(arguments({"compare", "--model", "gpt2", "--gpu", "t4", "--batch", "64", "--precision", "amp-fp16", "--advise", "--json"}), context());
  REQUIRE(tight);
  CHECK(tight->code == kDoesNotFit);
  CHECK(Json::parse(tight->text)["advice"][0]["note"].get<std::string>().find("with it the job fits") != std::string::npos);
}

TEST_CASE("AVocabularyIsPaddedWhereThereIsOne") {
  auto padded = run_predict(arguments({"predict", "--model", "gpt2", "--gpu", "t4", "--batch", "1", "--precision", "fp16", "--pad-vocabulary", "64", "--json"}), context());
  REQUIRE(padded);
  auto plain = run_predict(arguments({"predict", "--model", "gpt2", "--gpu", "t4", "--batch", "1", "--precision", "fp16", "--json"}), context());
  CHECK(Json::parse(padded->text)["parameters"].get<std::int64_t>() - Json::parse(plain.value().text)["parameters"].get<std::int64_t>() == 47 * 768);
  auto none = run_predict(arguments({"predict", "--model", "resnet18", "--gpu", "t4", "--batch", "1", "--precision", "fp16", "--pad-vocabulary", "64"}), context());
  REQUIRE_FALSE(none);
  CHECK(none.error().text().find("does not apply: resnet18 has no table of tokens") != std::string::npos);
}

TEST_CASE("PartsOfRecipesAreListedApart") {
  const std::string text = run_list(arguments({"precisions"}), context()).value().text;
  CHECK(text.find("Parts, to be added to a recipe") > text.find("nvfp4"));
  CHECK(text.find("\noptimizer-8bit ") > text.find("Parts, to be added to a recipe"));
  const std::string one = run_list(arguments({"precisions", "fp8-delayed"}), context()).value().text;
  CHECK(one.find("With everything it extends") != std::string::npos);
  CHECK(one.find("source of amp-bf16: ") != std::string::npos);
  auto refused = run_predict(arguments({"predict", "--model", "resnet18", "--gpu", "v100-pcie", "--batch", "1", "--precision", "bf16"}), context());
  REQUIRE_FALSE(refused);
  CHECK(refused.error().text().find("optimizer-8bit") == std::string::npos);  // what is supported names whole recipes
}

TEST_CASE("ListsFit80ColumnsAndKnowTheirSources") {
  for (const std::string& kind : list_kinds()) {
    auto table = run_list(arguments({kind.c_str()}), context());
    REQUIRE(table);
    CHECK_MESSAGE(longest_line(table->text) <= kTextWidth, kind);
    std::string name = names_of(kind, catalog())->front();
    auto one = run_list(arguments({kind.c_str(), name.c_str()}), context());
    REQUIRE(one);
    CHECK_MESSAGE(one->text.find("source") != std::string::npos, kind);
    CHECK_MESSAGE(longest_line(one->text) <= kTextWidth, kind);
    auto json = run_list(arguments({kind.c_str(), "--json"}), context());
    REQUIRE(json);
    CHECK(Json::parse(json->text).size() == names_of(kind, catalog())->size());
  }
}

TEST_CASE("ValidatePairsAliases") {
  std::filesystem::path file = std::filesystem::temp_directory_path() / "precog_commands_test.csv";
  std::ofstream(file) << "id,model,batch,precision,gpu,step_s\na,resnet18,8,fp32,h200,0.02\nb,resnet18,8,tf32,h200-sxm,0.01\nc,"
                         "nonsense,8,tf32,h200,0.01\n";
  auto out = run_validate(arguments({"validate", file.c_str(), "--by", "precision,gpu", "--json"}), context());
  std::filesystem::remove(file);
  REQUIRE(out);
  Json json = Json::parse(out->text);
  CHECK(json["overall"]["rows"] == 3);
  CHECK(json["overall"]["predicted"] == 2);
  CHECK(json["speedups"]["fp32->tf32"]["pairs"] == 1);
  CHECK(json["unpredicted"][0]["id"] == "c");
  CHECK(json["groups"]["gpu=h200-sxm"]["rows"] == 2);
}
#endif
