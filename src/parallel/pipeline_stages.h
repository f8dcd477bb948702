// Cuts a model's forward graph, its types decided, into the chunks of layers that pipeline stages have. Layers are the graph's
// blocks, which every frontend marks (a zoo model by construction, a captured graph by repetition and module path). What comes
// before the first layer goes with it, what follows a layer with that layer: embeddings with the first chunk, the final norm,
// the head and the loss with the last. What a chunk reads that was made before it arrives from its neighbour, and its gradient
// is sent back; but what follows from the inputs alone (positions, masks, rotary angles) every stage makes for itself.
// Equal chunks are kept once. It knows neither times nor schedules.
#pragma once

#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "graph/graph.h"
#include "spec/plan.h"

namespace precog {

struct PipelineChunk {
  Graph forward;
  std::vector<TensorId> sent;  // its results whose gradients come from the next chunk
  Bytes received;              // what arrives for each micro-batch, and stays until its backward
  int first_layer = 0, layers = 0;
  bool has_loss = false;
};

struct PipelineStages {
  std::vector<PipelineChunk> chunks;  // the distinct ones, in the order of their first place
  std::vector<std::size_t> chunk_at;  // by position in the model: which of them
  std::vector<int> layers_at;         // and with how many layers
  std::vector<Bytes> sent_forward, sent_backward;  // between position i and i + 1, per micro-batch
  std::int64_t tied_elements = 0;     // of parameters that the first and the last chunk share
  bool even = true;                   // every chunk has as many layers
};

// Where the model has too few layers, or the plan's list does not add up to them: an error.
Result<PipelineStages> cut_into_stages(const Plan& plan, const Graph& forward);

}  // namespace precog
