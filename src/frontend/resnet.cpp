// torchvision's ResNets: basic blocks (18, 34) and bottlenecks (50, 101, 152) with the stride in the 3x3 convolution.
#include "frontend/vision.h"

namespace precog::zoo {
namespace resnet {
namespace {

struct ResNet {
  bool bottleneck = false;
  std::vector<std::int64_t> stages;
  std::int64_t classes = 0, image = 0;
};

ResNet read(JsonReader& r) {
  ResNet a;
  const std::string block = r.required_text("block");
  if (block != "basic" && block != "bottleneck") r.problem("block", "is '" + block + "'; known: basic, bottleneck");
  a.bottleneck = block == "bottleneck";
  a.stages = integers(r, "stages", 1, 512);
  if (a.stages.size() != 4) r.problem("stages", "wants four block counts");
  read_classifier(r, a.classes, a.image);
  return a;
}

TensorId block(GraphBuilder& b, const ResNet& a, TensorId x, std::int64_t planes, std::int64_t stride) {
  const std::int64_t width = a.bottleneck ? 4 * planes : planes;
  TensorId identity = x, y;
  if (a.bottleneck) {
    y = b.relu(b.batch_norm_layer("bn1", b.conv2d_layer("conv1", x, planes, 1)), true);
    y = b.relu(b.batch_norm_layer("bn2", b.conv2d_layer("conv2", y, planes, 3, stride, 1)), true);
    y = b.batch_norm_layer("bn3", b.conv2d_layer("conv3", y, width, 1));
  } else {
    y = b.relu(b.batch_norm_layer("bn1", b.conv2d_layer("conv1", x, planes, 3, stride, 1)), true);
    y = b.batch_norm_layer("bn2", b.conv2d_layer("conv2", y, planes, 3, 1, 1));
  }
  if (stride != 1 || b.shape(x)[1] != width) {
    auto scope = b.module("downsample");
    identity = b.batch_norm_layer("1", b.conv2d_layer("0", x, width, 1, stride));
  }
  return b.relu(b.add(y, identity, true), true);
}

void build(GraphBuilder& b, JsonReader& reader, const Sizes& sizes) {
  const ResNet a = read(reader);
  auto [image, target] = image_inputs(b, sizes, a.image);
  TensorId x = b.relu(b.batch_norm_layer("bn1", b.conv2d_layer("conv1", image, 64, 7, 2, 3)), true);
  x = b.max_pool2d(x, 3, 2, 1);
  int number = 0;
  for (std::size_t stage = 0; stage < a.stages.size(); ++stage) {
    auto scope = b.module("layer" + std::to_string(stage + 1));
    for (std::int64_t i = 0; i < a.stages[stage]; ++i) {
      b.set_block(number++);
      auto inner = b.module(std::to_string(i));
      x = block(b, a, x, std::int64_t{64} << stage, i == 0 && stage > 0 ? 2 : 1);
    }
  }
  b.set_block(-1);
  x = b.adaptive_avg_pool2d(x, 1);
  x = b.view(x, {sizes.batch, b.shape(x)[1]});
  b.cross_entropy(b.linear_layer("fc", x, a.classes), target);
}

}  // namespace
}  // namespace resnet

ModelFamily resnet_family() {
  return {.name = "resnet", .layered = false, .check = [](JsonReader& r) { resnet::read(r); }, .build = resnet::build};
}

}  // namespace precog::zoo
