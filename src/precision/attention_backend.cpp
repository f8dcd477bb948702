#include "precision/precision.h"

namespace precog {

// The checks of aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, in its order of preference (PyTorch 2.11; seen on
// an H200: data/measured/2026-11-15-h200/dispatch_traces.jsonl.gz).
AttentionBackend attention_backend(const AttentionAttributes& a, DType dtype, const GpuSpec& gpu, bool mask_needs_gradient) {
  const int cc = gpu.vendor == "nvidia" ? gpu.capability() : 80;  // AMD's matrix GPUs have a flash kernel too
  if (a.broadcast || a.across) return AttentionBackend::math;
  const bool grouped_query = a.heads != a.kv_heads;
  // Of the fused kernels only the memory-efficient one returns the gradient of a learned mask.
  if (!mask_needs_gradient && is_16bit(dtype) && cc >= 90 && cc < 110 && a.head_dim <= 256 && a.head_dim % 8 == 0 && a.value_dim % 8 == 0 && gpu.vendor == "nvidia")
    return AttentionBackend::cudnn;
  if (is_16bit(dtype) && cc >= 80 && !a.mask && a.head_dim <= 256 && a.head_dim == a.value_dim) return AttentionBackend::flash;
  const bool efficient_type = dtype == DType::fp32 || dtype == DType::fp16 || (dtype == DType::bf16 && cc >= 80);
  const std::int64_t alignment = dtype == DType::fp32 ? 4 : 8;
  if (efficient_type && cc >= 50 && !grouped_query && !a.mask_scattered && a.head_dim % alignment == 0 && a.value_dim % alignment == 0)
    return AttentionBackend::memory_efficient;
  return AttentionBackend::math;
}

}  // namespace precog
