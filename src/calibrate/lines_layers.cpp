// Lines of operators on images and vocabularies.
#include "calibrate/operator_line.h"

#include <algorithm>

namespace precog {
namespace {

// One to three image axes as two: what the kernels' costs look at.
std::vector<std::int64_t> folded(const Line& line) {
  std::vector<std::int64_t> e = line.extents("shape", 3, 5);
  if (e.size() == 3) e.insert(e.begin() + 2, 1);
  if (e.size() == 5) e[2] *= e[3], e.erase(e.begin() + 3);
  return e;
}

void batch_norm_of_rows(const Shape& shape, const std::string& op, Calls& calls, bool turned = false) {
  if (!op.starts_with("batch_norm")) throw Unusable{"wants images; without pixels only batch_norm is known"};
  if (turned && op.ends_with("backward") && bits_of(calls.stored()) == 32) throw Unusable{"was given a gradient that lies otherwise than a model's"};
  const auto x = [&] { return turned && shape[2] > 1 ? calls.laid(shape, Shape{shape[1] * shape[2], 1, shape[1]}, calls.stored()) : calls.tensor(shape); };
  const auto channel = [&] { return calls.tensor({shape[1]}); };
  const auto statistic = [&] { return calls.tensor({shape[1]}, DType::fp32); };
  if (op.ends_with("backward")) calls.add(OpKind::batch_norm_backward, {x(), x(), statistic(), statistic()}, {x(), channel(), channel()}, NormAttributes{}).phase = Phase::backward;
  else calls.add(OpKind::batch_norm, {x(), channel(), channel(), statistic(), statistic()}, {x(), statistic(), statistic()}, NormAttributes{});
}

void image(const Line& line, const std::string& op, Calls& calls) {
  if (const auto rows = line.extents("shape", 2, 5); rows.size() == 2) return batch_norm_of_rows({rows[0], rows[1]}, op, calls);
  if (op.starts_with("instance_norm") || op.starts_with("channel layer_norm")) throw Unusable{"is several kernels of different kinds: measured one by one they say more"};
  if (line.has("lies")) {  // [samples, channels, length] with the channels innermost
    const auto rows = line.extents("shape", 3, 3);
    return batch_norm_of_rows({rows[0], rows[1], rows[2]}, op, calls, true);
  }
  const auto e = folded(line);
  const Shape shape{e[0], e[1], e[2], e[3]}, halved{e[0], e[1], (e[2] + 1) / 2, (e[3] + 1) / 2}, point{e[0], e[1], 1, 1};
  const auto x = [&] { return calls.tensor(shape); };
  const bool alike = op.find("weights alike") != std::string::npos || op.starts_with("group_norm"), backward = op.ends_with("backward");
  const auto channel = [&] { return calls.tensor({e[1]}, alike ? calls.stored() : DType::fp32); };
  const auto statistic = [&](std::int64_t count) { return calls.tensor({count}, DType::fp32); };
  if (op.starts_with("batch_norm")) {
    if (backward) calls.add(OpKind::batch_norm_backward, {x(), x(), statistic(e[1]), statistic(e[1])}, {x(), channel(), channel()}, NormAttributes{}).phase = Phase::backward;
    else calls.add(OpKind::batch_norm, {x(), channel(), channel(), statistic(e[1]), statistic(e[1])}, {x(), statistic(e[1]), statistic(e[1])}, NormAttributes{});
  } else if (op.starts_with("group_norm")) {
    const NormAttributes groups{.groups = line.extent("groups", 32)};
    const std::int64_t rows = e[0] * groups.groups;
    if (backward) calls.add(OpKind::group_norm_backward, {x(), x(), statistic(rows), statistic(rows)}, {x(), channel(), channel()}, groups).phase = Phase::backward;
    else calls.add(OpKind::group_norm, {x(), channel(), channel()}, {x(), statistic(rows), statistic(rows)}, groups);
  } else if (op == "max_pool2d 3x3") calls.add(OpKind::max_pool2d, {x()}, {calls.tensor(halved), calls.tensor(halved, DType::int64)}, PoolAttributes{3, 2, 1});
  else if (op == "max_pool2d 3x3 backward")
    calls.add(OpKind::max_pool2d_backward, {calls.tensor(halved), x(), calls.tensor(halved, DType::int64)}, {x()}, PoolAttributes{3, 2, 1}).phase = Phase::backward;
  else if (op == "adaptive_avg_pool2d") calls.add(OpKind::adaptive_avg_pool2d, {x()}, {calls.tensor(point)});
  else if (op == "copy to the other layout") {
    const Shape turned = line.channels_last() ? Shape{e[0], e[2], e[3], e[1]} : Shape{e[0], e[1], e[2], e[3]};
    const Shape wanted = line.channels_last() ? Shape{e[0], e[1], e[2], e[3]} : Shape{e[0], e[2], e[3], e[1]};
    calls.add(OpKind::contiguous, {calls.view(calls.tensor(turned), wanted, ViewKind::transpose)}, {calls.tensor(wanted)});
  } else throw Unusable{"is no operator on images that is known"};
}

void vocabulary(const Line& line, const std::string& op, Calls& calls) {
  const std::int64_t tokens = line.extent("tokens"), words = line.extent("vocabulary"), hidden = line.extent("hidden");
  const auto scores = [&] { return calls.tensor({tokens, words}); };
  const TensorId target = calls.tensor({tokens}, DType::int64);
  if (op == "log_softmax") calls.add(OpKind::log_softmax, {scores()}, {scores()});
  else if (op == "log_softmax backward") calls.add(OpKind::log_softmax_backward, {scores(), scores()}, {scores()}).phase = Phase::backward;
  else if (op == "nll_loss") calls.add(OpKind::nll_loss, {scores(), target}, {calls.tensor({}), calls.tensor({})});
  else if (op == "nll_loss backward") calls.add(OpKind::nll_loss_backward, {calls.tensor({}), target}, {scores()}).phase = Phase::backward;
  else if (op == "embedding") calls.add(OpKind::embedding, {calls.tensor({words, hidden}), target}, {calls.tensor({tokens, hidden})});
  else if (op == "embedding backward")
    calls.add(OpKind::embedding_backward, {calls.tensor({tokens, hidden}), target}, {calls.tensor({words, hidden})}).phase = Phase::backward;
  else throw Unusable{"is no operator on a vocabulary that is known"};
}

// Classes of every pixel.
void maps(const Line& line, const std::string& op, Calls& calls) {
  const auto e = line.extents("shape", 4, 4);
  const auto scores = [&] { return calls.tensor({e[0], e[1], e[2], e[3]}); };
  const TensorId target = calls.tensor({e[0], e[2], e[3]}, DType::int64);
  if (op == "log_softmax") calls.add(OpKind::log_softmax, {scores()}, {scores()});
  else if (op == "log_softmax backward") calls.add(OpKind::log_softmax_backward, {scores(), scores()}, {scores()}).phase = Phase::backward;
  else if (op == "nll_loss") calls.add(OpKind::nll_loss, {scores(), target}, {calls.tensor({}), calls.tensor({})});
  else if (op == "nll_loss backward") calls.add(OpKind::nll_loss_backward, {calls.tensor({}), target}, {scores()}).phase = Phase::backward;
  else throw Unusable{"is no operator on maps that is known"};
}

void pooling(const Line& line, const std::string& op, Calls& calls) {
  auto e = line.extents("shape", 3, 5);
  const bool row = e.size() == 3;  // pooled as an image of height one (native/Pooling.cpp), as captured graphs say, too
  if (row) e.insert(e.begin() + 2, 1);
  const std::size_t axes = e.size() - 2;
  const bool backward = op.ends_with(" backward"), adaptive = op.starts_with("adaptive");
  const std::string kind = backward ? op.substr(0, op.size() - 9) : op;
  if (kind != "max" && kind != "average" && kind != "adaptive average") throw Unusable{"must be max, average or adaptive average"};
  const std::int64_t kernel = line.extent("kernel", adaptive ? 1 : 0), stride = line.extent("stride", adaptive ? 1 : 0), padding = adaptive ? 0 : line.whole("padding");
  Shape x, y;
  for (std::size_t i = 0; i < e.size(); ++i) {
    x.push_back(e[i]);
    y.push_back(i < 2 || (row && i == 2) ? e[i] : adaptive ? line.extent("output") : std::max<std::int64_t>(1, (e[i] + 2 * padding - kernel) / stride + 1));
  }
  const PoolAttributes window{kernel, stride, padding};
  if (adaptive && axes == 3 && line.extent("output") == 1) {  // a mean (native/AdaptiveAveragePooling.cpp), whose gradient is a product with what is broadcast
    const Shape last{x.elements() / x[0], 1, x[1] * x[3] * x[4], x[1] * x[4], x[1]};
    if (!backward && line.channels_last()) calls.add(OpKind::mean, {calls.laid(x, last, calls.stored())}, {calls.tensor(y)}).strided = true;
    else if (!backward) calls.add(OpKind::mean, {calls.tensor(x)}, {calls.tensor(y)});
    else calls.add(OpKind::mul_scalar, {calls.view(calls.tensor(y), x, ViewKind::expand)}, {calls.tensor(x)}).phase = Phase::backward;
    return;
  }
  if (axes == 2 && kind == "max") {
    const TensorId places = calls.tensor(y, DType::int64);
    if (backward) calls.add(OpKind::max_pool2d_backward, {calls.tensor(y), calls.tensor(x), places}, {calls.tensor(x)}, window).phase = Phase::backward;
    else calls.add(OpKind::max_pool2d, {calls.tensor(x)}, {calls.tensor(y), places}, window);
    return;
  }
  if (axes == 2 && adaptive) {
    if (backward) calls.add(OpKind::adaptive_avg_pool2d_backward, {calls.tensor(y), calls.tensor(x)}, {calls.tensor(x)}).phase = Phase::backward;
    else calls.add(OpKind::adaptive_avg_pool2d, {calls.tensor(x)}, {calls.tensor(y)});
    return;
  }
  // As captured graphs have them: a maximum comes with its places, which its gradient reads.
  const bool places = kind == "max" && axes == 3;
  const std::string name = fmt::format("{}_pool{}d{}", kind == "max" ? "max" : adaptive ? "adaptive_avg" : "avg", axes, places ? "_with_indices" : "");
  Op* made = nullptr;
  if (backward && places) made = &calls.named(name + "_backward", {calls.tensor(y), calls.tensor(x), calls.tensor(y, DType::int64)}, {calls.tensor(x)});
  else if (places) made = &calls.named(name, {calls.tensor(x)}, {calls.tensor(y), calls.tensor(y, DType::int64)});
  else if (backward) made = &calls.named((adaptive ? "_" : "") + name + "_backward", {calls.tensor(y), calls.tensor(x)}, {calls.tensor(x)});
  else made = &calls.named((adaptive ? "_" : "") + name, {calls.tensor(x)}, {calls.tensor(y)});
  if (!adaptive) made->attributes = window;
  if (backward) made->phase = Phase::backward;
}

void resizing(const Line& line, const std::string& op, Calls& calls) {
  const auto e = line.extents("shape", 3, 5);
  const std::size_t axes = e.size() - 2;
  const std::vector<std::int64_t> to = line.has("to") ? line.extents("to", axes, axes) : std::vector<std::int64_t>{};
  const double scale = to.empty() ? line.number("scale") : 1;
  const bool backward = op.ends_with(" backward");
  const std::string name = fmt::format("upsample_{}{}d{}", backward ? op.substr(0, op.size() - 9) : op, axes, backward ? "_backward" : "");
  const auto scaled = [&](std::int64_t extent) { return std::max<std::int64_t>(1, static_cast<std::int64_t>(static_cast<double>(extent) * scale)); };
  Shape x, y;
  for (std::size_t i = 0; i < e.size(); ++i) x.push_back(e[i]), y.push_back(i < 2 ? e[i] : to.empty() ? scaled(e[i]) : to[i - 2]);
  if (backward) calls.named(name, {calls.tensor(y)}, {calls.tensor(x)}).phase = Phase::backward;
  else calls.named(name, {calls.tensor(x)}, {calls.tensor(y)});
}

// Blocks of an image as columns, or columns added up to an image.
void folding(const Line& line, const std::string& op, Calls& calls) {
  const auto e = line.extents("shape", 4, 4);
  const std::int64_t kernel = line.extent("kernel"), stride = line.extent("stride"), padding = line.whole("padding"), reach = line.extent("dilation", 1) * (kernel - 1) + 1;
  std::int64_t blocks = 1;
  for (std::size_t axis = 2; axis < 4; ++axis) {
    if (e[axis] + 2 * padding < reach) throw Unusable{"has blocks that are larger than the image"};
    blocks *= (e[axis] + 2 * padding - reach) / stride + 1;
  }
  const TensorId x = calls.tensor({e[0], e[1], e[2], e[3]}), columns = calls.tensor({e[0], e[1] * kernel * kernel, blocks});
  if (op == "im2col") calls.named(op, {x}, {columns});
  else if (op == "col2im") calls.named(op, {columns}, {x});
  else throw Unusable{"must be im2col or col2im"};
}

// Padding by what lies at the edge.
void padding_by_edge(const Line& line, const std::string& op, Calls& calls) {
  const auto e = line.extents("shape", 3, 5);
  const std::int64_t by = line.extent("by");
  Shape x, y;
  for (std::size_t i = 0; i < e.size(); ++i) x.push_back(e[i]), y.push_back(i < 2 ? e[i] : e[i] + 2 * by);
  if (op.ends_with("_backward")) calls.named(op, {calls.tensor(y), calls.tensor(x)}, {calls.tensor(x)}).phase = Phase::backward;
  else calls.named(op, {calls.tensor(x)}, {calls.tensor(y)});
}

// An image at given places.
void sampling(const Line& line, const std::string& op, Calls& calls) {
  const auto e = line.extents("shape", 4, 4), to = line.extents("to", 2, 2);
  const Shape image{e[0], e[1], e[2], e[3]}, result{e[0], e[1], to[0], to[1]}, places{e[0], to[0], to[1], 2};
  if (op == "grid_sampler_2d") calls.named(op, {calls.tensor(image), calls.tensor(places)}, {calls.tensor(result)});
  else if (op == "grid_sampler_2d_backward")
    calls.named(op, {calls.tensor(result), calls.tensor(image), calls.tensor(places)}, {calls.tensor(image), calls.tensor(places)}).phase = Phase::backward;
  else throw Unusable{"must be grid_sampler_2d or its backward"};
}

constexpr LineFamily kLines[] = {{"image", image}, {"norm", image}, {"vocabulary", vocabulary}, {"maps", maps}, {"pool", pooling}, {"resize", resizing},
                                 {"fold", folding}, {"edge", padding_by_edge}, {"sampled", sampling}};

}  // namespace

std::span<const LineFamily> layer_lines() { return kLines; }

}  // namespace precog
