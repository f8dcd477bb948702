// What Transformer Engine does about the exchanges of tensor-parallel layers, and plain PyTorch does not: activations that a layer
// reads in 8 or 4 bits are converted before they are gathered, each rank its part, and travel so; and gathering overlaps with
// the product that reads the result, scattering with the product that made it, piece by piece. Changes kernels and costs of one
// rank's step in place; the graph stays as it is.
#pragma once

#include <vector>

#include "cost/cost.h"
#include "graph/graph.h"
#include "kernel/kernel.h"

namespace precog {

// Gathered tensors that only conversions read: the message shrinks to the converted type, the conversion to one rank's part.
void gather_converted(const Graph& graph, KernelProgram& program);

// Sums of forward's products in fp8 travel in fp8: the product writes its summands so (Transformer Engine's fp8_buf of a layer's overlap settings).
void scatter_converted(const Graph& graph, KernelProgram& program);

// Weights that layers read in 8 or 4 bits are converted in a step's first micro-batch and kept for the others (Transformer
// Engine's is_first_microbatch, which Megatron-Core sets): each micro-batch carries its share of that time.
void convert_weights_once(const Graph& graph, const KernelProgram& program, std::int64_t micro_batches, std::vector<KernelCost>& costs);

// Of each layer's exchange only the first piece, or what its product cannot cover, is left.
void overlap_with_products(const Graph& graph, const KernelProgram& program, std::vector<KernelCost>& costs);

// Tokens on their way to experts and back, beside another micro-batch's computation (Megatron's --overlap-moe-expert-parallel-comm: one
// micro-batch's forward beside another's backward): left is what no computation covers, the first forward's and the last backward's part,
// and the SMs that the exchange holds meanwhile.
void overlap_with_micro_batches(const Graph& graph, const KernelProgram& program, std::int64_t micro_batches, std::vector<KernelCost>& costs);

}  // namespace precog
