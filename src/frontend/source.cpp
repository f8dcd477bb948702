#include "frontend/source.h"

#include <algorithm>
#include <memory>

#include <fmt/format.h>

#include "frontend/hf_config.h"
// The two readers of whole graphs, where this build has them.
#if __has_include("frontend/captured.h")
#include "frontend/captured.h"
#define PRECOG_READS_GRAPHS 1
#endif
#if __has_include("frontend/onnx_model.h")
#include "frontend/onnx_model.h"
#define PRECOG_READS_ONNX 1
#endif

namespace precog {
namespace {

constexpr const char* kWhatAPathMayBe =
    "a path may be a captured graph (*.precog.json, *.precog.json.zst), an ONNX file (*.onnx), a Hugging Face config.json or a folder that "
    "holds one";

std::string clipped(const std::string& text) { return text.size() <= 120 ? text : text.substr(0, 117) + "..."; }

#if defined(PRECOG_READS_GRAPHS) || defined(PRECOG_READS_ONNX)
constexpr std::int64_t kMaxGraphSequence = std::int64_t{1} << 20;

// What a read graph and a read ONNX model say of themselves in the same words; `build` turns one into a Graph.
template <class Model>
ModelSource whole_graph_source(Model&& model, const char* door, const std::string& shown,
                               Result<Graph> (*build)(const Model&, const ModelInputs&)) {
  ModelSource out;
  out.name = model.name.empty() ? shown : model.name;
  out.title = out.name;
  out.language = model.has_seq || model.captured_seq > 0;
  out.encoder_decoder = model.has_src_seq || model.captured_src_seq > 0;
  out.unit = out.language ? "tokens" : "samples";
  out.default_batch = std::max<std::int64_t>(1, model.captured_batch);  // a graph without a batch is one sample
  out.default_seq = model.captured_seq;
  out.default_src_seq = model.captured_src_seq;
  out.max_seq = kMaxGraphSequence;
  out.fixed_batch = !model.has_batch;
  out.fixed_seq = !model.has_seq;
  out.fixed_src_seq = !model.has_src_seq;
  out.notes = model.notes;
  if constexpr (requires { model.fixed_because; }) out.fixed_because = model.fixed_because;
  if constexpr (requires { model.memory_format; }) out.channels_last = model.memory_format == decltype(model.memory_format)::channels_last;
  if constexpr (requires { model.scores; }) out.scores = model.scores;
  out.request = {{door, shown}};
  auto held = std::make_shared<const Model>(std::move(model));
  out.build = [held, build](const ModelInputs& inputs) { return build(*held, inputs); };
  return out;
}
#endif

}  // namespace

ModelSource zoo_source(const ModelSpec& model) {
  ModelSource out;
  out.name = model.name;
  out.title = model.title;
  out.unit = model.unit;
  out.language = model.language;
  out.encoder_decoder = model.encoder_decoder;
  out.default_seq = model.default_seq;
  out.max_seq = model.max_seq;
  out.layers = model.layers;
  out.eager_attention = model.language;
  out.scores = model.scores;
  out.notes = model.notes;
  out.request = model.name;
  auto held = std::make_shared<const ModelSpec>(model);
  out.build = [held](const ModelInputs& inputs) { return build_model(*held, inputs); };
  out.layer_kinds = [held](const ModelInputs& inputs) { return layer_kinds(*held, inputs); };
  return out;
}

Result<ModelSource> family_source(const Json& model, const std::string& where) {
  Json file = model;
  const Json architecture = file.value("architecture", Json::object());
  for (auto [key, value] : {std::pair<const char*, Json>{"schema", 1}, {"name", file.value("family", Json("model"))}, {"title", "an architecture of the request's own"},
                            {"source", "the request"}, {"published_parameters", 1}, {"default_seq", architecture.is_object() ? architecture.value("max_positions", Json(1)) : Json(1)}})
    if (!file.contains(key)) file[key] = value;
  PRECOG_TRY(spec, parse_model(file, where));
  ModelSource out = zoo_source(spec);
  out.request = model;
  return out;
}

Result<ModelSource> graph_source(const std::filesystem::path& file, const std::string& shown) {
#ifdef PRECOG_READS_GRAPHS
  PRECOG_TRY(model, read_captured(file));
  return whole_graph_source<CapturedModel>(std::move(model), "graph", shown, build_captured);
#else
  (void)file;
  return fail(clipped(shown), "captured graphs are not readable by this version; give a name from `precog models` or a Hugging Face config.json");
#endif
}

Result<ModelSource> onnx_source(const std::filesystem::path& file, const std::string& shown) {
#ifdef PRECOG_READS_ONNX
  PRECOG_TRY(model, read_onnx(file.string()));
  return whole_graph_source<OnnxModel>(std::move(model), "onnx", shown, build_onnx);
#else
  (void)file;
  return fail(clipped(shown), "ONNX files are not readable by this version; give a name from `precog models` or a Hugging Face config.json");
#endif
}

Result<ModelSource> hf_source(const Json& config, const std::string& where) {
  PRECOG_TRY(model, read_hf_config(config, where));
  if (model.name.empty()) model.name = config.value("model_type", model.family);
  ModelSource out = zoo_source(model);
  out.request = {{"hf_config", config}};
  return out;
}

Result<ModelSource> hf_source(const std::filesystem::path& file, const std::string& shown) {
  std::error_code ignored;
  const bool folder = std::filesystem::is_directory(file, ignored);
  const std::filesystem::path path = folder ? file / "config.json" : file;
  PRECOG_TRY(config, read_json_file(path, kMaxConfigBytes));
  PRECOG_TRY(model, read_hf_config(config, folder ? (std::filesystem::path(shown) / "config.json").string() : shown));
  // A configuration seldom knows what it is called; the folder it lies in usually does.
  if (model.name.empty()) {
    const std::filesystem::path full = std::filesystem::weakly_canonical(path, ignored);
    const std::string stem = full.stem().string();
    model.name = stem == "config" && full.has_parent_path() ? full.parent_path().filename().string() : stem;
    if (model.name.empty()) model.name = model.family;
  }
  ModelSource out = zoo_source(model);
  out.request = {{"hf_config", shown}};
  return out;
}

bool looks_like_path(std::string_view text) {
  for (std::string_view end : {".json", ".zst", ".onnx"})
    if (text.ends_with(end)) return true;
  std::error_code ignored;
  return text.find('/') != std::string_view::npos || std::filesystem::is_directory(std::filesystem::path(text), ignored);
}

Result<ModelSource> file_source(const std::filesystem::path& file, const std::string& shown) {
  std::error_code code;
  if (!std::filesystem::exists(file, code))
    return fail(clipped(shown), fmt::format("there is no such file; {}, or give a name from `precog models`", kWhatAPathMayBe));
  if (std::filesystem::is_directory(file, code)) {
    if (std::filesystem::exists(file / "config.json", code)) return hf_source(file, shown);
    return fail(clipped(shown), fmt::format("is a folder without config.json; {}", kWhatAPathMayBe));
  }
  if (shown.ends_with(".precog.json") || shown.ends_with(".precog.json.zst")) return graph_source(file, shown);
  if (shown.ends_with(".onnx")) return onnx_source(file, shown);
  if (shown.ends_with(".json")) {
    PRECOG_TRY(json, read_json_file(file, kMaxConfigBytes));
    if (json.is_object() && json.contains("model_type")) return hf_source(file, shown);
    return fail(clipped(shown), fmt::format("has no \"model_type\", so it is no Hugging Face configuration; {}", kWhatAPathMayBe));
  }
  return fail(clipped(shown), fmt::format("is of no kind known by its name; {}", kWhatAPathMayBe));
}

}  // namespace precog
