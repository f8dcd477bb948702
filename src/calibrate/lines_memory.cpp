// Lines of operators on plain tensors, whose time is mostly memory traffic.
#include "calibrate/operator_line.h"

#include <algorithm>
#include <array>
#include <map>

namespace precog {
namespace {

void pointwise(const Line& line, const std::string& op, Calls& calls) {
  const Shape shape{line.extent("n")};
  const DType other = calls.stored() == DType::fp32 ? DType::bf16 : DType::fp32;
  const auto x = [&] { return calls.tensor(shape); };
  static const std::map<std::string, OpKind, std::less<>> kUnary = {{"mul scalar", OpKind::mul_scalar}, {"relu", OpKind::relu}, {"gelu", OpKind::gelu},
                                                                    {"silu", OpKind::silu}, {"tanh", OpKind::tanh}, {"pow 3", OpKind::pow}};
  if (auto unary = kUnary.find(op); unary != kUnary.end()) calls.add(unary->second, {x()}, {x()});
  else if (op == "copy_") calls.add(OpKind::copy, {x(), x()}, {x()}, {}, "copy");
  else if (op == "add" || op == "mul") calls.add(op == "add" ? OpKind::add : OpKind::mul, {x(), x()}, {x()});
  else if (op == "add_") {
    const TensorId target = x();
    Tensor result = calls.graph().tensors[target];
    result.storage = target;
    calls.add(OpKind::add, {target, x()}, {calls.graph().add_tensor(result)}).in_place = true;
  } else if (op == "add mixed") calls.add(OpKind::add, {x(), calls.tensor(shape, other)}, {calls.tensor(shape, DType::fp32)});
  else if (op.ends_with(" backward") && op != "dropout backward") {
    calls.add(OpKind::pointwise_backward, {x(), x()}, {x()}, {}, std::string_view(op).substr(0, op.size() - 9)).phase = Phase::backward;
  } else if (op == "dropout backward")
    calls.add(OpKind::pointwise_backward, {x(), calls.tensor(shape, DType::boolean)}, {x()}, {}, "dropout").phase = Phase::backward;
  else if (op == "cast to the other width") calls.add(OpKind::cast, {x()}, {calls.tensor(shape, other)}, CastAttributes{.to = other});
  else if (op == "native_dropout") calls.add(OpKind::dropout, {x()}, {x(), calls.tensor(shape, DType::boolean)});
  else if (op == "sum all") calls.add(OpKind::sum, {x()}, {calls.tensor({})});
  else if (op == "zero_") calls.add(OpKind::fill, {}, {x()});
  else if (op.starts_with("transpose copy")) {
    const std::int64_t rows = std::max<std::int64_t>(1, shape[0] / 1024);
    const TensorId turned = calls.view(calls.tensor({rows, 1024}), {1024, rows}, ViewKind::transpose);
    calls.add(OpKind::contiguous, {turned}, {calls.tensor({1024, rows})});
  } else if (op == "add scalar") calls.add(OpKind::add_scalar, {x()}, {x()});
  else if (op == "fill_") calls.add(OpKind::fill, {}, {x()});
  else if (op == "gelu tanh") calls.add(OpKind::gelu, {x()}, {x()});
  else if (op == "greater") calls.named("gt", {x()}, {calls.tensor(shape, DType::boolean)});
  else if (op == "sub" || op == "div" || op == "maximum" || op == "lerp") calls.named(op, {x(), x()}, {x()});
  else if (op == "addcmul") calls.named(op, {x(), x(), x()}, {x()});
  else if (op == "where") {
    const TensorId both = x();  // the line's call chooses between a tensor and itself
    calls.named("where", {calls.tensor(shape, DType::boolean), both, both}, {x()});
  } else if (op == "masked_fill") calls.add(OpKind::masked_fill, {x(), calls.tensor(shape, DType::boolean)}, {x()});
  else if (op == "mul mask") calls.add(OpKind::mul, {x(), calls.tensor(shape, DType::boolean)}, {x()});
  else if (op == "is finite") throw Unusable{"is several kernels of different kinds: measured one by one they say more"};
  else calls.named(op, {x()}, {x()});
}

void row_wise(const Line& line, const std::string& op, Calls& calls) {
  const std::int64_t rows = line.extent("rows"), columns = line.extent("columns");
  const Shape shape{rows, columns};
  const auto x = [&] { return calls.tensor(shape); };
  const auto row = [&] { return calls.tensor({columns}); };
  const auto each = [&] { return calls.tensor({rows}, DType::fp32); };
  if (op == "layer_norm") calls.add(OpKind::layer_norm, {x(), row(), row()}, {x(), each(), each()});
  else if (op == "layer_norm backward") calls.add(OpKind::layer_norm_backward, {x(), x(), each(), each()}, {x(), row(), row()}).phase = Phase::backward;
  else if (op == "rms_norm") calls.add(OpKind::rms_norm, {x(), row()}, {x(), each()});
  else if (op == "rms_norm backward") calls.add(OpKind::rms_norm_backward, {x(), x(), each(), row()}, {x(), row()}).phase = Phase::backward;
  else if (op == "softmax") calls.add(OpKind::softmax, {x()}, {x()});
  else if (op == "softmax backward") calls.add(OpKind::softmax_backward, {x(), x()}, {x()}).phase = Phase::backward;
  else if (op == "log_softmax") calls.add(OpKind::log_softmax, {x()}, {x()});
  else if (op == "log_softmax backward") calls.add(OpKind::log_softmax_backward, {x(), x()}, {x()}).phase = Phase::backward;
  else if (op == "var over columns") calls.named("var", {x()}, {calls.tensor({rows})});
  else if (op == "norm over columns") calls.named("linalg_vector_norm", {x()}, {calls.tensor({rows})});
  else if (op == "argmax over columns") calls.named("argmax", {x()}, {calls.tensor({rows}, DType::int64)});
  else if (op == "cumsum over columns") calls.named("cumsum", {x()}, {x()});
  else if (op == "tril" || op == "triu") calls.named(op, {x()}, {x()});
  else if (op == "glu") calls.named(op, {x()}, {calls.tensor({rows, columns / 2})});
  else if (op == "glu backward") calls.named("glu_backward", {calls.tensor({rows, columns / 2}), x()}, {x()}).phase = Phase::backward;
  else if (op == "sum over rows") calls.add(OpKind::sum, {x()}, {row()}).phase = Phase::backward;  // a bias's gradient
  else if (op == "sum over columns") calls.add(OpKind::sum, {x()}, {calls.tensor({rows})});
  else if (op == "mean over columns") calls.add(OpKind::mean, {x()}, {calls.tensor({rows, 1})});
  else if (op == "add bias") calls.add(OpKind::add, {x(), row()}, {x()});
  else if (op == "head transpose copy") {
    const std::int64_t heads = std::max<std::int64_t>(1, columns / 64), length = std::min<std::int64_t>(rows, 128), outer = std::max<std::int64_t>(1, rows / length);
    const Shape turned{outer, heads, length, columns / heads};
    calls.add(OpKind::contiguous, {calls.view(calls.tensor({outer, length, heads, columns / heads}), turned, ViewKind::transpose)}, {calls.tensor(turned)});
  } else if (op.starts_with("rotate half")) {
    const TensorId all = x();
    const Shape half{rows, columns / 2};
    const TensorId second = calls.view(all, half, ViewKind::slice), negated = calls.tensor(half);
    calls.add(OpKind::neg, {second}, {negated});
    calls.add(OpKind::cat, {negated, calls.view(all, half, ViewKind::slice)}, {x()});
  } else throw Unusable{"is no row-wise operator that is known"};
}

void permutation(const Line& line, const std::string& op, Calls& calls) {
  const auto e = line.extents("shape", 4, 4);
  Shape turned;
  for (char c : op.substr(std::min(op.size(), op.find('(')))) {
    if (c >= '0' && c <= '3') turned.push_back(e[static_cast<std::size_t>(c - '0')]);
  }
  if (turned.rank() != 4) throw Unusable{"names no order of four axes; like: heads (0,2,1,3)"};
  calls.add(OpKind::contiguous, {calls.view(calls.tensor({e[0], e[1], e[2], e[3]}), turned, ViewKind::transpose)}, {calls.tensor(turned)});
}

void quantising(const Line& line, const std::string& op, Calls& calls) {
  const std::int64_t rows = line.extent("rows"), columns = line.extent("columns");
  const Shape shape{rows, columns};
  const auto x = [&] { return calls.tensor(shape); };
  if (op == "abs" || op == "clamp") calls.named(op, {x()}, {x()});
  else if (op == "amax rows") calls.named("amax", {x()}, {calls.tensor({rows, 1})});
  else if (op == "amax blocks") calls.named("amax", {x()}, {calls.tensor({rows, std::max<std::int64_t>(1, columns / 128)})});
  else if (op == "aminmax") calls.named("aminmax", {x()}, {calls.tensor({}), calls.tensor({})});
  else if (op == "mul scale") calls.add(OpKind::mul, {x(), calls.tensor({}, DType::fp32)}, {x()});
  else if (op == "mul rows") calls.add(OpKind::mul, {x(), calls.tensor({rows, 1}, DType::fp32)}, {calls.tensor(shape, DType::fp32)});
  else if (op == "cast") calls.add(OpKind::cast, {x()}, {calls.tensor(shape, DType::fp8)}, CastAttributes{.to = DType::fp8});
  else if (op == "transpose 8") {
    const Shape turned{columns, rows};
    calls.add(OpKind::contiguous, {calls.view(calls.tensor(shape, DType::fp8), turned, ViewKind::transpose)}, {calls.tensor(turned, DType::fp8)});
  } else throw Unusable{"is several kernels of different kinds: measured one by one they say more"};
}

// x[outer, middle, inner], and which of its axes a field names: "outer+inner".
struct Volume {
  std::array<std::int64_t, 3> extents;
  std::array<bool, 3> named{};

  Volume(const Line& line, const char* field) : extents{line.extent("outer"), line.extent("middle"), line.extent("inner")} {
    const std::string axes = line.text(field);
    static constexpr std::array<std::string_view, 3> kAxes = {"outer", "middle", "inner"};
    for (std::size_t i = 0; i < 3; ++i) named[i] = axes == "all" || axes.find(kAxes[i]) != std::string::npos;
  }
  Shape whole() const { return {extents[0], extents[1], extents[2]}; }
  Shape only(bool those_named) const {  // the others are 1
    Shape out;
    for (std::size_t i = 0; i < 3; ++i) out.push_back(named[i] == those_named ? extents[i] : 1);
    return out;
  }
};

void broadcasting(const Line& line, const std::string& op, Calls& calls) {
  const Volume volume(line, "operand");
  if (op != "add" && op != "mul") throw Unusable{"must be add or mul"};
  calls.add(op == "add" ? OpKind::add : OpKind::mul, {calls.tensor(volume.whole()), calls.tensor(volume.only(true))}, {calls.tensor(volume.whole())});
}

void reducing(const Line& line, const std::string& op, Calls& calls) {
  const Volume volume(line, "over");
  const TensorId x = calls.tensor(volume.whole()), result = calls.tensor(volume.only(false));
  if (op == "sum" || op == "mean") calls.add(op == "sum" ? OpKind::sum : OpKind::mean, {x}, {result});
  else if (op == "amax" || op == "var") calls.named(op, {x}, {result});
  else throw Unusable{"must be sum, mean, amax or var"};
}

void copying(const Line& line, const std::string& op, Calls& calls) {
  const std::int64_t rows = line.extent("rows"), columns = line.extent("columns"), parts = line.extent("parts");
  const std::int64_t wide = std::max<std::int64_t>(1, columns / parts), high = std::max<std::int64_t>(1, rows / parts);
  if (parts > 64) throw Unusable{"has more than 64 parts"};
  const Shape whole{rows, columns}, piece{rows, wide};
  const auto joined = [&](const char* name, const Shape& result) {
    const TensorId one = calls.tensor(piece);  // the same tensor each time
    const std::vector<TensorId> inputs(static_cast<std::size_t>(parts), one);
    if (std::string_view(name) == "cat") calls.add(OpKind::cat, inputs, {calls.tensor(result)});
    else calls.named(name, inputs, {calls.tensor(result)});
  };
  const auto copy_of = [&](TensorId x, const Shape& part) { calls.add(OpKind::contiguous, {calls.view(x, part, ViewKind::slice)}, {calls.tensor(part)}); };
  if (op == "slice inner") copy_of(calls.tensor(whole), piece);
  else if (op == "slice outer") calls.add(OpKind::contiguous, {calls.tensor({high, columns})}, {calls.tensor({high, columns})});
  else if (op == "cat inner") joined("cat", {rows, wide * parts});
  else if (op == "cat outer") joined("cat", {rows * parts, wide});
  else if (op == "stack") joined("stack", {parts, rows, wide});
  else if (op == "pad") calls.named("constant_pad_nd", {calls.tensor(whole)}, {calls.tensor({rows, columns + 2 * parts})});
  else if (op == "roll") calls.named("roll", {calls.tensor(whole)}, {calls.tensor(whole)});
  else if (op == "repeat") calls.named("repeat", {calls.tensor(piece)}, {calls.tensor({rows, wide * parts})});
  else if (op == "slice backward") calls.named("slice_backward", {calls.tensor(piece)}, {calls.tensor(whole)}).phase = Phase::backward;
  else if (op == "split copy") {
    const TensorId x = calls.tensor(whole);
    for (std::int64_t at = 0; at < columns; at += wide) copy_of(x, {rows, std::min(wide, columns - at)});
  } else throw Unusable{"is no copy that is known"};
}

void indexing(const Line& line, const std::string& op, Calls& calls) {
  const std::int64_t rows = line.extent("rows"), columns = line.extent("columns"), count = line.extent("picked");
  const bool last = op.ends_with(" last");  // the same places of every row
  const Shape table{rows, columns}, chosen = last ? Shape{rows, count} : Shape{count, columns};
  const TensorId ids = calls.tensor({count}, DType::int64);
  const auto in_place = [&](Op& made) { made.in_place = true; };
  const auto target = [&](TensorId x) {
    Tensor result = calls.graph().tensors[x];
    result.storage = x;
    return calls.graph().add_tensor(result);
  };
  if (op == "gather last") calls.named("gather", {calls.tensor(table), calls.view(ids, chosen, ViewKind::expand)}, {calls.tensor(chosen)});
  else if (op == "index_add last") {
    const TensorId x = calls.tensor(table);
    in_place(calls.named("index_add", {x, ids, calls.tensor(chosen)}, {target(x)}));
  } else if (op == "scatter_add last") {
    const TensorId x = calls.tensor(table);
    in_place(calls.named("scatter_add", {x, calls.view(ids, chosen, ViewKind::expand), calls.tensor(chosen)}, {target(x)}));
  } else if (op == "index_select" || op == "index_select last") calls.add(OpKind::index_select, {calls.tensor(table), ids}, {calls.tensor(chosen)});
  else if (op == "gather") calls.named("gather", {calls.tensor(table), calls.view(ids, chosen, ViewKind::expand)}, {calls.tensor(chosen)});
  else if (op == "embedding") calls.add(OpKind::embedding, {calls.tensor(table), ids}, {calls.tensor(chosen)});
  else if (op == "embedding backward") calls.add(OpKind::embedding_backward, {calls.tensor(chosen), ids}, {calls.tensor(table)}).phase = Phase::backward;
  else if (op == "scatter_add" || op == "index_add" || op == "index_put") {
    const TensorId x = calls.tensor(table);
    Op& made = calls.named(op, {x, ids, calls.tensor(chosen)}, {target(x)});
    in_place(made);
    if (op == "index_put") made.phase = Phase::backward;  // adds: what the gradient of indexing calls
  } else throw Unusable{"is no indexing that is known"};
}

void sorting(const Line& line, const std::string& op, Calls& calls) {
  const std::int64_t rows = line.extent("rows"), columns = line.extent("columns"), k = line.extent("k", 1);
  const Shape shape{rows, columns}, best{rows, std::min(k, columns)};
  const TensorId x = calls.tensor(shape);
  if (op == "sort") calls.named("sort", {x}, {calls.tensor(shape), calls.tensor(shape, DType::int64)});
  else if (op == "argsort") calls.named("argsort", {x}, {calls.tensor(shape, DType::int64)});
  else if (op == "topk") calls.add(OpKind::topk, {x}, {calls.tensor(best), calls.tensor(best, DType::int64)});
  else if (op == "kthvalue") calls.named("kthvalue", {x}, {calls.tensor({rows}), calls.tensor({rows}, DType::int64)});
  else if (op == "cumsum") calls.named("cumsum", {x}, {calls.tensor(shape)});
  else throw Unusable{"is no sorting that is known"};
}

void loss(const Line& line, const std::string& op, Calls& calls) {
  static const std::map<std::string, const char*, std::less<>> kNames = {
      {"mse", "mse_loss"}, {"l1", "l1_loss"}, {"smooth_l1", "smooth_l1_loss"}, {"bce_with_logits", "binary_cross_entropy_with_logits"}, {"kl_div", "kl_div"}};
  const auto known = kNames.find(op);
  if (known == kNames.end()) throw Unusable{"has a gradient of several kernels, which captured models bring along"};
  const Shape shape{line.extent("n")};
  calls.named(known->second, {calls.tensor(shape), calls.tensor(shape)}, {calls.tensor({})});
}

constexpr LineFamily kMemoryLines[] = {{"elementwise", pointwise}, {"pointwise", pointwise}, {"rows", row_wise}, {"permute", permutation}, {"quantise", quantising}, {"broadcast", broadcasting},
                                 {"reduce", reducing}, {"copies", copying}, {"index", indexing}, {"sort", sorting}, {"loss", loss}};

}  // namespace

std::span<const LineFamily> memory_lines() { return kMemoryLines; }

}  // namespace precog
