// A Hugging Face config.json read into a model of the zoo's families, as transformers 5.17 would build it for training:
// absent keys have the defaults of its configuration classes, "architectures" names the head, SDPA attention, no cache.
// Keys that change no operator (initialisation, token ids, generation) are not looked at. Takes the parsed file, returns
// the spec that build_model takes; its name is empty where the file does not say one. Not here: weights, tokenizers.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "frontend/zoo.h"

namespace precog {

inline constexpr std::size_t kMaxConfigBytes = 4u << 20;  // published ones are a few kB; some list their labels

// Every problem at once, each under the key as the file spells it. An unknown model_type names the known ones.
Result<ModelSpec> read_hf_config(const Json& config, const std::string& where);

std::vector<std::string> hf_model_types();

}  // namespace precog
