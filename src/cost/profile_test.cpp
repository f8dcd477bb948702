// The shipped profile: complete for every GPU we describe, and near the figures that its GPUs were measured at.
#include <filesystem>

#include <doctest/doctest.h>

#include "cost/cost.h"
#include "cost/profile.h"

namespace precog {
namespace {

const std::filesystem::path kData = PRECOG_DATA_DIR;

Json shipped() { return read_json_file(kData / "profiles" / "datasheet.json").value(); }

const CostProfile& profile() {
  static const CostProfile parsed = CostProfile::parse(shipped(), "datasheet.json").value();
  return parsed;
}

struct Machine {
  GpuSpec gpu;
  const ArchitectureProfile* coefficients;
};

Machine machine(const std::string& name) {
  GpuSpec gpu = parse_gpu(read_json_file(kData / "gpus" / (name + ".json")).value(), name).value();
  return {gpu, profile().find(gpu.architecture)};
}

KernelCost gemm(const std::string& gpu, DType math, GemmShape s) {
  const auto [spec, coefficients] = machine(gpu);
  Kernel kernel;
  kernel.shape = s;
  kernel.math = math;
  kernel.input = kernel.output = math == DType::tf32 ? DType::fp32 : math;
  const std::int64_t size = bits_of(kernel.input) / 8;
  kernel.read = {s.batch * (s.m * s.k + s.k * s.n) * size};
  kernel.written = {s.batch * s.m * s.n * size};
  return kernel_cost(kernel, spec, *coefficients);
}

double microseconds_of(const KernelCost& cost) { return cost.total.value * 1e6; }

}  // namespace

TEST_CASE("EveryGpuHasCoefficientsOfItsArchitecture") {
  int gpus = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kData / "gpus")) {
    if (entry.path().extension() != ".json") continue;
    CAPTURE(entry.path().string());
    CHECK(machine(entry.path().stem().string()).coefficients != nullptr);
    ++gpus;
  }
  CHECK(gpus >= 25);
  CHECK(profile().find("no-such-architecture") == nullptr);
}

TEST_CASE("MissingOrUnsourcedCoefficientsAreNamed") {
  Json json = shipped();
  json["architectures"]["hopper"]["gemm"].erase("launch_floor");
  json["architectures"]["hopper"]["memory"]["pointwise"]["efficiency"]["source"] = "hearsay";
  json["architectures"]["hopper"]["memory"]["cast"]["launch_floor"]["value"] = 2;
  json["architectures"]["hopper"]["gemm"]["colour"] = 1;
  auto parsed = CostProfile::parse(json, "datasheet.json");
  REQUIRE(!parsed);
  const std::string text = parsed.error().text();
  CHECK(text.find("architectures.hopper.gemm.launch_floor: is missing") != std::string::npos);
  CHECK(text.find("memory.pointwise.efficiency") != std::string::npos);
  CHECK(text.find("hearsay") != std::string::npos);
  CHECK(text.find("memory.cast.launch_floor") != std::string::npos);
  CHECK(text.find("colour") != std::string::npos);
}

TEST_CASE("SmallGemmIsLaunchBound") {
  const KernelCost cost = gemm("h100-sxm", DType::bf16, {1, 64, 64, 64});
  CHECK(cost.bound == Bound::launch);
  CHECK(microseconds_of(cost) < 5);
}

TEST_CASE("LargeGemmIsComputeBound") { CHECK(gemm("h100-sxm", DType::bf16, {1, 8192, 8192, 8192}).bound == Bound::compute); }

TEST_CASE("ThinGemmIsMemoryBound") { CHECK(gemm("h100-sxm", DType::bf16, {1, 16, 16384, 16384}).bound == Bound::memory); }

TEST_CASE("ProductsTakeAboutAsLongAsMeasured") {
  // Single figures from the sources named in the profile: own H200 timings; aiconfigurator (A100, B200); DeepBench (V100).
  struct Figure {
    const char* gpu;
    DType math;
    GemmShape shape;
    double microseconds, within;
  };
  const Figure figures[] = {
      {"h200-sxm", DType::bf16, {1, 8192, 8192, 8192}, 1398, 0.10},
      {"h200-sxm", DType::bf16, {1, 1024, 1024, 1024}, 5.92, 0.10},
      {"h200-sxm", DType::bf16, {32, 2048, 2048, 128}, 86.7, 0.10},
      {"h200-sxm", DType::tf32, {1, 4096, 4096, 4096}, 337, 0.10},
      {"h200-sxm", DType::tf32, {1, 4096, 4096, 4096, true}, 585, 0.10},
      {"h200-sxm", DType::fp32, {1, 4096, 4096, 4096}, 2726, 0.10},
      {"h200-sxm", DType::fp32, {1, 512, 512, 512}, 14.1, 0.15},
      {"h200-sxm", DType::bf16, {1, 4096, 30522, 1024}, 1128, 0.25},  // rows of 61,044 bytes: no multiple of 16
      {"a100-sxm-80gb", DType::bf16, {1, 4096, 4096, 4096}, 550, 0.10},
      {"b200-sxm", DType::bf16, {1, 4096, 4096, 4096}, 90.2, 0.10},
  };
  for (const Figure& f : figures) {
    CAPTURE(f.gpu);
    CAPTURE(f.shape.m);
    CAPTURE(f.shape.n);
    const double predicted = microseconds_of(gemm(f.gpu, f.math, f.shape));
    CHECK(predicted == doctest::Approx(f.microseconds).epsilon(f.within));
  }
}

TEST_CASE("UnmeasuredArchitecturesSayThatTheyAreScaled") {
  CHECK(gemm("h100-sxm", DType::bf16, {1, 512, 512, 512}).source == CostSource::fitted);
  CHECK(gemm("rtx-3090", DType::bf16, {1, 512, 512, 512}).source == CostSource::scaled);
}

TEST_CASE("MoreWorkNeverTakesLess") {
  for (const char* gpu : {"v100-sxm2-16gb", "a100-sxm-80gb", "h100-sxm", "b200-sxm"}) {
    double before = 0;
    for (std::int64_t k = 64; k <= 65536; k *= 2) {
      const double now = microseconds_of(gemm(gpu, DType::fp16, {1, 1024, 1024, k}));
      CAPTURE(gpu);
      CAPTURE(k);
      CHECK(now >= before);
      before = now;
    }
  }
}

}  // namespace precog
