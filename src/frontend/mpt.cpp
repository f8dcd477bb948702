// MPT as llm-foundry trains it (llmfoundry/models/mpt, 2023): learned positions, fused qkv projection, exact GELU, a tied head,
// no dropout. What sets it apart from GPT-2 is around the layers: the flash path takes padding out of q, k and v and puts it
// back, reading two values back each time (flash_attn/bert_padding.py: unpad_input, pad_input), whether or not there is any;
// and after backward the trainer computes two metrics from the logits of every micro-batch (Composer's _eval_train_metrics
// with LanguageCrossEntropy and LanguagePerplexity), a cross entropy each, without gradients.
#include <tuple>

#include "frontend/text_blocks.h"

namespace precog::zoo {
namespace mpt {
namespace {

struct Mpt {
  std::int64_t hidden, layers, heads, vocab, positions, inner, metrics;
  bool unpad;
};

Mpt read(JsonReader& r) {
  Mpt a;
  a.hidden = r.required_integer("hidden", 1, kMaxWidth);
  a.layers = r.required_integer("layers", 1, kMaxLayers);
  a.heads = r.required_integer("heads", 1, kMaxHeads);
  a.vocab = r.required_integer("vocab", 2, kMaxWidth);
  a.positions = r.required_integer("max_positions", 1, kMaxWidth);
  a.inner = r.integer("intermediate", 1, kMaxWidth).value_or(4 * a.hidden);
  a.metrics = r.integer("metrics", 0, 16).value_or(2);
  a.unpad = r.boolean("unpad").value_or(true);
  if (a.heads > 0 && a.hidden % a.heads != 0) r.problem("heads", "must divide hidden");
  return a;
}

// unpad_input: lengths summed, places of the tokens found (nonzero: the host waits for their number), the longest read back,
// lengths added up; then the rows are gathered.
std::pair<TensorId, TensorId> unpadded(GraphBuilder& b, TensorId x, TensorId mask) {
  const Shape shape = b.shape(x);
  const std::int64_t batch = shape[0], tokens = batch * shape[1];
  TensorId lengths = b.integer_op({mask}, {batch}, DType::int32);
  TensorId places = b.integer_op({mask}, {tokens});
  b.read_back(places);
  b.read_back(b.integer_op({lengths}, {}, DType::int32));
  b.integer_op({b.integer_op({lengths}, {batch}, DType::int32)}, {batch + 1}, DType::int32);
  TensorId rows = b.view(x, {tokens, shape[2]});
  return {b.view(b.index_select(rows, places, {tokens, shape[2]}), shape), places};
}

TensorId padded(GraphBuilder& b, TensorId x, TensorId places) {
  const Shape shape = b.shape(x);
  const Shape rows{shape[0] * shape[1], shape[2]};
  TensorId zeros = b.by_name("zeros", {}, rows);
  return b.view(b.index_add(zeros, places, b.view(x, rows)), shape);
}

TensorId attention(GraphBuilder& b, const Mpt& a, TensorId x) {
  auto scope = b.module("attn");
  auto parts = b.split(b.linear_layer("Wqkv", x, 3 * a.hidden), 2, {a.hidden, a.hidden, a.hidden});
  TensorId places{};
  if (a.unpad) {
    TensorId mask = b.integer_op({}, {b.shape(x)[0], b.shape(x)[1]}, DType::boolean);  // ones_like
    for (TensorId& part : parts) std::tie(part, places) = unpadded(b, part, mask);
  }
  const std::int64_t width = a.hidden / a.heads;
  TensorId q = to_heads(b, parts[0], a.heads, width), k = to_heads(b, parts[1], a.heads, width), v = to_heads(b, parts[2], a.heads, width);
  TensorId mixed = from_heads(b, b.attention(q, k, v, b.shape(q)[2] > 1));
  if (a.unpad) mixed = padded(b, mixed, places);
  return b.linear_layer("out_proj", mixed, a.hidden);
}

TensorId feed_forward(GraphBuilder& b, const Mpt& a, TensorId x) {
  auto scope = b.module("ffn");
  return b.linear_layer("down_proj", b.gelu(b.linear_layer("up_proj", x, a.inner)), a.hidden);
}

void build(GraphBuilder& b, JsonReader& reader, const Sizes& sizes) {
  const Mpt a = read(reader);
  auto [ids, labels] = token_inputs(b, sizes);
  auto model = b.module("transformer");
  TensorId table, x;
  {
    auto scope = b.module("wte");
    table = b.parameter("weight", {a.vocab, a.hidden});
    x = b.embedding(table, ids);
  }
  x = b.add(x, b.embedding_layer("wpe", position_ids(b, sizes.seq), a.positions, a.hidden));
  for (std::int64_t layer = 0; layer < a.layers; ++layer) {
    if (!b.begin_layer(layer)) continue;
    auto scope = b.module("blocks." + std::to_string(layer));
    x = b.add(x, attention(b, a, b.layer_norm_layer("norm_1", x)));
    x = b.add(x, feed_forward(b, a, b.layer_norm_layer("norm_2", x)));
  }
  b.set_block(-1);
  TensorId logits = b.linear(b.layer_norm_layer("norm_f", x), table);
  TensorId rows = b.view(logits, {sizes.tokens(), a.vocab});
  TensorId targets = b.view(b.integer_op({labels}, {sizes.batch, sizes.seq}), {sizes.tokens()});  // roll, last one ignored
  b.set_after_backward(true);
  for (std::int64_t i = 0; i < a.metrics; ++i) b.cross_entropy(b.cast_to(rows, DType::fp32), targets);
  b.set_after_backward(false);
  b.fused_cross_entropy(rows, targets);
}

}  // namespace
}  // namespace mpt

ModelFamily mpt_family() {
  return {.name = "mpt", .language = true, .learned_positions = true, .check = [](JsonReader& r) { mpt::read(r); }, .build = mpt::build, .layer_kinds = equal_layers};
}

}  // namespace precog::zoo
