// The coefficients of one architecture: what fraction of its datasheet a GPU reaches, and the fixed times around it.
// Read from data/profiles; fitted by tools/fit, where the same formulae stand in numpy. docs/model_notes tells each one's life.
// Not a table of timings: every value is a ratio to the datasheet, a time, or a count per clock.
#pragma once

#include <array>
#include <limits>

#include "base/units.h"
#include "cost/cost.h"
#include "cost/power.h"
#include "kernel/kernel.h"
#include "spec/dtype.h"

namespace precog {

struct MathCoefficients {  // of matrix products in one arithmetic
  double efficiency = 1;           // share of the peak that a large, aligned product reaches; too high: large products too fast
  double k_latency_clocks = 0;     // least clocks per step of k for one block (per 2 bytes): what long, thin products wait for
  double transposed_a_factor = 1;  // what is left of `efficiency` when a is stored [k,m]
  double misaligned_pace = std::numeric_limits<double>::infinity();  // FLOP per SM and clock at most when a row is no multiple of 16 bytes: it is loaded in pieces
  double odd_pace = std::numeric_limits<double>::infinity();         // ... or, in its place, not even of 4: an odd number of 16-bit elements
  double watts_per_tflops = 0;     // of the GPU that `efficiency` was fitted on, where power is what held it back; else 0
  CostSource source = CostSource::estimate;
};

struct GemmCoefficients {
  Seconds launch_floor, tile_overhead, split_overhead;
  double l2_bytes_per_clock = 1;    // that one SM takes in; small tiles starve on it
  double bandwidth_efficiency = 1;  // share of the memory bandwidth that operands arrive with
  double wave_quantisation = 1;     // 1: the last wave lasts as long as a full one; 0: blocks balance perfectly
  double l2_gain = 1;               // speed of split-K's partial sums over that of memory
  double overlap_norm = 2;          // p of the norm that joins compute and memory; infinite would be the bare roofline
  Seconds overlap_growth;           // a product that lasts so long has twice that p, and so on: only its begin and end do not overlap; 0: the same p for all
  bool largest_tile = false;        // taken as soon as it fills the GPU, whatever the last wave wastes, a block to an SM: cuBLAS on mma.sync
  double results_per_clock = 0;     // that one SM converts and stores when a tile is done; 0: not apart, tile_overhead has it
  std::array<MathCoefficients, kDTypeCount> math;
};

struct ConvCoefficients {
  struct Direction {
    double matrix = 1, tf32 = 1, vector = 1;  // on top of the matrix product's efficiency: tensor cores (tf32 apart), vector units
    double winograd = 1;                      // gain in fp32 where the library transforms 3x3 filters
    double grouped_matrix = 1, grouped_tf32 = 1, grouped_vector = 1;  // what convolutions in groups reach of that
  };
  std::array<Direction, 3> direction;      // by ConvDirection
  Seconds indexing_overhead;               // of what is no plain product: finding its operands' places
  double winograd_channels_exponent = 0;   // weight gradients gain by (channels/128)^this
  double winograd_work = 1;                // least 4x4 output tiles times channels for which it is chosen ...
  double winograd_gradient_size = 1;       // ... and for data gradients the image must be larger than this
  double unfused_factor = 0;               // on a product's efficiency, where 3x3 filters are transformed in kernels of their own; 0: not known
  double thin_weight_gradient_factor = 1;  // fp32, NCHW, 1x1, few weights
  double few_channels_rate = 1;            // tensor cores with at most 4 input channels reach this share of the vector units' fp32 peak
  double strided_gradient_factor = 1;      // tensor cores, data gradient of a strided convolution
  double tf32_pointwise_factor = 1;        // tf32, 1x1, forward and data gradient
  CostSource source = CostSource::estimate;
};

// Which kernel runs a depthwise convolution: PyTorch's own (NCHW), cuDNN's in NCHW (fp16 alone), cuDNN's in NHWC by type.
enum class DepthwiseKernel : std::uint8_t { native, cudnn_fp16, cudnn_nhwc_fp32, cudnn_nhwc_fp16, cudnn_nhwc_bf16, kCount };

struct DepthwiseCoefficients {
  Seconds launch_floor;
  double efficiency = 1;
  double flops_per_clock = 1;  // per SM: bound by loads, so more multipliers in an SM do not help
  double tap_overhead = 0;     // what an output costs beyond its filter's taps, in taps
  CostSource source = CostSource::estimate;
};

struct AttentionCoefficients {
  Seconds launch_floor, block_overhead;
  double efficiency = 1;
  double head_dim_exponent = 0;  // a head of d < 128 runs at (d/128)^this
  double tail = 0;               // share of the longest block that the others cannot hide
  double bandwidth_efficiency = 1;
  CostSource source = CostSource::estimate;
};

struct MemoryCoefficients {
  Seconds launch_floor;
  double efficiency = 1;          // share of the memory bandwidth on large operands
  // What its SMs can do, whatever the memory: they pay per element read or written (addresses, instructions: much where
  // nothing is vectorised) and per byte. On GPUs with less bandwidth per SM than the fitted one memory is the bound again.
  double accesses_per_clock = 1, bytes_per_clock = 1e30;
  double row_clocks = 0;  // ... and per row of a row-wise kernel: what short rows cost
  CostSource source = CostSource::estimate;
};

struct BatchNormCoefficients {  // NCHW: a block per channel. NHWC streams like any other kernel and has only `stream`.
  MemoryCoefficients stream;
  Seconds block_overhead;
  double block_accesses_per_clock = 1;  // of one block alone on its SM
  double resident_gain = 1;             // on both rates when a channel is small enough to be kept near the SM between passes
};

constexpr bool is_native_batch_norm(MemoryPattern pattern) {
  return pattern == MemoryPattern::native_batch_norm_forward || pattern == MemoryPattern::native_batch_norm_backward;
}
constexpr bool is_batch_norm_backward(MemoryPattern pattern) {
  return pattern == MemoryPattern::batch_norm_backward || pattern == MemoryPattern::native_batch_norm_backward;
}
constexpr bool is_batch_norm(MemoryPattern pattern) {
  return is_native_batch_norm(pattern) || is_batch_norm_backward(pattern) || pattern == MemoryPattern::batch_norm_forward;
}

struct ArchitectureProfile {
  GemmCoefficients gemm;
  ConvCoefficients convolution;
  std::array<std::array<DepthwiseCoefficients, 3>, static_cast<std::size_t>(DepthwiseKernel::kCount)> depthwise;  // [][ConvDirection]
  std::array<MemoryCoefficients, static_cast<std::size_t>(MemoryPattern::kCount)> memory;  // batch norms: below
  MemoryCoefficients cast_widen;       // to a wider type: PyTorch does not vectorise it
  MemoryCoefficients pointwise_mixed;  // operands of two types: nor this
  std::array<std::array<std::array<BatchNormCoefficients, 2>, 2>, 2> batch_norm;  // [PyTorch's own][backward][channels_last]
  struct Attention {  // each [backward]
    std::array<AttentionCoefficients, 2> flash, cudnn, memory_efficient, memory_efficient_16bit;  // memory_efficient: on vector units
  } attention;
  Seconds kernel_gap;  // see cost.h
  PowerCoefficients power;
};

}  // namespace precog
