// Kernels that a library launches beside the one that does the work: which, and when. Counters cleared before the blocks of a
// reduction meet, partial products summed, filters turned to another layout, indices sorted.
// Pure rules over extents and types; no graph, no costs. They follow PyTorch 2.11 (its source is named), cuBLAS 13.0 and
// cuDNN 9.19 on Hopper (seen in recorded kernels, data/measured); other versions may differ by a few small kernels.
#pragma once

#include <cstdint>

#include "kernel/kernel.h"

namespace precog {

// PyTorch's reduction of `outputs` results from `length` values each; `columns`: the innermost axis is kept, each result is
// summed across rows.
struct ReductionGrid {
  std::int64_t width = 1, height = 1;  // threads of a block
  std::int64_t values = 1;             // that one thread sums, one after the other
  std::int64_t blocks = 1;             // in all
  std::int64_t sharing = 1;            // blocks that share a result
};
ReductionGrid reduction_grid(std::int64_t outputs, std::int64_t length, bool columns, int sms);
// Where several blocks share a result they meet through counters that a memset clears first.
bool sums_across_blocks(std::int64_t outputs, std::int64_t length, bool columns, int sms);
// Whether a reduction from one shape to the other keeps the innermost axis.
bool keeps_innermost(const Shape& from, const Shape& to);

struct ProductHelpers {
  bool reduces = false;  // partial products of a split sum, added by a kernel of their own
  bool clears = false;   // counters or partial products cleared by a memset
};
// Of cuBLAS, for one product; `forward`: the second operand is a weight as it is stored, [n,k].
ProductHelpers product_helpers(const GemmShape& shape, DType math, const GpuSpec& gpu, bool forward = false);

// From so many indices on the gradient of an embedding sorts them (embedding_dense_backward_cuda, aten/native/cuda/Embedding.cu);
// fewer go through one kernel.
constexpr std::int64_t kUnsortedIndices = 3072;

constexpr std::int64_t kSingleTile = 2304;  // 64-bit keys that CUB sorts in one block

struct SortLaunches {
  int kernels, memsets;
};
// CUB's radix sort of 64-bit keys: histogram, sums, and a pass for each 8 of `bits`; bins, counters and what each pass looks back at are
// cleared (cub/device/dispatch/dispatch_radix_sort.cuh, InvokeOnesweep).
SortLaunches sort_launches(int bits);

// Whether the best of rows are picked by several blocks a row (should_use_multiblock, aten/native/cuda/TensorTopK.cu).
bool several_blocks_pick(std::int64_t rows, std::int64_t columns);

// How cuDNN runs a convolution.
struct ConvHelpers {
  int loops = 1;       // calls one after the other, each with its own layout copies: groups that no kernel takes together
  int inner = 0;       // kernels within a call that transform operands: Winograd's, a Fourier transform's, a filter's
  int pads = 0;        // operands whose channels are filled up, each cleared by a memset first
  int slices = 0;      // copies of a group's channels within a call, there and back
  bool bare = false;   // groups that are read and written where they stand, whatever the layout
  bool vector = false; // true fp32 kernels in TF32's stead
  bool turns = false;  // between transpositions by a generic kernel of the library's, image and result, group by group
  bool sums = false;   // partial weight gradients added by a kernel of their own
  bool clears = false; // counters cleared by a memset
  bool prepares = false;  // partial sums or a result set to zero by a kernel of the library's own
};
ConvHelpers conv_helpers(const ConvShape& shape, DType math, const GpuSpec& gpu);
// Filters of a hundred taps over wide groups of one axis (the position embeddings of speech models) in 16 bits: where cuDNN 9 finds no tensor core
// kernel that it deems fit, it runs vector kernels of years ago, group by group (implicit_convolve_sgemm, dgrad_engine). Forward that was so
// of widths that are no multiples of 32; of data gradients of one or two samples, and of sums still longer. `calls`: groups, or launches for one each.
// Groups of a convolution in true fp32 that are called one by one: whether each lies between transpositions, as TF32's few do (ConvHelpers::turns). Widths that double go
// backward another way, and forward in some layers; small images of 32 and more samples go either way, and nothing tells which.
bool turns_groups(const ConvShape& shape);
bool walks_long_filter(const ConvShape& shape, DType math, std::int64_t calls);
// Weight gradients of pictures of three channels cut by filters of 4x4 and 6x6 in 16 bits and NCHW: few results of many pictures go to a kernel that takes as
// long for each pixel whatever its channels (cuDNN 9.19; 38 of 39 calls, and none of 300 others).
bool cuts_slowly(const ConvShape& shape, DType math);
// How cuDNN takes a true fp32 convolution through Fourier transforms: squares of `side` pixels, `tiles` to an image; zero where it does not.
struct FourierWay {
  std::int64_t side = 0, tiles = 1;
};
FourierWay fourier_way(const ConvShape& shape);
constexpr int kTransformsKnown = 90;  // the compute capability from which on it was seen
// Whether the operands are turned for a 1x1 convolution that would be a product in either layout.
bool turns_pointwise(const ConvShape& shape, DType math, bool tensor_cores);

// Of PyTorch's own batch norm in NHWC: from so many pixels on blocks share a channel and meet through zeroed counters
// (flexible_launch_configs, native/cuda/Normalization.cuh).
constexpr std::int64_t kSharedChannelPixels = 7 * 256 + 1;

}  // namespace precog
