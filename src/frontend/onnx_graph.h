// An ONNX graph as the file has it: nodes, initializers' shapes, inputs and outputs. Weights' bytes are not here: only
// integers (shape arithmetic), single numbers and what looks like an attention mask keep their values.
// Not here: any meaning of an operator. Field numbers and types: https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "spec/dtype.h"

namespace precog::onnx {

// TensorProto.DataType
enum class ElementType : int {
  none = 0,
  float32 = 1,
  uint8 = 2,
  int8 = 3,
  uint16 = 4,
  int16 = 5,
  int32 = 6,
  int64 = 7,
  string = 8,
  boolean = 9,
  float16 = 10,
  float64 = 11,
  uint32 = 12,
  uint64 = 13,
  complex64 = 14,
  complex128 = 15,
  bfloat16 = 16,
  float8_first = 17,
  float8_last = 20,
  uint4 = 21,
  int4 = 22,
  float4 = 23
};
bool is_floating(ElementType type);
// Floating types are all `model`: which one a step computes in is the recipe's choice, not the file's.
DType dtype_of(ElementType type);

struct TensorData {
  std::string name;
  std::vector<std::int64_t> dims;
  ElementType type = ElementType::none;
  bool has_values = false;
  std::vector<double> values;
};

struct GraphData;
struct Attribute {
  std::string name, text;
  double real = 0;
  std::int64_t integer = 0;
  std::vector<std::int64_t> integers;
  std::vector<double> reals;
  std::shared_ptr<const TensorData> tensor;
  std::shared_ptr<const GraphData> graph;
};

struct Node {
  std::string name, op, domain;
  std::string module;                        // path of the module that called it, where the exporter said so
  std::vector<std::string> inputs, outputs;  // an empty name: left out
  std::vector<Attribute> attributes;

  const Attribute* find(std::string_view key) const;
  std::int64_t integer(std::string_view key, std::int64_t otherwise) const;
  double real(std::string_view key, double otherwise) const;
  std::string text(std::string_view key, std::string otherwise) const;
  std::vector<std::int64_t> integers(std::string_view key) const;
  const std::string& input(std::size_t i) const;  // "" where there is none
  std::string label() const;                      // "MatMul 'name'", for messages
};

// How far an extent is known: a number, or one of the extents a request may choose.
enum class Extent : std::uint8_t { fixed, batch, seq, src_seq };
struct Dim {
  std::int64_t value = -1;
  std::string symbol;
  Extent extent = Extent::fixed;
};
struct ValueInfo {
  std::string name;
  ElementType type = ElementType::none;
  bool has_shape = false;
  std::vector<Dim> dims;
};

struct GraphData {
  std::string name;
  std::vector<Node> nodes;
  std::vector<TensorData> initializers;
  std::vector<ValueInfo> inputs, outputs;  // inputs: without those that are initializers
};

struct ParsedModel {
  GraphData graph;
  std::map<std::string, std::int64_t> opsets;  // by domain; "" is ONNX's own
  std::string producer;
};

// Throws OnnxError.
ParsedModel parse_model(std::string_view bytes);

}  // namespace precog::onnx
