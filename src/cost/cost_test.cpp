// Costs on GPUs made up so that the answer can be worked out by hand: 1 flop/s, 1 B/s, all efficiencies 1.
#include <doctest/doctest.h>

#include "cost/collective_choice.h"
#include "cost/cost.h"
#include "cost/gemm_cost.h"
#include "cost/profile.h"

namespace precog {
namespace {

GpuSpec slow_gpu(int sms = 1) {
  GpuSpec gpu;
  gpu.sms = sms;
  gpu.boost_clock = {1};
  gpu.memory_bandwidth = {1};
  gpu.link_bandwidth = {1};
  gpu.vector.set(DType::fp32, {1});
  gpu.matrix.set(DType::bf16, {8});
  return gpu;
}

// Nothing lost anywhere, nothing fixed to pay.
ArchitectureProfile ideal() {
  ArchitectureProfile profile;
  profile.gemm.l2_bytes_per_clock = 1e30;
  profile.gemm.overlap_norm = 100;  // all but the bare roofline
  for (MemoryCoefficients& memory : profile.memory) memory.accesses_per_clock = 1e30;
  profile.cast_widen.accesses_per_clock = 1e30;
  return profile;
}

Kernel kernel_of(KernelShape shape, DType math, std::int64_t read = 0, std::int64_t written = 0) {
  Kernel kernel;
  kernel.shape = shape;
  kernel.math = kernel.input = kernel.output = math;
  kernel.read = {read};
  kernel.written = {written};
  return kernel;
}

constexpr double kTileFlops = 2.0 * 128 * 128 * 32;

}  // namespace

TEST_CASE("IdealGemmTakesItsFlopsOverThePeak") {
  const KernelCost cost = kernel_cost(kernel_of(GemmShape{1, 128, 128, 32}, DType::fp32), slow_gpu(), ideal());
  CHECK(cost.total.value == doctest::Approx(kTileFlops));
  CHECK(cost.bound == Bound::compute);
}

TEST_CASE("TensorCoresSetThePaceWhereTheGpuHasThem") {
  const KernelCost cost = kernel_cost(kernel_of(GemmShape{1, 128, 128, 32}, DType::bf16), slow_gpu(), ideal());
  CHECK(cost.total.value == doctest::Approx(kTileFlops / 8));
}

TEST_CASE("FourBitsAreFedNoFasterThanSeen") {
  GpuSpec gpu = slow_gpu();
  gpu.matrix.set(DType::nvfp4, {10000});
  CHECK(kernel_cost(kernel_of(GemmShape{1, 128, 128, 32}, DType::nvfp4), gpu, ideal()).total.value == doctest::Approx(kTileFlops / 10000));
  gpu.matrix.set(DType::nvfp4, {50000});
  CHECK(kernel_cost(kernel_of(GemmShape{1, 128, 128, 32}, DType::nvfp4), gpu, ideal()).total.value == doctest::Approx(kTileFlops / 17000));
}

TEST_CASE("CardsThatAddUpAtHalfTheirRateReachWhatTheyPrint") {
  ArchitectureProfile profile = ideal();
  for (DType math : {DType::bf16, DType::fp16, DType::fp32}) {
    MathCoefficients& c = profile.gemm.math[static_cast<std::size_t>(math)];
    c.efficiency = 0.6, c.watts_per_tflops = 1;
  }
  GpuSpec gpu = slow_gpu();
  gpu.power = {1e9};  // never short of it
  gpu.vendor = "nvidia", gpu.compute_capability = "8.6";
  gpu.matrix.set(DType::fp16, {1024}), gpu.matrix.set(DType::bf16, {1024});
  const auto product = [&](DType math) { return kernel_cost(kernel_of(GemmShape{1, 128, 128, 32}, math), gpu, profile).total.value; };
  CHECK(product(DType::bf16) == doctest::Approx(kTileFlops / 1024 / 0.84));
  CHECK(product(DType::fp32) == doctest::Approx(kTileFlops / 0.66));
  gpu.matrix.set(DType::fp16, {512}), gpu.matrix.set(DType::bf16, {512});
  CHECK(product(DType::bf16) == doctest::Approx(kTileFlops / 512 / 1.05));
}

TEST_CASE("EmulatedArithmeticRunsAtFp32Speed") {
  Kernel kernel = kernel_of(GemmShape{1, 128, 128, 32}, DType::bf16);
  kernel.emulated = true;
  CHECK(kernel_cost(kernel, slow_gpu(), ideal()).total.value == doctest::Approx(kTileFlops));
  CHECK(kernel_cost(kernel, slow_gpu(), ideal()).source == CostSource::estimate);
  CHECK(kernel_cost(kernel_of(GemmShape{1, 128, 128, 32}, DType::tf32), slow_gpu(), ideal()).total.value ==
        doctest::Approx(kTileFlops));
}

TEST_CASE("EmulationPaysForWideOperandsAndConversions") {
  ArchitectureProfile profile = ideal();
  profile.cast_widen.launch_floor = {7};
  profile.memory[static_cast<std::size_t>(MemoryPattern::cast)].launch_floor = {7};
  Kernel kernel = kernel_of(GemmShape{1, 1, 1, 32}, DType::bf16, 1'000'000, 2'000'000);
  kernel.emulated = true;
  // The fp32 product moves 6 MB; widening 1 MB into 2 moves 3, narrowing 4 into 2 moves 6; one more launch.
  CHECK(kernel_cost(kernel, slow_gpu(), profile).total.value == doctest::Approx(6e6 + 3e6 + 6e6 + 7).epsilon(1e-6));
}

TEST_CASE("GemmWithHugeOperandsIsBytesOverBandwidth") {
  const KernelCost cost = kernel_cost(kernel_of(GemmShape{1, 1, 1, 32}, DType::fp32, 1'000'000'000, 0), slow_gpu(), ideal());
  CHECK(cost.total.value == doctest::Approx(1e9));
  CHECK(cost.bound == Bound::memory);
}

TEST_CASE("BlocksThatFillHalfTheSmsTakeAsLongAsAll") {
  const GpuSpec gpu = slow_gpu(512);  // as many SMs as the smallest tiles make blocks, so that no tiling helps
  GemmProblem problem{.m = 512, .n = 256, .k = 32, .peak = {512}};
  const double half = gemm_time(problem, gpu, ideal().gemm).total.value;
  problem.n = 512;
  CHECK(gemm_time(problem, gpu, ideal().gemm).total.value == doctest::Approx(half));
}

TEST_CASE("LastWaveIsPaidInFullOnlyWhenQuantised") {
  const GpuSpec gpu = slow_gpu(2);
  GemmCoefficients c = ideal().gemm;
  // Three equal blocks on two SMs whatever the tile: tall enough for 16 rows alone, and one narrow column.
  const GemmProblem problem{.batch = 3, .m = 16, .n = 64, .k = 32, .peak = {2}};
  c.wave_quantisation = 1;
  const double two_waves = gemm_time(problem, gpu, c).total.value;
  c.wave_quantisation = 0;
  CHECK(gemm_time(problem, gpu, c).total.value == doctest::Approx(two_waves * 0.75));
}

TEST_CASE("TheLargestTileIsTakenThoughSmallerOnesWouldWasteLess") {
  const GpuSpec gpu = slow_gpu(2);
  GemmCoefficients c = ideal().gemm;
  c.wave_quantisation = 1;
  GemmProblem problem{.m = 768, .n = 128, .k = 1024, .peak = {2}, .may_split = false};  // three blocks of 256 x 128 on two SMs
  const double balanced = gemm_time(problem, gpu, c).total.value;
  c.largest_tile = true;
  const GemmTime wasted = gemm_time(problem, gpu, c);
  CHECK(wasted.tile_m * wasted.tile_n == 256 * 128);
  CHECK(wasted.total.value == doctest::Approx(balanced * 4 / 3));
  problem.m = 256;  // does not fill the GPU: smaller tiles do
  CHECK(gemm_time(problem, gpu, c).tile_m * gemm_time(problem, gpu, c).tile_n < 256 * 128);
  c.tile_overhead = {100};  // of which a sum as long as the pipeline fills half
  problem = {.m = 32, .n = 32, .k = 128, .peak = {2}, .may_split = false};
  const double filled = gemm_time(problem, gpu, c).total.value;
  c.tile_overhead = {0};
  CHECK(filled - gemm_time(problem, gpu, c).total.value == doctest::Approx(50));
}

TEST_CASE("LongProductsOverlapLoadsAndArithmeticBetter") {
  GemmCoefficients c = ideal().gemm;
  c.overlap_norm = 1;
  const GemmProblem problem{.m = 32, .n = 32, .k = 32, .bytes = 65536, .peak = {1}, .may_split = false};  // both 65,536 s
  CHECK(gemm_time(problem, slow_gpu(1), c).total.value == doctest::Approx(2 * 65536));
  c.overlap_growth = {65536};
  CHECK(gemm_time(problem, slow_gpu(1), c).total.value == doctest::Approx(std::sqrt(2.0) * 65536));
}

TEST_CASE("ResultsOnTheirWayOutAreTimeOfTheirBlock") {
  const GpuSpec gpu = slow_gpu(1);
  GemmCoefficients c = ideal().gemm;
  const GemmProblem problem{.m = 16, .n = 16, .k = 32, .peak = {1}};
  const double none = gemm_time(problem, gpu, c).total.value;
  c.results_per_clock = 2 / gpu.boost_clock.value;  // two a second; of a tile only what is in the product
  CHECK(gemm_time(problem, gpu, c).total.value == doctest::Approx(none + 128));
}

TEST_CASE("SplittingKFillsTheGpuWhenBlocksAreFew") {
  const GpuSpec gpu = slow_gpu(64);
  GemmCoefficients c = ideal().gemm;
  const GemmProblem deep{.m = 32, .n = 32, .k = 65536, .peak = {64}};
  const GemmTime time = gemm_time(deep, gpu, c);
  CHECK(time.split == 64);
  c.split_overhead = {1e12};  // dearer than what it saves
  CHECK(gemm_time(deep, gpu, c).split == 1);
}

TEST_CASE("MisalignedRowsHaveAPaceOfTheirOwnAndTransposedOperandsLoseTheirFactor") {
  ArchitectureProfile profile = ideal();
  MathCoefficients& math = profile.gemm.math[static_cast<std::size_t>(DType::bf16)];
  math.misaligned_pace = 2;  // of 8 FLOP per clock and SM
  math.odd_pace = 1;
  math.transposed_a_factor = 0.5;
  GpuSpec gpu = slow_gpu();
  const auto time = [&](GemmShape shape) { return kernel_cost(kernel_of(shape, DType::bf16), gpu, profile).total.value; };
  const double whole = time({1, 128, 128, 32});
  CHECK(time({1, 128, 126, 32}) == doctest::Approx(whole * 4));        // n
  CHECK(time({1, 128, 128, 30}) == doctest::Approx(whole * 4));        // k: rows of a
  CHECK(time({1, 128, 127, 32}) == doctest::Approx(whole * 8));        // an odd number: not even four bytes
  CHECK(time({1, 127, 128, 32}) == doctest::Approx(whole));            // m is not contiguous in a ...
  CHECK(time({1, 126, 128, 32, true}) == doctest::Approx(whole * 8));  // ... unless it is stored transposed
  CHECK(time({1, 128, 128, 32, true}) == doctest::Approx(whole * 2));
  gpu.matrix.set(DType::bf16, {1.5});  // tensor cores that are slower than the pieces arrive lose nothing
  CHECK(time({1, 128, 126, 32}) == doctest::Approx(time({1, 128, 128, 32})));
  CHECK(time({1, 128, 127, 32}) == doctest::Approx(time({1, 128, 128, 32}) * 1.5));
}

TEST_CASE("PointwiseConvolutionIsTheMatrixProductItIs") {
  const ConvShape conv{.batch = 2, .in_channels = 64, .out_channels = 128, .in_h = 8, .in_w = 8, .out_h = 8, .out_w = 8};
  const GemmShape gemm{1, 2 * 8 * 8, 128, 64};
  CHECK(kernel_cost(kernel_of(conv, DType::bf16), slow_gpu(), ideal()).total.value ==
        doctest::Approx(kernel_cost(kernel_of(gemm, DType::bf16), slow_gpu(), ideal()).total.value));
}

TEST_CASE("WinogradHelpsVectorUnitsAndThreeByThreeOnly") {
  ArchitectureProfile profile = ideal();
  ConvShape conv{.batch = 2, .in_channels = 64, .out_channels = 128, .in_h = 8, .in_w = 8, .out_h = 8, .out_w = 8, .kernel_h = 3, .kernel_w = 3};
  const auto time = [&](DType math) { return kernel_cost(kernel_of(conv, math), slow_gpu(), profile).total.value; };
  const double fp32 = time(DType::fp32), bf16 = time(DType::bf16);
  profile.convolution.direction[0].winograd = 2;
  CHECK(time(DType::fp32) == doctest::Approx(fp32 / 2));
  CHECK(time(DType::bf16) == doctest::Approx(bf16));
  profile.convolution.winograd_work = 2 * 2 * 2 * 128 + 1;  // one more than there is: four 4x4 tiles of two images, 128 channels
  CHECK(time(DType::fp32) == doctest::Approx(fp32));
  profile.convolution.winograd_work = 1;
  conv.stride = 2;
  CHECK(time(DType::fp32) == doctest::Approx(fp32));
}

TEST_CASE("ManyChannelsAreTransformedByPassesOfTheirOwnWhereThatIsFaster") {
  ArchitectureProfile profile = ideal();
  ConvShape conv{.batch = 2, .in_channels = 64, .out_channels = 128, .in_h = 8, .in_w = 8, .out_h = 8, .out_w = 8, .kernel_h = 3, .kernel_w = 3};
  GpuSpec gpu = slow_gpu();
  gpu.memory_bandwidth = {1e30};
  const auto time = [&](DType math) { return kernel_cost(kernel_of(conv, math), gpu, profile).total.value; };
  profile.convolution.direction[0].vector = 0.01;  // so slow that nobody would take it
  const double direct = time(DType::fp32), tensor = time(DType::bf16);
  profile.convolution.unfused_factor = 1;
  CHECK(time(DType::fp32) < direct / 20);
  CHECK(time(DType::bf16) == doctest::Approx(tensor));
  gpu.memory_bandwidth = {1e-3};  // 36 numbers for each of eight tiles, and the filters; those and the images once more
  profile.convolution.direction[0].vector = 1e-6;
  const double moved = 4.0 * 36 * (8 * 64 + 8 * 128 + 64 * 128);
  CHECK(time(DType::fp32) * 1e-3 == doctest::Approx(moved + (moved + 4.0 * 2 * 64 * (64 + 128)) / 0.88).epsilon(0.01));
  profile.convolution.direction[0].vector = 0.01;
  gpu.memory_bandwidth = {1e30};
  conv.dilation = 2;
  CHECK(time(DType::fp32) == doctest::Approx(direct));
}

TEST_CASE("ThreeChannelsRunAtAShareOfTheVectorPeakWhateverTheArithmetic") {
  ArchitectureProfile profile = ideal();
  profile.convolution.few_channels_rate = 0.5;
  profile.convolution.direction[0].matrix = 0.25;
  ConvShape conv{.batch = 2, .in_channels = 3, .out_channels = 128, .in_h = 8, .in_w = 8, .out_h = 8, .out_w = 8, .kernel_h = 3, .kernel_w = 3};
  const auto time = [&](DType math) { return kernel_cost(kernel_of(conv, math), slow_gpu(), profile).total.value; };
  CHECK(time(DType::bf16) == doctest::Approx(2 * time(DType::fp32)));
  conv.in_channels = 32;
  CHECK(time(DType::bf16) == doctest::Approx(time(DType::fp32) / 8 * 4));
}

TEST_CASE("OnlyConvolutionsThatAreNoPlainProductPayForIndexing") {
  ArchitectureProfile profile = ideal();
  ConvShape conv{.batch = 2, .in_channels = 64, .out_channels = 128, .in_h = 8, .in_w = 8, .out_h = 8, .out_w = 8};
  const auto time = [&] { return kernel_cost(kernel_of(conv, DType::bf16), slow_gpu(), profile).total.value; };
  const double product = time();
  profile.convolution.indexing_overhead = {1000};
  CHECK(time() == doctest::Approx(product));
  conv.kernel_h = conv.kernel_w = 3;
  const double with = time();
  profile.convolution.indexing_overhead = {0};
  CHECK(with == doctest::Approx(time() + 1000));
}

TEST_CASE("StridedDataGradientsLoseOnTensorCores") {
  ArchitectureProfile profile = ideal();
  profile.convolution.strided_gradient_factor = 0.5;
  ConvShape conv{.direction = ConvDirection::data_gradient, .batch = 2, .in_channels = 64, .out_channels = 128,
                 .in_h = 8, .in_w = 8, .out_h = 4, .out_w = 4, .stride = 2};
  const auto time = [&](DType math) { return kernel_cost(kernel_of(conv, math), slow_gpu(), profile).total.value; };
  CHECK(time(DType::bf16) == doctest::Approx(time(DType::fp32) / 8 * 2));
  conv.direction = ConvDirection::forward;
  CHECK(time(DType::bf16) == doctest::Approx(time(DType::fp32) / 8));
}

TEST_CASE("NarrowGroupsShareABlockOfTensorCores") {
  ArchitectureProfile profile = ideal();
  ConvShape conv{.batch = 2, .in_channels = 64, .out_channels = 64, .in_h = 8, .in_w = 8, .out_h = 8, .out_w = 8, .kernel_h = 3, .kernel_w = 3, .groups = 16};
  const auto time = [&](DType math) { return kernel_cost(kernel_of(conv, math), slow_gpu(), profile).total.value; };
  const double four = time(DType::bf16);
  conv.groups = 4;  // sixteen channels a group: as wide as four groups of four together
  CHECK(time(DType::bf16) == doctest::Approx(four));
  conv.groups = 1;
  const double dense = time(DType::bf16);
  conv.groups = 4;
  profile.convolution.direction[0].grouped_matrix = 0.5;
  CHECK(time(DType::bf16) == doctest::Approx(2 * four));
  conv.groups = 1;
  CHECK(time(DType::bf16) == doctest::Approx(dense));
}

TEST_CASE("DepthwiseConvolutionGainsNothingFromTensorCores") {
  ConvShape conv{.batch = 1, .in_channels = 32, .out_channels = 32, .in_h = 4, .in_w = 4, .out_h = 4, .out_w = 4, .kernel_h = 3, .kernel_w = 3, .groups = 32};
  Kernel kernel = kernel_of(conv, DType::bf16, 1, 1);
  kernel.flops = {1000};
  CHECK(kernel_cost(kernel, slow_gpu(), ideal()).total.value == doctest::Approx(1000));
  conv.stride = 2;  // the same work, but each tap of each input is tried
  conv.direction = ConvDirection::data_gradient;
  kernel.shape = conv;
  CHECK(kernel_cost(kernel, slow_gpu(), ideal()).total.value == doctest::Approx(4000));
}

TEST_CASE("DepthwiseConvolutionsAreCostedByTheKernelThatRunsThem") {
  ArchitectureProfile profile = ideal();
  for (std::size_t i = 0; i < profile.depthwise.size(); ++i)
    for (DepthwiseCoefficients& one : profile.depthwise[i]) one.flops_per_clock = 1 / static_cast<double>(1 << i);
  ConvShape conv{.batch = 1, .in_channels = 32, .out_channels = 32, .in_h = 4, .in_w = 4, .out_h = 4, .out_w = 4, .kernel_h = 3, .kernel_w = 3, .groups = 32};
  const auto slower = [&](DType dtype) {
    Kernel kernel = kernel_of(conv, dtype, 1, 1);
    kernel.flops = {1000};
    return kernel_cost(kernel, slow_gpu(), profile).total.value / 1000;
  };
  CHECK(slower(DType::fp16) == doctest::Approx(2));
  conv.native = true;
  CHECK(slower(DType::bf16) == doctest::Approx(1));
  conv.native = false;
  conv.stride = 2, conv.direction = ConvDirection::data_gradient;
  CHECK(slower(DType::fp16) == doctest::Approx(4));  // as PyTorch's own: four times the taps
  conv.stride = 1, conv.channels_last = true;
  CHECK(slower(DType::fp32) == doctest::Approx(4));
  CHECK(slower(DType::fp16) == doctest::Approx(8));
  CHECK(slower(DType::bf16) == doctest::Approx(16));
}

TEST_CASE("FourierTransformsTakeWhatTheirKernelsTookOnAnH200") {  // data/measured/2026-11-16-h200-conv and -conv-2, choices.jsonl.gz
  GpuSpec gpu = slow_gpu(132);
  gpu.vector.set(DType::fp32, {66.9e12});
  gpu.memory_bandwidth = {4.8e12};
  const auto us = [&](ConvDirection direction, std::int64_t batch, std::int64_t in, std::int64_t out, std::int64_t size) {
    ConvShape conv{direction, batch, in, out, size, size, size, size, 3, 3};
    conv.by_fourier = true;
    return kernel_cost(kernel_of(conv, DType::fp32, 1, 1), gpu, ideal()).total.value * 1e6;
  };
  CHECK(us(ConvDirection::forward, 64, 320, 320, 12) == doctest::Approx(320).epsilon(0.15));        // squares of 16
  CHECK(us(ConvDirection::forward, 32, 256, 512, 28) == doctest::Approx(764).epsilon(0.15));        // of 32
  CHECK(us(ConvDirection::forward, 64, 128, 128, 32) == doctest::Approx(1267).epsilon(0.15));       // of 64: number by number
  CHECK(us(ConvDirection::data_gradient, 8, 256, 256, 64) == doctest::Approx(2306).epsilon(0.15));  // nine tiles, of 32 images a quarter
  CHECK(us(ConvDirection::data_gradient, 32, 64, 64, 224) == doctest::Approx(3252).epsilon(0.15));  // 64 tiles
}

TEST_CASE("WideDepthwiseFiltersHaveNoKernelOfTheirOwnForFp32WeightGradientsInNhwc") {
  ConvShape conv{.direction = ConvDirection::weight_gradient, .batch = 1, .in_channels = 32, .out_channels = 32, .in_h = 4, .in_w = 4,
                 .out_h = 4, .out_w = 4, .kernel_h = 7, .kernel_w = 7, .groups = 32, .channels_last = true};
  const auto time = [&](DType dtype) {
    Kernel kernel = kernel_of(conv, dtype, 1, 1);
    kernel.flops = {1000};
    return kernel_cost(kernel, slow_gpu(), ideal()).total.value;
  };
  CHECK(time(DType::fp32) == doctest::Approx(28'000));
  CHECK(time(DType::bf16) == doctest::Approx(1000));
  conv.kernel_h = conv.kernel_w = 5;
  CHECK(time(DType::fp32) == doctest::Approx(1000));
}

TEST_CASE("NarrowTypesGainLittleWhereSmsPayPerElement") {
  ArchitectureProfile profile = ideal();
  MemoryCoefficients& permute = profile.memory[static_cast<std::size_t>(MemoryPattern::permute)];
  permute.accesses_per_clock = 1, permute.bytes_per_clock = 8;
  const auto time = [&](DType dtype, double bandwidth) {
    GpuSpec gpu = slow_gpu();
    gpu.memory_bandwidth = {bandwidth};
    const std::int64_t bytes = 100 * bits_of(dtype) / 8;
    return kernel_cost(kernel_of(MemoryShape{MemoryPattern::permute}, dtype, bytes, bytes), gpu, profile).total.value;
  };
  CHECK(time(DType::fp32, 1e30) == doctest::Approx(200 + 800 / 8));
  CHECK(time(DType::bf16, 1e30) == doctest::Approx(200 + 400 / 8));
  CHECK(time(DType::fp32, 1) == doctest::Approx(800));  // little bandwidth: bytes are all that counts
  CHECK(time(DType::bf16, 1) == doctest::Approx(400));
}

TEST_CASE("ShortRowsCostWhatTheirNumberSays") {
  ArchitectureProfile profile = ideal();
  profile.memory[static_cast<std::size_t>(MemoryPattern::reduction)].row_clocks = 50;
  GpuSpec gpu = slow_gpu(4);
  gpu.memory_bandwidth = {1e30};
  const Kernel kernel = kernel_of(MemoryShape{MemoryPattern::reduction, 1000, 128}, DType::fp32, 1000 * 128 * 4, 4000);
  CHECK(kernel_cost(kernel, gpu, profile).total.value == doctest::Approx(1000 * 50 / 4));
}

TEST_CASE("ParameterGradientsOfANarrowLayerNormLeaveSmsIdle") {
  ArchitectureProfile profile = ideal();
  profile.memory[static_cast<std::size_t>(MemoryPattern::norm_parameters)].accesses_per_clock = 1;
  const auto time = [&](std::int64_t columns, std::int64_t rows) {
    GpuSpec gpu = slow_gpu(8);
    gpu.memory_bandwidth = {1e30};
    return kernel_cost(kernel_of(MemoryShape{MemoryPattern::norm_parameters, columns, rows}, DType::fp32, columns * rows * 4, 0), gpu, profile).total.value;
  };
  CHECK(time(256, 1000) == doctest::Approx(256 * 1000 / 8));
  CHECK(time(64, 1000) == doctest::Approx(64 * 1000 / 2));       // two blocks of 32 columns
  CHECK(time(64, 100000) == doctest::Approx(64 * 100000 / 8));   // so many rows are split as well
}

TEST_CASE("FusedAttentionCountsTwoProductsForwardAndFiveBackward") {
  AttentionShape shape{.batch = 1, .heads = 1, .kv_heads = 1, .q_len = 128, .kv_len = 128, .head_dim = 128, .value_dim = 128};
  const double forward = kernel_cost(kernel_of(shape, DType::bf16), slow_gpu(), ideal()).total.value;
  CHECK(forward == doctest::Approx(4.0 * 128 * 128 * 128 / 8));
  shape.backward = true;
  CHECK(kernel_cost(kernel_of(shape, DType::bf16), slow_gpu(), ideal()).total.value == doctest::Approx(forward * 2.5));
  CHECK(kernel_cost(kernel_of(shape, DType::fp32), slow_gpu(), ideal()).total.value == doctest::Approx(forward * 2.5 * 8));
}

TEST_CASE("AttentionIsCostedByItsBackend") {
  ArchitectureProfile profile = ideal();
  profile.attention.cudnn[0].efficiency = 0.5;
  profile.attention.memory_efficient_16bit[0].efficiency = 0.25;
  profile.attention.memory_efficient[0].efficiency = 0.125;
  AttentionShape shape{.batch = 1, .heads = 1, .kv_heads = 1, .q_len = 128, .kv_len = 128, .head_dim = 128, .value_dim = 128};
  const double flops = 4.0 * 128 * 128 * 128;
  const auto time = [&](AttentionBackend backend, DType math) {
    shape.backend = backend;
    return kernel_cost(kernel_of(shape, math), slow_gpu(), profile).total.value;
  };
  CHECK(time(AttentionBackend::flash, DType::bf16) == doctest::Approx(flops / 8));
  CHECK(time(AttentionBackend::cudnn, DType::bf16) == doctest::Approx(flops / 8 * 2));
  CHECK(time(AttentionBackend::memory_efficient, DType::bf16) == doctest::Approx(flops / 8 * 4));
  CHECK(time(AttentionBackend::memory_efficient, DType::fp32) == doctest::Approx(flops * 8));
}

TEST_CASE("CausalAttentionSkipsAlmostHalf") {
  AttentionShape shape{.batch = 1, .heads = 1, .kv_heads = 1, .q_len = 1024, .kv_len = 1024, .head_dim = 128, .value_dim = 128};
  const double full = kernel_cost(kernel_of(shape, DType::bf16), slow_gpu(), ideal()).total.value;
  shape.causal = true;
  CHECK(kernel_cost(kernel_of(shape, DType::bf16), slow_gpu(), ideal()).total.value == doctest::Approx(full * (1024 + 128) / 2048));
}

TEST_CASE("StreamingKernelIsFloorPlusBytesOverBandwidth") {
  ArchitectureProfile profile = ideal();
  MemoryCoefficients& pointwise = profile.memory[static_cast<std::size_t>(MemoryPattern::pointwise)];
  pointwise.launch_floor = {5};
  pointwise.efficiency = 0.5;
  Kernel kernel = kernel_of(MemoryShape{MemoryPattern::pointwise, 1, 20}, DType::fp32, 80, 80);
  CHECK(kernel_cost(kernel, slow_gpu(), profile).total.value == doctest::Approx(5 + 320));
  kernel.launches = 3;  // the bytes are those of all three
  CHECK(kernel_cost(kernel, slow_gpu(), profile).total.value == doctest::Approx(15 + 320));
  kernel.read = kernel.written = {1};
  CHECK(kernel_cost(kernel, slow_gpu(), profile).bound == Bound::launch);
}

TEST_CASE("NarrowElementsAreBoundByHowManyNotHowWide") {
  ArchitectureProfile profile = ideal();
  profile.memory[static_cast<std::size_t>(MemoryPattern::transpose)].accesses_per_clock = 0.125;
  const auto time = [&](DType dtype, std::int64_t bytes) {
    return kernel_cost(kernel_of(MemoryShape{MemoryPattern::transpose}, dtype, bytes, bytes), slow_gpu(), profile).total.value;
  };
  CHECK(time(DType::bf16, 2000) == doctest::Approx(16000));  // 2000 accesses
  CHECK(time(DType::fp32, 4000) == doctest::Approx(16000));
}

TEST_CASE("CastToAWiderTypeHasCoefficientsOfItsOwn") {
  ArchitectureProfile profile = ideal();
  profile.cast_widen.efficiency = 0.5;
  Kernel kernel = kernel_of(MemoryShape{MemoryPattern::cast}, DType::fp32, 400, 200);
  kernel.output = DType::bf16;
  CHECK(kernel_cost(kernel, slow_gpu(), profile).total.value == doctest::Approx(600));
  std::swap(kernel.input, kernel.output);
  CHECK(kernel_cost(kernel, slow_gpu(), profile).total.value == doctest::Approx(1200));
}

TEST_CASE("AddingTwoTypesHasCoefficientsOfItsOwn") {
  ArchitectureProfile profile = ideal();
  profile.pointwise_mixed.efficiency = 0.5;
  profile.pointwise_mixed.accesses_per_clock = 1e30;
  Kernel kernel = kernel_of(MemoryShape{MemoryPattern::pointwise}, DType::fp32, 600, 400);
  CHECK(kernel_cost(kernel, slow_gpu(), profile).total.value == doctest::Approx(1000));
  kernel.input = DType::bf16;
  CHECK(kernel_cost(kernel, slow_gpu(), profile).total.value == doctest::Approx(2000));
}

TEST_CASE("BatchNormWithFewChannelsLeavesSmsIdle") {
  ArchitectureProfile profile = ideal();
  profile.batch_norm[0][0][0].block_accesses_per_clock = 1e30;
  GpuSpec gpu = slow_gpu(8);
  gpu.memory_bandwidth = {1e12};
  MemoryShape shape{MemoryPattern::batch_norm_forward, 1, 100000};
  const auto time = [&](std::int64_t channels) {
    shape.rows = channels;
    return kernel_cost(kernel_of(shape, DType::fp32, 3200, 0), gpu, profile).total.value;
  };
  CHECK(time(2) == doctest::Approx(400));
  CHECK(time(8) == doctest::Approx(100));
  CHECK(time(64) == doctest::Approx(100));
  profile.batch_norm[0][0][0].block_overhead = {10};  // of each block; an SM runs eight of 64
  CHECK(time(64) == doctest::Approx(180));
  profile.batch_norm[0][0][0].block_overhead = {0};
  profile.batch_norm[0][0][0].resident_gain = 4;  // once a channel fits
  CHECK(time(8) == doctest::Approx(100));
  shape.row_length = 1000;
  CHECK(time(8) == doctest::Approx(25));
  shape.channels_last = true;  // no blocks to wait for
  CHECK(time(2) == doctest::Approx(100));
}

TEST_CASE("NativeBatchNormHasCoefficientsOfItsOwn") {
  ArchitectureProfile profile = ideal();
  profile.batch_norm[1][1][1].stream.efficiency = 0.5;
  profile.batch_norm[1][1][1].stream.accesses_per_clock = 1e30;
  profile.batch_norm[0][1][1].stream.accesses_per_clock = 1e30;
  const auto time = [&](MemoryPattern pattern) {
    return kernel_cost(kernel_of(MemoryShape{pattern, 4, 100, true}, DType::bf16, 600, 200), slow_gpu(), profile).total.value;
  };
  CHECK(time(MemoryPattern::batch_norm_backward) == doctest::Approx(800));
  CHECK(time(MemoryPattern::native_batch_norm_backward) == doctest::Approx(1600));
}

TEST_CASE("OneRankCommunicatesNothing") {
  CHECK(collective_cost({{1000}, 1}, ClusterSpec{}, slow_gpu()).total.value == 0);
}

TEST_CASE("RingMovesTwiceTheMessageLessOneShare") {
  ClusterSpec cluster;
  cluster.gpus = cluster.gpus_per_node = 4;
  CHECK(collective_cost({{8}, 4}, cluster, slow_gpu()).total.value == doctest::Approx(2.0 * 3 / 4 * 8));
  cluster.intra_bandwidth = {4};  // the system's links, where it has its own
  CHECK(collective_cost({{8}, 4}, cluster, slow_gpu()).total.value == doctest::Approx(3));
  cluster.intra_latency = {1};
  CHECK(collective_cost({{8}, 4}, cluster, slow_gpu()).total.value == doctest::Approx(3 + 6));
}

TEST_CASE("GatherAndScatterAreEachHalfAnAllReduce") {
  ClusterSpec cluster;
  cluster.gpus = cluster.gpus_per_node = 4;
  cluster.intra_latency = {1};
  const auto time = [&](Collective kind) { return collective_cost({{8}, 4, kind}, cluster, slow_gpu()).total.value; };
  CHECK(time(Collective::all_gather) == doctest::Approx(3.0 / 4 * 8 + 3));
  CHECK(time(Collective::reduce_scatter) == time(Collective::all_gather));
  CHECK(time(Collective::all_reduce) == doctest::Approx(2 * time(Collective::all_gather)));
  CHECK(collective_cost({{8}, 1, Collective::all_gather}, cluster, slow_gpu()).total.value == 0);
}

TEST_CASE("GatherAndScatterStepAroundTheWholeRingAcrossNodes") {
  ClusterSpec cluster;
  cluster.gpus = 8;
  cluster.gpus_per_node = 4;
  cluster.intra_bandwidth = {1e9};
  cluster.intra_latency = {1};
  cluster.network.port_bandwidth = {1};
  cluster.network.efficiency = 1;
  cluster.network.latency = {10};
  // 7/8 of the message out of each node's one port; six steps inside the nodes and one between them.
  CHECK(collective_cost({{80}, 8, Collective::reduce_scatter}, cluster, slow_gpu()).total.value == doctest::Approx(70 + 6 + 10));
}

TEST_CASE("CopiesOfARowCrossToANodeOnce") {
  ClusterSpec cluster;
  cluster.gpus = 8;
  cluster.gpus_per_node = 4;
  cluster.intra_bandwidth = {1e9};
  cluster.network.port_bandwidth = {1};
  cluster.network.efficiency = 1;
  const auto time = [&](int copies) { return collective_cost({{80}, 8, Collective::all_to_all, 1, copies}, cluster, slow_gpu()).total.value; };
  CHECK(time(0) == doctest::Approx(4 * 40));           // four ranks, each with half of its bytes for the other node
  CHECK(time(1) == doctest::Approx(time(0)));          // one copy: nothing to save
  CHECK(time(2) == doctest::Approx(4 * 40 * 0.75));    // of 40 rows' bytes each goes to 2 x (1 - 1/4) nodes, half of them the other
  CHECK(time(40) == doctest::Approx(4 * 2));           // rows of 2 bytes, each of which the other node wants once
  cluster.gpus_per_node = 8;
  CHECK(collective_cost({{1 << 30}, 8, Collective::all_to_all, 1, 8}, cluster, slow_gpu()).total < collective_cost({{1 << 30}, 8, Collective::all_to_all}, cluster, slow_gpu()).total);
}

TEST_CASE("RanksThatLieApartShareTheNodesPorts") {
  ClusterSpec cluster;
  cluster.gpus = 16;
  cluster.gpus_per_node = 4;
  cluster.intra_bandwidth = {1e9};
  cluster.network.port_bandwidth = {1};
  cluster.network.efficiency = 1;
  const auto time = [&](int ranks, Collective kind, int stride) { return collective_cost({{80}, ranks, kind, stride}, cluster, slow_gpu()).total.value; };
  CHECK(time(4, Collective::all_gather, 1) < 1);                             // inside a node
  CHECK(time(4, Collective::all_gather, 4) == doctest::Approx(60 * 4));      // one rank on each node, four groups at once
  CHECK(time(4, Collective::all_gather, 2) == doctest::Approx(60 * 2));      // two ranks on each of two nodes, two groups
  CHECK(time(16, Collective::all_to_all, 1) == doctest::Approx(4 * 60));     // four ranks, each with 12/16 for other nodes
  CHECK(time(4, Collective::all_to_all, 4) == doctest::Approx(4 * 60));      // the same bytes, in four groups
  CHECK(time(4, Collective::send_recv, 1) < 1);
  CHECK(time(4, Collective::send_recv, 4) == doctest::Approx(80 * 4));       // four ranks of a node to the next node's
  CHECK(time(8, Collective::send_recv, 1) == doctest::Approx(80));           // a chain that leaves its node at one rank
  cluster.nics_per_node = 4;
  CHECK(time(4, Collective::send_recv, 4) == doctest::Approx(80));           // one port each
  CHECK(time(8, Collective::send_recv, 1) == doctest::Approx(80));           // and no more for one message
}

TEST_CASE("OnlyAnAllReduceUsesTheSwitchThatReduces") {
  ClusterSpec cluster;
  cluster.collectives.link.choice.in_switch_efficiency = 0.9;
  cluster.collectives.link.in_switch.efficiency = 100;
  cluster.gpus = cluster.gpus_per_node = 8;
  cluster.intra_kind = "nvswitch";
  const auto time = [&](Collective kind) { return collective_cost({{8}, 8, kind}, cluster, slow_gpu()).total.value; };
  CHECK(time(Collective::all_reduce) < 1);
  CHECK(time(Collective::all_gather) == doctest::Approx(7));
}

TEST_CASE("CardsOnABusShareIt") {
  ClusterSpec cluster;
  cluster.collectives.link.contention = 1;
  cluster.collectives.link.fitted = true;
  for (TransferCoefficients& one : cluster.collectives.link.ring) one.efficiency = 0.5;
  cluster.gpus = cluster.gpus_per_node = 4;
  GpuSpec gpu = slow_gpu();
  gpu.link_bandwidth = {8};
  gpu.pcie_bandwidth = {2};
  cluster.intra_kind = "pcie";
  const auto cost = [&](int ranks) { return collective_cost({{8}, ranks}, cluster, gpu); };
  CHECK(cost(4).total.value == doctest::Approx(12.0 / 2 / 0.5 * 2));  // its NVLink lies idle; four share what two have
  CHECK(cost(2).total.value == doctest::Approx(8.0 / 2 / 0.5));
  CHECK(cost(2).source == CostSource::fitted);
  CHECK(cost(4).source == CostSource::scaled);
}

TEST_CASE("SwitchThatReducesIsUsedFromFiveRanksOn") {
  ClusterSpec cluster;
  cluster.gpus = cluster.gpus_per_node = 8;
  const auto time = [&](int ranks) { return collective_cost({{8}, ranks}, cluster, slow_gpu()).total.value; };
  cluster.intra_kind = "nvswitch";
  CHECK(time(8) == doctest::Approx(14));  // of a generation that cannot: the ring
  cluster.collectives.link.choice.in_switch_efficiency = 0.9;
  CHECK(time(8) == doctest::Approx(9));   // the message once, and an eighth of it
  CHECK(time(4) == doctest::Approx(12));
  cluster.intra_kind = "nvlink";
  CHECK(time(8) == doctest::Approx(14));  // links without a switch
}

TEST_CASE("AFewOfTheGpusThatAreWiredToEachOtherHaveFewerLinks") {
  ClusterSpec cluster;
  cluster.gpus = cluster.gpus_per_node = 8;
  cluster.intra_kind = "nvlink";
  cluster.intra_bandwidth = {150e9};
  cluster.intra_among = {{2, {25e9}}, {4, {100e9}}};  // a DGX-1's hybrid cube mesh
  const auto link = [&](int ranks, int stride = 1) {
    CollectiveShape shape{{1 << 20}, ranks, Collective::all_reduce};
    shape.stride = stride;
    return collective_setting(shape, cluster, slow_gpu()).link.value;
  };
  CHECK(link(2) == 25e9);
  CHECK(link(3) == 100e9);
  CHECK(link(4) == 100e9);
  CHECK(link(8) == 150e9);
  CHECK(link(16) == 150e9);  // two nodes, all eight of each
}

TEST_CASE("NcclTakesFlagsForShortMessagesAndChunksForLongOnes") {
  ClusterSpec cluster;
  cluster.gpus = cluster.gpus_per_node = 8;
  cluster.intra_kind = "nvswitch";
  cluster.intra_bandwidth = {300e9};
  ChoiceFigures ampere;
  ampere.ll_bandwidth = {87.7e9, 22.5e9, 19e9};
  const auto choice = [&](int ranks, double bytes, Collective kind = Collective::all_reduce) {
    const CollectiveShape shape{{static_cast<std::int64_t>(bytes)}, ranks, kind};
    return nccl_choice(shape, collective_setting(shape, cluster, slow_gpu()), ampere);
  };
  using A = CollectiveAlgorithm;
  // Two A100: timings step from 19 to 41 us between 512 KiB and 1 MiB, where NCCL leaves LL.
  CHECK(choice(2, 524288) == CollectiveChoice{A::ring, Protocol::ll});
  CHECK(choice(2, 1048576) == CollectiveChoice{A::ring, Protocol::simple});
  CHECK(choice(4, 4194304) == CollectiveChoice{A::ring, Protocol::ll128});
  CHECK(choice(4, 67108864) == CollectiveChoice{A::ring, Protocol::simple});
  CHECK(choice(8, 131072, Collective::all_to_all) == CollectiveChoice{A::direct, Protocol::ll});   // 16 KiB to each
  CHECK(choice(8, 262144, Collective::all_to_all) == CollectiveChoice{A::direct, Protocol::simple});
  // Many nodes, a short message: up and down a tree, not around the ring.
  cluster.network.port_bandwidth = {25e9};
  cluster.nics_per_node = 8;
  cluster.gpus = 1024;
  CHECK(choice(1024, 262144).algorithm == A::tree);
  CHECK(choice(1024, 64e9).algorithm == A::ring);  // and a very long one around it
}

TEST_CASE("LatencyAndWireJoinByTheirExponent") {
  ClusterSpec cluster;
  cluster.gpus = cluster.gpus_per_node = 2;
  for (TransferCoefficients& one : cluster.collectives.link.ring) one.base = {9}, one.join = 0.5;
  CHECK(collective_cost({{16}, 2}, cluster, slow_gpu()).total.value == doctest::Approx(49));  // (3 + 4) squared
  for (TransferCoefficients& one : cluster.collectives.link.ring) one.base = {12}, one.join = 2;
  CHECK(collective_cost({{16}, 2}, cluster, slow_gpu()).total.value == doctest::Approx(20));
  for (TransferCoefficients& one : cluster.collectives.link.ring) one.base = {}, one.join = 1;
  cluster.collectives.link.ring_own_share = 0.5;
  CHECK(collective_cost({{16}, 2}, cluster, slow_gpu()).total.value == doctest::Approx(20));  // half of each rank's half on top
}

TEST_CASE("UplinksOfOversubscribedSwitchesAreShared") {
  ClusterSpec cluster;
  cluster.gpus = 8;
  cluster.gpus_per_node = 1;
  cluster.network.port_bandwidth = {1};
  cluster.network.efficiency = 1;
  const auto time = [&](int ranks, Collective kind) { return collective_cost({{80}, ranks, kind}, cluster, slow_gpu()).total.value; };
  const double free_gather = time(8, Collective::all_gather), free_exchange = time(8, Collective::all_to_all);
  cluster.network.oversubscription = 4;
  CHECK(time(8, Collective::all_gather) == doctest::Approx(4 * free_gather));  // every hop leaves its switch
  cluster.network.nodes_per_switch = 2;
  CHECK(time(2, Collective::all_gather) == doctest::Approx(40));               // below one switch
  CHECK(time(8, Collective::all_gather) == doctest::Approx(2 * free_gather));  // one hop in two leaves it
  CHECK(time(8, Collective::all_to_all) == doctest::Approx(4 * free_exchange));
}

TEST_CASE("MessagesBetweenTwoGpusMayUsePortsThatRingsLeaveIdle") {
  ClusterSpec cluster;
  cluster.gpus = 8;
  cluster.gpus_per_node = 1;
  cluster.network.port_bandwidth = {1};
  cluster.network.efficiency = 0.25;
  const auto time = [&](Collective kind) { return collective_cost({{80}, 2, kind}, cluster, slow_gpu()).total.value; };
  const double ring = time(Collective::all_gather), message = time(Collective::send_recv), exchange = time(Collective::all_to_all);
  cluster.network.direct_efficiency = 0.5;
  CHECK(time(Collective::all_gather) == doctest::Approx(ring));
  CHECK(time(Collective::send_recv) == doctest::Approx(message / 2));
  CHECK(time(Collective::all_to_all) == doctest::Approx(exchange / 2));
}

TEST_CASE("ACollectiveHoldsAnSmPerChannel") {
  ClusterSpec cluster;
  cluster.gpus = cluster.gpus_per_node = 2;
  cluster.collectives.link.choice.channels = 8;
  GpuSpec gpu = slow_gpu();
  gpu.sms = 32;
  gpu.memory_bandwidth = {10};
  gpu.link_bandwidth = {1};
  const KernelCost cost = collective_cost({{1 << 20}, 2}, cluster, gpu);
  CHECK(cost.sm_share == doctest::Approx(0.25));
  CHECK(cost.bandwidth_share == doctest::Approx(0.2));  // a byte a second, read and written, of ten
  CHECK(collective_cost({{1000}, 2}, cluster, gpu).sm_share == doctest::Approx(1.0 / 32));  // too short for more than one
}

TEST_CASE("ReducingSwitchSendsOnlyTheNodesSumsAcross") {
  ClusterSpec cluster;
  cluster.gpus = 16;
  cluster.gpus_per_node = 8;
  cluster.intra_kind = "nvswitch";
  cluster.intra_bandwidth = {1e6};
  cluster.network.port_bandwidth = {1};
  cluster.network.efficiency = 1;
  const auto cost = [&] { return collective_cost({{16}, 16}, cluster, slow_gpu()); };
  CHECK(cost().total.value == doctest::Approx(30));  // a flat ring: 2 * 15/16 of the message
  cluster.collectives.link.choice.in_switch_efficiency = 0.9;
  CHECK(cost().total.value == doctest::Approx(16));  // a tree of two nodes: 2 * 1/2
  CHECK(cost().source == CostSource::estimate);
}

TEST_CASE("SlowestLegSetsThePaceAcrossNodes") {
  ClusterSpec cluster;
  cluster.gpus = 8;
  cluster.gpus_per_node = 4;
  cluster.intra_bandwidth = {1e6};
  cluster.nics_per_node = 2;
  cluster.network.port_bandwidth = {1};
  cluster.network.efficiency = 0.5;
  cluster.network.latency = {3};
  // Eight ranks in a ring: 2 * 7/8 of the message out of each node over two half-efficient ports; latency of a tree one level high.
  const KernelCost cost = collective_cost({{100}, 8}, cluster, slow_gpu());
  CHECK(cost.total.value == doctest::Approx(175 + 6));
  CHECK(cost.bound == Bound::network);
}

}  // namespace precog
