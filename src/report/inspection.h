// Which operator of a step is the reason for which kernels: its own, its gradient's, and the casts in front of and behind it.
// Takes a step's graph with its kernels and their costs; returns one entry per forward operator and what belongs to none.
// Times are of a whole step, all its micro-batches. Not here: how it is shown (inspect_report.h, diff_report.h).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cost/cost.h"
#include "graph/graph.h"
#include "kernel/kernel.h"

namespace precog {

struct Casts {  // kernels that only change a type, with what finds the scales for it (fp8), per step
  double count = 0;
  Seconds time;
  void add(double more, Seconds spent) { count += more, time += spent; }
  Casts& operator+=(const Casts& other) { return add(other.count, other.time), *this; }
};

struct InspectedOp {
  OpId op;
  Seconds forward, backward;  // its own kernels; its gradient's, with what is recomputed for it
  Casts in, back;             // casts in front of it; and of the gradients it gives
  DType cast_from = DType::model;  // what the first of the casts in front of it reads
  Seconds own() const { return forward + backward; }
  Casts casts() const { Casts both = in; return both += back; }
};

struct Inspection {
  std::vector<InspectedOp> ops;  // in forward order; casts that the precision pass put in are part of whom they are for
  Casts of_weights;              // casts of parameters and of their gradients, which cost the same at every batch
  Casts at_the_end;              // casts of the step's end: copies of master weights, of what travels
  Seconds optimizer, loss_scaling, accumulation;  // accumulation: gradients added to what is there, where that is a kernel of its own
  double optimizer_kernels = 0, scaling_kernels = 0;
  int waits = 0;                       // times per step that the host waits for the GPU
  std::map<std::string, Bytes> saved;  // what forward leaves for backward, of one micro-batch, by type
  Casts all_casts() const;
};

Inspection inspect_step(const Graph& graph, const KernelProgram& program, const std::vector<KernelCost>& costs,
                        std::int64_t micro_batches);

// A cast that the precision pass put in, as opposed to one that the model's code asks for.
bool inserted_cast(const Op& op);

// What a model's author calls it: an fp8 layer's product is the linear layer.
std::string_view shown_name(const Graph& graph, const Op& op);

// Operators by name that the model's 16-bit (or narrower) recipe leaves in fp32, the dearest first.
struct KeptWide {
  std::string name;
  int count = 0;
  Seconds own;
  Casts casts;
};
std::vector<KeptWide> kept_in_fp32(const Graph& graph, const Inspection& inspection);

}  // namespace precog
