// What becomes of a model's scores where torch.compile traces it. AOTAutograd's backward takes a gradient for every result of its graph: what a
// graph returns beside the loss, nobody differentiates, and gets zeros (docs/model_notes/memory.md).
#pragma once

#include <cstdint>

namespace precog {

enum class Scores : std::uint8_t {
  returned,  // with the loss, by one graph
  apart,     // by a graph that ends before the loss: its caller computes the loss, or the model's code does what a trace cannot hold
  inside,    // not at all: the loss alone is
};

}  // namespace precog
