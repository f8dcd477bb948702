#include "kernel/cached_reads.h"

#include <doctest/doctest.h>

#include "graph/builder.h"
#include "graph/operator.h"

namespace precog {
namespace {

// A chain of sums, x + x, over `elements` fp32 numbers, one kernel each that reads its operand and writes its result.
struct Chain {
  Graph graph;
  KernelProgram program;

  explicit Chain(std::int64_t elements, int links) {
    TensorId at = graph.add_tensor({.shape = {elements}, .dtype = DType::fp32, .role = Role::input});
    for (int i = 0; i < links; ++i) {
      const TensorId next = graph.add_tensor({.shape = {elements}, .dtype = DType::fp32});
      const OpId op = graph.add_op({OpKind::add, Phase::forward, DType::fp32}, std::array{at}, std::array{next});
      Kernel kernel;
      kernel.shape = MemoryShape{};
      kernel.read = kernel.written = {elements * 4};
      program.kernels.push_back(kernel);
      program.calls.push_back({.op = op, .first_kernel = static_cast<std::uint32_t>(i), .kernel_count = 1});
      at = next;
    }
  }
};

GpuSpec gpu_with_cache(std::int64_t bytes) {
  GpuSpec gpu;
  gpu.l2 = {bytes};
  return gpu;
}

}  // namespace

TEST_CASE("what has just been written is in the cache, what came from outside is not; writes save nothing") {
  const Chain chain(1000, 3);
  const auto shares = cached_reads(chain.graph, chain.program, gpu_with_cache(64'000));
  CHECK(shares[0] == 0);
  CHECK(shares[1] == doctest::Approx(0.5));  // all of its reads, half of its traffic
  CHECK(shares[2] == doctest::Approx(0.5));
}

TEST_CASE("what does not fit is gone, and a cache that is not known holds nothing") {
  const Chain chain(1000, 2);
  CHECK(cached_reads(chain.graph, chain.program, gpu_with_cache(4'000))[1] == 0);             // room for 2000 of 4000 bytes
  CHECK(cached_reads(chain.graph, chain.program, gpu_with_cache(7'619))[1] == doctest::Approx(0.25).epsilon(0.01));
  CHECK(cached_reads(chain.graph, chain.program, gpu_with_cache(0))[1] == 0);
}

}  // namespace precog
