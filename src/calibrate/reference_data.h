// Timings of single operators that others published for several GPUs: measured_ops of the reference data, one CSV file per GPU
// (gemm_<gpu>.csv.gz, attention_forward_<gpu>.csv.gz). Takes such a file, returns kernels as the program itself would cost
// them, each with its time and with what its timing had in it that no kernel of a training step has.
// Not for a user's own measurements: those are measurements.h.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "kernel/kernel.h"

namespace precog {

struct ReferenceRow {
  Kernel kernel;
  double seconds = 0;
  std::uint32_t shape = 0;  // a hash of the shape, whatever the type
  double rotated = 0;       // bytes of weights that come round again only after several calls; the rest is touched by every call
  bool paged = false;       // attention of FlashAttention 2 over a cache of pages: another kernel than a training step's
  bool scaled = false;      // fp8 by vLLM's kernels for Ada (scaled_products.h)
  double beside = 0;        // elements that a pass beside the kernel goes over: activations quantised, keys and values cached
};

// Of one type, as the file spells it ("bfloat16", "fp8", "fp8_block", "nvfp4"): at most so many rows, chosen by their hash, so
// that a smaller sample is part of a larger one. Of fp8_block only what is well above the floor that the host sets there.
Result<std::vector<ReferenceRow>> read_reference_products(const std::filesystem::path& file, const std::string& dtype, std::size_t most);
// Causal, full attention (no window), of more than one token; bf16.
Result<std::vector<ReferenceRow>> read_reference_attention(const std::filesystem::path& file, std::size_t most);

}  // namespace precog
