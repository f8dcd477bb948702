// A dense convolution as the matrix product that it is, and how well the library's kernels for it do.
// Not here: depthwise convolutions (no product), layout copies (kernels of their own), the time itself (gemm_cost).
#pragma once

#include "cost/gemm_cost.h"
#include "cost/profile.h"
#include "kernel/kernel.h"

namespace precog {

struct ConvProblem {
  GemmProblem product;  // batch, m, n, k; the rest is the caller's to fill
  double factor = 1;    // on the efficiency of a plain product in the same arithmetic
  Seconds overhead;     // fixed, beside the product's own
};

// `math` is the arithmetic of the unit that runs it, `matrix` whether that is a tensor core, `few_channels` what a
// factor of 1 on the vector units' fp32 peak is as a factor on this unit's pace.
ConvProblem conv_problem(const ConvShape& shape, DType math, bool matrix, double few_channels, const ConvCoefficients& coefficients);

// A 3x3 convolution through Winograd's transform F(4x4, 3x3), its transforms kernels of their own (cuDNN's WINOGRAD_NONFUSED): 36 products, and the
// bytes that the passes before and after them move.
struct TransformedConv {
  GemmProblem product;
  Bytes passes;
};
bool can_transform(const ConvShape& shape);
TransformedConv transformed_conv(const ConvShape& shape, double element_bytes);

}  // namespace precog
