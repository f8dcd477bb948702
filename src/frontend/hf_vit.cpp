// transformers' ViTForImageClassification: the same network as torchvision's Vision Transformer (vit.cpp) in other calls.
// Three projections in the order [batch, sequence, width], so nothing is turned and nothing copied.
#include "frontend/text_blocks.h"

namespace precog::zoo {
namespace hf_vit {
namespace {

struct HfVit {
  std::int64_t hidden, layers, heads, mlp, patch, image, channels, classes;
  double attention_dropout, dropout;
  std::string act;
  bool qkv_bias;
};

HfVit read(JsonReader& r) {
  HfVit a;
  a.hidden = r.required_integer("hidden", 1, kMaxWidth);
  a.layers = r.required_integer("layers", 1, kMaxLayers);
  a.heads = r.required_integer("heads", 1, kMaxHeads);
  a.mlp = r.required_integer("mlp", 1, kMaxWidth);
  a.patch = r.required_integer("patch", 1, 4096);
  a.image = r.required_integer("image", 1, 4096);
  a.channels = r.integer("channels", 1, 4096).value_or(3);
  a.classes = r.required_integer("classes", 2, kMaxWidth);
  a.attention_dropout = read_probability(r, "attention_dropout");
  a.dropout = read_probability(r, "dropout");
  a.act = read_activation(r, "gelu");
  a.qkv_bias = r.boolean("qkv_bias").value_or(true);
  if (a.heads > 0 && a.hidden % a.heads != 0) r.problem("heads", "must divide hidden");
  if (a.patch > a.image) r.problem("patch", "must not be larger than image");
  return a;
}

TensorId attention(GraphBuilder& b, const HfVit& a, TensorId x) {
  auto scope = b.module("attention");
  const std::int64_t width = a.hidden / a.heads;
  TensorId q = to_heads(b, b.linear_layer("q_proj", x, a.hidden, a.qkv_bias), a.heads, width);
  TensorId k = to_heads(b, b.linear_layer("k_proj", x, a.hidden, a.qkv_bias), a.heads, width);
  TensorId v = to_heads(b, b.linear_layer("v_proj", x, a.hidden, a.qkv_bias), a.heads, width);
  return b.linear_layer("o_proj", from_heads(b, b.attention(q, k, v, false, {}, a.attention_dropout)), a.hidden);
}

void build(GraphBuilder& b, JsonReader& reader, const Sizes& sizes) {
  const HfVit a = read(reader);
  const std::int64_t batch = sizes.batch, side = a.image / a.patch, patches = side * side;
  TensorId pixels = b.input("pixel_values", {batch, a.channels, a.image, a.image});
  TensorId labels = b.input("labels", {batch}, DType::int64);
  TensorId x;
  {
    auto model = b.module("vit");
    {
      auto scope = b.module("embeddings");
      TensorId token = b.parameter("cls_token", {1, 1, a.hidden});
      TensorId positions = b.parameter("position_embeddings", {1, patches + 1, a.hidden});
      x = b.conv2d_layer("patch_embeddings.projection", pixels, a.hidden, a.patch, a.patch, 0, 1, true);
      x = b.transpose(b.view(x, {batch, a.hidden, patches}), 1, 2);
      x = b.cat({b.expand(token, {batch, 1, a.hidden}), x}, 1);
      x = b.dropout(b.add(x, positions), a.dropout);
    }
    for (std::int64_t layer = 0; layer < a.layers; ++layer) {
      b.set_block(static_cast<int>(layer));
      auto scope = b.module("layers." + std::to_string(layer));
      TensorId mixed = attention(b, a, b.layer_norm_layer("layernorm_before", x));
      x = b.add(b.dropout(mixed, a.dropout), x);
      TensorId normal = b.layer_norm_layer("layernorm_after", x);
      auto mlp = b.module("mlp");
      TensorId fed = b.linear_layer("fc2", activation(b, a.act, b.linear_layer("fc1", normal, a.mlp)), a.hidden);
      x = b.add(b.dropout(fed, a.dropout), x);
    }
    b.set_block(-1);
    x = b.layer_norm_layer("layernorm", x);
  }
  x = b.view(x, {batch, a.hidden}, ViewKind::slice);  // the class token
  TensorId logits = b.linear_layer("classifier", x, a.classes);
  b.cross_entropy(b.view(logits, b.shape(logits)), b.view(labels, b.shape(labels)));
}

}  // namespace
}  // namespace hf_vit

ModelFamily hf_vit_family() { return {.name = "hf_vit", .check = [](JsonReader& r) { hf_vit::read(r); }, .build = hf_vit::build}; }

}  // namespace precog::zoo
