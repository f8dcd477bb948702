// BertForMaskedLM and RobertaForMaskedLM: without a padding mask attention gets none; the loss is taken over every position
// given a label, on logits in the model's own type. Also their ...ForSequenceClassification, and BertForPreTraining, whose
// second loss is the next sentence's.
#include "frontend/text_blocks.h"

namespace precog::zoo {
namespace bert {
namespace {

struct Bert {
  std::int64_t hidden, layers, heads, intermediate, vocab, positions, types, classes;
  double dropout, attention_dropout, classifier_dropout;
  std::string act;
  bool roberta, next_sentence, tied;
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
  a.dropout = read_probability(r, "dropout");
  a.attention_dropout = read_probability(r, "attention_dropout", a.dropout);
  a.classifier_dropout = read_probability(r, "classifier_dropout", a.dropout);
  a.act = read_activation(r, "gelu");
  a.roberta = r.boolean("roberta").value_or(false);
  a.next_sentence = r.boolean("next_sentence").value_or(false);
  a.tied = r.boolean("tie_embeddings").value_or(true);
  a.classes = read_classes(r);
  if (a.heads > 0 && a.hidden % a.heads != 0) r.problem("heads", "must divide hidden");
  return a;
}

TensorId embeddings(GraphBuilder& b, const Bert& a, const Sizes& sizes, TensorId ids, TensorId& table) {
  auto scope = b.module("embeddings");
  TensorId positions;
  std::int64_t rows = 1;
  if (a.roberta) {  // counted from the ids: ne, int, cumsum, type_as, + past, * mask, long, + padding_idx
    rows = sizes.batch;
    const Shape all{rows, sizes.seq};
    TensorId real = b.integer_op({b.integer_op({ids}, all, DType::boolean)}, all, DType::int32);
    TensorId counted = b.integer_op({b.integer_op({real}, all)}, all, DType::int32);
    counted = b.integer_op({b.integer_op({counted}, all, DType::int32), real}, all, DType::int32);
    positions = b.integer_op({b.integer_op({counted}, all)}, all);
  } else {
    positions = b.slice(b.buffer("position_ids", {1, a.positions}, DType::int64), 1, sizes.seq);
  }
  TensorId types = b.expand(b.buffer("token_type_ids", {1, a.positions}, DType::int64), {rows, a.positions});
  types = b.expand(b.integer_op({types, positions}, {rows, sizes.seq}), {sizes.batch, sizes.seq});  // gather
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
      mixed = from_heads(b, b.attention(q, k, v, false, {}, a.attention_dropout));
    }
    auto output = b.module("output");
    mixed = b.dropout(b.linear_layer("dense", mixed, a.hidden), a.dropout);
    x = b.layer_norm_layer("LayerNorm", b.add(mixed, x));
  }
  TensorId wide;
  {
    auto scope = b.module("intermediate");
    wide = activation(b, a.act, b.linear_layer("dense", x, a.intermediate));
  }
  auto output = b.module("output");
  TensorId fed = b.dropout(b.linear_layer("dense", wide, a.hidden), a.dropout);
  return b.layer_norm_layer("LayerNorm", b.add(fed, x));
}

// BERT's pooler has run; RoBERTa's classifier holds its own.
void classify(GraphBuilder& b, const Bert& a, TensorId x, TensorId labels) {
  TensorId logits;
  if (a.roberta) {
    auto scope = b.module("classifier");
    x = b.dropout(b.view(x, {b.shape(x)[0], a.hidden}, ViewKind::slice), a.classifier_dropout);
    x = b.dropout(b.unary(OpKind::tanh, b.linear_layer("dense", x, a.hidden)), a.classifier_dropout);
    logits = b.linear_layer("out_proj", x, a.classes);
  } else {
    logits = b.linear_layer("classifier", b.dropout(x, a.classifier_dropout), a.classes);
  }
  b.cross_entropy(b.view(logits, b.shape(logits)), labels);
}

void build(GraphBuilder& b, JsonReader& reader, const Sizes& sizes) {
  const Bert a = read(reader);
  auto [ids, labels] = token_inputs(b, sizes, a.classes);
  TensorId table, x, pooled;
  {
    auto model = b.module(a.roberta ? "roberta" : "bert");
    x = embeddings(b, a, sizes, ids, table);
    auto encoder = b.module("encoder");
    for (std::int64_t i = 0; i < a.layers; ++i) {
      if (!b.begin_layer(i)) continue;
      auto scope = b.module("layer." + std::to_string(i));
      x = layer(b, a, x);
    }
    b.set_block(-1);
  }
  if (!a.roberta && (a.classes > 0 || a.next_sentence)) {
    auto model = b.module("bert.pooler");
    TensorId first = b.view(x, {sizes.batch, a.hidden}, ViewKind::slice);
    pooled = b.unary(OpKind::tanh, b.linear_layer("dense", first, a.hidden));
  }
  if (a.classes > 0) return classify(b, a, a.roberta ? x : pooled, labels);
  TensorId logits;
  {
    auto head = b.module(a.roberta ? "lm_head" : "cls.predictions");
    TensorId bias = b.parameter("bias", {a.vocab});
    if (a.roberta) {
      x = b.layer_norm_layer("layer_norm", b.gelu(b.linear_layer("dense", x, a.hidden)));
    } else {
      auto transform = b.module("transform");
      x = b.layer_norm_layer("LayerNorm", activation(b, a.act, b.linear_layer("dense", x, a.hidden)));
    }
    auto decoder = b.module("decoder");
    logits = b.linear(x, a.tied ? table : b.parameter("weight", {a.vocab, a.hidden}), bias);
  }
  TensorId follows;
  if (a.next_sentence) {
    auto head = b.module("cls");
    follows = b.linear_layer("seq_relationship", pooled, 2);
  }
  TensorId rows = b.view(logits, {sizes.tokens(), a.vocab});
  TensorId loss = b.cross_entropy(rows, b.view(labels, {sizes.tokens()}));
  if (a.next_sentence) b.add(loss, b.cross_entropy(follows, b.input("next_sentence_label", {sizes.batch}, DType::int64)));
}

}  // namespace
}  // namespace bert

ModelFamily bert_family() {
  return {.name = "bert", .language = true, .learned_positions = true, .check = [](JsonReader& r) { bert::read(r); }, .build = bert::build, .layer_kinds = equal_layers};
}

}  // namespace precog::zoo
