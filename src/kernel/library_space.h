// Bytes that a library's call takes while it runs and gives back: partial sums, transformed images and filters. Rules of PyTorch's
// sources, or drawn from what its allocator was asked for on an H200 (data/measured/2026-11-16-h200-operator-memory). Layout copies
// around convolutions are kernels too and are counted where those are made (lower_conv.cpp); recurrent layers: graph/recurrent_space.h.
#pragma once

#include "kernel/kernel.h"

namespace precog {

// Sums down `length` rows of `outputs` columns that lie side by side: where blocks share a column, each leaves its part
// (aten/src/ATen/native/cuda/Reduce.cuh: setReduceConfig, global_memory_size). To the byte for those measured.
Bytes column_sum_space(std::int64_t outputs, std::int64_t length, int sms);

// Of true fp32 convolutions that cuDNN takes through a Fourier transform (library_rules.h); zero of others. To the byte for those measured.
Bytes fourier_space(const ConvShape& shape);

// The gradient of `words` rows of a table from `tokens` places: parts of words that several blocks share, in fp32
// (aten/src/ATen/native/cuda/EmbeddingBackwardKernel.cu; few tokens go another way).
Bytes embedding_space(std::int64_t words, std::int64_t width, std::int64_t tokens);

}  // namespace precog
