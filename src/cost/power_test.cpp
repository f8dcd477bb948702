// A GPU of 100 W whose tensor cores would like more: figures small enough to work out by hand.
#include <doctest/doctest.h>

#include "cost/power.h"
#include "cost/profile.h"

namespace precog {
namespace {

GpuSpec gpu() {
  GpuSpec gpu;
  gpu.power = {100};
  gpu.memory_bandwidth = {1};
  gpu.matrix.set(DType::bf16, {1});
  gpu.vector.set(DType::fp32, {1});
  return gpu;
}

ArchitectureProfile profile() {
  ArchitectureProfile profile;
  profile.power.idle = {20}, profile.power.streaming = {60}, profile.power.exponent = 2;
  profile.power.watts_per_tflops[static_cast<std::size_t>(DType::bf16)] = 320;
  return profile;
}

Kernel product(DType math) {
  Kernel kernel;
  kernel.math = math;
  kernel.flops = {1e12};
  return kernel;
}

TEST_CASE("tensor cores draw watts by the operations they do in a second") {
  const KernelCost second{.compute = {1}, .total = {1}, .bound = Bound::compute}, two{.compute = {2}, .total = {2}, .bound = Bound::compute};
  CHECK(full_clock_power(product(DType::bf16), second, gpu(), profile().power).value == doctest::Approx(20 + 320));
  CHECK(full_clock_power(product(DType::bf16), two, gpu(), profile().power).value == doctest::Approx(20 + 160));
  CHECK(full_clock_power(product(DType::fp32), second, gpu(), profile().power).value == doctest::Approx(20));
}

TEST_CASE("the clock falls until what is drawn beyond idle is within the limit") {
  // 80 W of 320 are allowed: at half the clock, whose square they follow.
  CHECK(kept_clock({340}, gpu(), profile()) == doctest::Approx(0.5));
}

TEST_CASE("a kernel that only moves bytes draws the streaming power, and half of it at half the bandwidth") {
  Kernel copy = product(DType::fp32);
  copy.flops = {0}, copy.read = {1};
  CHECK(full_clock_power(copy, {.total = {1}}, gpu(), profile().power).value == doctest::Approx(60));
  CHECK(full_clock_power(copy, {.total = {2}}, gpu(), profile().power).value == doctest::Approx(40));
}

TEST_CASE("within the limit, and without coefficients, the clock stays") {
  CHECK(kept_clock({100}, gpu(), profile()) == 1);
  CHECK(kept_clock({340}, gpu(), ArchitectureProfile{}) == 1);
}

TEST_CASE("a lower clock slows what the SMs bound, not what the memory bounds, nor a launch") {
  const KernelCost product{.compute = {3}, .launch = {1}, .total = {4}, .bound = Bound::compute};
  CHECK(at_clock(product, 0.5).total.value == doctest::Approx(7));
  const KernelCost copy{.memory = {3}, .launch = {1}, .total = {4}, .bound = Bound::memory};
  CHECK(at_clock(copy, 0.5).total.value == doctest::Approx(4));
}

}  // namespace
}  // namespace precog
