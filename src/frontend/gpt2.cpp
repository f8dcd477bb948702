// GPT2LMHeadModel and GPT2ForSequenceClassification: learned positions, Conv1D projections, the tanh GELU written out in
// eight calls (by default), a tied head.
#include "frontend/text_blocks.h"

namespace precog::zoo {
namespace gpt2 {
namespace {

struct Gpt2 {
  std::int64_t hidden, layers, heads, vocab, positions, inner, classes;
  double dropout, attention_dropout, embedding_dropout;
  std::string act;
  bool tied;
};

Gpt2 read(JsonReader& r) {
  Gpt2 a;
  a.hidden = r.required_integer("hidden", 1, kMaxWidth);
  a.layers = r.required_integer("layers", 1, kMaxLayers);
  a.heads = r.required_integer("heads", 1, kMaxHeads);
  a.vocab = r.required_integer("vocab", 2, kMaxWidth);
  a.positions = r.required_integer("max_positions", 1, kMaxWidth);
  a.inner = r.integer("intermediate", 1, kMaxWidth).value_or(4 * a.hidden);
  a.dropout = read_probability(r, "dropout");
  a.attention_dropout = read_probability(r, "attention_dropout", a.dropout);
  a.embedding_dropout = read_probability(r, "embedding_dropout", a.dropout);
  a.act = read_activation(r, "gelu_new");
  a.tied = r.boolean("tie_embeddings").value_or(true);
  a.classes = read_classes(r);
  if (a.heads > 0 && a.hidden % a.heads != 0) r.problem("heads", "must divide hidden");
  return a;
}

TensorId attention(GraphBuilder& b, const Gpt2& a, TensorId x) {
  auto scope = b.module("attn");
  const std::int64_t width = a.hidden / a.heads;
  auto parts = b.split(b.conv1d_layer("c_attn", x, 3 * a.hidden), 2, {a.hidden, a.hidden, a.hidden});
  TensorId k = to_heads(b, parts[1], a.heads, width);
  TensorId v = to_heads(b, parts[2], a.heads, width);
  TensorId q = to_heads(b, parts[0], a.heads, width);
  TensorId mixed = from_heads(b, b.attention(q, k, v, b.shape(q)[2] > 1, {}, a.attention_dropout));
  return b.dropout(b.conv1d_layer("c_proj", mixed, a.hidden), a.dropout);
}

TensorId feed_forward(GraphBuilder& b, const Gpt2& a, TensorId x) {
  auto scope = b.module("mlp");
  TensorId wide = activation(b, a.act, b.conv1d_layer("c_fc", x, a.inner));
  return b.dropout(b.conv1d_layer("c_proj", wide, a.hidden), a.dropout);
}

void build(GraphBuilder& b, JsonReader& reader, const Sizes& sizes) {
  const Gpt2 a = read(reader);
  auto [ids, labels] = token_inputs(b, sizes, a.classes);
  TensorId table, x;
  {
    auto model = b.module("transformer");
    ids = b.view(ids, b.shape(ids));
    {
      auto scope = b.module("wte");
      table = b.parameter("weight", {a.vocab, a.hidden});
      x = b.embedding(table, ids);
    }
    TensorId positions = position_ids(b, sizes.seq);
    x = b.add(x, b.embedding_layer("wpe", positions, a.positions, a.hidden));
    packed_sequence_check(b, positions, sizes.batch);
    x = b.dropout(x, a.embedding_dropout);
    for (std::int64_t layer = 0; layer < a.layers; ++layer) {
      if (!b.begin_layer(layer)) continue;
      auto scope = b.module("h." + std::to_string(layer));
      x = b.add(attention(b, a, b.layer_norm_layer("ln_1", x)), x);
      x = b.add(x, feed_forward(b, a, b.layer_norm_layer("ln_2", x)));
    }
    b.set_block(-1);
    x = b.layer_norm_layer("ln_f", x);
    x = b.view(x, b.shape(x));
  }
  if (a.classes > 0) return sequence_classification(b, x, ids, labels, a.classes);
  x = b.view(x, b.shape(x));  // [:, 0:, :], all logits are kept
  TensorId logits;
  {
    auto head = b.module("lm_head");
    logits = b.linear(x, a.tied ? table : b.parameter("weight", {a.vocab, a.hidden}));
  }
  causal_loss(b, logits, labels);
}

}  // namespace
}  // namespace gpt2

ModelFamily gpt2_family() {
  // transformers logs where a class is called after no loss (modeling_utils.py, `loss_function`), GPT2LMHeadModel: a trace ends there.
  return {.name = "gpt2", .language = true, .learned_positions = true, .scores = Scores::apart, .check = [](JsonReader& r) { gpt2::read(r); }, .build = gpt2::build, .layer_kinds = equal_layers};
}

}  // namespace precog::zoo
