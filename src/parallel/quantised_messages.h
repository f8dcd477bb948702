// ZeRO++'s messages (Wang et al. 2023; deepspeed/runtime/zero/partition_parameters.py and runtime/comm/coalesced_collectives.py): weights gathered
// in 8 bits, gradients exchanged in 4. Sizes only; the kernels that quantise are one pass each (csrc/quantization).
#pragma once

#include "parallel/rewrite.h"

namespace precog {

// Scales of a stretch of 8-bit weights, fp32 each: as many as make groups of at most 8,000 elements, and more until eight times that many divide
// the elements (CUDAQuantizer.quantize).
std::int64_t scales_of(std::int64_t elements);

// Whether a gradient goes by all_to_all in 4 bits; others are reduced as ever, each by itself.
bool exchanged_in_4_bits(const Shape& gradient, int ranks);

// One gradient of a message in `sent` that is there `after` these, quantised, exchanged inside the node, summed and quantised again, exchanged between the nodes,
// summed; leaves this rank's part in `part`. Everything is on the reduction's stream.
void exchange_in_4_bits(Rewrite& out, const Shape& gradient, DType sent, int local, int nodes, std::vector<TensorId> after, TensorId part, TensorId done);

}  // namespace precog
