// What a precision setting means, as data: which types parameters, activations, gradients and optimizer states have, what
// decides per operator (autocast, fp8 layers, rules by name), what travels between GPUs, and whether the loss is scaled.
// Read from data/precisions/<name>.json; one recipe may extend others (recipe_json.h puts them together first).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "spec/dtype.h"

namespace precog {

// How a tensor becomes 8 or 4 bits wide: what one scale covers, and when it is known.
enum class Scaling : std::uint8_t {
  tensorwise,  // one scale for the tensor, from its own largest element
  rowwise,     // one per row of what is multiplied
  delayed,     // one for the tensor, from the largest elements of earlier steps (Transformer Engine)
  blockwise,   // one per 1x128 of activations and 128x128 of weights (DeepSeek-V3)
  mx,          // one power of two per 32 elements, applied by the hardware (OCP microscaling)
  nvfp4        // four bits, an fp8 scale per 16 elements and one for the tensor
};
std::string_view to_text(Scaling scaling);

struct Fp8Layers {  // linear layers whose three products run in 8 or 4 bits
  Scaling scaling = Scaling::tensorwise;
  bool fused = false;  // one kernel quantises an operand (Transformer Engine); otherwise ordinary operators do (torchao, eager)
  std::vector<std::string> modules{"*"}, except;  // patterns of module names
  // The arithmetic of the products, and what every extent of them must be a multiple of.
  DType arithmetic() const;
  std::int64_t multiple() const;
};

// What a region of the model or a kind of operator does differently. The last rule that matches and says something wins.
struct PrecisionRule {
  std::string modules = "*", operators = "*";  // patterns: of the module's path, of the operator's name
  std::optional<DType> run_in;      // inputs are cast to this, whatever autocast says
  bool autocast_off = false;        // a region under autocast(enabled=False)
  std::optional<DType> autocast;    // a nested region of another type
  std::optional<DType> parameters;  // its parameters are stored in this
  std::optional<bool> fp8;          // in or out of the fp8 layers
  std::string text;                 // as reports name it
};

// Where the optimizer updates another copy of the weights than the one that the model computes with.
struct MasterWeights {
  DType dtype = DType::fp32;
  enum class Copied : std::uint8_t { after_step, on_gather } copied = Copied::after_step;  // Megatron; FSDP
};
struct MainGradients {  // what the optimizer reads, where that is not what autograd made
  DType dtype = DType::fp32;
  enum class Made : std::uint8_t {
    in_backward,   // each is added to a buffer as it appears (DeepSpeed's bf16 optimizer)
    in_product,    // the same, but a weight's product adds to the buffer itself (Megatron's gradient accumulation fusion)
    after_reduce,  // each shard is converted when it has been summed (FSDP)
    at_step        // all are converted at the end (apex, DeepSpeed)
  } made = Made::in_backward;
};

struct PrecisionRecipe {
  std::string name, title, source;
  std::vector<std::string> aliases;
  bool is_part = false;                  // only a part of a recipe, to be added to another ("amp-bf16+optimizer-8bit")
  bool listed = true;                    // among those that `compare` tries by itself
  DType parameters = DType::fp32;        // what the module's parameters are, as its code sees them
  DType inputs = DType::fp32;            // floating inputs (images) as the user hands them over
  DType buffers = DType::fp32;           // floating buffers
  bool casts_inputs = false;             // the wrapper casts floating inputs to the parameters' type (FSDP)
  DType optimizer_state = DType::fp32;   // int8: block-wise quantised
  bool fused_optimizer = false;          // the stack's own optimizer is one fused pass; a request may say otherwise
  std::optional<MasterWeights> master_weights;
  std::optional<MainGradients> main_gradients;
  std::optional<DType> reduced_gradients;  // what gradients travel in, where that is not the type they are kept in
  bool reduces_after_backward = false;     // nothing travels before all of backward has run (DeepSpeed below ZeRO 2)
  bool gathers_fp8 = false;                // sharded weights of fp8 layers travel in fp8
  std::optional<DType> autocast;         // the lower type of torch.autocast, when it is on
  bool weight_cache = false;             // autocast keeps one cast copy of each parameter per forward
  bool tf32_matmul = false;              // torch.backends.cuda.matmul.allow_tf32
  bool tf32_convolution = false;         // torch.backends.cudnn.allow_tf32
  bool loss_scaling = false;             // torch.amp.GradScaler around the step
  std::int64_t scale_growth_interval = 2000;  // good steps after which the scale is doubled and, as a rule, one step is lost
  std::optional<Fp8Layers> fp8;
  std::vector<PrecisionRule> rules;

  // The arithmetic types that need hardware of their own; fp32 is everywhere.
  std::vector<DType> required_types() const;
  // What the optimizer updates, and what gradients it reads.
  DType updated_weights() const { return master_weights ? master_weights->dtype : parameters; }
  DType optimizer_gradients() const { return main_gradients ? main_gradients->dtype : parameters; }
};

Result<PrecisionRecipe> parse_precision(const Json& json, const std::string& where);

}  // namespace precog
