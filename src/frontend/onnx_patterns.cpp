#include "frontend/onnx_patterns.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>

namespace precog::onnx {
namespace {

bool near(std::optional<double> value, double wanted) { return value && std::fabs(*value - wanted) <= 1e-3 * std::fabs(wanted); }

// Over the last axis, which stays as 1.
bool over_last_axis(const NodeList& list, const Node& node) {
  const Constant* x = list.value(node.input(0));
  const Constant* y = node.outputs.empty() ? nullptr : list.value(node.outputs[0]);
  if (!x || !y || x->shape.rank() < 1 || x->shape.rank() != y->shape.rank() || x->shape[-1] <= 1) return false;
  Shape wanted = x->shape;
  wanted.set(-1, 1);
  return wanted == y->shape;
}

// A learned bias masked by a condition that was expanded over the batch, then added: exporters expand it, the code does not.
void shrink_condition(NodeList& list, std::size_t i) {
  Node& node = list.nodes[i];
  const Node* expanded = list.producer(node.input(0), "Expand");
  const Constant* small = expanded ? list.value(expanded->input(0)) : nullptr;
  const Constant* x = list.value(node.input(1));
  if (!small || node.outputs.empty() || small->shape.rank() > x->shape.rank()) return;
  for (int axis = 1; axis <= small->shape.rank(); ++axis)
    if (small->shape[-axis] != 1 && small->shape[-axis] != x->shape[-axis]) return;
  for (int reader : list.consumers(node.outputs[0]))
    if (reader < 0 || list.nodes[static_cast<std::size_t>(reader)].op != "Add") return;
  node.inputs[0] = expanded->input(0);
}

// where(true everywhere, x, number) is x. Where x is smaller and was broadcast, attention takes the smaller one just as well.
void drop_idle_masks(NodeList& list) {
  for (std::size_t i = 0; i < list.nodes.size(); ++i) {
    const Node& node = list.nodes[i];
    if (node.op != "Where" || !node.domain.empty()) continue;
    const Constant* condition = list.value(node.input(0));
    const Constant* kept = list.value(node.input(1));
    if (!condition || !condition->values || !kept || kept->values || kept->type != DType::model || !list.number(node.input(2)))
      continue;
    if (!std::all_of(condition->values->begin(), condition->values->end(), [](double v) { return v != 0; })) {
      shrink_condition(list, i);
      continue;
    }
    list.replace(static_cast<int>(i), "Identity", {node.input(1)});
    list.nodes[i].domain.clear();
  }
  list.refresh();
}

void join_gelu(NodeList& list) {
  for (std::size_t i = 0; i < list.nodes.size(); ++i) {
    const Node& erf = list.nodes[i];
    if (erf.op != "Erf" || erf.outputs.empty()) continue;
    const Node* scaled = list.producer(erf.input(0));
    if (!scaled || scaled->inputs.size() != 2) continue;
    const bool divided = scaled->op == "Div" && near(list.number(scaled->input(1)), std::sqrt(2.0));
    const bool multiplied = scaled->op == "Mul" && (near(list.number(scaled->input(0)), std::sqrt(0.5)) ||
                                                    near(list.number(scaled->input(1)), std::sqrt(0.5)));
    if (!divided && !multiplied) continue;
    const std::string x = divided || list.number(scaled->input(1)) ? scaled->input(0) : scaled->input(1);
    const int plus = list.consumer(erf.outputs[0]);
    if (plus < 0 || list.nodes[static_cast<std::size_t>(plus)].op != "Add" ||
        !near(list.number(list.other(list.nodes[static_cast<std::size_t>(plus)], erf.outputs[0])), 1))
      continue;
    int at = plus;
    bool halved = false, met = false, failed = false;
    while (!failed && !(halved && met)) {
      const std::string& made = list.nodes[static_cast<std::size_t>(at)].outputs[0];
      const int next = list.consumer(made);
      if (next < 0 || list.nodes[static_cast<std::size_t>(next)].op != "Mul") {
        failed = true;
        break;
      }
      const std::string& with = list.other(list.nodes[static_cast<std::size_t>(next)], made);
      const Node* half = list.producer(with, "Mul");
      if (!halved && near(list.number(with), 0.5)) halved = true;
      else if (!met && with == x) met = true;
      else if (!met && !halved && half &&
               ((half->input(0) == x && near(list.number(half->input(1)), 0.5)) ||
                (half->input(1) == x && near(list.number(half->input(0)), 0.5))))
        halved = met = true;
      else failed = true;
      at = next;
    }
    if (!failed) list.replace(at, "Gelu", {x});
  }
  list.refresh();
}

void join_silu_and_rsqrt(NodeList& list) {
  for (std::size_t i = 0; i < list.nodes.size(); ++i) {
    const Node node = list.nodes[i];
    if (node.outputs.empty() || (node.op != "Sigmoid" && node.op != "Sqrt" && node.op != "HardSigmoid")) continue;
    const int next = list.consumer(node.outputs[0]);
    if (next < 0) continue;
    const Node& reader = list.nodes[static_cast<std::size_t>(next)];
    if (node.op == "Sigmoid" && reader.op == "Mul" && list.other(reader, node.outputs[0]) == node.input(0))
      list.replace(next, "Silu", {node.input(0)});
    else if (node.op == "Sqrt" && reader.op == "Reciprocal") list.replace(next, "Rsqrt", {node.input(0)});
    else if (node.op == "Sqrt" && reader.op == "Div" && reader.input(1) == node.outputs[0] && near(list.number(reader.input(0)), 1))
      list.replace(next, "Rsqrt", {node.input(0)});
    else if (node.op == "HardSigmoid" && reader.op == "Mul" && list.other(reader, node.outputs[0]) == node.input(0)) {
      list.replace(next, "HardSwish", {node.input(0)});
      list.nodes[static_cast<std::size_t>(next)].domain.clear();
    }
  }
  list.refresh();
}

// The name behind casts: an fp32 export has them as idle passengers.
std::string behind_casts(const NodeList& list, std::string name) {
  for (int i = 0; i < 4; ++i) {
    const Node* cast = list.producer(name, "Cast");
    const Constant* from = cast ? list.value(cast->input(0)) : nullptr;
    if (!from || from->type != DType::model) break;
    name = cast->input(0);
  }
  return name;
}
int past_casts(const NodeList& list, int at) {
  while (at >= 0 && list.nodes[static_cast<std::size_t>(at)].op == "Cast")
    at = list.consumer(list.nodes[static_cast<std::size_t>(at)].outputs[0]);
  return at;
}

// mean of squares of `squared`: returns it, or "".
std::string squared_operand(const NodeList& list, const Node& mean) {
  const Node* square = list.producer(mean.input(0));
  if (!square) return {};
  if (square->op == "Pow" && near(list.number(square->input(1)), 2)) return square->input(0);
  if (square->op == "Mul" && square->inputs.size() == 2 && square->input(0) == square->input(1)) return square->input(0);
  return {};
}

// From the mean of squares on: + eps, root, and the operand multiplied or divided by it. Returns that last node, or -1.
int normalised(const NodeList& list, const Node& mean, const std::string& x) {
  int at = list.consumer(mean.outputs[0]);
  if (at < 0 || list.nodes[static_cast<std::size_t>(at)].op != "Add" ||
      !list.number(list.other(list.nodes[static_cast<std::size_t>(at)], mean.outputs[0])))
    return -1;
  at = list.consumer(list.nodes[static_cast<std::size_t>(at)].outputs[0]);
  if (at < 0) return -1;
  const Node& root = list.nodes[static_cast<std::size_t>(at)];
  const bool inverse = root.op == "Rsqrt";
  if (!inverse && root.op != "Sqrt") return -1;
  const int last = list.consumer(root.outputs[0]);
  if (last < 0) return -1;
  const Node& node = list.nodes[static_cast<std::size_t>(last)];
  if (node.op != (inverse ? "Mul" : "Div")) return -1;
  if (!inverse && node.input(1) != root.outputs[0]) return -1;
  return behind_casts(list, list.other(node, root.outputs[0])) == behind_casts(list, x) ? last : -1;
}

void join_norms(NodeList& list) {
  for (std::size_t i = 0; i < list.nodes.size(); ++i) {
    const Node mean = list.nodes[i];
    if (mean.op != "ReduceMean" || mean.outputs.empty() || !over_last_axis(list, mean)) continue;
    const std::string squared = squared_operand(list, mean);
    if (squared.empty()) continue;
    int last = normalised(list, mean, squared);
    std::string centred_from;
    if (const Node* centred = list.producer(behind_casts(list, squared), "Sub")) {  // layer norm: the mean was taken off first
      const Node* first = list.producer(centred->input(1), "ReduceMean");
      if (first && behind_casts(list, first->input(0)) == behind_casts(list, centred->input(0)) && over_last_axis(list, *first)) {
        centred_from = behind_casts(list, centred->input(0));
        if (last < 0) {  // TorchScript may take the mean off twice
          int at = list.consumer(mean.outputs[0]);
          if (at >= 0) at = list.consumer(list.nodes[static_cast<std::size_t>(at)].outputs[0]);
          if (at >= 0) at = list.consumer(list.nodes[static_cast<std::size_t>(at)].outputs[0]);
          const Node* divide = at >= 0 ? &list.nodes[static_cast<std::size_t>(at)] : nullptr;
          const Node* again = divide && divide->op == "Div" ? list.producer(divide->input(0), "Sub") : nullptr;
          if (again && behind_casts(list, again->input(0)) == centred_from) last = at;
        }
      }
    }
    if (last < 0) continue;
    std::string weight, bias;
    auto step = [&](const char* op, std::string& into) {
      const int next = past_casts(list, list.consumer(list.nodes[static_cast<std::size_t>(last)].outputs[0]));
      if (next < 0 || list.nodes[static_cast<std::size_t>(next)].op != op) return;
      const Node& node = list.nodes[static_cast<std::size_t>(next)];
      for (const std::string& name : node.inputs)
        if (list.is_weight(name, 1)) {
          into = name;
          last = next;
          return;
        }
    };
    step("Mul", weight);
    if (!centred_from.empty()) {
      if (!weight.empty()) step("Add", bias);
      std::vector<std::string> inputs = {centred_from};
      if (!weight.empty()) inputs.push_back(weight);
      if (!bias.empty()) inputs.push_back(bias);
      list.replace(last, "LayerNormalization", inputs);
      list.nodes[static_cast<std::size_t>(last)].domain.clear();
    } else {
      std::vector<std::string> inputs = {behind_casts(list, squared)};
      if (!weight.empty()) inputs.push_back(weight);
      list.replace(last, "RmsNorm", inputs);
    }
  }
  list.refresh();
}

void join_linear(NodeList& list) {
  for (std::size_t i = 0; i < list.nodes.size(); ++i) {
    const Node product = list.nodes[i];
    if (product.op != "MatMul" || product.outputs.empty() || product.inputs.size() != 2) continue;
    const Node* turn = list.producer(product.input(1), "Transpose");
    if (!list.is_weight(product.input(1), 2) && !(turn && list.is_weight(turn->input(0), 2))) continue;
    const int next = list.consumer(product.outputs[0]);
    if (next < 0 || list.nodes[static_cast<std::size_t>(next)].op != "Add") continue;
    const std::string bias = list.other(list.nodes[static_cast<std::size_t>(next)], product.outputs[0]);
    const Constant* weight = list.value(product.input(1));
    if (!list.is_weight(bias, 1) || !weight || weight->shape.rank() != 2 || list.value(bias)->shape[0] != weight->shape[1])
      continue;
    list.replace(next, "Linear", {product.input(0), product.input(1), bias});
  }
  list.refresh();
}

}  // namespace

NodeList::NodeList(const ParsedModel& model, const Importer& trial) : nodes(model.graph.nodes), model_(model), trial_(trial) {
  refresh();
}

void NodeList::refresh() {
  std::unordered_set<std::string> wanted;
  for (const ValueInfo& output : model_.graph.outputs) wanted.insert(output.name);
  wanted.insert(kPackedCheck);
  std::vector<Node> kept;
  for (std::size_t i = nodes.size(); i-- > 0;) {
    Node& node = nodes[i];
    if (std::none_of(node.outputs.begin(), node.outputs.end(), [&](const std::string& name) { return wanted.contains(name); }))
      continue;
    wanted.insert(node.inputs.begin(), node.inputs.end());
    kept.push_back(std::move(node));
  }
  std::reverse(kept.begin(), kept.end());
  nodes = std::move(kept);
  producer_.clear();
  consumers_.clear();
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    for (const std::string& name : nodes[i].outputs) producer_[name] = static_cast<int>(i);
    for (const std::string& name : nodes[i].inputs)
      if (auto& readers = consumers_[name]; readers.empty() || readers.back() != static_cast<int>(i))
        readers.push_back(static_cast<int>(i));
  }
  for (const ValueInfo& output : model_.graph.outputs) consumers_[output.name].push_back(-1);
}

const Node* NodeList::producer(const std::string& name) const {
  const auto found = producer_.find(name);
  return name.empty() || found == producer_.end() ? nullptr : &nodes[static_cast<std::size_t>(found->second)];
}
const Node* NodeList::producer(const std::string& name, std::string_view op) const {
  const Node* node = producer(name);
  return node && node->op == op ? node : nullptr;
}
std::vector<int> NodeList::consumers(const std::string& name) const {
  std::vector<int> out;
  const auto found = consumers_.find(name);
  if (found == consumers_.end()) return out;
  for (int i : found->second)
    if (i < 0 || nodes[static_cast<std::size_t>(i)].op != "Shape") out.push_back(i);
  return out;
}
int NodeList::consumer(const std::string& name) const {
  const std::vector<int> all = consumers(name);
  if (all.size() != 1 || all[0] < 0) return -1;
  // Every node that a pattern may run into has a result, and reads what it reads once.
  return nodes[static_cast<std::size_t>(all[0])].outputs.empty() ? -1 : all[0];
}
std::optional<double> NodeList::number(const std::string& name) const {
  const Value* found = trial_.find(name);
  return found ? scalar(*found) : std::nullopt;
}
bool NodeList::is_weight(const std::string& name, int rank) const {
  const Value* found = trial_.find(name);
  return found && found->initializer && !found->turned && found->type == DType::model && found->shape.rank() == rank &&
         found->shape.elements() > 1;
}
const std::string& NodeList::other(const Node& node, const std::string& than) const {
  return node.input(0) == than ? node.input(1) : node.input(0);
}
void NodeList::replace(int at, std::string op, std::vector<std::string> inputs, std::vector<Attribute> attributes) {
  Node& node = nodes[static_cast<std::size_t>(at)];
  node.op = std::move(op);
  node.domain = "precog";
  node.inputs = std::move(inputs);
  node.attributes = std::move(attributes);
  node.outputs.resize(1);
}

Recognised recognise(const ParsedModel& model, const Importer& trial) {
  Recognised out;
  NodeList list(model, trial);
  drop_idle_masks(list);
  join_attention(list, out);
  join_gelu(list);
  join_silu_and_rsqrt(list);
  join_norms(list);
  join_linear(list);
  out.nodes = std::move(list.nodes);
  return out;
}

}  // namespace precog::onnx
