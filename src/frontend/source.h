// Where a model comes from, behind one value: the zoo, a captured graph, a Hugging Face config.json, an ONNX file.
// A ModelSource says what a request may ask of the model (batch, sequence, depth) and builds its forward graph; whoever
// holds one need not know which door it came through. Files are read when the source is made, never when it builds.
// Not here: the readers themselves (zoo.h, hf_config.h, captured.h, onnx_model.h) and what a request looks like.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/zoo.h"

namespace precog {

struct ModelSource {
  std::string name;   // what reports call it
  std::string title;  // in words
  std::string unit;   // what a sample is: "tokens", "images", or "samples" where nobody said
  bool language = false;            // has a sequence length
  bool encoder_decoder = false;     // has one for the encoder too
  std::int64_t default_batch = 0;   // 0: a request must say it
  std::int64_t default_seq = 0, default_src_seq = 0;  // 0 for src_seq: as seq
  std::int64_t max_seq = 0;
  bool fixed_batch = false, fixed_seq = false, fixed_src_seq = false;  // captured at one size: no other can be had
  bool channels_last = false;       // captured in that memory format; a request may still say another
  Scores scores = Scores::returned; // what becomes of them where it is compiled
  bool eager_attention = false;     // its attention can also be had written out; a captured graph has what was captured
  std::int64_t layers = 0;          // repeated layers, 0 where the depth cannot be changed
  std::map<std::string, std::string> fixed_because;  // and why, where that is known
  std::vector<std::string> notes;   // assumptions made in reading it; they join the report's warnings
  Json request;                     // how a request names it
  std::function<Result<Graph>(const ModelInputs&)> build;
  std::function<std::vector<int>(const ModelInputs&)> layer_kinds;  // zoo.h; none where only the built graph can tell

  std::int64_t tokens_per_sample(const ModelInputs& inputs) const {  // 0 where a sample is no sequence
    return !language ? 0 : inputs.seq != 0 ? inputs.seq : default_seq;
  }
};

ModelSource zoo_source(const ModelSpec& model);
// An architecture given in the request itself, in the words of data/models: {"family": ..., "architecture": {...}}.
Result<ModelSource> family_source(const Json& model, const std::string& where);

// The doors, each from a file. `shown` is the path as the request wrote it, for the report.
Result<ModelSource> graph_source(const std::filesystem::path& file, const std::string& shown);
Result<ModelSource> onnx_source(const std::filesystem::path& file, const std::string& shown);
// A config.json or the folder that holds one.
Result<ModelSource> hf_source(const std::filesystem::path& file, const std::string& shown);
// A configuration given in the request itself.
Result<ModelSource> hf_source(const Json& config, const std::string& where);

// A model named by a path alone: *.precog.json[.zst], *.onnx, a *.json with a "model_type", or a folder with config.json.
bool looks_like_path(std::string_view text);
Result<ModelSource> file_source(const std::filesystem::path& file, const std::string& shown);

}  // namespace precog
