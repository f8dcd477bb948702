#include <doctest/doctest.h>

#include <random>
#include <set>

#include "memory/free_blocks.h"
#include "memory/memory.h"
#include "memory/peak_bounds.h"
#include "precision/precision.h"
#include "support.h"

using namespace precog;
using namespace precog::testing;

TEST_CASE("ThePeakLiesBetweenItsBounds") {
  for (Allocator allocator : {Allocator::caching, Allocator::expandable, Allocator::planned})
    for (std::int64_t rows : {1, 300, 5000})
      for (std::int64_t micro_batches : {1, 4}) {
        GraphBuilder b;
        TensorId x = b.input("x", {rows, 1000});
        for (int block = 0; block < 6; ++block) {
          b.set_block(block);
          x = b.gelu(b.linear_layer("l" + std::to_string(block), x, 1000 + 77 * block, block % 2 == 0));
        }
        b.set_block(-1);
        b.cross_entropy(x, b.input("t", {rows}, DType::int64));
        TrainingOptions options{.micro_batches = micro_batches};
        options.allocator = allocator;
        const PrecisionRecipe recipe = uniform(DType::bf16);
        const StepGraph step = make_step(apply_precision(recipe, gpu(), std::move(b).finish()), recipe, options);
        const KernelProgram program = make_kernels(step.graph, gpu(), MemoryFormat::contiguous);
        const MemoryUse use = memory_use(step, program, options, gpu(), 1);
        const PeakBounds bounds = peak_bounds(memory_trace(step, program, options, gpu()), step.graph, allocator);
        CAPTURE(rows);
        CHECK(bounds.low <= use.peak);
        CHECK(use.peak <= bounds.high);
        CHECK(bounds.high.value - bounds.low.value <= use.peak.value / 2);  // or they would decide nothing
        if (bounds.at_work) CHECK(step.graph.ops[use.peak_op].phase < Phase::loss_scaling);
        if (rows == 5000) CHECK(bounds.at_work);  // activations outweigh the optimizer's
      }
}

TEST_CASE("FreeBlocksGiveTheBestFitHoweverMany") {
  FreeBlocks blocks;
  std::set<std::pair<std::int64_t, std::int64_t>> expected;  // size, address
  std::mt19937 random(7);
  std::int32_t block = -1;
  CHECK_FALSE(blocks.take_at_least(1, block));
  for (std::int64_t address = 0; address < 3000; ++address) {
    const std::int64_t size = static_cast<std::int64_t>(random() % 40) + 1;
    blocks.insert({size, address, static_cast<std::int32_t>(address)});
    expected.insert({size, address});
    if (random() % 3 != 0) continue;
    const std::int64_t wanted = static_cast<std::int64_t>(random() % 45);
    const auto best = expected.lower_bound({wanted, -1});
    REQUIRE(blocks.take_at_least(wanted, block) == (best != expected.end()));
    if (best == expected.end()) continue;
    CHECK(block == best->second);
    expected.erase(best);
    if (expected.empty() || random() % 2 == 0) continue;
    const auto other = *std::next(expected.begin(), static_cast<std::ptrdiff_t>(random() % expected.size()));
    blocks.erase({other.first, other.second, static_cast<std::int32_t>(other.second)});
    expected.erase(other);
  }
  std::vector<std::pair<std::int64_t, std::int64_t>> left;
  for (const FreeBlock& one : blocks.all()) left.emplace_back(one.size, one.address);
  CHECK(left == std::vector<std::pair<std::int64_t, std::int64_t>>(expected.begin(), expected.end()));
  while (blocks.take_at_least(0, block)) expected.erase(expected.begin());
  CHECK(expected.empty());
}
