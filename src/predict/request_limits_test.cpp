// What a request may ask for at most, and other programs' words for the same.
#include <doctest/doctest.h>

#include "predict/predict.h"

namespace {

using namespace precog;

const Catalog& limits_data() {
  static const Catalog catalog = load_catalog(PRECOG_DATA_DIR).value();
  return catalog;
}
Json limits_job(const char* more) {
  Json job = {{"model", {{"name", "gpt2"}, {"layers", 1}}}, {"batch", 1}, {"seq", 8}, {"precision", "bf16"}, {"cluster", {{"gpu", "h100-sxm"}, {"gpus", 2}}}};
  job.update(Json::parse(more));
  return job;
}
std::string refused(const char* more) {
  auto request = parse_request(limits_job(more), limits_data(), "test");
  if (!request) return request.error().text();
  auto made = predict(*request, limits_data());
  return made ? "" : made.error().text();
}

}  // namespace

TEST_CASE("MillionsOfSamplesPerBatchAreTakenAndTooManyAreRefused") {
  auto request = parse_request(limits_job(R"({"batch": 18000000})"), limits_data(), "test");
  REQUIRE_MESSAGE(request, request.error().text());
  auto made = predict(*request, limits_data());
  REQUIRE_MESSAGE(made, made.error().text());
  CHECK(made->report.step.value > 0);
  CHECK(made->report.memory.peak.value > std::int64_t{18'000'000} * 8 * 768 * 2);
  CHECK_FALSE(made->report.memory.fits);
  CHECK(refused(R"({"batch": 1000000001})").find("from 1 to 1000000000") != std::string::npos);
  CHECK(refused(R"({"batch": 1000000000, "micro_batches": 1000000})").find("more than the 1000000000000 samples") != std::string::npos);
  CHECK(refused(R"({"batch": 1000000000, "seq": 1024})") != "");
}

TEST_CASE("OnlyTransformersGpt2EndsATraceBeforeItsLoss") {
  // Large scores beside a small body: what transformers' code returns apart gets no zeros as a gradient.
  const auto peak = [](const char* more) {
    Json job = limits_job(R"({"batch": 8, "seq": 1024, "precision": "tf32", "mode": "compile", "cluster": {"gpu": "h100-sxm", "gpus": 1}})");
    job.update(Json::parse(more));
    auto request = parse_request(job, limits_data(), "test");
    REQUIRE_MESSAGE(request, request.error().text());
    auto made = predict(*request, limits_data());
    REQUIRE(made);
    return made->report.memory.peak.value;
  };
  constexpr std::int64_t kScores = 4ll * 8 * 1024 * 50257;
  CHECK(peak(R"({"attention": "sdpa-causal"})") - peak("{}") > kScores / 2);
}

TEST_CASE("DeepSpeedsWordsForWhatIsOnTheHostAreTaken") {
  auto request = parse_request(limits_job(R"({"plan": {"fsdp": "zero3", "offload": "offload_optimizer+offload_param"}})"), limits_data(), "test");
  REQUIRE_MESSAGE(request, request.error().text());
  CHECK(request->replicas.offload_optimizer);
  CHECK(request->replicas.offload_parameters);
  CHECK(request->echo["plan"]["offload"] == "optimizer+parameters");
  CHECK(refused(R"({"plan": {"offload": "zero"}})").find("DeepSpeed's offload_optimizer") != std::string::npos);
}
