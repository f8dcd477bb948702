// The zoo: models by name. A data/models file holds a model's architecture parameters and its published size; a family
// (one C++ file each) turns them into a forward graph, operator for operator what the public implementation runs in
// training mode: torchvision for the CNNs and ViT, Hugging Face transformers 5.17 (SDPA attention, labels given, no
// padding mask, no cache) for the language models. The last operator is the loss. Graphs are precision-free.
// Not here: weights, accuracy, inference; and nothing is downloaded.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "graph/graph.h"
#include "spec/scores.h"

namespace precog {

struct ModelSpec {
  std::string name, title, family, source;
  std::vector<std::string> aliases;
  std::int64_t published_parameters = 0;
  Json architecture;              // checked by the family that reads it
  std::string unit;               // what a sample is made of: "tokens" or "images"
  bool language = false;          // has a sequence length
  bool encoder_decoder = false;   // has one for the encoder too
  Scores scores = Scores::returned;
  std::int64_t default_seq = 0;   // 0 for images
  std::int64_t max_seq = 0;       // the position table where positions are learned, else a generous limit
  std::int64_t layers = 0;        // repeated layers; 0 where the depth is not one number (CNNs)
  std::vector<std::string> notes; // assumptions a reader other than the zoo's made (a head that the file does not name)
};

struct ModelInputs {
  std::int64_t batch = 1;
  std::int64_t seq = 0;                // 0: the model's default
  std::int64_t src_seq = 0;            // the encoder's side; 0: as seq
  std::optional<std::int64_t> layers;  // another depth than the model's own; an encoder-decoder changes both stacks
  bool eager_attention = false;        // attention as the model's own products and softmax, not one library call
  std::vector<char> left_out;          // by layer: not built, as it equals one before it; for a model that has layer_kinds
};

// Every problem of the file at once, unknown keys included.
Result<ModelSpec> parse_model(const Json& json, const std::string& where);

// Batch 1..10^9, seq 1..max_seq, layers 1..4096; no tensor so large that its size would not fit an integer.
Result<Graph> build_model(const ModelSpec& model, const ModelInputs& inputs);

// Of each repeated layer a number, the same for layers that differ in nothing but their names; empty where nobody knows before the
// model is built, or where it cannot be built as asked.
std::vector<int> layer_kinds(const ModelSpec& model, const ModelInputs& inputs);

// Tokens that a training run counts per sample: the sequence; an encoder-decoder's target sequence only; 0 for images.
std::int64_t tokens_per_sample(const ModelSpec& model, const ModelInputs& inputs);

std::vector<std::string> family_names();

}  // namespace precog
