#include "frontend/hf_config.h"

#include <doctest/doctest.h>

#include "base/text.h"
#include "frontend/frozen.h"
#include "frontend/source.h"

using namespace precog;

namespace {

Graph built(const char* config, ModelInputs inputs = {.batch = 2, .seq = 16}) {
  auto model = read_hf_config(Json::parse(config), "config.json");
  REQUIRE_MESSAGE(model.has_value(), (model ? "" : model.error().text()));
  auto graph = build_model(*model, inputs);
  REQUIRE_MESSAGE(graph.has_value(), (graph ? "" : graph.error().text()));
  CHECK(verify(*graph).empty());
  return std::move(*graph);
}

int count(const Graph& graph, OpKind kind) {
  int found = 0;
  for (const Op& op : graph.ops) found += op.kind == kind ? 1 : 0;
  return found;
}

const Tensor* parameter(const Graph& graph, std::string_view name) {
  for (const Tensor& tensor : graph.tensors)
    if (tensor.role == Role::parameter && graph.name(tensor.name) == name) return &tensor;
  return nullptr;
}

}  // namespace

TEST_CASE("EveryModelTypeBuildsFromItsDefaults") {
  for (const std::string& type : hf_model_types()) {
    INFO(type);
    auto model = read_hf_config(Json{{"model_type", type}}, "config.json");
    REQUIRE_MESSAGE(model.has_value(), (model ? "" : model.error().text()));
    CHECK(model->notes.size() >= 1);  // no head is named
    ModelInputs inputs{.batch = 1, .seq = type == "vit" ? 0 : 8, .layers = 2};
    auto graph = build_model(*model, inputs);
    REQUIRE_MESSAGE(graph.has_value(), (graph ? "" : graph.error().text()));
    CHECK(verify(*graph).empty());
  }
}

TEST_CASE("Qwen3NormalisesQueriesAndKeys") {
  const Graph graph = built(R"({"model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
                                "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 96, "vocab_size": 100})");
  REQUIRE(parameter(graph, "model.layers.0.self_attn.q_norm.weight"));
  CHECK(parameter(graph, "model.layers.0.self_attn.q_norm.weight")->shape == Shape{32});
  CHECK(parameter(graph, "model.layers.0.self_attn.q_proj.bias") == nullptr);
  CHECK(count(graph, OpKind::rsqrt) == 5);
}

TEST_CASE("Gemma2HasFourNormsAndCapsItsLogits") {
  const Graph graph = built(R"({"model_type": "gemma2", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
                                "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96, "vocab_size": 100, "sliding_window": 8})");
  CHECK(count(graph, OpKind::rsqrt) == 9);
  CHECK(count(graph, OpKind::tanh) == 1);
  int masked = 0, causal = 0;
  for (const Op& op : graph.ops)
    if (const auto* attention = std::get_if<AttentionAttributes>(&op.attributes)) {
      masked += attention->mask ? 1 : 0;
      causal += attention->causal ? 1 : 0;
    }
  CHECK(masked == 1);  // the first layer slides, the second does not
  CHECK(causal == 1);
}

TEST_CASE("ASlidingWindowThatIsLongEnoughNeedsNoMask") {
  const Graph graph = built(R"({"model_type": "mistral", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
                                "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 100})");
  for (const Op& op : graph.ops)
    if (const auto* attention = std::get_if<AttentionAttributes>(&op.attributes)) CHECK(attention->causal);
}

TEST_CASE("ProblemsComeInTheFilesOwnWords") {
  auto model = read_hf_config(Json::parse(R"({"model_type": "gpt2", "n_embd": 100, "n_head": 12, "n_layer": "x"})"), "config.json");
  REQUIRE_FALSE(model.has_value());
  CHECK(model.error().problems[0].where == "config.json: n_layer");
  model = read_hf_config(Json::parse(R"({"model_type": "gpt2", "n_embd": 100, "n_head": 12})"), "config.json");
  REQUIRE_FALSE(model.has_value());
  CHECK(model.error().problems[0].where == "config.json: n_head");
}

TEST_CASE("NullAndAbsentAreNotTheSameWindow") {
  CHECK(read_hf_config(Json::parse(R"({"model_type": "mistral"})"), "")->architecture.value("sliding_window", 0) == 4096);
  CHECK_FALSE(read_hf_config(Json::parse(R"({"model_type": "mistral", "sliding_window": null})"), "")->architecture.contains("sliding_window"));
}

TEST_CASE("Patterns") {
  CHECK(matches_pattern("a.b.c", "a.*"));
  CHECK(matches_pattern("a.b.c", "*c"));
  CHECK(matches_pattern("a.b.c", "a.?.c"));
  CHECK(matches_pattern("", "*"));
  CHECK(matches_pattern("abcabc", "*abc"));
  CHECK_FALSE(matches_pattern("a.b.c", "a"));
  CHECK_FALSE(matches_pattern("a.b.c", "a.?"));
  CHECK_FALSE(matches_pattern("a*", "a"));
}

TEST_CASE("FreezingStopsGradientsOfWhatOnlyFrozenParametersFeed") {
  Graph graph = built(R"({"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2, "vocab_size": 100, "n_positions": 32})");
  auto frozen = freeze(graph, {"transformer.w?e.*", "transformer.h.0.*"});
  REQUIRE_MESSAGE(frozen.has_value(), (frozen ? "" : frozen.error().text()));
  for (const Op& op : frozen->ops) {
    bool wanted = false;
    for (TensorId id : frozen->inputs(op)) wanted = wanted || frozen->tensors[id].requires_grad;
    for (TensorId id : frozen->outputs(op))
      if (frozen->tensors[id].requires_grad) CHECK(wanted);
    if (frozen->name(op.module).starts_with("transformer.h.0."))
      for (TensorId id : frozen->outputs(op)) CHECK_FALSE(frozen->tensors[id].requires_grad);
  }
  CHECK(frozen->tensors[frozen->output(frozen->ops.back())].requires_grad);
  CHECK_FALSE(freeze(graph, {"nothing"}).has_value());
  CHECK_FALSE(freeze(graph, {"*"}).has_value());
  CHECK(to_text(*freeze(graph, {})) == to_text(graph));
}

TEST_CASE("APathSaysByItsNameWhatItIs") {
  CHECK(looks_like_path("m.onnx"));
  CHECK(looks_like_path("m.precog.json.zst"));
  CHECK(looks_like_path("./x"));
  CHECK_FALSE(looks_like_path("bert-base"));
  CHECK_FALSE(file_source("/nonexistent/m.onnx", "m.onnx").has_value());
}
