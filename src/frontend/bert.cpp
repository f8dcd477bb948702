// BertForMaskedLM: without a padding mask its attention gets none; the loss is taken over every position given a label,
// on logits in the model's own type.
#include "frontend/text_blocks.h"

namespace precog::zoo {
namespace {

struct Bert {
  std::int64_t hidden, layers, heads, intermediate, vocab, positions, types;
  double dropout;
};

Bert read(JsonReader& r) {
  Bert a;
  a.hidden = r.required_integer("hidden", 1, kMaxWidth);
  a.layers = r.required_integer("layers", 1, kMaxLayers);
  a.heads = r.required_integer("heads", 1, kMaxHeads);
  a.intermediate = r.required_integer("intermediate", 1, kMaxWidth);
  a.vocab = r.required_integer("vocab", 2, kMaxWidth);
  a.positions = r.required_integer("max_positions", 1, kMaxWidth);
  a.types = r.required_integer("token_types", 1, kMaxWidth);
  a.dropout = r.number("dropout", 0, 0.99).value_or(0);
  if (a.heads > 0 && a.hidden % a.heads != 0) r.problem("heads", "must divide hidden");
  return a;
}

TensorId embeddings(GraphBuilder& b, const Bert& a, const Sizes& sizes, TensorId ids, TensorId& table) {
  auto scope = b.module("embeddings");
  TensorId positions = b.slice(b.buffer("position_ids", {1, a.positions}, DType::int64), 1, sizes.seq);
  TensorId types = b.expand(b.buffer("token_type_ids", {1, a.positions}, DType::int64), {1, a.positions});
  types = b.expand(b.integer_op({types, positions}, {1, sizes.seq}), {sizes.batch, sizes.seq});  // gather
  TensorId words;
  {
    auto inner = b.module("word_embeddings");
    table = b.parameter("weight", {a.vocab, a.hidden});
    words = b.embedding(table, ids);
  }
  TensorId x = b.add(words, b.embedding_layer("token_type_embeddings", types, a.types, a.hidden));
  x = b.add(x, b.embedding_layer("position_embeddings", positions, a.positions, a.hidden));
  return b.dropout(b.layer_norm_layer("LayerNorm", x), a.dropout);
}

TensorId layer(GraphBuilder& b, const Bert& a, TensorId x) {
  const std::int64_t width = a.hidden / a.heads;
  TensorId mixed;
  {
    auto scope = b.module("attention");
    {
      auto self = b.module("self");
      TensorId q = to_heads(b, b.linear_layer("query", x, a.hidden), a.heads, width);
      TensorId k = to_heads(b, b.linear_layer("key", x, a.hidden), a.heads, width);
      TensorId v = to_heads(b, b.linear_layer("value", x, a.hidden), a.heads, width);
      mixed = from_heads(b, b.attention(q, k, v, false, {}, a.dropout));
    }
    auto output = b.module("output");
    mixed = b.dropout(b.linear_layer("dense", mixed, a.hidden), a.dropout);
    x = b.layer_norm_layer("LayerNorm", b.add(mixed, x));
  }
  TensorId wide;
  {
    auto scope = b.module("intermediate");
    wide = b.gelu(b.linear_layer("dense", x, a.intermediate));
  }
  auto output = b.module("output");
  TensorId fed = b.dropout(b.linear_layer("dense", wide, a.hidden), a.dropout);
  return b.layer_norm_layer("LayerNorm", b.add(fed, x));
}

void build(GraphBuilder& b, JsonReader& reader, const Sizes& sizes) {
  const Bert a = read(reader);
  auto [ids, labels] = token_inputs(b, sizes);
  TensorId table, x;
  {
    auto model = b.module("bert");
    x = embeddings(b, a, sizes, ids, table);
    auto encoder = b.module("encoder");
    for (std::int64_t i = 0; i < a.layers; ++i) {
      b.set_block(static_cast<int>(i));
      auto scope = b.module("layer." + std::to_string(i));
      x = layer(b, a, x);
    }
    b.set_block(-1);
  }
  TensorId logits;
  {
    auto head = b.module("cls.predictions");
    TensorId bias = b.parameter("bias", {a.vocab});
    {
      auto transform = b.module("transform");
      x = b.layer_norm_layer("LayerNorm", b.gelu(b.linear_layer("dense", x, a.hidden)));
    }
    auto decoder = b.module("decoder");
    logits = b.linear(x, table, bias);
  }
  TensorId rows = b.view(logits, {sizes.tokens(), a.vocab});
  b.cross_entropy(rows, b.view(labels, {sizes.tokens()}));
}

}  // namespace

ModelFamily bert_family() {
  return {.name = "bert", .language = true, .learned_positions = true, .check = [](JsonReader& r) { read(r); }, .build = build};
}

}  // namespace precog::zoo
