// OPTForCausalLM: learned positions behind an offset of two, taken from a mask of ones that the model makes itself; relu;
// the query scaled by a kernel of its own. The smallest-but-one (350M) norms behind its sublayers and has narrower
// embeddings, projected in and out.
#include "frontend/text_blocks.h"

namespace precog::zoo {
namespace opt {
namespace {

struct Opt {
  std::int64_t hidden, layers, heads, intermediate, vocab, positions, embedding, classes;
  double attention_dropout, dropout;
  std::string act;
  bool norm_first, final_norm, bias, affine, tied;
};

Opt read(JsonReader& r) {
  Opt a;
  a.hidden = r.required_integer("hidden", 1, kMaxWidth);
  a.layers = r.required_integer("layers", 1, kMaxLayers);
  a.heads = r.required_integer("heads", 1, kMaxHeads);
  a.intermediate = r.required_integer("intermediate", 1, kMaxWidth);
  a.vocab = r.required_integer("vocab", 2, kMaxWidth);
  a.positions = r.required_integer("max_positions", 1, kMaxWidth);
  a.embedding = r.integer("embedding", 1, kMaxWidth).value_or(a.hidden);
  a.attention_dropout = read_probability(r, "attention_dropout");
  a.dropout = read_probability(r, "dropout");
  a.act = read_activation(r, "relu");
  a.norm_first = r.boolean("norm_first").value_or(true);
  a.final_norm = r.boolean("final_norm").value_or(a.norm_first);
  a.bias = r.boolean("bias").value_or(true);
  a.affine = r.boolean("affine_norms").value_or(true);
  a.tied = r.boolean("tie_embeddings").value_or(true);
  a.classes = read_classes(r);
  if (a.heads > 0 && a.hidden % a.heads != 0) r.problem("heads", "must divide hidden");
  if (!a.affine) r.problem("affine_norms", "must be true: norms without parameters are not modelled");
  return a;
}

// ones, cumsum, * mask, - 1, long; the mask as booleans is summed, compared and read back.
TensorId positions_of_mask(GraphBuilder& b, const Sizes& sizes) {
  const Shape all{sizes.batch, sizes.seq};
  TensorId mask = b.integer_op({}, all, DType::fp32);
  TensorId counted = b.integer_op({mask}, all, DType::fp32);
  counted = b.unary(OpKind::add_scalar, b.mul(counted, mask));
  TensorId positions = b.cast_to(counted, DType::int64);
  positions = b.view(positions, all, ViewKind::slice);
  TensorId real = b.integer_op({mask}, all, DType::boolean);
  b.read_back(b.integer_op({b.integer_op({real}, {})}, {}, DType::boolean));
  return positions;
}

TensorId attention(GraphBuilder& b, const Opt& a, TensorId x) {
  auto scope = b.module("self_attn");
  const std::int64_t width = a.hidden / a.heads;
  TensorId q = to_heads(b, b.unary(OpKind::mul_scalar, b.linear_layer("q_proj", x, a.hidden, a.bias)), a.heads, width);
  TensorId k = b.linear_layer("k_proj", x, a.hidden, a.bias);
  TensorId v = to_heads(b, b.linear_layer("v_proj", x, a.hidden, a.bias), a.heads, width);
  k = to_heads(b, k, a.heads, width);
  TensorId mixed = from_heads(b, b.attention(q, k, v, b.shape(q)[2] > 1, {}, a.attention_dropout));
  return b.linear_layer("out_proj", mixed, a.hidden, a.bias);
}

TensorId layer(GraphBuilder& b, const Opt& a, TensorId x) {
  const Shape s = b.shape(x);
  TensorId mixed = attention(b, a, a.norm_first ? b.layer_norm_layer("self_attn_layer_norm", x) : x);
  x = b.add(x, b.dropout(mixed, a.dropout));
  if (!a.norm_first) x = b.layer_norm_layer("self_attn_layer_norm", x);
  TensorId rows = b.view(x, {s[0] * s[1], s[2]});
  TensorId fed = a.norm_first ? b.layer_norm_layer("final_layer_norm", rows) : rows;
  fed = activation(b, a.act, b.linear_layer("fc1", fed, a.intermediate, a.bias));
  fed = b.dropout(b.linear_layer("fc2", fed, a.hidden, a.bias), a.dropout);
  x = b.view(b.add(rows, fed), s);
  return a.norm_first ? x : b.layer_norm_layer("final_layer_norm", x);
}

void build(GraphBuilder& b, JsonReader& reader, const Sizes& sizes) {
  const Opt a = read(reader);
  auto [ids, labels] = token_inputs(b, sizes, a.classes);
  TensorId table, x;
  {
    auto model = b.module("model.decoder");
    ids = b.view(ids, b.shape(ids));
    {
      auto scope = b.module("embed_tokens");
      table = b.parameter("weight", {a.vocab, a.embedding});
      x = b.embedding(table, ids);
    }
    TensorId positions = positions_of_mask(b, sizes);
    TensorId places = b.embedding_layer("embed_positions", b.integer_op({positions}, b.shape(positions)), a.positions + 2, a.hidden);
    if (a.embedding != a.hidden) x = b.linear_layer("project_in", x, a.hidden, false);
    x = b.add(x, places);
    for (std::int64_t i = 0; i < a.layers; ++i) {
      if (!b.begin_layer(i)) continue;
      auto scope = b.module("layers." + std::to_string(i));
      x = layer(b, a, x);
    }
    b.set_block(-1);
    if (a.final_norm) x = b.layer_norm_layer("final_layer_norm", x);
    if (a.embedding != a.hidden) x = b.linear_layer("project_out", x, a.embedding, false);
  }
  if (a.classes > 0) return sequence_classification(b, x, ids, labels, a.classes);
  x = b.view(x, b.shape(x));  // [:, 0:, :], all logits are kept
  TensorId logits;
  {
    auto head = b.module("lm_head");
    logits = b.linear(x, a.tied ? table : b.parameter("weight", {a.vocab, a.embedding}));
  }
  causal_loss(b, logits, labels);
}

}  // namespace
}  // namespace opt

ModelFamily opt_family() {
  return {.name = "opt", .language = true, .learned_positions = true, .check = [](JsonReader& r) { opt::read(r); }, .build = opt::build, .layer_kinds = equal_layers};
}

}  // namespace precog::zoo
