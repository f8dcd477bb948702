// Which extents of a model's inputs a request may choose: symbolic dimensions by their names, else by their places.
#pragma once

#include "frontend/onnx_graph.h"
#include "frontend/onnx_model.h"

namespace precog::onnx {

// Marks each symbolic dimension of the inputs and says in `model` what there is. Throws OnnxError for one it cannot place.
void bind_extents(ParsedModel& file, OnnxModel& model);

}  // namespace precog::onnx
