// torchvision's Vision Transformer. Its nn.MultiheadAttention works in the order [sequence, batch, width]: the input is
// turned, the projection's bias is a kernel of its own (the turned input is no single matrix), q, k and v are copied
// apart, and everything after the first residual sum keeps the turned order in memory, so each norm copies its input.
#include "frontend/text_blocks.h"
#include "frontend/vision.h"

namespace precog::zoo {
namespace vit {
namespace {

struct Vit {
  std::int64_t hidden, layers, heads, mlp, patch, classes, image;
};

Vit read(JsonReader& r) {
  Vit a;
  a.hidden = r.required_integer("hidden", 1, kMaxWidth);
  a.layers = r.required_integer("layers", 1, kMaxLayers);
  a.heads = r.required_integer("heads", 1, kMaxHeads);
  a.mlp = r.required_integer("mlp", 1, kMaxWidth);
  a.patch = r.required_integer("patch", 1, 4096);
  read_classifier(r, a.classes, a.image);
  if (a.heads > 0 && a.hidden % a.heads != 0) r.problem("heads", "must divide hidden");
  if (a.patch > 0 && a.image % a.patch != 0) r.problem("patch", "must divide image");
  return a;
}

TensorId attention(GraphBuilder& b, const Vit& a, TensorId x) {
  auto scope = b.module("self_attention");
  const Shape s = b.shape(x);
  const std::int64_t batch = s[0], seq = s[1], width = a.hidden / a.heads;
  TensorId turned = b.transpose(x, 0, 1);
  TensorId weight = b.parameter("in_proj_weight", {3 * a.hidden, a.hidden});
  TensorId bias = b.parameter("in_proj_bias", {3 * a.hidden});
  TensorId projected;
  if (batch > 1) {
    projected = b.linear(b.contiguous(turned), weight);
    projected = b.add(projected, b.cast_like(bias, projected), true);
  } else {
    projected = b.linear(turned, weight, bias);
  }
  const GradientCopy turned_back = batch > 1 ? GradientCopy::always : GradientCopy::none;
  TensorId fused = b.view(projected, {seq, batch, 3, a.hidden}, ViewKind::reshape, GradientCopy::always);
  fused = b.view(fused, {1, seq, batch, 3, a.hidden});
  fused = b.contiguous(b.view(b.transpose(fused, 0, 3), {3, seq, batch, a.hidden}));
  auto heads = [&](TensorId part) {
    // The memory-efficient kernel's gradients come in the order [b, s, h, d]: copied twice on their way to [s, b * h, d].
    TensorId split = b.transpose(b.view(part, {seq, batch * a.heads, width}, ViewKind::reshape, GradientCopy::fp32), 0, 1);
    return b.view(split, {batch, a.heads, seq, width}, ViewKind::reshape, GradientCopy::fp32);
  };
  TensorId parts[3];
  for (TensorId& part : parts) part = b.view(fused, {seq, batch, a.hidden}, ViewKind::slice);
  TensorId q = heads(parts[0]), k = heads(parts[1]), v = heads(parts[2]);
  TensorId mixed = b.attention(q, k, v, false);
  // permute(2, 0, 1, 3).contiguous(): flash attention answers in its query's order, already [s, b, h, d].
  mixed = b.view(mixed, {seq, batch, a.heads, width}, ViewKind::transpose);
  if (batch > 1) mixed = b.contiguous(mixed, OnlyFor::fp32);
  mixed = b.view(mixed, {seq * batch, a.hidden});
  // The attention calls F.linear with the projection's parameters: no module of its own runs.
  const TensorId out_weight = b.parameter("out_proj.weight", {a.hidden, a.hidden}), out_bias = b.parameter("out_proj.bias", {a.hidden});
  TensorId out = b.view(b.linear(mixed, out_weight, out_bias), {seq, batch, a.hidden}, ViewKind::reshape, turned_back);
  return b.transpose(out, 0, 1);
}

void build(GraphBuilder& b, JsonReader& reader, const Sizes& sizes) {
  const Vit a = read(reader);
  auto [image, target] = image_inputs(b, sizes, a.image);
  const std::int64_t batch = sizes.batch, side = a.image / a.patch, seq = side * side + 1;
  TensorId token = b.parameter("class_token", {1, 1, a.hidden});
  TensorId x = b.conv2d_layer("conv_proj", image, a.hidden, a.patch, a.patch, 0, 1, true);
  x = b.transpose(b.view(x, {batch, a.hidden, side * side}), 1, 2);
  x = b.cat({b.expand(token, {batch, 1, a.hidden}), x}, 1);
  {
    auto encoder = b.module("encoder");
    x = b.add(x, b.parameter("pos_embedding", {1, seq, a.hidden}));
    const bool turned = batch > 1;  // attention's result is [s, b, h] seen as [b, s, h], and sums keep that order
    for (std::int64_t layer = 0; layer < a.layers; ++layer) {
      b.set_block(static_cast<int>(layer));
      auto scope = b.module("layers.encoder_layer_" + std::to_string(layer));
      TensorId normal = b.layer_norm_layer("ln_1", x, true, turned && layer > 0);
      x = b.add(attention(b, a, normal), x);
      if (turned && layer == 0) b.mark_strided();
      normal = b.layer_norm_layer("ln_2", x, true, turned);
      auto mlp = b.module("mlp");
      x = b.add(x, b.linear_layer("3", b.gelu(b.linear_layer("0", normal, a.mlp)), a.hidden));
      if (turned) b.mark_strided();
    }
    b.set_block(-1);
    x = b.layer_norm_layer("ln", x, true, turned);
  }
  x = b.view(x, {batch, a.hidden}, ViewKind::slice);  // the class token
  auto heads = b.module("heads");
  b.cross_entropy(b.linear_layer("head", x, a.classes), target);
}

}  // namespace
}  // namespace vit

ModelFamily vit_family() { return {.name = "vit", .check = [](JsonReader& r) { vit::read(r); }, .build = vit::build}; }

}  // namespace precog::zoo
