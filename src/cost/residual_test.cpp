// Corrections on top of the physics: what a profile file may say, and what a kernel's price makes of it.
#include <cmath>
#include <filesystem>

#include <doctest/doctest.h>

#include "cost/pricing.h"
#include "cost/profile.h"

namespace precog {
namespace {

const std::filesystem::path kData = PRECOG_DATA_DIR;

const CostProfile& physics() {
  static const CostProfile parsed = CostProfile::parse(read_json_file(kData / "profiles" / "datasheet.json").value(), "datasheet.json").value();
  return parsed;
}
GpuSpec gpu(const std::string& name) { return parse_gpu(read_json_file(kData / "gpus" / (name + ".json")).value(), name).value(); }

Kernel product(std::int64_t size) {
  Kernel kernel;
  kernel.shape = GemmShape{1, size, size, size};
  kernel.math = kernel.input = kernel.output = DType::bf16;
  kernel.flops = {2.0 * static_cast<double>(size) * static_cast<double>(size) * static_cast<double>(size)};
  kernel.read = {2 * size * size * 2};
  kernel.written = {size * size * 2};
  kernel.name = "linear";
  return kernel;
}

std::size_t place(std::string_view feature) {
  const auto names = feature_names(FeatureKind::gemm);
  for (std::size_t i = 0; i < names.size(); ++i)
    if (names[i].name == feature) return i;
  return names.size();
}

// 20% slower in bf16, and 10% on top of it where k passes 1000; nothing seen beyond sizes of 256 to 4096.
FittedProfile example() {
  FittedProfile profile;
  profile.gpu = "h200-sxm";
  profile.architecture = "hopper";
  profile.sources = {{"some.jsonl", "2026-11-15", "PyTorch 2.11", 12}};
  FamilyResidual& family = profile.families["gemm"];
  family.kind = FeatureKind::gemm;
  family.constants = {{"", 0.1}, {"bf16", 0.1}, {"fp16 linear", 0.5}};
  family.trees = {{{static_cast<std::int32_t>(place("log k")), 2, std::log2(1000.0)}, {-1, 0, 0.0}, {-1, 0, 0.1}}};
  family.correction = {-0.5, 0.5};
  family.ratio = {0.95, 1.08};
  family.quality = {12, 6, 3, 0.02, 0.08, -0.01, 0.06};
  family.seen.assign(feature_names(FeatureKind::gemm).size(), Range{-1000, 1000});
  for (const char* size : {"log m", "log n", "log k"}) family.seen[place(size)] = {8, 12};
  return profile;
}

double factor(std::int64_t size, const FittedProfile& profile) {
  const GpuSpec h200 = gpu("h200-sxm");
  const ArchitectureProfile& coefficients = *physics().find("hopper");
  const Kernel kernel = product(size);
  return std::log(corrected_cost(kernel, h200, coefficients, &profile, true).total / kernel_cost(kernel, h200, coefficients).total);
}

}  // namespace

TEST_CASE("a correction adds constants and trees") {
  CHECK(factor(512, example()) == doctest::Approx(0.2));
  CHECK(factor(2048, example()) == doctest::Approx(0.3));
}

TEST_CASE("a correction never leaves the range that was seen") {
  FittedProfile profile = example();
  profile.families["gemm"].correction = {-0.05, 0.05};
  CHECK(factor(2048, profile) == doctest::Approx(0.05));
}

TEST_CASE("outside the sizes seen a correction fades within two octaves") {
  CHECK(factor(8192, example()) == doctest::Approx(0.15));
  CHECK(factor(16384, example()) == doctest::Approx(0.0));
}

TEST_CASE("prices say where they come from and how far to trust them") {
  const FittedProfile profile = example();
  const ArchitectureProfile& coefficients = *physics().find("hopper");
  const GpuSpec h200 = gpu("h200-sxm"), h100 = gpu("h100-sxm");
  KernelPrices own(h200, coefficients, &profile), relative(h100, coefficients, &profile), none(h200, coefficients, nullptr);
  const Kernel kernel = product(1024);
  CHECK(own(kernel).source == CostSource::fitted);
  CHECK(own(kernel).low == doctest::Approx(0.95));
  CHECK(relative(kernel).source == CostSource::scaled);
  CHECK(relative(kernel).low < own(kernel).low);
  CHECK(relative(kernel).high > own(kernel).high);
  CHECK(none(kernel).high == 0);
  CHECK(own(kernel).total == own(product(1024)).total);

  // Operands in the cache never make a kernel slower, nor does a share of them more than all; without timings they change nothing.
  CHECK(own(kernel, 1).total <= own(kernel, 0.5).total);
  CHECK(own(kernel, 0.5).total <= own(kernel).total);
  CHECK(none(kernel, 1).total == none(kernel).total);

  Kernel other = kernel;
  other.shape = MemoryShape{MemoryPattern::copy, 1, 1000};
  CHECK(own(other).total == none(other).total);  // a family that nobody measured
  other = kernel;
  other.fused = true;
  CHECK(own(other).total == none(other).total);  // a compiler's kernel is none of the library's
}

TEST_CASE("a profile survives being written and read") {
  const std::string text = to_json_text(example());
  const auto read = parse_fitted_profile(parse_json(text, "x").value(), "x");
  REQUIRE(read);
  CHECK(to_json_text(*read) == text);
  CHECK(factor(2048, *read) == doctest::Approx(0.3).epsilon(0.01));
}

TEST_CASE("a profile that is none says what is wrong") {
  const Json good = parse_json(to_json_text(example()), "x").value();
  const auto problem = [&](auto change) {
    Json bad = good;
    change(bad);
    const auto read = parse_fitted_profile(bad, "file.json");
    return read ? std::string() : read.error().text();
  };
  CHECK(problem([](Json& j) { j.erase("gpu"); }).find("gpu") != std::string::npos);
  CHECK(problem([](Json& j) { j["features"]["gemm"][0] = "colour"; }).find("'colour', which this precog does not compute") != std::string::npos);
  CHECK(problem([](Json& j) { j["families"]["gemm"]["trees"][0] = "AAAgAA"; }).find("no tree") != std::string::npos);  // has no right side
  CHECK(problem([](Json& j) { j["families"]["gemm"]["trees"][0] = "ABCgAAgAA"; }).find("no tree") != std::string::npos);  // a split that is none
  CHECK(problem([](Json& j) { j["families"]["gemm"]["splits"] = "999 1 0.5"; }).find("splits") != std::string::npos);
  const auto written_out = [](const char* tree) { return [tree](Json& j) { j["families"]["gemm"].erase("splits"), j["families"]["gemm"]["trees"] = {tree}; }; };
  CHECK(problem(written_out("0 1 -1 0.5 -1 0.25")) == "");
  CHECK(problem(written_out("0 1 -1")).find("no tree") != std::string::npos);
  CHECK(problem(written_out("999 1 -1 0 -1 0")).find("no tree") != std::string::npos);
  CHECK(problem([](Json& j) { j["families"]["gemm"]["ratio"] = {1.2, 0.9}; }).find("ratio") != std::string::npos);
  CHECK(problem([](Json& j) { j["families"]["gemm"]["seen"] = Json::array(); }).find("seen") != std::string::npos);
  CHECK(problem([](Json& j) { j["kind"] = "datasheet"; }).find("precog calibrate") != std::string::npos);
}

}  // namespace precog
