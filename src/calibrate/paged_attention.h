// Time of FlashAttention 2 over a cache of pages, which is how vLLM calls it on Ampere and Ada: the reference timings of attention on A100
// and L40S are of this kernel (run_mha_fwd_splitkv_dispatch of flash_fwd_launch_template.h), not of the one that a training step runs.
// So its coefficients stand beside the physics of src/cost and serve to say how far they carry; no prediction uses them.
#pragma once

#include "calibrate/reference_data.h"
#include "spec/gpu_spec.h"

namespace precog {

struct PagedAttention {
  Seconds launch_floor{6e-6};
  Seconds block_overhead{1e-6};  // of every block
  Seconds block_load{0.6e-6};    // of 64 query rows of 128: those beyond the sequence are not loaded
  double mask_clocks = 0.1;      // per element of the tile on the diagonal
  double efficiency = 0.7, head_dim_exponent = 0.3;
  double power = 1;              // what the power limit leaves of the efficiency when all SMs are busy
  double tail = 0.5;             // of a block, that the others cannot hide
  Seconds first_block{2e-6};     // until the first one computes
  double alone = 0.8;            // the longest block without a neighbour on its SM takes this share of its time with one
  double longest_norm = 4, overlap_norm = 3, bandwidth_efficiency = 0.8;
  double slower_later = 0.15;    // tensor cores kept busy for long: the clock falls ...
  Seconds later{5e-3};           // ... from about here
};

// `memory`: seconds that its bytes take.
double paged_attention_seconds(const AttentionShape& shape, const GpuSpec& gpu, FlopsPerSecond peak, const PagedAttention& coefficients, double memory);

}  // namespace precog
