// Writes a forward graph from ONNX nodes, as PyTorch would run the code they were exported from: one value per name, with its
// shape, its memory order and, where they can be known, its elements; one handler per operator type, by family
// (onnx_ops_*.cpp). Shapes are inferred here, at one concrete batch and sequence.
// Not here: recognising what the exporter took apart (onnx_patterns.h, done before), the loss (onnx_build.cpp).
// Whatever cannot be read throws OnnxError.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "frontend/onnx_fold.h"
#include "graph/graph.h"

namespace precog::onnx {

struct Sizes {
  std::int64_t batch = 1, seq = 1, src_seq = 1;
};

using Strides = std::array<std::int64_t, Shape::kMaxRank>;  // in elements, as PyTorch counts them

struct Value : Constant {
  TensorId id;  // on the device; none: a number the host knows, or an initializer nobody used yet
  Strides strides{};
  const TensorData* initializer = nullptr;
  bool turned = false;      // the initializer's transpose, made when somebody other than a product wants it
  bool positional = false;  // floating, but made from integers alone (rotary angles): fp32, outside autocast
  std::string name;
};

class Importer {
 public:
  Importer(const ParsedModel& model, const Sizes& sizes);

  void run(const std::vector<Node>& nodes);
  const Value* find(const std::string& name) const;
  Graph& graph() { return graph_; }
  void mark_strided() { graph_.ops[graph_.ops.id_at(graph_.ops.size() - 1)].strided = true; }  // the operator just made
  const std::vector<std::string>& notes() const { return notes_; }
  std::int64_t opset() const { return opset_; }

  // --- for handlers
  const Value& in(const Node& node, std::size_t i) const;  // throws where it is missing
  bool has(const Node& node, std::size_t i) const { return !node.input(i).empty(); }
  std::vector<const Constant*> operands(const Node& node) const;  // for fold's helpers
  void out(const Node& node, std::size_t i, Value value);
  void note(std::string text);  // once each

  TensorId tensor(const Value& value);  // its tensor, made a parameter or buffer now where it has none
  TensorId buffer(const Value& value);  // an initializer that does not train (running statistics)
  TensorId buffer(const std::string& name, Shape shape, DType type);
  TensorId parameter(const std::string& name, Shape shape);  // one that the file does not hold
  Value wrap(TensorId id) const;                             // contiguous
  bool trains(const Value& value) const;

  // One operator with one result; floating results are `model` unless every floating operand is fp32.
  Value emit(OpKind kind, const std::vector<TensorId>& inputs, Shape shape, Attributes attributes = {});
  Value emit(OpKind kind, const std::vector<TensorId>& inputs, Shape shape, DType type, Attributes attributes = {});
  void emit_to(OpKind kind, const std::vector<TensorId>& inputs, const std::vector<TensorId>& outputs, Attributes attributes = {},
               bool in_place = false);
  TensorId make(Shape shape, DType type, const std::vector<TensorId>& inputs);
  // By PyTorch's name; a gradient of one kernel per floating operand (as the forward's: an estimate where the kind is unknown).
  Value generic(std::string_view name, const std::vector<TensorId>& inputs, Shape shape, DType type = DType::model);
  Value pointwise_like(Value result, const Value& of) const;  // keeps the operand's memory order, as TensorIterator does

  Value reshape(const Node& node, const Value& x, Shape shape);  // a view, or a copy where the order forces one
  Value view(const Value& x, Shape shape, ViewKind kind, const Strides& strides);
  Value permute(const Node& node, const Value& x, const std::vector<int>& order);
  Value expand(const Node& node, const Value& x, Shape shape);
  Value contiguous(const Value& x);  // nothing where it is so already
  Value cast_like_parameters(const Value& x);

 private:
  void visit(const Node& node);
  void enter(const Node& node);  // module path and repeated layer
  RecipeId estimated_gradient(const Op& op, const std::vector<TensorId>& inputs, Shape shape);

  const ParsedModel& model_;
  std::int64_t opset_ = 0;
  Graph graph_;
  std::unordered_map<std::string, Value> values_;
  std::unordered_map<std::string, TensorId> made_;  // initializers on the device
  std::unordered_map<std::string, int> blocks_;     // by the prefix that names a repeated layer
  std::vector<std::string> notes_;
  NameId module_;
  std::int16_t block_ = -1;
};

bool is_contiguous(const Value& value);
Strides contiguous_strides(const Shape& shape);
std::optional<double> scalar(const Value& value);  // a single known number

// nn.BatchNorm in training: its counter, the statistics of the batch, the result.
Value batch_normalised(Importer& im, const Value& x, TensorId weight, TensorId bias, TensorId mean, TensorId variance,
                       const std::string& name);

using Handler = void (*)(Importer&, const Node&);
using Handlers = std::unordered_map<std::string_view, Handler>;
const Handlers& matrix_handlers();
const Handlers& normalization_handlers();
const Handlers& pointwise_handlers();
const Handlers& movement_handlers();
const Handlers& reduction_handlers();

}  // namespace precog::onnx
