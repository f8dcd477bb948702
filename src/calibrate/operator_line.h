// A line of a measurement file while it is turned into kernels: its fields, checked as they are asked for, and the graph of the
// call that it times. For the files lines_*.cpp beside this one, which know what each family of lines means.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <fmt/format.h>

#include "base/json.h"
#include "graph/framework_names.h"
#include "graph/graph.h"

namespace precog {

inline constexpr std::int64_t kMostExtent = 1'000'000'000, kMostElements = 100'000'000'000;

struct Unusable {  // thrown inside kernels_of only: why a line is no kernel of ours
  std::string reason;
};

// A line's fields, each checked when it is asked for.
class Line {
 public:
  explicit Line(const Json& json) : json_(json) {}

  std::int64_t extent(const char* key, std::int64_t otherwise = 0) const {
    auto it = json_.find(key);
    if (it == json_.end() && otherwise > 0) return otherwise;
    if (it == json_.end()) throw Unusable{fmt::format("has no \"{}\"", key)};
    return checked(*it, key);
  }
  std::vector<std::int64_t> extents(const char* key, std::size_t least, std::size_t most) const {
    auto it = json_.find(key);
    if (it == json_.end() || !it->is_array() || it->size() < least || it->size() > most)
      throw Unusable{fmt::format("\"{}\" must be a list of {} to {} sizes", key, least, most)};
    std::vector<std::int64_t> out;
    for (const Json& one : *it) out.push_back(checked(one, key));
    return out;
  }
  // Strides: whole numbers, 0 too.
  static Shape strides(const Json& list, std::size_t rank) {
    if (!list.is_array() || list.size() != rank) throw Unusable{"\"strides\" must have one for each axis of \"shape\""};
    Shape out;
    for (const Json& one : list) {
      if (!one.is_number_integer() || one.get<double>() < 0 || one.get<double>() > static_cast<double>(kMostElements)) throw Unusable{"\"strides\" must be whole numbers"};
      out.push_back(one.get<std::int64_t>());
    }
    return out;
  }
  const Json& value(const char* key) const {
    auto it = json_.find(key);
    if (it == json_.end()) throw Unusable{fmt::format("has no \"{}\"", key)};
    return *it;
  }
  std::int64_t whole(const char* key) const {  // 0 too
    auto it = json_.find(key);
    return it != json_.end() && it->is_number_integer() && it->get<double>() == 0 ? 0 : extent(key);
  }
  // One size for all axes, or a list of one for each; 0 too.
  std::vector<std::int64_t> each(const char* key, std::size_t axes) const {
    auto it = json_.find(key);
    if (it == json_.end() || !it->is_array()) return std::vector<std::int64_t>(axes, whole(key));
    if (it->size() != axes) throw Unusable{fmt::format("\"{}\" must be one size or a list of {}", key, axes)};
    std::vector<std::int64_t> out;
    for (const Json& one : *it) out.push_back(one == 0 ? 0 : checked(one, key));
    return out;
  }
  double number(const char* key) const {
    auto it = json_.find(key);
    if (it == json_.end() || !it->is_number() || !(it->get<double>() > 0) || it->get<double>() > 1e6) throw Unusable{fmt::format("\"{}\" must be a positive number", key)};
    return it->get<double>();
  }
  bool has(const char* key) const { return json_.contains(key); }
  std::string text(const char* key) const {
    auto it = json_.find(key);
    if (it == json_.end() || !it->is_string()) throw Unusable{fmt::format("has no \"{}\"", key)};
    return it->get<std::string>();
  }
  bool flag(const char* key) const {
    auto it = json_.find(key);
    return it != json_.end() && ((it->is_boolean() && it->get<bool>()) || (it->is_number() && it->get<double>() > 0));
  }
  DType dtype() const {
    const auto type = dtype_named(text("dtype"));
    if (!type || !is_floating(*type) || *type == DType::model) throw Unusable{fmt::format("dtype '{}' is not known; like: fp32, tf32, bf16, fp16, fp8", text("dtype").substr(0, 20))};
    return *type;
  }
  bool channels_last() const { return json_.contains("layout") && text("layout") == "nhwc"; }

 private:
  static std::int64_t checked(const Json& value, const char* key) {
    if (!value.is_number_integer() || value.get<double>() < 1 || value.get<double>() > static_cast<double>(kMostExtent))
      throw Unusable{fmt::format("\"{}\" must be a whole number from 1 to {}", key, kMostExtent)};
    return value.get<std::int64_t>();
  }
  const Json& json_;
};

// A graph of one call, or of the few that one line times together.
class Calls {
 public:
  explicit Calls(DType math) : math_(math), stored_(math == DType::tf32 ? DType::fp32 : math) {}

  DType stored() const { return stored_; }
  TensorId tensor(const Shape& shape) { return tensor(shape, stored_); }
  TensorId tensor(const Shape& shape, DType dtype) {
    double elements = 1;
    for (std::int64_t extent : shape.extents()) elements *= static_cast<double>(extent);
    if (elements > static_cast<double>(kMostElements)) throw Unusable{"is larger than any GPU's memory"};
    Tensor made;
    made.shape = shape;
    made.dtype = dtype;
    made.requires_grad = true;
    return graph_.add_tensor(made);
  }
  Op& add(OpKind kind, std::vector<TensorId> inputs, std::vector<TensorId> outputs, Attributes attributes = {}, std::string_view label = {}) {
    Op op;
    op.kind = kind;
    op.math = math_;
    op.attributes = std::move(attributes);
    if (!label.empty()) op.label = graph_.intern(label);
    return graph_.ops[graph_.add_op(op, inputs, outputs)];
  }
  // A framework operator without a line of its own in the operator list, or with one: as a captured graph would name it.
  Op& named(std::string_view name, std::vector<TensorId> inputs, std::vector<TensorId> outputs) {
    const FrameworkName* known = framework_name(name);
    if (!known) throw Unusable{fmt::format("operator '{}' is not known", name)};
    return add(known->kind, std::move(inputs), std::move(outputs), {}, is_generic(known->kind) ? known->name : std::string_view());
  }
  TensorId view(TensorId of, const Shape& shape, ViewKind kind) {
    Tensor made = graph_.tensors[of];
    made.shape = shape;
    made.storage = graph_.tensors[of].storage;
    const TensorId out = graph_.add_tensor(made);
    add(OpKind::view, {of}, {out}, ViewAttributes{kind});
    return out;
  }

  // One that lies as these strides say; 0 along an axis: it has one element there.
  TensorId laid(const Shape& shape, const Shape& strides, DType dtype) {
    Shape own = shape;
    bool plain = true;
    for (int axis = 0; axis < shape.rank(); ++axis)
      if (strides[axis] == 0) own.set(axis, 1);
    std::int64_t step = 1;
    for (int axis = shape.rank() - 1; axis >= 0; --axis) plain = plain && (own[axis] == 1 || strides[axis] == step), step *= own[axis];
    const TensorId id = tensor(own, dtype);
    if (!plain) strides_[static_cast<std::int32_t>(id.index())] = strides;
    return id;
  }

  Graph& graph() { return graph_; }
  const std::unordered_map<std::int32_t, Shape>& strides() const { return strides_; }

 private:
  DType math_, stored_;
  Graph graph_;
  std::unordered_map<std::int32_t, Shape> strides_;
};

// How each family of lines is read.
struct LineFamily {
  std::string_view name;
  void (*describe)(const Line& line, const std::string& op, Calls& calls);
};
std::span<const LineFamily> compute_lines();  // products, convolutions, attention, recurrent layers
std::span<const LineFamily> memory_lines();   // plain tensors: pointwise, reductions, copies, indexing, sorting
std::span<const LineFamily> operand_lines();  // operands that lie in any way
std::span<const LineFamily> layer_lines();    // images, vocabularies: normalisation, pooling, resizing, losses

}  // namespace precog
