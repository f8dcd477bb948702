// Memory over the step: whatever the plan, from 0 to the step's end, in order, and with the peak that is reported.
#include <algorithm>
#include <numeric>

#include <doctest/doctest.h>

#include "predict/memory_points.h"
#include "predict/predict.h"

namespace {

using namespace precog;

Bytes bytes_at(const MemoryPoint& point) { return std::accumulate(point.bytes.begin(), point.bytes.end(), Bytes{}); }

Prediction memory_drawn(const Catalog& catalog, const Json& job) {
  auto request = parse_request(job, catalog, "test");
  REQUIRE_MESSAGE(request, request.error().text());
  auto made = predict(*request, catalog);
  REQUIRE_MESSAGE(made, made.error().text());
  CHECK(made->report.memory_points.empty());  // nobody has asked
  draw_memory(*made);
  return std::move(*made);
}

Json memory_job(const char* plan, std::int64_t micro_batches, int gpus, const char* more = "{}") {
  Json job = {{"model", {{"name", "gpt2"}, {"layers", 8}}}, {"batch", 1}, {"seq", 256}, {"precision", "amp-bf16"}, {"micro_batches", micro_batches},
              {"cluster", {{"gpu", "h100-sxm"}, {"gpus", gpus}}}, {"plan", Json::parse(plan)}};
  job.update(Json::parse(more));
  return job;
}

const Catalog& timeline_data() {
  static const Catalog catalog = load_catalog(PRECOG_DATA_DIR).value();
  return catalog;
}

}  // namespace

TEST_CASE("MemoryOverTheStepBeginsAtNothingEndsWithTheStepAndHasThePeak") {
  const std::vector<Json> jobs = {
      memory_job("{}", 1, 1),
      memory_job("{}", 2, 1),
      memory_job("{}", 16, 1),
      memory_job("{}", 5000, 1),
      memory_job("{}", 4, 1, R"({"recompute": "full"})"),
      memory_job("{}", 16, 1, R"({"mode": "compile"})"),
      memory_job("{}", 3, 1, R"({"mode": "compile-cudagraphs"})"),
      memory_job(R"({"offload": "optimizer"})", 4, 1),
      memory_job(R"({"offload": "activations"})", 4, 1),
      memory_job(R"({"fsdp": "zero2"})", 4, 4),
      memory_job(R"({"fsdp": "zero3"})", 1, 4),
      memory_job(R"({"fsdp": "full"})", 7, 4),
      memory_job(R"({"fsdp": "full", "offload": "optimizer+parameters"})", 2, 4),
      memory_job(R"({"pp": 4})", 1, 4),
      memory_job(R"({"pp": 4})", 16, 4, R"({"recompute": "full"})"),
      memory_job(R"({"pp": 4, "schedule": "gpipe"})", 8, 4),
      memory_job(R"({"pp": 4, "vpp": 2, "schedule": "interleaved"})", 8, 4),
      memory_job(R"({"pp": 4, "schedule": "zb"})", 12, 4),
      memory_job(R"({"pp": 4, "schedule": "dualpipe"})", 16, 4),
      memory_job(R"({"pp": 2, "fsdp": "zero1"})", 6, 4),
      memory_job(R"({"pp": 8})", 4000, 8),                        // more pieces of work than are followed
      memory_job(R"({"pp": 8, "schedule": "gpipe"})", 4000, 8),
      memory_job(R"({"pp": 4})", 8, 4, R"({"precision": "bf16"})"),
      memory_job("{}", 4, 8, R"({"cluster": {"gpu": "h100-sxm", "gpus": 8, "jitter": 0.02}})"),
  };
  for (const Json& job : jobs) {
    INFO(job.dump());
    const Report report = memory_drawn(timeline_data(), job).report;
    const auto& points = report.memory_points;
    REQUIRE(points.size() >= 2);
    CHECK(points.size() <= 400);
    CHECK(points.front().at.value == 0);
    CHECK(points.back().at.value == doctest::Approx(report.step.value).epsilon(1e-9));
    CHECK(std::is_sorted(points.begin(), points.end(), [](const MemoryPoint& a, const MemoryPoint& b) { return a.at < b.at; }));
    Bytes most, least = bytes_at(points.front());
    for (const MemoryPoint& point : points) most = std::max(most, bytes_at(point)), least = std::min(least, bytes_at(point));
    CHECK(most.value == report.memory.peak.value);
    CHECK(least.value > 0);
  }
}

TEST_CASE("EveryMicroBatchIsInMemoryOverTheStep") {
  const Report report = memory_drawn(timeline_data(), memory_job("{}", 6, 1)).report;
  // What is kept for backward rises and falls once for each.
  const auto activations = [](const MemoryPoint& point) { return point.bytes[static_cast<std::size_t>(MemoryCategory::activations)].value; };
  std::int64_t most = 0;
  for (const MemoryPoint& point : report.memory_points) most = std::max(most, activations(point));
  int rises = 0;
  bool high = false;
  for (const MemoryPoint& point : report.memory_points) {
    if (!high && activations(point) > most * 3 / 4) high = true, ++rises;
    if (high && activations(point) < most / 4) high = false;
  }
  CHECK(rises == 6);
}

TEST_CASE("PartsOfMemoryAddUpWithMicroBatchesInFlight") {
  for (const Json& job : {memory_job("{}", 1, 1), memory_job("{}", 4, 1), memory_job(R"({"pp": 4})", 16, 4), memory_job(R"({"pp": 4, "vpp": 2, "schedule": "interleaved"})", 8, 4),
                          memory_job(R"({"pp": 4, "schedule": "zb"})", 12, 4, R"({"precision": "bf16"})"), memory_job(R"({"pp": 4, "schedule": "dualpipe"})", 16, 4),
                          memory_job(R"({"pp": 4, "schedule": "gpipe"})", 8, 4, R"({"recompute": "full"})"), memory_job(R"({"fsdp": "full"})", 2, 4)}) {
    INFO(job.dump());
    const Json memory = to_json(memory_drawn(timeline_data(), job).report)["memory"];
    const auto sum = [](const Json& parts, const char* key) {
      std::int64_t all = 0;
      for (const Json& one : parts) all += key ? one[key].get<std::int64_t>() : one.get<std::int64_t>();
      return all;
    };
    std::int64_t peak = 0;
    for (const char* part : {"parameters", "gradients", "optimizer", "activations", "workspace"}) peak += memory[part].get<std::int64_t>();
    CHECK(sum(memory["by_category"], nullptr) == peak);
    CHECK(sum(memory["by_module"], "bytes") == peak);
    CHECK(sum(memory["by_module"], "activations") == memory["activations"].get<std::int64_t>());
    CHECK(sum(memory["activations_by_dtype"], nullptr) == memory["activations"].get<std::int64_t>());
    const Json& by = memory["by_category"];
    const auto of = [&](const char* name) { return by[name].get<std::int64_t>(); };
    CHECK(of("activations") + of("recomputed") + of("temporaries") + of("inputs") + of("weight_casts") + of("gathered_parameters") == memory["activations"].get<std::int64_t>());
  }
}
