// Puts together again what exporters take apart: attention, GELU, SiLU, layer and root-mean-square norms, linear layers with
// a bias; and drops masks that hide nothing. The result is a shorter list of nodes in the same order; joined ones have the
// domain "precog". Shapes and known elements come from a trial import of the whole graph at small extents, where even a
// causal mask is small enough to be looked at.
// Not here: anything about cost. What looks like a pattern but is read elsewhere too stays as it is.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "frontend/onnx_import.h"

namespace precog::onnx {

struct Recognised {
  std::vector<Node> nodes;
  int attentions = 0, causal = 0;
  int dropouts_assumed = 0;  // attentions whose dropout the exporter left out
  double dropout = 0;        // the ratio that the graph's other dropouts have
  std::string packed;        // a running count of breaks in the positions that a causal mask was made from
};
Recognised recognise(const ParsedModel& model, const Importer& trial);

// --- between the pattern files
inline constexpr const char* kPackedCheck = "precog.packed_check";  // the name of a result that nobody reads, but the host

class NodeList {
 public:
  NodeList(const ParsedModel& model, const Importer& trial);

  std::vector<Node> nodes;
  void refresh();  // drops nodes that lead to no output, then finds producers and consumers anew

  const Node* producer(const std::string& name) const;
  const Node* producer(const std::string& name, std::string_view op) const;  // of that type, or null
  // The one node that reads a value (readers of its shape aside), or -1; a graph output has none.
  int consumer(const std::string& name) const;
  std::vector<int> consumers(const std::string& name) const;
  const Constant* value(const std::string& name) const { return trial_.find(name); }
  std::optional<double> number(const std::string& name) const;  // a single known one
  bool is_weight(const std::string& name, int rank) const;
  const std::string& other(const Node& node, const std::string& than) const;  // of two operands
  void replace(int at, std::string op, std::vector<std::string> inputs, std::vector<Attribute> attributes = {});

 private:
  const ParsedModel& model_;
  const Importer& trial_;
  std::unordered_map<std::string, int> producer_;
  std::unordered_map<std::string, std::vector<int>> consumers_;
};

void join_attention(NodeList& list, Recognised& found);

}  // namespace precog::onnx
