// Cuts a model's forward graph into the chunks of layers that pipeline stages have. Layers are the graph's
// blocks, which every frontend marks (a zoo model by construction, a captured graph by repetition and module path). What comes
// before the first layer goes with it, what follows a layer with that layer: embeddings with the first chunk, the final norm,
// the head and the loss with the last. What a chunk reads that was made before it arrives from its neighbour, and its gradient
// is sent back; but what follows from the inputs alone (positions, masks, rotary angles) every stage makes for itself.
// Equal chunks are kept once: distinct_chunks leaves the others out before any pass has looked at the model, cut_into_stages cuts
// what the passes have made of the rest. It knows neither times nor schedules.
#pragma once

#include <array>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "graph/graph.h"
#include "spec/dtype.h"
#include "spec/plan.h"

namespace precog {

// The model without the chunks that are equal to the one before them but for the numbers in their names.
struct DistinctChunks {
  Graph forward;
  std::vector<int> layers_at;         // by position in the model: layers of the chunk there
  std::vector<std::size_t> chunk_at;  // and which of the chunks that `forward` has stands for it
  std::vector<int> times;             // by block: how many of the model's it stands for
  std::vector<char> left_out;         // by layer of the model: `forward` does not have it

  int times_of(int block) const { return block < 0 || times.empty() ? 1 : times[static_cast<std::size_t>(block)]; }
};

// Where what follows all layers begins, among the operators: with the last of them, or in a last chunk that has none.
std::size_t head_of(const Graph& forward);

// The same without `forward`, before the model is built: of each of its layers a number, equal for equal layers (ModelSource's
// layer_kinds). Nothing is left out where that cannot be known.
DistinctChunks foreseen_chunks(const Plan& plan, const std::vector<int>& layer_kinds);

// `each`: none is left out, as where something tells layers apart by their numbers. Where the model has too few layers, or the
// plan's list does not add up to them: an error.
Result<DistinctChunks> distinct_chunks(const Plan& plan, Graph forward, bool each = false);

struct PipelineChunk {
  Graph forward;
  std::vector<TensorId> sent;  // its results whose gradients come from the next chunk
  Bytes received;              // what arrives for each micro-batch, and stays until its backward
  std::array<Bytes, kDTypeCount> received_types{};  // the same by type
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
  // What enters a chunk that stands for several in a row is what it hands on: shapes and types do not change along the way. If
  // they do, they were not equal, and the model has to be cut again with each of them.
  bool steady = true;
};

// `forward`: what passes made of the distinct chunks' graph, its types decided.
PipelineStages cut_into_stages(const DistinctChunks& distinct, const Graph& forward);
// All of it at once, for a graph that is decided already.
Result<PipelineStages> cut_into_stages(const Plan& plan, const Graph& forward);

}  // namespace precog
