// What a precision setting means, as data: which types parameters, activations and optimizer states have,
// whether autocast decides per operator, and whether the loss is scaled. Read from data/precisions/<name>.json.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "spec/dtype.h"

namespace precog {

struct PrecisionRecipe {
  std::string name, title, source;
  std::vector<std::string> aliases;
  DType parameters = DType::fp32;        // what the module's parameters are stored in
  DType inputs = DType::fp32;            // floating inputs (images) as the user hands them over
  DType optimizer_state = DType::fp32;
  std::optional<DType> autocast;         // the lower type of torch.autocast, when it is on
  bool weight_cache = false;             // autocast keeps one cast copy of each parameter per forward
  bool tf32_matmul = false;              // torch.backends.cuda.matmul.allow_tf32
  bool tf32_convolution = false;         // torch.backends.cudnn.allow_tf32
  bool loss_scaling = false;             // torch.amp.GradScaler around the step

  // The arithmetic types that need hardware of their own; fp32 is everywhere.
  std::vector<DType> required_types() const;
};

Result<PrecisionRecipe> parse_precision(const Json& json, const std::string& where);

}  // namespace precog
