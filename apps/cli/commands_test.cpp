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
  CHECK(report["total_s"].get<double>() == doctest::Approx(100 * report["step_s"].get<double>()));
  CHECK(report["cost_usd"].get<double>() == doctest::Approx(report["total_s"].get<double>() / 3600));
  double sum = report["breakdown"]["host"].get<double>();
  for (const char* part : {"forward", "backward", "optimizer", "casts", "loss_scaling", "pipeline_bubble", "between_kernels"})
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
  CHECK(json["reports"].size() + json["left_out"].size() == catalog().precisions.size());
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
  CHECK(out->text.find("fp32>bf16") != std::string::npos);
  CHECK(longest_line(out->text) <= kTextWidth);
  auto diff = run_inspect(arguments({"inspect", "bert-base", "--diff", "fp32", "amp-fp16"}), context());
  REQUIRE(diff);
  CHECK(diff->text.find("linear") != std::string::npos);
  CHECK(longest_line(diff->text) <= kTextWidth);
  CHECK(diff->text.rfind("bert-base: fp32 against amp-fp16 on h100-sxm\n", 0) == 0);
  auto tf32 = [](const char* gpu) {
    auto shown = run_inspect(arguments({"inspect", "resnet18", "--precision", "tf32", "--gpu", gpu, "--json"}), context());
    return Json::parse(shown.value().text);
  };
  CHECK(tf32("A100-SXM-80GB")["gpu"] == "a100-sxm-80gb");
  CHECK(tf32("a100-sxm-80gb")["summary"]["by_dtype"].contains("tf32"));
  CHECK_FALSE(tf32("v100-pcie")["summary"]["by_dtype"].contains("tf32"));
  CHECK_FALSE(run_inspect(arguments({"inspect", "no-such-model", "--precision", "fp32"}), context()));
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
