// MixtralForCausalLM: Llama's skeleton with eight experts for every MLP, two per token. Qwen2MoeForCausalLM (a shared
// expert beside them, behind a gate of its own) and Qwen3MoeForCausalLM are the same but for switches.
// Their load-balancing loss is off by default (output_router_logits) and is not built.
#include "frontend/experts.h"
#include "frontend/llama.h"
#include "frontend/text_blocks.h"

#include <algorithm>

namespace precog::zoo {
namespace mixtral {
namespace {

struct Mixtral {
  DecoderArchitecture decoder;
  std::int64_t experts, top_k, expert_intermediate, shared_intermediate, sparse_step;
  std::vector<std::int64_t> dense_layers;  // layers with an ordinary MLP, besides those between sparse steps
  bool normalize, cast_weights, weigh_inside;  // the chosen weights add up to one; are cast to the logits' type; see experts.h

  bool sparse(std::int64_t layer) const {
    return experts > 0 && (layer + 1) % sparse_step == 0 && std::find(dense_layers.begin(), dense_layers.end(), layer) == dense_layers.end();
  }
};

Mixtral read(JsonReader& r) {
  Mixtral a;
  a.decoder = read_decoder(r);
  a.experts = r.required_integer("experts", 1, 1 << 14);
  a.top_k = r.required_integer("experts_per_token", 1, 256);
  a.expert_intermediate = r.integer("expert_intermediate", 1, kMaxWidth).value_or(a.decoder.intermediate);
  a.shared_intermediate = r.integer("shared_intermediate", 1, kMaxWidth).value_or(0);
  a.sparse_step = r.integer("sparse_step", 1, kMaxLayers).value_or(1);
  if (const Json* dense = r.raw("dense_mlp_layers"); dense && dense->is_array())
    for (const Json& layer : *dense)
      if (layer.is_number_integer()) a.dense_layers.push_back(layer.get<std::int64_t>());
  a.normalize = r.boolean("normalize_weights").value_or(true);
  a.cast_weights = r.boolean("cast_weights").value_or(false);
  a.weigh_inside = r.boolean("weigh_inside").value_or(false);
  if (a.top_k > a.experts) r.problem("experts_per_token", "must not be more than experts");
  return a;
}

TensorId feed_forward(GraphBuilder& b, const Mixtral& a, TensorId x, std::int64_t layer) {
  if (!a.sparse(layer)) return gated_mlp(b, "mlp", x, a.decoder.intermediate, a.decoder.act);
  auto scope = b.module("mlp");
  const Shape s = b.shape(x);
  TensorId rows = b.view(x, {s[0] * s[1], s[2]});
  TensorId shared;
  if (a.shared_intermediate > 0) shared = gated_mlp(b, "shared_expert", rows, a.shared_intermediate, a.decoder.act);
  TensorId weights, indices;
  {
    auto gate = b.module("gate");
    TensorId weight = b.parameter("weight", {a.experts, s[2]});
    TensorId logits = b.linear(b.view(rows, b.shape(rows)), weight);
    TensorId scores = b.softmax(b.cast_to(logits, DType::fp32));
    auto [best, which] = b.topk(scores, a.top_k);
    weights = best;
    if (a.normalize) weights = b.binary(OpKind::div, b.contiguous(best), b.sum(best, -1));  // div_, whose operand autograd clones first
    if (a.cast_weights) weights = b.cast_like(weights, logits);
    indices = which;
  }
  TensorId out = grouped_experts(b, rows, weights, indices, a.experts, a.expert_intermediate, a.decoder.act, a.weigh_inside);
  if (shared.valid()) {
    TensorId gate = b.unary(OpKind::sigmoid, b.linear_layer("shared_expert_gate", rows, 1, false));
    out = b.add(out, b.mul(gate, shared));
  }
  return b.view(out, s);
}

void build(GraphBuilder& b, JsonReader& reader, const Sizes& sizes) {
  const Mixtral a = read(reader);
  build_decoder(b, a.decoder, sizes, [&](TensorId x, std::int64_t layer) { return feed_forward(b, a, x, layer); });
}

std::vector<int> kinds(JsonReader& r) {
  const Mixtral a = read(r);
  std::vector<int> out = decoder_kinds(a.decoder);
  for (std::size_t layer = 0; layer < out.size(); ++layer) out[layer] += a.sparse(static_cast<std::int64_t>(layer)) ? 2 : 0;
  return out;
}

}  // namespace
}  // namespace mixtral

ModelFamily mixtral_family() {
  return {.name = "mixtral", .language = true, .check = [](JsonReader& r) { mixtral::read(r); }, .build = mixtral::build, .layer_kinds = mixtral::kinds};
}

}  // namespace precog::zoo
