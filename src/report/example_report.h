// For tests only: a report whose numbers can be checked by hand.
#pragma once

#include "report/report.h"

namespace precog {

// Weights and autocast as the name says here, where a test names them.
inline Report example_report(std::string precision, double step_s, bool fits = true) {
  Report r;
  r.request = {{"model", "toy"}, {"precision", precision}, {"optimizer", "adamw"}, {"mode", "eager"}};
  r.model = "toy";
  r.gpu = "h100-sxm";
  r.gpu_title = "NVIDIA H100";
  r.fp32_weights = precision != "bf16" && precision != "fp16";
  r.autocast = precision == "amp-bf16" || precision == "amp-fp16";
  r.precision = std::move(precision);
  r.precision_title = "a toy recipe";
  r.bound = "compute";
  r.parameters = 1'000'000;
  r.gpus = 8;
  r.batch = 4;
  r.global_batch = 32;
  r.seq = 128;
  r.step = {step_s};
  r.step_low = {0.9 * step_s};
  r.step_high = {1.2 * step_s};
  r.samples_per_s = 32 / step_s;
  r.tokens_per_s = 32 * 128 / step_s;
  r.tokens_per_s_per_gpu = 4 * 128 / step_s;
  r.mfu = 0.4;
  r.mfu_bf16 = 0.2;
  r.tflops_per_gpu = 123.4;
  r.memory.parameters = {4'000'000};
  r.memory.gradients = {4'000'000};
  r.memory.optimizer = {8'000'000};
  r.memory.activations = {84'000'000};
  r.memory.peak = {100'000'000};
  r.memory.reserved = {110'000'000};
  r.memory.device = {120'000'000};
  r.memory.capacity = {fits ? 200'000'000 : 110'000'000};
  r.memory.fits = fits;
  r.breakdown.forward = {0.25 * step_s};
  r.breakdown.backward = {0.5 * step_s};
  r.breakdown.optimizer = {0.1 * step_s};
  r.breakdown.casts = {0.05 * step_s};
  r.breakdown.exposed_communication["all_reduce"] = {0.04 * step_s};
  r.breakdown.between_kernels = {0.02 * step_s};
  r.breakdown.host = {0.04 * step_s};
  r.by_dtype["bf16"] = {0.8 * step_s};
  r.kernels = 1000;
  r.cast_kernels = 200;
  r.gpu_busy = {0.9 * step_s};
  r.host = {0.5 * step_s};
  r.provenance = {{"gemm", "fitted", "data/profiles/x.json", "hopper", 0.7},
                  {"host", "estimate", "data/hosts/default.json", "", 0}};
  return r;
}

}  // namespace precog
