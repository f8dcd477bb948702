// Lines of calls whose operands lie in memory in any way: strides over the result's axes, 0 where they are broadcast.
#include "calibrate/operator_line.h"

#include <algorithm>
#include <map>

namespace precog {
namespace {

Shape extents_of(const Line& line) {
  const auto e = line.extents("shape", 1, Shape::kMaxRank);
  return Shape(std::span<const std::int64_t>(e));
}

bool is_whole(const Shape& shape, const Shape& strides) {
  for (int axis = 0; axis < shape.rank(); ++axis)
    if (shape[axis] > 1 && strides[axis] == 0) return false;
  return true;
}

void strided_pointwise(const Line& line, const std::string& op, Calls& calls) {
  const Shape shape = extents_of(line);
  const Json& list = line.value("strides");
  if (!list.is_array() || list.empty() || list.size() > 3) throw Unusable{"\"strides\" must be one list for each operand"};
  static const std::map<std::string, OpKind, std::less<>> kOwn = {{"add", OpKind::add}, {"mul", OpKind::mul}, {"mul scalar", OpKind::mul_scalar}, {"neg", OpKind::neg},
                                                                  {"silu", OpKind::silu}, {"gelu", OpKind::gelu}, {"pow 2", OpKind::pow}};
  const bool masked = op == "where" || op == "masked_fill" || op == "dropout backward";
  const DType other = calls.stored() == DType::fp32 ? DType::bf16 : DType::fp32;
  std::vector<TensorId> x;
  bool strided = false;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Shape strides = Line::strides(list[i], static_cast<std::size_t>(shape.rank()));
    const DType type = masked && i == 0 ? DType::boolean : op == "add mixed" && i + 1 == list.size() ? other : calls.stored();
    x.push_back(calls.laid(shape, strides, type));
    if (!is_whole(shape, strides)) continue;
    strided = strided || calls.strides().contains(static_cast<std::int32_t>(x.back().index()));
  }
  const std::size_t wanted = op == "addcmul" || op == "where" ? 3 : masked || op == "sub" || op == "div" || op.starts_with("add") || op == "mul" || op.ends_with("backward") ? 2 : 1;
  if (x.size() != wanted) throw Unusable{"has another number of operands than its operator"};
  const auto result = [&](DType type) { return std::vector<TensorId>{calls.tensor(shape, type)}; };
  Op* made = nullptr;
  if (op == "copy") made = &calls.add(OpKind::contiguous, {x[0]}, result(calls.stored()));
  else if (op == "clone") throw Unusable{"keeps the order that it finds: as a copy of plain memory"};
  else if (op == "cast") made = &calls.add(OpKind::cast, {x[0]}, result(other), CastAttributes{.to = other});
  else if (op == "add_") {
    Tensor target = calls.graph().tensors[x[0]];
    target.storage = x[0];
    made = &calls.add(OpKind::add, {x[0], x[1]}, {calls.graph().add_tensor(target)});
    made->in_place = true;
  } else if (op == "add mixed") made = &calls.add(OpKind::add, {x[0], x[1]}, result(DType::fp32));
  else if (op == "dropout backward") made = &calls.add(OpKind::pointwise_backward, {x[1], x[0]}, result(calls.stored()), {}, "dropout");
  else if (op.ends_with(" backward")) made = &calls.add(OpKind::pointwise_backward, x, result(calls.stored()), {}, std::string_view(op).substr(0, op.size() - 9));
  else if (op == "masked_fill") made = &calls.add(OpKind::masked_fill, {x[1], x[0]}, result(calls.stored()));
  else if (const auto own = kOwn.find(op); own != kOwn.end()) made = &calls.add(own->second, x, result(calls.stored()));
  else made = &calls.named(op, x, result(calls.stored()));
  if (op.ends_with(" backward")) made->phase = Phase::backward;
  made->strided = strided;
}

void reduction(const Line& line, const std::string& op, Calls& calls) {
  const Shape shape = extents_of(line);
  const Shape strides = Line::strides(line.value("strides"), static_cast<std::size_t>(shape.rank()));
  Shape result = shape;
  const Json& over = line.value("over");
  if (!over.is_array() || over.empty()) throw Unusable{"\"over\" must list axes"};
  for (const Json& axis : over) {
    if (!axis.is_number_integer() || axis.get<double>() < 0 || axis.get<double>() >= shape.rank()) throw Unusable{"\"over\" must list axes of \"shape\""};
    result.set(axis.get<int>(), 1);
  }
  if (!is_whole(shape, strides)) throw Unusable{"reduces an operand that is broadcast"};
  const TensorId x = calls.laid(shape, strides, calls.stored());
  Op* made = nullptr;
  if (op == "sum" || op == "mean") made = &calls.add(op == "sum" ? OpKind::sum : OpKind::mean, {x}, {calls.tensor(result)});
  else if (op == "argmax") made = &calls.named("argmax", {x}, {calls.tensor(result, DType::int64)});
  else made = &calls.named(op == "norm" ? "linalg_vector_norm" : op, {x}, {calls.tensor(result)});
  made->strided = calls.strides().contains(static_cast<std::int32_t>(x.index()));
}

void scan(const Line& line, const std::string& op, Calls& calls) {
  const Shape shape = extents_of(line);
  const Json& over = line.value("over");
  if (!over.is_array() || over.size() != 1 || !over[0].is_number_integer() || over[0].get<std::int64_t>() != shape.rank() - 1)
    throw Unusable{"runs along another axis than the last, which graphs do not tell"};
  calls.named(op, {calls.tensor(shape)}, {calls.tensor(shape)});
}

void joining(const Line& line, const std::string& op, Calls& calls) {
  const Shape shape = extents_of(line);
  const Shape strides = Line::strides(line.value("strides"), static_cast<std::size_t>(shape.rank()));
  const std::int64_t parts = line.extent("parts");
  const Json& over = line.value("over");
  if (parts < 1 || parts > 64) throw Unusable{"has no parts, or more than 64"};
  if (!over.is_array() || over.size() != 1 || !over[0].is_number_integer() || over[0].get<double>() < 0 || over[0].get<double>() >= shape.rank())
    throw Unusable{"\"over\" must be one axis of \"shape\""};
  if (!is_whole(shape, strides)) throw Unusable{"joins an operand that is broadcast"};
  std::vector<TensorId> x;
  for (std::int64_t i = 0; i < parts; ++i) x.push_back(calls.laid(shape, strides, calls.stored()));
  const bool strided = calls.strides().contains(static_cast<std::int32_t>(x[0].index()));
  Shape result = shape;
  if (op == "stack") {
    result = Shape{parts};
    for (int axis = 0; axis < shape.rank(); ++axis) result.push_back(shape[axis]);
    calls.named("stack", x, {calls.tensor(result)}).strided = strided;
  } else if (op == "cat") {
    const int axis = over[0].get<int>();
    result.set(axis, shape[axis] * parts);
    calls.add(OpKind::cat, x, {calls.tensor(result)}).strided = strided;
  } else throw Unusable{"must be cat or stack"};
}

constexpr LineFamily kOperandLines[] = {{"strided", strided_pointwise}, {"reduce_strided", reduction}, {"scan", scan}, {"joined", joining}};

}  // namespace

std::span<const LineFamily> operand_lines() { return kOperandLines; }

}  // namespace precog
