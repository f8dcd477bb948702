// Which layers' activations are recomputed in backward, where any are, and what of them. How much is TrainingOptions::recompute.
#pragma once

namespace precog {

// Parts of a layer that can be recomputed by themselves (Recompute::parts): Megatron's recompute_modules, llm.q's switches.
struct RecomputedParts {
  bool norms = false;       // layernorm of Megatron; --recompute-norm
  bool activation = false;  // what stands between an MLP's products: moe_act; --recompute-swiglu
  bool mlp = false;         // and its products: mlp; --recompute-ffn
  bool qkv = false;         // what makes queries, keys and values: --recompute-qkv
  bool core = false;        // attention itself: core_attn
  bool attention = false;   // both, and the products around them: --recompute-att
  bool up_projections = false;  // of latent attention: mla_up_proj
  bool any() const { return norms || activation || mlp || qkv || core || attention || up_projections; }
};

struct Checkpoints {
  int first = 0;              // only so many layers, the first ones of each chunk of a pipeline (Megatron's block method); 0: all
  int every = 1;              // every so many layers (torchtitan)
  bool per_operator = false;  // of recomputed layers attention and every other product are kept all the same (torchtitan's "op")
  RecomputedParts parts;
  // Parameters are let go after forward (fully sharded): what was converted from them to 8 or 4 bits goes with them, and is
  // converted again from those that backward gathers.
  bool converts_weights_again = false;
};

}  // namespace precog
