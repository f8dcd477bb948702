#include <doctest/doctest.h>

#include "spec/cluster_spec.h"
#include "spec/gpu_spec.h"
#include "spec/host_spec.h"
#include "spec/precision_recipe.h"

using namespace precog;

namespace {
Json h100() { return *read_json_file(std::string(PRECOG_DATA_DIR) + "/gpus/h100-sxm.json"); }
}  // namespace

TEST_CASE("AGpuFileBecomesASpec") {
  const auto gpu = parse_gpu(h100(), "h100-sxm.json");
  REQUIRE(gpu);
  CHECK(gpu->sms == 132);
  CHECK(gpu->memory_bandwidth.value == doctest::Approx(3.35e12));
  CHECK(gpu->matrix[DType::bf16].value == doctest::Approx(989.4e12).epsilon(0.01));
  CHECK(gpu->computes(DType::fp8));
  CHECK(!gpu->computes(DType::nvfp4));
}

TEST_CASE("AFigureWithoutASourceIsRefused") {
  Json json = h100();
  json["memory"]["bandwidth"] = "3.35 TB/s";
  CHECK(parse_gpu(json, "gpu.json").error().text().find("gpu.json: memory.bandwidth") != std::string::npos);
  json = h100();
  json["memory"]["bandwidth"]["source"] = "hearsay";
  CHECK(parse_gpu(json, "gpu.json").error().text().find("hearsay") != std::string::npos);
  json = h100();
  json["memory"]["bandwidth"]["value"] = 3.35;
  CHECK(parse_gpu(json, "gpu.json").error().text().find("unit") != std::string::npos);
}

TEST_CASE("AllProblemsOfAFileAreReportedAtOnce") {
  Json json = h100();
  json.erase("sms");
  json.erase("power");
  json["memroy"] = 1;
  const auto gpu = parse_gpu(json, "gpu.json");
  REQUIRE(!gpu);
  CHECK(gpu.error().problems.size() == 3);
}

TEST_CASE("OlderGpusLackTheNewerTypes") {
  const auto v100 = parse_gpu(*read_json_file(std::string(PRECOG_DATA_DIR) + "/gpus/v100-sxm2-32gb.json"), "v100");
  REQUIRE(v100);
  CHECK(v100->computes(DType::fp16));
  CHECK(!v100->computes(DType::bf16));
  CHECK(!v100->computes(DType::tf32));
}

TEST_CASE("TypesPromoteAsPyTorchDoes") {
  CHECK(promoted(DType::fp16, DType::fp32) == DType::fp32);
  CHECK(promoted(DType::fp16, DType::bf16) == DType::fp32);
  CHECK(promoted(DType::int64, DType::bf16) == DType::bf16);
  CHECK(promoted(DType::bf16, DType::bf16) == DType::bf16);
}

TEST_CASE("ARecipeSaysWhichHardwareItNeeds") {
  PrecisionRecipe recipe;
  CHECK(recipe.required_types().empty());
  recipe.tf32_convolution = true;  // PyTorch's default: harmless where there is no TF32
  CHECK(recipe.required_types().empty());
  recipe.autocast = DType::bf16;
  CHECK(recipe.required_types() == std::vector<DType>{DType::bf16});
}

TEST_CASE("ARecipeWithAnUnknownTypeIsRefused") {
  const Json json = Json::parse(R"({"schema": 1, "name": "x", "title": "x", "source": "x", "parameters": "fp12"})");
  CHECK(parse_precision(json, "x.json").error().text().find("fp12") != std::string::npos);
}
