// MixtralForCausalLM: Llama's skeleton with eight experts for every MLP, two per token.
// Its load-balancing loss is off by default (output_router_logits) and is not built.
#include "frontend/experts.h"
#include "frontend/llama.h"

namespace precog::zoo {
namespace {

struct Mixtral {
  DecoderArchitecture decoder;
  std::int64_t experts, top_k;
};

Mixtral read(JsonReader& r) {
  Mixtral a;
  a.decoder = read_decoder(r);
  a.experts = r.required_integer("experts", 1, 1 << 14);
  a.top_k = r.required_integer("experts_per_token", 1, 256);
  if (a.top_k > a.experts) r.problem("experts_per_token", "must not be more than experts");
  return a;
}

TensorId feed_forward(GraphBuilder& b, const Mixtral& a, TensorId x) {
  auto scope = b.module("mlp");
  const Shape s = b.shape(x);
  TensorId rows = b.view(x, {s[0] * s[1], s[2]});
  TensorId weights, indices;
  {
    auto gate = b.module("gate");
    TensorId weight = b.parameter("weight", {a.experts, s[2]});
    TensorId scores = b.softmax(b.cast_to(b.linear(b.view(rows, b.shape(rows)), weight), DType::fp32));
    auto [best, which] = b.topk(scores, a.top_k);
    TensorId total = b.sum(best, -1);
    weights = b.binary(OpKind::div, b.contiguous(best), total);  // div_, whose operand autograd clones first
    indices = which;
  }
  return b.view(grouped_experts(b, rows, weights, indices, a.experts, a.decoder.intermediate), s);
}

void build(GraphBuilder& b, JsonReader& reader, const Sizes& sizes) {
  const Mixtral a = read(reader);
  build_decoder(b, a.decoder, sizes, [&](TensorId x) { return feed_forward(b, a, x); });
}

}  // namespace

ModelFamily mixtral_family() {
  return {.name = "mixtral", .language = true, .check = [](JsonReader& r) { read(r); }, .build = build};
}

}  // namespace precog::zoo
