// What is trained: a name, an architecture, a file; and the sizes that it is asked for.
#include "predict/request_reader.h"

namespace precog {

void RequestReader::read_model() {
  read_source();
  ModelInputs& inputs = request_.inputs;
  inputs.seq = root_.integer("seq", 1, 1 << 24).value_or(0);
  inputs.src_seq = root_.integer("src_seq", 1, 1 << 24).value_or(0);
  request_.frozen = root_.texts("frozen");
  request_.pad_vocabulary = root_.integer("pad_vocabulary", 1, 65536).value_or(1);
  if (!request_.model) return;
  const ModelSource& model = *request_.model;
  if (!model.language && (inputs.seq || inputs.src_seq))
    root_.problem(inputs.seq ? "seq" : "src_seq", fmt::format("does not apply: {} takes {}", model.name, model.unit));
  else if (inputs.src_seq && !model.encoder_decoder)
    root_.problem("src_seq", fmt::format("does not apply: {} has no encoder of its own", model.name));
  if (model.language) accept("seq", inputs.seq, model.default_seq, model.fixed_seq);
  if (model.encoder_decoder)
    accept("src_seq", inputs.src_seq, model.default_src_seq != 0 ? model.default_src_seq : inputs.seq, model.fixed_src_seq);
  // The frontend checks this too, but knows no file to name.
  for (auto [key, tokens] : {std::pair{"seq", inputs.seq}, std::pair{"src_seq", inputs.src_seq}})
    if (model.language && tokens > model.max_seq)
      root_.problem(key, fmt::format("is {}; {} takes 1 to {} tokens", tokens, model.name, model.max_seq));
}

// A size the request may leave out (0), and one that a graph captured without symbols cannot change.
void RequestReader::accept(std::string_view key, std::int64_t& size, std::int64_t own, bool fixed) {
  if (size == 0) size = own;
  if (!fixed || size == own) return;
  const auto reason = request_.model->fixed_because.find(std::string(key));
  root_.problem(key, fmt::format("is {}; {} was captured at {} and not symbolically, so it takes no other (capture it again, or leave it out{})", size,
                                 request_.model->name, own, reason == request_.model->fixed_because.end() ? "" : "; why: " + reason->second));
}

void RequestReader::take(JsonReader& reader, std::string_view key, Result<ModelSource> source) {
  if (source) request_.model = std::make_shared<const ModelSource>(std::move(*source));
  else
    for (const Problem& problem : source.error().problems)
      reader.problem(key, problem.where.empty() ? problem.message : problem.where + ": " + problem.message);
}

// A zoo name, which always wins, or a path that says by its name what it is.
void RequestReader::read_named(JsonReader& reader, std::string_view key, const std::string& name) {
  auto known = catalog_.model(name);
  if (known) return take(reader, key, zoo_source(**known));
  if (looks_like_path(name) || std::filesystem::is_directory(folder_ / name, ignored_)) return take(reader, key, file_source(folder_ / name, name));
  reader.problem(key, known.error().text());
}

void RequestReader::read_source() {
  const Json* model = root_.raw("model");
  if (!model) return root_.problem("model", "is missing: a name from `precog models`");
  if (known_model_) {
    request_.model = known_model_;
    if (model->is_object() && model->contains("layers")) request_.inputs.layers = (*model)["layers"].get<std::int64_t>();
    return;
  }
  if (model->is_string()) return read_named(root_, "model", model->get<std::string>());
  if (!model->is_object())
    return root_.problem("model", R"(wants a name, {"name": ..., "layers": ...}, an architecture: {"family": ..., "architecture": {...}}, or a file: {"graph": ...}, {"hf_config": ...}, {"onnx": ...})");
  JsonReader reader(*model, root_.path("model"), problems_);
  int ways = 0;
  for (const char* way : {"name", "family", "graph", "hf_config", "onnx"}) ways += reader.has(way) ? 1 : 0;
  if (ways > 1) reader.problem("name", "and family, graph, hf_config, onnx exclude each other: give one");
  const Json* config = reader.raw("hf_config");
  if (config && config->is_object()) {
    take(reader, "hf_config", hf_source(*config, ""));
  } else if (auto path = reader.text("hf_config")) {
    take(reader, "hf_config", hf_source(folder_ / *path, *path));
  } else if (auto graph = reader.text("graph")) {
    take(reader, "graph", graph_source(folder_ / *graph, *graph));
  } else if (auto onnx = reader.text("onnx")) {
    take(reader, "onnx", onnx_source(folder_ / *onnx, *onnx));
  } else if (reader.has("family")) {
    for (const char* key : {"family", "architecture", "title"}) reader.raw(key);
    Json given = *model;
    given.erase("layers");
    take(reader, "family", family_source(given, ""));
  } else if (ways == 0 || reader.has("name")) {
    if (!reader.has("name")) reader.problem("name", "is missing: a name from `precog models`");
    else if (auto name = reader.text("name")) read_named(reader, "name", *name);
  }
  request_.inputs.layers = reader.integer("layers", 1, 4096);
  if (request_.inputs.layers && request_.model && request_.model->layers == 0)
    reader.problem("layers", fmt::format("does not apply: {} has no single number of layers to change", request_.model->name));
  reader.reject_unknown_keys();
}

}  // namespace precog
