// The zoo against what is published and against hand-counted or traced operator lists.
#include "frontend/zoo.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include <doctest/doctest.h>

using namespace precog;

namespace {

std::vector<std::filesystem::path> model_files() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(PRECOG_DATA_DIR) / "models"))
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

Json model_json(const std::string& name) {
  auto json = read_json_file(std::filesystem::path(PRECOG_DATA_DIR) / "models" / (name + ".json"));
  REQUIRE_MESSAGE(json.has_value(), (json ? "" : json.error().text()));
  return *json;
}

ModelSpec parsed(const Json& json) {
  auto spec = parse_model(json, "test");
  REQUIRE_MESSAGE(spec.has_value(), (spec ? "" : spec.error().text()));
  return *spec;
}
ModelSpec model(const std::string& name) { return parsed(model_json(name)); }

Graph built(const ModelSpec& spec, const ModelInputs& inputs) {
  auto graph = build_model(spec, inputs);
  REQUIRE_MESSAGE(graph.has_value(), (graph ? "" : graph.error().text()));
  return std::move(*graph);
}

std::map<std::string, int> counts(const Graph& graph) {
  std::map<std::string, int> out;
  for (const Op& op : graph.ops) ++out[std::string(to_text(op.kind))];
  return out;
}

std::set<std::string> parameter_names(const Graph& graph) {
  std::set<std::string> names;
  for (const Tensor& tensor : graph.tensors)
    if (tensor.role == Role::parameter) names.insert(std::string(graph.name(tensor.name)));
  return names;
}

std::string build_error(const ModelSpec& spec, const ModelInputs& inputs) {
  auto graph = build_model(spec, inputs);
  return graph ? "" : graph.error().text();
}

std::string parse_error(const Json& json) {
  auto spec = parse_model(json, "file.json");
  return spec ? "" : spec.error().text();
}

}  // namespace

TEST_CASE("Every model file builds, holds its promises and has exactly the published parameters") {
  const auto files = model_files();
  CHECK(files.size() >= 32);
  for (const auto& file : files) {
    CAPTURE(file.filename().string());
    auto json = read_json_file(file);
    REQUIRE(json.has_value());
    const ModelSpec spec = parsed(*json);
    CHECK(spec.name == file.stem().string());
    const Graph graph = built(spec, {.batch = 2, .seq = spec.language ? 128 : 0});
    CHECK(verify(graph) == "");
    CHECK(parameter_count(graph) == spec.published_parameters);
    CHECK(graph.ops.back().kind == (spec.family == "mpt" ? OpKind::mean : OpKind::nll_loss));  // a fused loss ends with its mean
    // Each parameter is named once: a tied weight is one tensor, used twice.
    std::size_t parameters = 0;
    for (const Tensor& tensor : graph.tensors) parameters += tensor.role == Role::parameter;
    CHECK(parameters == parameter_names(graph).size());
  }
}

TEST_CASE("Names and aliases are unique over the folder") {
  std::set<std::string> seen;
  for (const auto& file : model_files()) {
    const ModelSpec spec = parsed(*read_json_file(file));
    CHECK(seen.insert(spec.name).second);
    for (const std::string& alias : spec.aliases) CHECK_MESSAGE(seen.insert(alias).second, alias);
  }
}

TEST_CASE("ResNet-18 by hand: 20 convolutions, each with its norm, eight residual sums") {
  auto ops = counts(built(model("resnet18"), {.batch = 4}));
  CHECK(ops["conv2d"] == 20);       // stem, 16 in blocks, 3 downsampling
  CHECK(ops["batch_norm"] == 20);
  CHECK(ops["integer_pointwise"] == 20);  // num_batches_tracked += 1
  CHECK(ops["relu"] == 17);         // stem and two a block
  CHECK(ops["add"] == 8);
  CHECK(ops["max_pool2d"] == 1);
  CHECK(ops["adaptive_avg_pool2d"] == 1);
  CHECK(ops["view"] == 1);
  CHECK(ops["linear"] == 1);
  CHECK(ops["log_softmax"] == 1);
  CHECK(ops["nll_loss"] == 1);
}

TEST_CASE("A Llama layer by hand") {
  const ModelSpec spec = model("llama3-8b");
  auto one = counts(built(spec, {.batch = 2, .seq = 64, .layers = 1}));
  auto two = counts(built(spec, {.batch = 2, .seq = 64, .layers = 2}));
  std::map<std::string, int> layer;
  for (auto& [name, count] : two)
    if (count != one[name]) layer[name] = count - one[name];
  // Two norms (pow, mean, add_scalar, rsqrt, two mul, casts to fp32 and back), rotary on q and k (two mul, neg, cat, add each),
  // four and three projections, two residual sums.
  const std::map<std::string, int> expected = {
      {"linear", 7}, {"scaled_dot_product_attention", 1}, {"pow", 2}, {"mean", 2}, {"add_scalar", 2}, {"rsqrt", 2},
      {"mul", 2 * 2 + 2 * 2 + 1},
      {"cast", 4}, {"neg", 2}, {"cat", 2}, {"add", 2 + 2}, {"silu", 1}, {"view", 3 * 2 + 2 + 2 * 2 + 2}};
  CHECK(layer == expected);
  CHECK(one["read_back"] == 1);  // the check for packed sequences makes the host wait
}

TEST_CASE("Parameters carry the names of the public checkpoints") {
  auto has = [](const std::string& name, std::initializer_list<const char*> wanted) {
    const auto names = parameter_names(built(model(name), {.batch = 1}));
    for (const char* want : wanted) CHECK_MESSAGE(names.count(want) == 1, name << " lacks " << want);
  };
  has("resnet50", {"conv1.weight", "layer1.0.downsample.1.bias", "layer4.2.bn3.weight", "fc.bias"});
  has("mobilenet_v2", {"features.0.0.weight", "features.1.conv.1.weight", "features.17.conv.3.bias", "features.18.1.weight",
                       "classifier.1.bias"});
  has("vit-b", {"class_token", "encoder.pos_embedding", "encoder.layers.encoder_layer_11.self_attention.in_proj_weight",
                "heads.head.bias"});
  has("bert-base", {"bert.embeddings.LayerNorm.weight", "bert.encoder.layer.11.attention.self.query.bias", "cls.predictions.bias"});
  has("gpt2", {"transformer.wte.weight", "transformer.h.0.attn.c_attn.weight", "transformer.ln_f.bias"});
  has("t5-base", {"shared.weight", "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
                  "decoder.block.11.layer.2.DenseReluDense.wo.weight"});
  has("llama2-7b", {"model.layers.31.self_attn.q_proj.weight", "model.norm.weight", "lm_head.weight"});
}

TEST_CASE("Tied heads are the embedding itself, untied ones are not") {
  const auto tied = parameter_names(built(model("qwen2.5-0.5b"), {.batch = 1, .seq = 8}));
  CHECK(tied.count("lm_head.weight") == 0);
  CHECK(tied.count("model.embed_tokens.weight") == 1);
  CHECK(parameter_names(built(model("qwen2.5-7b"), {.batch = 1, .seq = 8})).count("lm_head.weight") == 1);
}

TEST_CASE("Mistral needs a mask and repeated keys only once the sequence reaches its window") {
  auto attention = [](const Graph& graph) {
    for (const Op& op : graph.ops)
      if (op.kind == OpKind::scaled_dot_product_attention) return std::get<AttentionAttributes>(op.attributes);
    return AttentionAttributes{};
  };
  const ModelSpec spec = model("mistral-7b");
  const auto below = attention(built(spec, {.batch = 1, .seq = 4095, .layers = 1}));
  CHECK(below.causal);
  CHECK_FALSE(below.mask);
  CHECK(below.kv_heads == 8);
  const auto above = attention(built(spec, {.batch = 1, .seq = 4096, .layers = 1}));
  CHECK_FALSE(above.causal);
  CHECK(above.mask);
  CHECK(above.kv_heads == 32);
}

TEST_CASE("Repeated layers are numbered from nought and nothing else is") {
  const Graph graph = built(model("gpt2"), {.batch = 1, .seq = 16});
  std::set<int> blocks;
  for (const Op& op : graph.ops) blocks.insert(op.block);
  CHECK(blocks.size() == 13);
  CHECK(*blocks.begin() == -1);
  CHECK(*blocks.rbegin() == 11);
  CHECK(graph.ops.back().block == -1);
}

TEST_CASE("The largest dense model builds at its training length") {
  const Graph graph = built(model("llama3-405b"), {.batch = 1, .seq = 8192});
  CHECK(graph.ops.size() > 126 * 40);
}

TEST_CASE("An encoder-decoder takes two lengths; tokens counted are the decoder's") {
  const ModelSpec spec = model("t5-base");
  const ModelInputs inputs{.batch = 2, .seq = 64, .src_seq = 256};
  CHECK(tokens_per_sample(spec, inputs) == 64);
  CHECK(tokens_per_sample(spec, {}) == 512);
  CHECK(tokens_per_sample(model("resnet50"), {}) == 0);
  const Graph graph = built(spec, inputs);
  CHECK(verify(graph) == "");
  std::set<std::pair<std::int64_t, std::int64_t>> lengths;
  for (const Op& op : graph.ops)
    if (op.kind == OpKind::scaled_dot_product_attention) {
      const auto& a = std::get<AttentionAttributes>(op.attributes);
      lengths.insert({a.q_len, a.kv_len});
    }
  CHECK(lengths == std::set<std::pair<std::int64_t, std::int64_t>>{{256, 256}, {64, 64}, {64, 256}});
}

TEST_CASE("Sizes that cannot be are refused with what can") {
  const ModelSpec bert = model("bert-base");
  CHECK(build_error(bert, {.batch = 0}).find("1 to 1000000000") != std::string::npos);
  CHECK(build_error(bert, {.batch = -3}).find("batch: is -3") != std::string::npos);
  CHECK(build_error(bert, {.batch = 1'000'000'001}) != "");
  CHECK(build_error(bert, {.batch = 1, .seq = 513}).find("1 to 512 tokens") != std::string::npos);
  CHECK(build_error(bert, {.batch = 1, .seq = -1}).find("seq: is -1") != std::string::npos);
  CHECK(build_error(bert, {.batch = 1, .seq = 8, .src_seq = 8}).find("src_seq") != std::string::npos);
  CHECK(build_error(bert, {.batch = 1, .seq = 8, .layers = 0}).find("1 to 4096") != std::string::npos);
  CHECK(build_error(bert, {.batch = 1, .seq = 512}) == "");
  const ModelSpec resnet = model("resnet50");
  CHECK(build_error(resnet, {.batch = 1, .seq = 128}).find("has no sequence length") != std::string::npos);
  CHECK(build_error(resnet, {.batch = 1, .layers = 3}).find("layers") != std::string::npos);
  CHECK(build_error(resnet, {.batch = 1'000'000}) == "");
  const ModelSpec large = model("llama3-405b");
  CHECK(build_error(large, {.batch = 1, .seq = (1 << 20) + 1}).find("1 to 1048576") != std::string::npos);
  CHECK(build_error(large, {.batch = 1'000'000, .seq = 1 << 20}).find("make the batch or the sequence smaller") != std::string::npos);
}

TEST_CASE("Bad model files: every problem at once, with its path") {
  Json json = model_json("llama3-8b");
  json["colour"] = "red";
  json["architecture"]["hiden"] = 4096;
  json["architecture"]["kv_heads"] = 7;
  const std::string error = parse_error(json);
  CHECK(error.find("colour") != std::string::npos);
  CHECK(error.find("hiden") != std::string::npos);
  CHECK(error.find("must divide heads") != std::string::npos);

  json = model_json("llama3-8b");
  json["family"] = "lama";
  CHECK(parse_error(json).find("known: resnet") != std::string::npos);
  json = model_json("llama3-8b");
  json["architecture"].erase("vocab");
  CHECK(parse_error(json).find("vocab") != std::string::npos);
  json["architecture"] = 3;
  CHECK(parse_error(json) != "");
  json = model_json("gpt2");
  json["default_seq"] = 2048;  // beyond its position table
  CHECK(parse_error(json).find("default_seq") != std::string::npos);
  json = model_json("mobilenet_v2");
  json["architecture"]["stages"][0] = Json::array({1, 16});
  CHECK(parse_error(json).find("rows of 4 integers") != std::string::npos);
  CHECK(parse_error(Json::array()) != "");
}
