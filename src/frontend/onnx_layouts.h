// What an ONNX graph no longer says about memory: which gradients come back in another order of axes and are copied before they can be
// looked at as they were. Takes the imported graph and marks its views (ViewAttributes::gradient); moves and makes nothing.
#pragma once

#include "graph/graph.h"

namespace precog::onnx {

void mark_copied_gradients(Graph& graph);

}  // namespace precog::onnx
