// Which layers' activations are recomputed in backward, where any are, and what of them. How much is TrainingOptions::recompute.
#pragma once

namespace precog {

struct Checkpoints {
  int first = 0;              // only so many layers, the first ones of each chunk of a pipeline (Megatron's block method); 0: all
  int every = 1;              // every so many layers (torchtitan)
  bool per_operator = false;  // of recomputed layers attention and every other product are kept all the same (torchtitan's "op")
};

}  // namespace precog
