#include "kernel/library_rules.h"

#include <doctest/doctest.h>

#include "support.h"

using namespace precog;
using namespace precog::testing;

// Recorded on an H200: a bias gradient of 1,024 rows is preceded by a memset, of 512 rows it is not.
// 788 rows of 768 are summed by one block each four columns wide, and take 2.5 times as long as 1,576 (data/measured, reduce_strided).
TEST_CASE("ManyRowsAreSharedAmongBlocksFewAreWalked") {
  const ReductionGrid few = reduction_grid(768, 788, true, 132), many = reduction_grid(768, 1576, true, 132);
  CHECK(few.sharing == 1);
  CHECK(few.values == 197);
  CHECK(many.sharing == 25);
  CHECK(many.values == 16);
}

TEST_CASE("LongSumsOfFewColumnsMeetAcrossBlocks") {
  CHECK(sums_across_blocks(768, 1024, true, 132));
  CHECK_FALSE(sums_across_blocks(768, 512, true, 132));
  CHECK(sums_across_blocks(3072, 8192, true, 132));
  CHECK_FALSE(sums_across_blocks(50265, 8192, true, 132));  // results enough for every SM
  CHECK_FALSE(sums_across_blocks(8192, 768, false, 132));   // a row each
  CHECK(sums_across_blocks(1, 1 << 20, false, 132));
  CHECK_FALSE(sums_across_blocks(0, 0, true, 132));
}

TEST_CASE("WhetherTheInnermostAxisStays") {
  CHECK(keeps_innermost(Shape{8, 128, 768}, Shape{768}));
  CHECK(keeps_innermost(Shape{8, 128, 768}, Shape{1, 1, 768}));
  CHECK_FALSE(keeps_innermost(Shape{8, 128, 768}, Shape{8, 128, 1}));
  CHECK_FALSE(keeps_innermost(Shape{16, 224, 56, 56}, Shape{16, 224}));
  CHECK_FALSE(keeps_innermost(Shape{16}, Shape{}));
}

TEST_CASE("SplitSumsAreAddedByAKernelOfTheirOwn") {
  GpuSpec on = gpu("9.0");
  on.sms = 132;
  CHECK(product_helpers({1, 768, 768, 4704, true}, DType::tf32, on).reduces);
  CHECK_FALSE(product_helpers({1, 3072, 768, 8192, true}, DType::tf32, on).reduces);  // tiles enough
  CHECK_FALSE(product_helpers({1, 768, 768, 8192, true}, DType::bf16, on).reduces);
  CHECK(product_helpers({1, 768, 768, 12000, true}, DType::bf16, on).reduces);
  CHECK(product_helpers({1, 64, 512, 8192}, DType::bf16, on).reduces);  // not of weights only
  CHECK(product_helpers({1, 384, 512, 512}, DType::fp32, on, true).reduces);
  GemmShape biased{1, 384, 512, 512};
  biased.bias = true;
  CHECK_FALSE(product_helpers(biased, DType::fp32, on, true).reduces);
  CHECK_FALSE(product_helpers({1, 1024, 768, 768}, DType::bf16, on).clears);
}

// cuBLAS on an H200 (data/measured/2026-11-16-h200-products).
TEST_CASE("BatchesOfAlignedProductsTakeTheirTilesFromACounter") {
  GpuSpec on = gpu("9.0");
  on.sms = 132;
  CHECK(product_helpers({96, 512, 512, 64}, DType::bf16, on).clears);
  CHECK(product_helpers({192, 128, 128, 64}, DType::bf16, on).clears);  // short sums of many
  CHECK_FALSE(product_helpers({96, 128, 128, 64}, DType::bf16, on).clears);
  CHECK_FALSE(product_helpers({96, 516, 512, 64}, DType::bf16, on).clears);  // rows that no wide load reads
  CHECK(product_helpers({96, 768, 768, 128}, DType::tf32, on).clears);
  CHECK_FALSE(product_helpers({96, 128, 128, 64}, DType::tf32, on).clears);  // too little work
  CHECK_FALSE(product_helpers({96, 768, 768, 128}, DType::fp32, on).clears);
}

// Recorded on an H200 of 132 SMs: ViT-B's weight gradients over 12,608 rows, Whisper's over 12,000.
TEST_CASE("LongSumsAreSplitWhereTilesFitTheSmsBadly") {
  GpuSpec on = gpu("9.0");
  on.sms = 132;
  CHECK(product_helpers({1, 3072, 768, 12608, true}, DType::bf16, on).reduces);
  CHECK_FALSE(product_helpers({1, 3072, 768, 12000, true}, DType::bf16, on).reduces);
  CHECK_FALSE(product_helpers({1, 2304, 768, 12608, true}, DType::bf16, on).reduces);  // 108 tiles
}

// Recorded on an H200: StableLM's 2048 x 5632 with a memset each, Qwen3's 3072 x 3072 and ViT-B's 12608 x 768 (256 and 264 tiles of 192 x 192) without.
TEST_CASE("ACounterHandsOutTilesFromTwoWavesOn") {
  GpuSpec on = gpu("9.0");
  on.sms = 132;
  for (const bool turned : {false, true}) {
    CHECK(product_helpers({1, 2048, 5632, 2048, turned}, DType::bf16, on).clears);
    CHECK_FALSE(product_helpers({1, 3072, 3072, 1024, turned}, DType::bf16, on).clears);
  }
  CHECK_FALSE(product_helpers({1, 12608, 768, 768}, DType::fp16, on).clears);
  CHECK(product_helpers({1, 16384, 768, 768}, DType::fp16, on).clears);
}

TEST_CASE("PointwiseConvolutionsInNhwcAreOneProduct") {
  ConvShape shape;
  shape.batch = 128;
  shape.in_channels = 1024;
  shape.out_channels = 256;
  shape.in_h = shape.in_w = shape.out_h = shape.out_w = 14;
  shape.channels_last = true;
  CHECK_FALSE(conv_helpers(shape, DType::bf16, gpu("9.0")).clears);
  shape.direction = ConvDirection::weight_gradient;
  CHECK(conv_helpers(shape, DType::bf16, gpu("9.0")).sums);
  shape.batch = 2;
  CHECK_FALSE(conv_helpers(shape, DType::bf16, gpu("9.0")).sums);
}

TEST_CASE("ASortTakesAPassForEachEightBits") {
  CHECK(sort_launches(64).kernels == 10);
  CHECK(sort_launches(64).memsets == 10);
  CHECK(sort_launches(7).kernels == 3);
  CHECK_FALSE(several_blocks_pick(1, 17'564));
  CHECK(several_blocks_pick(1, 21'163));
  CHECK_FALSE(several_blocks_pick(144, 3136));
  CHECK(several_blocks_pick(276, 3243));
}

// cuDNN on an H200 (data/measured/2026-11-16-h200-conv-3, family grouped).
TEST_CASE("GroupsThatNoKernelTakesTogetherAreOneCallEach") {
  const GpuSpec on = gpu("9.0");
  ConvShape shape;
  shape.batch = 32, shape.in_channels = shape.out_channels = 256, shape.groups = 8;
  shape.in_h = shape.in_w = shape.out_h = shape.out_w = 14;
  shape.kernel_h = shape.kernel_w = 3;
  CHECK(conv_helpers(shape, DType::bf16, on).loops == 1);  // 32 channels each
  CHECK(conv_helpers(shape, DType::fp32, on).loops == 8);
  CHECK(conv_helpers(shape, DType::fp32, on).bare);
  shape.groups = 2;
  CHECK(conv_helpers(shape, DType::bf16, on).loops == 1);
  shape.batch = 2;  // few rows
  CHECK(conv_helpers(shape, DType::bf16, on).loops == 2);
  shape.batch = 32, shape.direction = ConvDirection::data_gradient;
  CHECK(conv_helpers(shape, DType::bf16, on).loops == 2);
  shape.batch = 8, shape.direction = ConvDirection::weight_gradient;  // through Winograd's transform
  CHECK(conv_helpers(shape, DType::bf16, on).inner == 3);
  CHECK(conv_helpers(shape, DType::bf16, on).bare);
  shape.batch = 32, shape.direction = ConvDirection::forward, shape.in_channels = shape.out_channels = 224;  // 112 channels each, filled up
  CHECK(conv_helpers(shape, DType::bf16, on).loops == 1);
  CHECK(conv_helpers(shape, DType::bf16, on).pads == 2);
  shape.batch = 2, shape.channels_last = true;
  CHECK(conv_helpers(shape, DType::bf16, on).slices == 2);
}

TEST_CASE("FewGroupsOfFewChannelsRunOneByOne") {  // as recorded on an H200
  const GpuSpec on = gpu("9.0");
  ConvShape shape;
  shape.batch = 32, shape.groups = 2, shape.in_channels = shape.out_channels = 80;
  shape.in_h = shape.in_w = shape.out_h = shape.out_w = 40;
  shape.kernel_h = shape.kernel_w = 3;
  CHECK(conv_helpers(shape, DType::bf16, on).loops == 2);
  CHECK(conv_helpers(shape, DType::tf32, on).loops == 1);
  shape.direction = ConvDirection::data_gradient;  // by fp32 kernels, between transpositions
  CHECK(conv_helpers(shape, DType::tf32, on).loops == 2);
  CHECK(conv_helpers(shape, DType::tf32, on).bare);
  CHECK(conv_helpers(shape, DType::tf32, on).inner == 2);
  CHECK(conv_helpers(shape, DType::tf32, on).turns);
  shape.in_channels = 2 * 64;  // wide results of few channels are found
  CHECK(conv_helpers(shape, DType::tf32, on).loops == 1);
  shape.in_channels = 80;
  shape.direction = ConvDirection::forward, shape.in_channels = shape.out_channels = 4 * 32, shape.groups = 4;
  CHECK(conv_helpers(shape, DType::tf32, on).loops == 1);  // of many pixels
  shape.batch = 4;
  CHECK(conv_helpers(shape, DType::tf32, on).turns);
  shape.batch = 32, shape.groups = 2, shape.in_channels = shape.out_channels = 80;
  shape.direction = ConvDirection::weight_gradient, shape.kernel_h = shape.kernel_w = 1;
  CHECK(conv_helpers(shape, DType::bf16, on).loops == 2);
  CHECK(conv_helpers(shape, DType::bf16, on).inner == 1);
}

TEST_CASE("GroupsInTrueFp32AreTurnedUnlessTheyAreNarrowAndManyOrFewPixels") {
  ConvShape shape;  // a stage of RegNet-Y 16GF
  shape.batch = 32, shape.groups = 11, shape.in_channels = shape.out_channels = 11 * 112;
  shape.in_h = shape.in_w = shape.out_h = shape.out_w = 14;
  shape.kernel_h = shape.kernel_w = 3;
  CHECK(turns_groups(shape));
  shape.direction = ConvDirection::data_gradient;
  CHECK(turns_groups(shape));
  shape.in_channels = 11 * 64, shape.out_channels = 11 * 128;
  CHECK_FALSE(turns_groups(shape));  // widths that double
  shape.in_channels = shape.out_channels = 11 * 112, shape.direction = ConvDirection::weight_gradient;
  CHECK_FALSE(turns_groups(shape));
  shape.direction = ConvDirection::forward, shape.batch = 4;
  CHECK_FALSE(turns_groups(shape));
  shape.batch = 32, shape.in_channels = shape.out_channels = 11 * 32;
  CHECK_FALSE(turns_groups(shape));
  shape.groups = 4, shape.in_channels = shape.out_channels = 4 * 32;
  CHECK(turns_groups(shape));
}

TEST_CASE("PicturesCutByFiltersOfFourAreWalkedForFewResults") {
  ConvShape shape{ConvDirection::weight_gradient, 192, 3, 40, 224, 224, 56, 56, 4, 4, 4};
  CHECK(cuts_slowly(shape, DType::bf16));
  CHECK_FALSE(cuts_slowly(shape, DType::tf32));
  shape.out_channels = 64;
  CHECK_FALSE(cuts_slowly(shape, DType::bf16));
  shape.out_channels = 40, shape.batch = 48;
  CHECK_FALSE(cuts_slowly(shape, DType::bf16));
  shape.batch = 192, shape.in_channels = 4;
  CHECK_FALSE(cuts_slowly(shape, DType::bf16));
}

TEST_CASE("LongFiltersOfWideGroupsAreWalkedByVectorKernels") {
  const GpuSpec on = gpu("9.0");
  ConvShape shape;  // the position embedding of wav2vec 2.0
  shape.batch = 8, shape.in_channels = shape.out_channels = 768, shape.groups = 16;
  shape.in_h = shape.out_h = shape.kernel_h = 1, shape.in_w = 199, shape.out_w = 200, shape.kernel_w = 128;
  CHECK(conv_helpers(shape, DType::bf16, on).inner == 3);
  CHECK(conv_helpers(shape, DType::bf16, on).bare);
  shape.stride = 2, shape.out_w = 100;
  CHECK(walks_long_filter(shape, DType::bf16, 16));
  CHECK_FALSE(walks_long_filter(shape, DType::tf32, 16));
  shape.in_w = shape.out_w = 49;  // the filter's edges meet padding alone
  CHECK(conv_helpers(shape, DType::bf16, on).inner == 0);
  shape.direction = ConvDirection::data_gradient, shape.stride = 1;
  CHECK_FALSE(walks_long_filter(shape, DType::bf16, 16));
  shape.batch = 1;
  CHECK(conv_helpers(shape, DType::bf16, on).inner == 1);
  shape.direction = ConvDirection::weight_gradient, shape.batch = 64, shape.in_w = 499, shape.out_w = 500;
  CHECK(conv_helpers(shape, DType::bf16, on).loops == 16);
  shape.batch = 8;
  CHECK(conv_helpers(shape, DType::bf16, on).loops == 1);
}

TEST_CASE("PointwiseWeightGradientsAreTurnedWhereTheyAreLarge") {
  ConvShape shape;
  shape.direction = ConvDirection::weight_gradient;
  shape.batch = 32, shape.in_channels = shape.out_channels = 1024;
  shape.out_h = shape.out_w = 7;
  CHECK(turns_pointwise(shape, DType::bf16, true));
  CHECK(turns_pointwise(shape, DType::tf32, true));
  shape.out_h = shape.out_w = 28;
  CHECK_FALSE(turns_pointwise(shape, DType::bf16, true));
  CHECK(turns_pointwise(shape, DType::fp32, false));
  shape.in_channels = 64;
  CHECK_FALSE(turns_pointwise(shape, DType::fp32, false));
}

TEST_CASE("ManySmallImagesAreTurnedForAPointwiseConvolution") {
  ConvShape shape;
  shape.batch = 32, shape.in_channels = 960, shape.out_channels = 160;
  shape.out_h = shape.out_w = 7;
  CHECK(turns_pointwise(shape, DType::bf16, true));
  CHECK_FALSE(turns_pointwise(shape, DType::fp32, false));
  shape.out_h = shape.out_w = 8;  // rows of 64 are aligned
  CHECK_FALSE(turns_pointwise(shape, DType::bf16, true));
}

TEST_CASE("Fp32ConvolutionsTransformWhatTheyMultiply") {
  const GpuSpec on = gpu("9.0");
  ConvShape shape;
  shape.batch = 16, shape.in_channels = shape.out_channels = 64;
  shape.in_h = shape.in_w = shape.out_h = shape.out_w = 224;
  shape.kernel_h = shape.kernel_w = 3;
  shape.direction = ConvDirection::weight_gradient;
  CHECK(conv_helpers(shape, DType::fp32, on).inner == 3);
  CHECK(conv_helpers(shape, DType::bf16, on).inner == 0);
  shape.direction = ConvDirection::data_gradient;  // 8 x 8 tiles: 192 kernels and one more, as recorded
  CHECK(conv_helpers(shape, DType::fp32, on).inner == 192);
  shape.batch = 1;
  CHECK(conv_helpers(shape, DType::fp32, on).inner == 0);
  shape.batch = 16, shape.stride = 2;
  CHECK(conv_helpers(shape, DType::fp32, on).inner == 0);
  CHECK(conv_helpers(shape, DType::fp32, on).prepares == false);  // narrow
}

TEST_CASE("Fp32ConvolutionsTakeFourierTransformsOfManyImages") {  // shapes recorded on an H200
  const auto side = [](ConvDirection direction, std::int64_t batch, std::int64_t in, std::int64_t out, std::int64_t size) {
    return fourier_way({direction, batch, in, out, size, size, size, size, 3, 3}).side;
  };
  CHECK(side(ConvDirection::forward, 128, 128, 128, 14) == 16);
  CHECK(side(ConvDirection::forward, 64, 128, 128, 28) == 32);
  CHECK(side(ConvDirection::forward, 96, 128, 128, 32) == 64);
  CHECK(side(ConvDirection::forward, 16, 512, 512, 28) == 0);
  CHECK(side(ConvDirection::forward, 64, 240, 240, 16) == 0);
  CHECK(side(ConvDirection::forward, 32, 64, 64, 224) == 0);
  CHECK(side(ConvDirection::forward, 32, 64, 64, 56) == 0);
  CHECK(side(ConvDirection::forward, 32, 256, 256, 56) == 64);
  CHECK(side(ConvDirection::forward, 256, 192, 192, 24) == 32);  // low images, however many
  CHECK(side(ConvDirection::forward, 48, 128, 128, 48) == 0);    // high ones of few channels, in NCHW
  CHECK(side(ConvDirection::forward, 256, 448, 448, 7) == 16);   // no square is smaller
  CHECK(fourier_way({ConvDirection::forward, 32, 96, 192, 16, 80, 16, 80, 3, 3}).side == 0);  // long ones leave most of the square empty
  CHECK(fourier_way({ConvDirection::forward, 64, 256, 256, 4, 80, 4, 80, 3, 3}).side == 128);
  CHECK(fourier_way({ConvDirection::data_gradient, 256, 64, 64, 8, 64, 8, 64, 3, 3}).side == 0);
  CHECK(side(ConvDirection::data_gradient, 128, 64, 64, 56) == 32);
  CHECK(side(ConvDirection::data_gradient, 64, 96, 96, 16) == 32);
  CHECK(side(ConvDirection::data_gradient, 32, 512, 512, 14) == 0);
  CHECK(side(ConvDirection::weight_gradient, 128, 64, 64, 56) == 0);
  const FourierWay tiled = fourier_way({ConvDirection::data_gradient, 16, 320, 320, 64, 64, 64, 64, 3, 3});
  CHECK(tiled.side == 32);
  CHECK(tiled.tiles == 9);
}

TEST_CASE("DepthwiseWeightGradientsMeetAcrossBlocksInNhwc") {
  ConvShape shape;
  shape.in_channels = shape.out_channels = shape.groups = 96;
  shape.kernel_h = shape.kernel_w = 7;
  shape.direction = ConvDirection::weight_gradient;
  CHECK_FALSE(conv_helpers(shape, DType::bf16, gpu("9.0")).clears);
  shape.channels_last = true;
  CHECK(conv_helpers(shape, DType::bf16, gpu("9.0")).clears);
  CHECK(conv_helpers(shape, DType::bf16, gpu("9.0")).sums);
  CHECK_FALSE(conv_helpers(shape, DType::fp32, gpu("9.0")).sums);
}
