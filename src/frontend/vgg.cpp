// torchvision's VGG without batch normalisation: 3x3 convolutions with bias, in-place ReLUs, three linear layers.
#include "frontend/vision.h"

namespace precog::zoo {
namespace vgg {
namespace {

struct Vgg {
  std::vector<std::int64_t> layers;  // channels of each convolution; 0 is a pooling
  std::int64_t classes = 0, image = 0;
  double dropout = 0;
};

Vgg read(JsonReader& r) {
  Vgg a;
  a.layers = integers(r, "features", 0, 8192);
  read_classifier(r, a.classes, a.image);
  a.dropout = r.number("dropout", 0, 0.99).value_or(0);
  std::int64_t side = a.image;
  for (std::int64_t channels : a.layers)
    if (channels == 0) side /= 2;
  if (side < 1) r.problem("features", "pools more often than the image can be halved");
  return a;
}

void build(GraphBuilder& b, JsonReader& reader, const Sizes& sizes) {
  const Vgg a = read(reader);
  auto [x, target] = image_inputs(b, sizes, a.image);
  {
    auto features = b.module("features");
    int index = 0;  // position in the Sequential, which names the parameters
    for (std::int64_t channels : a.layers) {
      if (channels == 0) {
        x = b.max_pool2d(x, 2, 2, 0);
        ++index;
        continue;
      }
      x = b.relu(b.conv2d_layer(std::to_string(index), x, channels, 3, 1, 1, 1, true), true);
      index += 2;
    }
  }
  x = b.adaptive_avg_pool2d(x, 7);
  x = b.view(x, {sizes.batch, b.shape(x)[1] * 49});
  {
    auto classifier = b.module("classifier");
    x = b.dropout(b.relu(b.linear_layer("0", x, 4096), true), a.dropout);
    x = b.dropout(b.relu(b.linear_layer("3", x, 4096), true), a.dropout);
    x = b.linear_layer("6", x, a.classes);
  }
  b.cross_entropy(x, target);
}

}  // namespace
}  // namespace vgg

ModelFamily vgg_family() {
  return {.name = "vgg", .layered = false, .check = [](JsonReader& r) { vgg::read(r); }, .build = vgg::build};
}

}  // namespace precog::zoo
