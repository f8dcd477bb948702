#include "cost/fallback_kernels.h"

#include <doctest/doctest.h>

namespace precog {
namespace {

KernelCost ten_microseconds() {
  KernelCost cost;
  cost.compute = cost.total = Seconds{10e-6};
  return cost;
}

Kernel kernel_of(KernelShape shape, std::string_view name, DType type) {
  Kernel kernel;
  kernel.shape = shape;
  kernel.name = name;
  kernel.math = kernel.input = kernel.output = type;
  return kernel;
}

TEST_CASE("a recurrent layer's products are slower than others, aligned 16-bit ones are not") {
  const auto time = [](std::string_view name, std::int64_t hidden, DType type) {
    return with_fallbacks(kernel_of(GemmShape{1, 64, 4 * hidden, hidden}, name, type), ten_microseconds()).total.value;
  };
  CHECK(time("linear", 650, DType::bf16) == doctest::Approx(10e-6));
  CHECK(time("rnn_recurrent", 512, DType::bf16) == doctest::Approx(10e-6));
  CHECK(time("rnn_recurrent", 650, DType::bf16) > 15e-6);
  CHECK(time("rnn_recurrent", 512, DType::fp32) > 15e-6);
}

TEST_CASE("resizing many small planes takes as long as walking them, its gradient as long as its collisions") {
  Kernel kernel = kernel_of(MemoryShape{MemoryPattern::pooling_forward, 49 * 208, 40 * 40, false}, "upsample_bilinear2d", DType::bf16);
  kernel.read = Bytes{49 * 208 * 20 * 20 * 2}, kernel.written = Bytes{49 * 208 * 40 * 40 * 2};
  CHECK(with_fallbacks(kernel, ten_microseconds()).total.value == doctest::Approx(3.16e-3).epsilon(0.2));  // measured
  kernel.shape = MemoryShape{MemoryPattern::pooling_backward, 49 * 208, 40 * 40, false};
  kernel.name = "upsample_bilinear2d_backward";
  std::swap(kernel.read, kernel.written);
  CHECK(with_fallbacks(kernel, ten_microseconds()).total.value == doctest::Approx(0.40e-3).epsilon(0.2));  // measured
  kernel.name = "max_pool2d_backward";
  CHECK(with_fallbacks(kernel, ten_microseconds()).total.value == doctest::Approx(10e-6));
}

}  // namespace
}  // namespace precog
