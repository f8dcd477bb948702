// torchvision's MobileNetV2: inverted residuals around depthwise convolutions.
#include "frontend/vision.h"

namespace precog::zoo {
namespace mobilenet_v2 {
namespace {

struct MobileNet {
  std::vector<std::int64_t> rows;  // expansion, channels, repeats, first stride
  std::int64_t classes = 0, image = 0;
  double dropout = 0;
};

MobileNet read(JsonReader& r) {
  MobileNet a;
  a.rows = integers(r, "stages", 1, 2048, 4);
  read_classifier(r, a.classes, a.image);
  a.dropout = r.number("dropout", 0, 0.99).value_or(0);
  return a;
}

// ReLU6 in place. Its backward needs the input, so autograd clones that first: two kernels and two tensors, as here.
TensorId relu6(GraphBuilder& b, TensorId x) { return b.unary(OpKind::hardtanh, b.contiguous(x)); }

TensorId convolution(GraphBuilder& b, std::string_view name, TensorId x, std::int64_t out, std::int64_t kernel, std::int64_t stride,
                     std::int64_t groups) {
  auto scope = b.module(name);
  return relu6(b, b.batch_norm_layer("1", b.conv2d_layer("0", x, out, kernel, stride, (kernel - 1) / 2, groups)));
}

TensorId inverted_residual(GraphBuilder& b, TensorId x, std::int64_t expansion, std::int64_t out, std::int64_t stride) {
  auto scope = b.module("conv");
  const std::int64_t in = b.shape(x)[1], wide = in * expansion;
  int index = 0;
  TensorId y = x;
  if (expansion != 1) y = convolution(b, std::to_string(index++), y, wide, 1, 1, 1);
  y = convolution(b, std::to_string(index++), y, wide, 3, stride, wide);
  y = b.conv2d_layer(std::to_string(index++), y, out, 1);
  y = b.batch_norm_layer(std::to_string(index), y);
  return stride == 1 && in == out ? b.add(x, y) : y;
}

void build(GraphBuilder& b, JsonReader& reader, const Sizes& sizes) {
  const MobileNet a = read(reader);
  auto [x, target] = image_inputs(b, sizes, a.image);
  {
    auto features = b.module("features");
    int index = 0;
    x = convolution(b, std::to_string(index++), x, 32, 3, 2, 1);
    for (std::size_t row = 0; row + 3 < a.rows.size(); row += 4)
      for (std::int64_t i = 0; i < a.rows[row + 2]; ++i) {
        b.set_block(index - 1);
        auto scope = b.module(std::to_string(index++));
        x = inverted_residual(b, x, a.rows[row], a.rows[row + 1], i == 0 ? a.rows[row + 3] : 1);
      }
    b.set_block(-1);
    x = convolution(b, std::to_string(index), x, 1280, 1, 1, 1);
  }
  x = b.adaptive_avg_pool2d(x, 1);
  x = b.dropout(b.view(x, {sizes.batch, b.shape(x)[1]}), a.dropout);
  auto classifier = b.module("classifier");
  b.cross_entropy(b.linear_layer("1", x, a.classes), target);
}

}  // namespace
}  // namespace mobilenet_v2

ModelFamily mobilenet_v2_family() {
  return {.name = "mobilenet_v2", .layered = false, .check = [](JsonReader& r) { mobilenet_v2::read(r); }, .build = mobilenet_v2::build};
}

}  // namespace precog::zoo
