// make_step (step_graph.h) where only some layers are recomputed, or some operators of them kept.
#pragma once

#include "training/checkpoints.h"
#include "training/step_graph.h"

namespace precog {

StepGraph make_step(Graph forward, const PrecisionRecipe& recipe, const TrainingOptions& options, const Checkpoints& checkpoints, const std::vector<TensorId>* sent = nullptr);

}  // namespace precog
