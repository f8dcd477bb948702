// The families behind the zoo, for zoo.cpp only: how each reads its architecture and writes its graph.
// `check` reads every parameter once, so that a bad file is reported when it is loaded; `build` may then assume it right.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "graph/builder.h"
#include "spec/scores.h"

namespace precog::zoo {

// Limits of what an architecture file may say: far above any model, far below where sizes overflow.
inline constexpr std::int64_t kMaxWidth = std::int64_t{1} << 22;
inline constexpr std::int64_t kMaxHeads = 1 << 14;
inline constexpr std::int64_t kMaxLayers = 4096;

struct Sizes {
  std::int64_t batch = 1, seq = 0, src_seq = 0;
  std::int64_t tokens() const { return batch * seq; }
};

struct ModelFamily {
  std::string_view name;
  bool language = false, encoder_decoder = false;
  bool learned_positions = false;  // max_positions limits the sequence
  Scores scores = Scores::returned;
  bool layered = true;             // has a "layers" parameter that a user may change
  void (*check)(JsonReader& architecture) = nullptr;
  void (*build)(GraphBuilder& b, JsonReader& architecture, const Sizes& sizes) = nullptr;
  // Of each repeated layer a number: layers of one number differ in nothing but their names, each reads what the one before it
  // made, and `build` leaves out those it is told to (GraphBuilder::begin_layer). Null: all of them are built.
  std::vector<int> (*layer_kinds)(JsonReader& architecture) = nullptr;
};

inline std::vector<int> equal_layers(JsonReader& architecture) {
  return std::vector<int>(static_cast<std::size_t>(architecture.required_integer("layers", 1, kMaxLayers)), 0);
}

ModelFamily resnet_family();
ModelFamily vgg_family();
ModelFamily mobilenet_v2_family();
ModelFamily vit_family();
ModelFamily bert_family();
ModelFamily gpt2_family();
ModelFamily mpt_family();
ModelFamily gpt_neox_family();
ModelFamily t5_family();
ModelFamily llama_family();
ModelFamily mixtral_family();
ModelFamily deepseek_v3_family();
ModelFamily phi_family();
ModelFamily opt_family();
ModelFamily hf_vit_family();

}  // namespace precog::zoo
