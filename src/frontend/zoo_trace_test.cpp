// Operator counts of small models against the real frameworks. The figures were traced (TorchFunctionMode on a CPU, fp32,
// training mode, batch 2, eight tokens) from transformers 5.17.0 and torchvision 0.26.0 on torch 2.11.0; reading the
// trace, a call that only renames (`.to` of the same type aside) or copies nothing is no operator, cross_entropy is two.
// Kinds in which the builder knowingly differs from the CPU's trace are left out, not adjusted:
//   cast                 qwen2 casts twice more, never to another type; T5's casts depend on the type; expert ids are cast
//                        to float on a CPU, to int on a GPU
//   contiguous           after attention with dropout or a wider key than value: the CPU's math path copies, fused kernels do not
//   integer_pointwise    where the builder writes small float helpers (T5's buckets, routing masks, histc) as such too
//   cat, view            DeepSeek-V3 fills its keys with two copies into slices, here one cat
//   ViT                  multi_head_attention_forward is one traced call and several operators here
#include <filesystem>
#include <map>
#include <string>

#include <doctest/doctest.h>

#include "frontend/zoo.h"

using namespace precog;

namespace {

struct Traced {
  std::string model, architecture;
  std::map<std::string, int> counts;
};

const Traced kTraced[] = {
    {"llama3-8b",
     R"({"hidden": 64, "layers": 1, "heads": 4, "kv_heads": 2, "head_dim": 16, "intermediate": 96, "vocab": 128})",
     {{"add", 4}, {"add_scalar", 3}, {"bmm", 1}, {"cast", 11}, {"cat", 4}, {"contiguous", 1}, {"cos", 1}, {"embedding", 1},
      {"integer_pointwise", 10}, {"linear", 8}, {"log_softmax", 1}, {"mean", 3}, {"mul", 11}, {"mul_scalar", 2}, {"neg", 2},
      {"nll_loss", 1}, {"pow", 3}, {"read_back", 1}, {"rsqrt", 3}, {"scaled_dot_product_attention", 1}, {"silu", 1}, {"sin", 1},
      {"view", 28}}},
    {"mistral-7b",
     R"({"hidden": 64, "layers": 1, "heads": 4, "kv_heads": 2, "head_dim": 16, "intermediate": 96, "vocab": 128,)"
     R"("sliding_window": 4})",
     {{"add", 4}, {"add_scalar", 3}, {"bmm", 1}, {"cast", 11}, {"cat", 4}, {"contiguous", 3}, {"cos", 1}, {"embedding", 1},
      {"integer_pointwise", 22}, {"linear", 8}, {"log_softmax", 1}, {"mean", 3}, {"mul", 11}, {"mul_scalar", 2}, {"neg", 2},
      {"nll_loss", 1}, {"pow", 3}, {"read_back", 1}, {"rsqrt", 3}, {"scaled_dot_product_attention", 1}, {"silu", 1}, {"sin", 1},
      {"view", 39}}},
    {"qwen2.5-0.5b",
     R"({"hidden": 64, "layers": 1, "heads": 4, "kv_heads": 2, "head_dim": 16, "intermediate": 96, "vocab": 128})",
     {{"add", 4}, {"add_scalar", 3}, {"bmm", 1}, {"cat", 4}, {"contiguous", 1}, {"cos", 1}, {"embedding", 1}, {"integer_pointwise", 10},
      {"linear", 8}, {"log_softmax", 1}, {"mean", 3}, {"mul", 11}, {"mul_scalar", 2}, {"neg", 2}, {"nll_loss", 1}, {"pow", 3},
      {"read_back", 1}, {"rsqrt", 3}, {"scaled_dot_product_attention", 1}, {"silu", 1}, {"sin", 1}, {"view", 28}}},
    {"mixtral-8x7b",
     R"({"hidden": 64, "layers": 1, "heads": 4, "kv_heads": 2, "head_dim": 16, "intermediate": 96, "vocab": 128, "experts": 4})",
     {{"add", 4}, {"add_scalar", 3}, {"bmm", 1}, {"cat", 4}, {"contiguous", 2}, {"cos", 1}, {"div", 1}, {"embedding", 1},
      {"grouped_linear", 2}, {"index_select", 3}, {"linear", 6}, {"log_softmax", 1}, {"masked_fill", 3}, {"mean", 3}, {"mul", 12},
      {"mul_scalar", 2}, {"neg", 2}, {"nll_loss", 1}, {"pow", 3}, {"read_back", 1}, {"rsqrt", 3}, {"scaled_dot_product_attention", 1},
      {"silu", 1}, {"sin", 1}, {"softmax", 1}, {"split", 1}, {"sum", 2}, {"topk", 1}, {"view", 38}}},
    {"gpt2",
     R"({"hidden": 64, "layers": 1, "heads": 4, "vocab": 128})",
     {{"add", 4}, {"add_scalar", 1}, {"cast", 1}, {"cat", 1}, {"dropout", 3}, {"embedding", 2}, {"integer_pointwise", 10},
      {"layer_norm", 3}, {"linear", 5}, {"log_softmax", 1}, {"mul", 1}, {"mul_scalar", 3}, {"nll_loss", 1}, {"pow", 1},
      {"read_back", 1}, {"scaled_dot_product_attention", 1}, {"split", 1}, {"tanh", 1}, {"view", 28}}},
    {"bert-base",
     R"({"hidden": 64, "layers": 1, "heads": 4, "vocab": 128, "intermediate": 96})",
     {{"add", 4}, {"dropout", 3}, {"embedding", 3}, {"gelu", 2}, {"integer_pointwise", 1}, {"layer_norm", 4}, {"linear", 8},
      {"log_softmax", 1}, {"nll_loss", 1}, {"scaled_dot_product_attention", 1}, {"view", 13}}},
    {"gpt-neox-20b",
     R"({"hidden": 64, "layers": 1, "heads": 4, "vocab": 128, "intermediate": 96, "rotary_dim": 4})",
     {{"add", 4}, {"bmm", 1}, {"cast", 5}, {"cat", 6}, {"contiguous", 2}, {"cos", 1}, {"embedding", 1}, {"gelu", 1},
      {"integer_pointwise", 10}, {"layer_norm", 3}, {"linear", 5}, {"log_softmax", 1}, {"mul", 4}, {"mul_scalar", 2}, {"neg", 2},
      {"nll_loss", 1}, {"read_back", 1}, {"scaled_dot_product_attention", 1}, {"sin", 1}, {"split", 1}, {"view", 28}}},
    {"t5-base",
     R"({"hidden": 64, "layers": 1, "decoder_layers": 1, "heads": 4, "head_dim": 16, "vocab": 128, "intermediate": 96})",
     {{"add", 5}, {"add_scalar", 7}, {"dropout", 11}, {"embedding", 4}, {"linear", 17}, {"log_softmax", 1}, {"masked_fill", 1},
      {"mean", 7}, {"mul", 14}, {"nll_loss", 1}, {"pow", 7}, {"relu", 2}, {"rsqrt", 7}, {"scaled_dot_product_attention", 3},
      {"view", 38}}},
    {"deepseek-v3",
     R"({"hidden": 64, "layers": 2, "dense_layers": 1, "heads": 4, "vocab": 128, "intermediate": 96, "q_lora_rank": 24,)"
     R"("kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "experts": 8, "experts_per_token":)"
     R"(2, "expert_groups": 2, "groups_per_token": 1, "expert_intermediate": 32})",
     {{"add", 10}, {"add_scalar", 10}, {"bmm", 1}, {"cos", 1}, {"div", 1}, {"embedding", 1}, {"grouped_linear", 2}, {"index_select", 4},
      {"linear", 18}, {"log_softmax", 1}, {"masked_fill", 4}, {"mean", 9}, {"mul", 38}, {"mul_scalar", 3}, {"nll_loss", 1}, {"pow", 9},
      {"read_back", 1}, {"rsqrt", 9}, {"scaled_dot_product_attention", 2}, {"sigmoid", 1}, {"silu", 3}, {"sin", 1}, {"split", 7},
      {"sub", 4}, {"sum", 3}, {"topk", 3}}},
    {"vit-b",
     R"({"image": 32})",
     {{"cat", 1}, {"conv2d", 1}, {"gelu", 12}, {"layer_norm", 25}, {"log_softmax", 1}, {"nll_loss", 1}}},
    {"resnet18",
     R"({"image": 64})",
     {{"adaptive_avg_pool2d", 1}, {"add", 8}, {"batch_norm", 20}, {"conv2d", 20}, {"integer_pointwise", 20}, {"linear", 1},
      {"log_softmax", 1}, {"max_pool2d", 1}, {"nll_loss", 1}, {"relu", 17}, {"view", 1}}},
    {"vgg16",
     R"({"image": 64})",
     {{"adaptive_avg_pool2d", 1}, {"conv2d", 13}, {"dropout", 2}, {"linear", 3}, {"log_softmax", 1}, {"max_pool2d", 5}, {"nll_loss", 1},
      {"relu", 15}, {"view", 1}}},
    {"mobilenet_v2",
     R"({"image": 64})",
     {{"adaptive_avg_pool2d", 1}, {"add", 10}, {"batch_norm", 52}, {"contiguous", 35}, {"conv2d", 52}, {"dropout", 1}, {"hardtanh", 35},
      {"integer_pointwise", 52}, {"linear", 1}, {"log_softmax", 1}, {"nll_loss", 1}, {"view", 1}}},
};

}  // namespace

TEST_CASE("Small models call the operators that the real ones were traced to call") {
  for (const Traced& traced : kTraced) {
    CAPTURE(traced.model);
    auto json = read_json_file(std::filesystem::path(PRECOG_DATA_DIR) / "models" / (traced.model + ".json"));
    REQUIRE(json.has_value());
    (*json)["architecture"].update(Json::parse(traced.architecture));
    auto spec = parse_model(*json, traced.model);
    REQUIRE_MESSAGE(spec.has_value(), (spec ? "" : spec.error().text()));
    auto graph = build_model(*spec, {.batch = 2, .seq = spec->language ? 8 : 0});
    REQUIRE_MESSAGE(graph.has_value(), (graph ? "" : graph.error().text()));
    std::map<std::string, int> built;
    for (const Op& op : graph->ops) ++built[std::string(to_text(op.kind))];
    for (const auto& [kind, count] : traced.counts) CHECK_MESSAGE(built[kind] == count, kind);
  }
}
