#include <doctest/doctest.h>

#include "report/advice_report.h"
#include "report/example_report.h"
#include "report/reasons.h"
#include "report/text_report.h"

using namespace precog;

namespace {

// Of 100 ms: products 50, casts 0, optimizer 10, the rest spread.
Report plain() {
  Report r = example_report("tf32", 0.1);
  r.by_op_class = {{"gemm", {0.05}}, {"normalization", {0.01}}};
  r.breakdown.casts = {};
  r.breakdown.host = {0.09};
  r.kernels = 800;
  return r;
}

}  // namespace

TEST_CASE("ReasonsAddUpAndTheLargestComesFirst") {
  Report amp = example_report("amp-bf16", 0.08);
  amp.by_op_class = {{"gemm", {0.02}}, {"normalization", {0.01}}};
  const auto why = reasons(plain(), amp);
  REQUIRE(why.size() > 3);
  CHECK(why[0].part == std::string("waiting for the host"));
  double sum = 0, last = 1;
  for (const Reason& reason : why) {
    sum += reason.difference.value;
    CHECK(std::abs(reason.difference.value) <= last);
    last = std::abs(reason.difference.value);
  }
  auto parts = [](const Report& r) {
    const Breakdown& b = r.breakdown;
    return (b.forward + b.backward + b.optimizer + b.casts + b.loss_scaling + b.between_kernels + b.host).value + b.exposed_communication.at("all_reduce").value;
  };
  CHECK(sum == doctest::Approx(parts(amp) - parts(plain())));
}

TEST_CASE("AgainstSaysHowMuchAndWhy") {
  Report amp = plain();
  amp.precision = "amp-bf16";
  amp.step = {0.08};
  amp.breakdown.forward = {0.004};  // products 21 ms less, casts 1 ms more
  amp.by_op_class["gemm"] = {0.029};
  amp.breakdown.casts = {0.001};
  CHECK(against(plain(), amp) == "1.25x as fast as tf32 (products -21 ms, casts +1 ms)");
  CHECK(against(amp, plain()).rfind("+25% vs amp-bf16 (products +21 ms", 0) == 0);
  CHECK(against(plain(), plain()) == "as fast as tf32");
}

TEST_CASE("WhereMixedPrecisionLosesToTf32TheCauseIsNamed") {
  Report amp = plain();
  amp.precision = "amp-bf16";
  CHECK_FALSE(loses_to(plain(), amp));
  amp.step = {0.12};
  amp.breakdown.host = {0.11};
  amp.kernels = 1000;
  auto loss = loses_to(plain(), amp);
  REQUIRE(loss);
  CHECK(loss->share == doctest::Approx(0.2));
  CHECK(loss->kind == std::string("host"));
  CHECK(loss->because.find("200 more kernels") != std::string::npos);
  amp.breakdown.host = plain().breakdown.host;
  amp.by_op_class["convolution"] = {0.02};
  CHECK(loses_to(plain(), amp)->kind == std::string("convolution"));
  amp.by_op_class.erase("convolution");
  amp.breakdown.casts = {0.02};
  CHECK(loses_to(plain(), amp)->kind == std::string("casts"));
  Report fp16 = amp;
  fp16.precision = "amp-fp16";
  const std::string text = compare_text(make_comparison({plain(), amp, fp16}, {}), {});
  CHECK(text.find("amp-bf16 (+20%), amp-fp16 (+20%) lose to tf32 here: its 200 cast kernels") != std::string::npos);
  CHECK(text.find("amp-bf16, amp-fp16: +20% vs tf32 (casts +20 ms") != std::string::npos);
}

TEST_CASE("AdviceIsShownWithItsFlagsAndWhatGoesTogether") {
  AdviceList list;
  list.precision = "amp-bf16";
  list.step = {0.1};
  CHECK(advice_text(list, {}).find("nothing of 0 changes") != std::string::npos);
  list.advice.push_back({"fused optimizer", "--optimizer-impl fused", {{"optimizer_impl", "fused"}}, "the same result", {0.09}, 0.1, {1'000'000}, true});
  list.combined = list.advice.front();
  const std::string text = advice_text(list, {});
  CHECK(text.find("+10.0%      90 ms       1 MB  fused optimizer\n") != std::string::npos);
  CHECK(text.find("--optimizer-impl fused; the same result") != std::string::npos);
  CHECK(text.find("Together: step 90 ms, +10.0% per sample, peak 1 MB.") != std::string::npos);
  Json json = Json::object();
  add_json(list, json);
  CHECK(json["advice"][0]["gain"] == 0.1);
  CHECK(json["advice"][0]["request"]["optimizer_impl"] == "fused");
  CHECK(json["advice_for"]["precision"] == "amp-bf16");
}
