// Predictions whose equal chunks went through the passes once, against predictions that took each of them through.
#include <doctest/doctest.h>

#include "predict/predict.h"

namespace {

using namespace precog;

// Equal, but for the last digits of numbers that are sums: fewer chunks add up in another order.
bool same(const Json& a, const Json& b) {
  if (a.is_number_float() && b.is_number_float()) return a.get<double>() == doctest::Approx(b.get<double>()).epsilon(1e-9);
  if (a.type() != b.type() || a.size() != b.size()) return false;
  if (a.is_object())
    for (auto it = a.begin(); it != a.end(); ++it)
      if (!b.contains(it.key()) || !same(*it, b[it.key()])) return false;
  if (a.is_array())
    for (std::size_t i = 0; i < a.size(); ++i)
      if (!same(a[i], b[i])) return false;
  return a.is_structured() || a == b;
}

// Whoever asks for a stage's text gets the whole model's passes.
void same_both_ways(const Catalog& catalog, const char* text) {
  INFO(text);
  auto request = parse_request(Json::parse(text), catalog, "test");
  REQUIRE_MESSAGE(request, request.error().text());
  const auto once = predict(*request, catalog), each = predict(*request, catalog, "frontend");
  REQUIRE_MESSAGE(once, once.error().text());
  REQUIRE(each);
  CHECK(same(to_json(once->report), to_json(each->report)));
}

TEST_CASE("equal chunks go through the passes once, and nothing in the report tells") {
  const Catalog catalog = load_catalog(PRECOG_DATA_DIR).value();
  for (const char* job : {
           R"({"model": "llama3-8b", "batch": 1, "seq": 2048, "global_batch": 16, "precision": "bf16-master", "cluster": {"gpu": "h100-sxm", "gpus": 16}, "plan": {"tp": 2, "sp": true, "pp": 8, "fsdp": "zero1"}})",
           R"({"model": "llama3-70b", "batch": 1, "seq": 2048, "global_batch": 8, "precision": "fp8", "cluster": {"gpu": "h100-sxm", "gpus": 8}, "plan": {"pp": 4, "vpp": 5, "schedule": "interleaved"}, "recompute": "full"})",
           R"({"model": "gpt2-xl", "batch": 2, "global_batch": 32, "precision": "amp-fp16", "mode": "compile", "cluster": {"gpu": "v100-sxm2-32gb", "gpus": 16}, "plan": {"tp": 1, "pp": 8, "stage_layers": [5, 7, 6, 6, 6, 6, 7, 5]}})",
           R"({"model": "mixtral-8x7b", "batch": 1, "seq": 1024, "global_batch": 16, "precision": "bf16", "cluster": {"gpu": "h100-sxm", "gpus": 32}, "plan": {"tp": 2, "sp": true, "ep": 4, "pp": 4}})",
           R"({"model": "llama2-7b", "batch": 1, "seq": 4096, "global_batch": 4, "precision": "amp-bf16", "cluster": {"gpu": "a100-sxm-80gb", "gpus": 16}, "plan": {"cp": 2, "pp": 8, "schedule": "zb"}})",
           R"({"model": "deepseek-v3", "batch": 1, "seq": 512, "global_batch": 32, "precision": "fp8-blockwise", "cluster": {"gpu": "h100-sxm", "gpus": 64}, "plan": {"ep": 8, "pp": 8}})",
           R"({"model": "bert-large", "batch": 4, "global_batch": 32, "precision": "amp-fp16", "cluster": {"gpu": "v100-sxm2-32gb", "gpus": 4}, "plan": {"pp": 4}})",
           R"({"model": "mpt-7b", "batch": 1, "seq": 1024, "global_batch": 16, "precision": "amp-bf16", "cluster": {"gpu": "a100-sxm-80gb", "gpus": 8}, "plan": {"pp": 8}})",
           R"({"model": "gpt-neox-20b", "batch": 1, "seq": 512, "global_batch": 8, "precision": "fp16-master", "cluster": {"gpu": "a100-sxm-80gb", "gpus": 8}, "plan": {"tp": 2, "pp": 4}})",
           R"({"model": {"family": "llama", "architecture": {"hidden": 512, "layers": 14, "heads": 8, "intermediate": 1024, "vocab": 1000, "max_positions": 4096, "sliding_window": 64, "masks": "by_layer",
               "sliding_layers": [true, false, true, false, true, false, true, true, true, true, true, false, true, false]}},
               "batch": 1, "seq": 256, "global_batch": 8, "precision": "bf16", "cluster": {"gpu": "a100-sxm-80gb", "gpus": 7, "gpus_per_node": 7}, "plan": {"pp": 7}})",
           R"({"model": "t5-base", "batch": 2, "global_batch": 16, "precision": "amp-bf16", "cluster": {"gpu": "a100-sxm-80gb", "gpus": 4}, "plan": {"pp": 4}})",
       })
    same_both_ways(catalog, job);
}

TEST_CASE("shared embeddings' gradients travel in the type that they have by then") {
  const Catalog catalog = load_catalog(PRECOG_DATA_DIR).value();
  const auto tied = [&](const char* precision) {
    Json request = Json::parse(R"({"model": "gpt2-xl", "batch": 1, "global_batch": 8, "cluster": {"gpu": "a100-sxm-80gb", "gpus": 4}, "plan": {"pp": 4}})");
    request["precision"] = precision;
    return static_cast<double>(predict(*parse_request(request, catalog, "test"), catalog)->pipeline->times.tied);
  };
  CHECK(tied("deepspeed-bf16") > 1.5 * tied("deepspeed-fp16"));  // added up in fp32 on the way; converted at the end
}

TEST_CASE("a pattern that tells layers apart by number keeps them apart") {
  const Catalog catalog = load_catalog(PRECOG_DATA_DIR).value();
  const char* all = R"({"model": "llama2-7b", "batch": 1, "seq": 1024, "global_batch": 8, "precision": "amp-bf16", "cluster": {"gpu": "a100-sxm-80gb", "gpus": 8}, "plan": {"pp": 8}})";
  Json request = Json::parse(all);
  const auto plain = predict(*parse_request(request, catalog, "test"), catalog);
  request["overrides"] = Json::array({"*layers.9.mlp*=fp32"});  // a layer of a chunk that equals its neighbours
  const auto parsed = parse_request(request, catalog, "test");
  REQUIRE_MESSAGE(parsed, parsed.error().text());
  const auto changed = predict(*parsed, catalog);
  REQUIRE(plain);
  REQUIRE(changed);
  CHECK(changed->report.step > plain->report.step);
  CHECK(changed->pipeline->chunks.size() > plain->pipeline->chunks.size());
}

}  // namespace
