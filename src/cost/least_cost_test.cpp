// What no correction brings a kernel below.
#include "cost/least_cost.h"

#include <filesystem>

#include <doctest/doctest.h>

#include "cost/pricing.h"
#include "cost/profile.h"

namespace precog {
namespace {

const std::filesystem::path kTables = PRECOG_DATA_DIR;

GpuSpec h200() { return parse_gpu(read_json_file(kTables / "gpus" / "h200-sxm.json").value(), "h200-sxm").value(); }

const ArchitectureProfile& hopper() {
  static const CostProfile physics = CostProfile::parse(read_json_file(kTables / "profiles" / "datasheet.json").value(), "datasheet.json").value();
  return *physics.find("hopper");
}

Kernel sized(KernelShape shape, DType type, std::int64_t read) {
  Kernel kernel;
  kernel.shape = shape;
  kernel.math = kernel.input = kernel.output = type;
  kernel.read = {read};
  kernel.written = {1024};
  kernel.name = "any";
  return kernel;
}

KernelCost one_microsecond() {
  KernelCost cost;
  cost.total = Seconds{1e-6};
  return cost;
}

TEST_CASE("LeastCost: column sums wait for the SMs that got all the full blocks") {
  const auto share = [](std::int64_t columns, std::int64_t rows) {
    const Kernel sum = sized(MemoryShape{MemoryPattern::bias_gradient, columns, rows}, DType::bf16, columns * rows * 2);
    return least_cost(sum, one_microsecond(), h200(), hopper()).value / 1e-6;
  };
  CHECK(share(192, 54380) == doctest::Approx(1.8));  // two blocks side by side, the second half empty
  CHECK(share(320, 46888) == doctest::Approx(1.8));
  CHECK(share(192, 2000) <= 1);                      // fewer blocks than SMs
  CHECK(share(256, 54380) == 0);                     // all full
  CHECK(share(576, 54380) == 0);                     // five side by side: every SM gets some of each
  CHECK((share(96, 40000) > 1.1 && share(96, 40000) < share(96, 60000)));
}

TEST_CASE("LeastCost: divisions of numbers that have become zero take their clocks") {
  Kernel kernel = sized(MemoryShape{MemoryPattern::multi_tensor, 1, 1 << 30}, DType::fp16, std::int64_t{1} << 32);
  kernel.flops = {1e9};
  CHECK(least_cost(kernel, one_microsecond(), h200(), hopper()).value == 0);
  kernel.zeros = Zeros::divided;
  CHECK(least_cost(kernel, one_microsecond(), h200(), hopper()).value == doctest::Approx(0.64e9 / (132 * 1.98e9)));
  kernel.zeros = Zeros::rooted;
  CHECK(least_cost(kernel, one_microsecond(), h200(), hopper()).value == doctest::Approx(0.42e9 / (132 * 1.98e9)));
}

TEST_CASE("LeastCost: large depthwise filters in NHWC take a term at a time, those in the padding left out") {
  ConvShape shape;
  shape.batch = 1, shape.in_channels = shape.out_channels = shape.groups = 1024;
  shape.in_h = shape.in_w = shape.out_h = shape.out_w = 24;
  shape.kernel_h = shape.kernel_w = 9;
  shape.channels_last = true;
  const auto seconds = [&](DType type = DType::bf16) { return least_cost(sized(shape, type, 1 << 20), one_microsecond(), h200(), hopper()).value; };
  const double along = 24 * 9 - 4 * 5;  // of each axis
  CHECK(seconds() == doctest::Approx(1024 * along * along / (0.86 * 132 * 1.98e9)));
  shape.direction = ConvDirection::data_gradient;  // has a kernel of its own but in fp32
  CHECK(seconds() == 0);
  CHECK(seconds(DType::fp32) > 0);
  shape.direction = ConvDirection::forward;
  shape.in_channels = shape.out_channels = shape.groups = 1000;
  CHECK(seconds() == 0);
  shape.in_channels = shape.out_channels = shape.groups = 1024;
  shape.channels_last = false;
  CHECK(seconds() == 0);
  shape.channels_last = true;
  shape.kernel_h = shape.kernel_w = 7;
  CHECK(seconds() == 0);
}

TEST_CASE("LeastCost: a 1x1 convolution of misaligned pixels takes what the product takes") {
  ConvShape shape;
  shape.batch = 4, shape.in_channels = 1496, shape.out_channels = 277;
  shape.in_h = shape.in_w = shape.out_h = shape.out_w = 46;
  shape.channels_last = true;
  const Kernel forward = sized(shape, DType::bf16, 1 << 24);
  REQUIRE(product_alike(forward));
  CHECK(std::get<GemmShape>(product_alike(forward)->shape) == GemmShape{.m = 4 * 46 * 46, .n = 277, .k = 1496, .b_turned = true});
  CHECK_FALSE(product_alike(sized(shape, DType::fp32, 1 << 24)));
  const CostProfile physics = CostProfile::parse(read_json_file(kTables / "profiles" / "datasheet.json").value(), "datasheet.json").value();
  const GpuSpec on = h200();
  KernelPrices prices(on, *physics.find("hopper"), nullptr);
  CHECK(prices(forward).total.value >= prices(*product_alike(forward)).total.value);
  shape.out_channels = 280;
  CHECK_FALSE(product_alike(sized(shape, DType::bf16, 1 << 24)));
  shape.out_channels = 277, shape.channels_last = false;
  CHECK_FALSE(product_alike(sized(shape, DType::bf16, 1 << 24)));
}

TEST_CASE("LeastCost: groups in true fp32 lie between transpositions") {
  ConvShape shape;  // one group of a stage of RegNet-Y 16GF
  shape.batch = 32, shape.in_channels = shape.out_channels = 112;
  shape.in_h = shape.in_w = shape.out_h = shape.out_w = 14;
  shape.kernel_h = shape.kernel_w = 3;
  Kernel group = sized(shape, DType::fp32, 11 * 2'809'856);
  group.flops = {11 * 2.0 * 6272 * 112 * 112 * 9};
  CHECK(least_cost(group, one_microsecond(), h200(), hopper()).value == 0);  // a convolution without groups
  group.launches = 11;
  const double turned = least_cost(group, one_microsecond(), h200(), hopper()).value;
  CHECK((turned > 11 * 140e-6 && turned < 11 * 190e-6));
  group.math = DType::tf32;
  CHECK(least_cost(group, one_microsecond(), h200(), hopper()).value == 0);
}

TEST_CASE("LeastCost: blocks without work are dealt one a clock") {
  const CostProfile physics = CostProfile::parse(read_json_file(kTables / "profiles" / "datasheet.json").value(), "datasheet.json").value();
  const GpuSpec on = h200();
  KernelPrices prices(on, *physics.find("hopper"), nullptr);
  Kernel join = sized(MemoryShape{MemoryPattern::copy, 64, 4096}, DType::bf16, 1 << 19);
  const double plain = prices(join).total.value;
  join.idle_blocks = 100'000;
  CHECK(prices(join).total.value - plain == doctest::Approx(100'000 * 0.87 / 1.98e9));
}

}  // namespace
}  // namespace precog
