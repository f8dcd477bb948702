#include <doctest/doctest.h>

#include "cost/older_kernels.h"

using namespace precog;

TEST_CASE("FlashAttentionOneIsSlowerInBackwardMost") {
  const KernelCost now{.compute = {8e-6}, .memory = {1e-6}, .launch = {2e-6}, .total = {10e-6}};
  Kernel kernel;
  AttentionShape shape;
  shape.backend = AttentionBackend::flash;
  kernel.shape = shape;
  const KernelCost forward = by_flash1(kernel, now);
  shape.backward = true;
  kernel.shape = shape;
  const KernelCost backward = by_flash1(kernel, now);
  CHECK(forward.total.value == doctest::Approx(2e-6 + 8e-6 * 0.73 / 0.50));
  CHECK(backward.total.value == doctest::Approx(2e-6 + 8e-6 * 0.63 / 0.35));
  CHECK(backward.source == CostSource::estimate);
}

TEST_CASE("OlderAttentionLeavesOtherKernelsAlone") {
  const KernelCost now{.launch = {1e-6}, .total = {10e-6}};
  Kernel kernel;
  kernel.shape = GemmShape{};
  CHECK(by_flash1(kernel, now).total.value == now.total.value);
}
