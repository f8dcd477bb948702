// The end of a step: the loss scaler's unscale and read-back, clipping, main gradients, the optimizer as the framework launches
// it (one multi-tensor call per term of the formula, or one fused call), and master weights copied back to the model.
#pragma once

#include <string_view>
#include <vector>

#include "training/step_graph.h"

namespace precog {

void append_loss_scaler_and_optimizer(StepGraph& step, const PrecisionRecipe& recipe, const TrainingOptions& options);

// Launches that PyTorch's multi_tensor_apply needs for a list of tensors when each call reads `depth` lists.
std::int64_t multi_tensor_launches(const std::vector<std::int64_t>& elements, int depth, bool scalar_list = false);
// The elements that blocks of such a call (an optimizer's, by its name) walk while others wait: of each launch those of its longest chunk.
std::int64_t multi_tensor_walk(const std::vector<std::int64_t>& elements, std::string_view call);

// Tensors of optimizer state kept per parameter.
std::int64_t state_tensors(OptimizerKind kind);

}  // namespace precog
