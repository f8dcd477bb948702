// Where a step's time went adds up to the step, whatever the plan.
#include <random>

#include <doctest/doctest.h>

#include "predict/predict.h"

namespace {

using namespace precog;

double sum_of(const Breakdown& b) {
  Seconds sum = b.forward + b.backward + b.optimizer + b.casts + b.loss_scaling + b.pipeline_bubble + b.between_kernels + b.host + b.input;
  for (const auto& [collective, exposed] : b.exposed_communication) sum += exposed;
  return sum.value;
}

Json drawn(std::mt19937& random) {
  const auto any = [&](auto... choices) {
    const Json all = Json::array({choices...});
    return all[random() % all.size()];
  };
  const std::string model = any("llama3-8b", "mixtral-8x7b", "deepseek-v3");
  const int tp = any(1, 1, 2, 4), cp = any(1, 1, 2), pp = any(1, 1, 2), dp = any(2, 4, 8), micro_batches = any(1, 2, 4, 8);
  Json plan = {{"tp", tp}, {"cp", cp}, {"pp", pp}, {"dp", dp}, {"fsdp", any("none", "zero1", "zero2", "full")}};
  if (tp > 1) plan["sp"] = any(true, false);
  if (model != "llama3-8b") {
    plan["ep"] = any(1, 2);
    plan["etp"] = any(1, tp);
  }
  if (pp > 1) plan["schedule"] = any("gpipe", "1f1b", "zb", "zbv", "dualpipe");
  return {{"model", {{"name", model}, {"layers", model == "deepseek-v3" ? 4 : 2}}}, {"batch", 1}, {"seq", any(512, 2048)}, {"global_batch", dp * micro_batches},
          {"precision", any("bf16", "amp-bf16", "bf16-master")}, {"cluster", {{"gpu", any("h100-sxm", "a100-sxm-80gb")}, {"gpus", tp * cp * pp * dp}}}, {"plan", plan}};
}

}  // namespace

TEST_CASE("WhereTimeWentAddsUpToTheStep") {
  const Catalog catalog = load_catalog(PRECOG_DATA_DIR).value();
  std::mt19937 random(11);
  int judged = 0;
  for (int i = 0; i < 120; ++i) {
    const Json job = drawn(random);
    const auto request = parse_request(job, catalog, "test");
    if (!request) continue;  // degrees that do not go together
    const auto made = predict(*request, catalog);
    if (!made) continue;
    INFO(job.dump());
    CHECK(sum_of(made->report.breakdown) == doctest::Approx(made->report.step.value).epsilon(1e-9));
    ++judged;
  }
  CHECK(judged > 60);
}
