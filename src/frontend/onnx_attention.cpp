// softmax(q k^T * scale + mask) v, however an exporter has written it: the scale on the scores, on one operand or on both; a
// mask added or chosen by Where; a guard against rows that are masked whole; keys turned in one step or flattened, turned and
// folded back; keys and values of grouped queries repeated.
#include <algorithm>
#include <unordered_set>

#include "frontend/onnx_patterns.h"

namespace precog::onnx {
namespace {

struct Mask {
  std::string name;
  bool additive = true;  // 0 or very negative, or a learned bias; otherwise a condition
  bool keeps = true;     // a condition: true where the score counts
};

enum class Hides { nothing, future, something };

Hides classify(const NodeList& list, const Mask& mask, const Shape& scores) {
  const Constant* value = list.value(mask.name);
  if (!value || !value->values) return Hides::something;
  const Shape& shape = value->shape;
  if (shape.rank() > scores.rank()) return Hides::something;
  const std::int64_t columns = shape.rank() > 0 ? shape[-1] : 1, rows = shape.rank() > 1 ? shape[-2] : 1;
  bool any = false, causal = columns == scores[-1] && rows == scores[-2] && rows == columns && rows > 1;
  for (std::size_t i = 0; i < value->values->size(); ++i) {
    const double element = (*value->values)[i];
    bool hidden = mask.additive ? element <= -1e4 : (element != 0) != mask.keeps;
    if (mask.additive && !hidden && element != 0) return Hides::something;  // a bias
    any = any || hidden;
    const auto column = static_cast<std::int64_t>(i) % columns, row = static_cast<std::int64_t>(i) / columns % rows;
    if (hidden != (column > row)) causal = false;
  }
  return !any ? Hides::nothing : causal ? Hides::future : Hides::something;
}

class Matcher {
 public:
  Matcher(NodeList& list, Recognised& found) : list_(list), found_(found) {}

  void match(const Node& softmax) {
    const Constant* x = softmax.outputs.empty() ? nullptr : list_.value(softmax.outputs[0]);
    if (!x || x->shape.rank() < 3) return;
    const std::int64_t axis = softmax.integer("axis", -1);
    if (axis != -1 && axis != x->shape.rank() - 1) return;
    masks_.clear();
    dropout_ = 0;
    const Node* scores = walk(softmax.input(0), 0);
    const int last = scores ? to_values(softmax.outputs[0]) : -1;
    if (last < 0) return;

    // torch.export's exporter lowers scaled_dot_product_attention without its dropout, and names the result after it.
    if (dropout_ == 0 && found_.dropout > 0 &&
        list_.nodes[static_cast<std::size_t>(last)].outputs[0].starts_with("scaled_dot_product_attention")) {
      dropout_ = found_.dropout;
      ++found_.dropouts_assumed;
    }
    std::vector<Mask> kept;
    bool causal = false;
    for (const Mask& mask : masks_) {
      const Hides hides = classify(list_, mask, x->shape);
      if (hides == Hides::future) {
        causal = true;
        if (found_.packed.empty()) found_.packed = break_count(mask.name);
      }
      if (hides == Hides::something) kept.push_back(mask);
    }
    std::string q = unscaled(scores->input(0)), k = unscaled(scores->input(1)),
                v = list_.nodes[static_cast<std::size_t>(last)].input(1);
    std::vector<std::int64_t> order;
    resolve_keys(k, order);
    if (kept.empty() && order.empty()) {
      // Grouped queries: without a mask the framework takes the fewer heads as they are.
      const std::string fewer_k = ungrouped(k), fewer_v = ungrouped(v);
      if (!fewer_k.empty() && !fewer_v.empty()) k = fewer_k, v = fewer_v;
    }
    std::vector<std::string> inputs = {q, k, v};
    for (const Mask& mask : kept) inputs.push_back(mask.name);
    Attribute is_causal, perm, drop;
    is_causal.name = "causal";
    is_causal.integer = causal && kept.empty() ? 1 : 0;
    perm.name = "k_perm";
    perm.integers = order;
    drop.name = "dropout";
    drop.real = dropout_;
    list_.replace(last, "Attention", inputs, {is_causal, perm, drop});
    ++found_.attentions;
    found_.causal += causal ? 1 : 0;
  }

 private:
  bool is_number(const std::string& name) const { return list_.number(name).has_value(); }

  // Down from the softmax's operand to the product of queries and keys, gathering masks on the way.
  const Node* walk(const std::string& name, int depth) {
    const Node* node = list_.producer(name);
    if (!node || depth > 12 || !node->domain.empty()) return nullptr;
    if (node->op == "MatMul") {
      const Constant* b = list_.value(node->input(1));
      const Constant* a = list_.value(node->input(0));
      return a && b && a->shape.rank() >= 3 && b->shape.rank() == a->shape.rank() && !a->values && !b->values ? node : nullptr;
    }
    if (node->op == "Cast" || node->op == "Identity") return walk(node->input(0), depth + 1);
    if (node->op == "Div" && is_number(node->input(1))) return walk(node->input(0), depth + 1);
    if (node->op == "Mul" && is_number(node->input(1))) return walk(node->input(0), depth + 1);
    if (node->op == "Mul" && is_number(node->input(0))) return walk(node->input(1), depth + 1);
    if (node->op == "Add")
      for (std::size_t i : {std::size_t{0}, std::size_t{1}}) {
        const std::size_t before = masks_.size();
        if (const Node* found = walk(node->input(i), depth + 1)) {
          masks_.push_back(as_mask(node->input(1 - i)));
          return found;
        }
        masks_.resize(before);
      }
    if (node->op == "Where" && node->inputs.size() == 3) {
      const bool kept = is_number(node->input(2));
      if (!kept && !is_number(node->input(1))) return nullptr;
      if (const Node* found = walk(node->input(kept ? 1 : 2), depth + 1)) {
        masks_.push_back({node->input(0), false, kept});
        return found;
      }
    }
    return nullptr;
  }

  // An additive mask that was chosen from two numbers is its condition again: attention takes those as they are.
  Mask as_mask(const std::string& name) const {
    const Node* chosen = list_.producer(name, "Where");
    if (chosen && chosen->inputs.size() == 3 && is_number(chosen->input(1)) && is_number(chosen->input(2))) {
      if (*list_.number(chosen->input(1)) == 0 && *list_.number(chosen->input(2)) <= -1e4) return {chosen->input(0), false, true};
      if (*list_.number(chosen->input(2)) == 0 && *list_.number(chosen->input(1)) <= -1e4) return {chosen->input(0), false, false};
    }
    return {name, true, true};
  }

  // From the softmax to the product with the values; -1 where somebody else reads the weights too.
  int to_values(std::string name) {
    for (int step = 0; step < 8; ++step) {
      const std::vector<int> readers = list_.consumers(name);
      if (readers.size() == 2 && readers[0] >= 0 && readers[1] >= 0) {  // IsNaN, and Where by its answer
        const Node* guard = &list_.nodes[static_cast<std::size_t>(readers[0])];
        const Node* choice = &list_.nodes[static_cast<std::size_t>(readers[1])];
        if (guard->op != "IsNaN") std::swap(guard, choice);
        if (guard->op != "IsNaN" || choice->op != "Where" || guard->outputs.empty() || choice->outputs.empty() ||
            choice->input(0) != guard->outputs[0])
          return -1;
        name = choice->outputs[0];
        continue;
      }
      const int next = list_.consumer(name);
      if (next < 0) return -1;
      const Node& node = list_.nodes[static_cast<std::size_t>(next)];
      if (!node.domain.empty()) return -1;
      if (node.op == "MatMul") return node.input(0) == name && node.input(1) != name ? next : -1;
      if (node.op == "Dropout") dropout_ = list_.number(node.input(1)).value_or(node.real("ratio", 0.5));
      else if (node.op != "Cast" && node.op != "Identity") return -1;
      name = node.outputs[0];
    }
    return -1;
  }

  // Without a mask transformers looks whether several sequences were packed into one, by a running sum over breaks in the
  // positions. A mask that depends on one was made by that code (masking_utils.py, find_packed_sequence_indices).
  std::string break_count(const std::string& mask) const {
    std::vector<std::string> open = {mask};
    std::unordered_set<std::string> seen;
    while (!open.empty() && seen.size() < 500) {
      const std::string name = open.back();
      open.pop_back();
      const Node* node = list_.producer(name);
      if (!node || !seen.insert(name).second) continue;
      const Constant* sum = list_.value(name);
      if (node->op == "CumSum" && sum && sum->values && sum->shape.rank() == 2) return name;
      open.insert(open.end(), node->inputs.begin(), node->inputs.end());
    }
    return {};
  }

  std::string unscaled(std::string name) const {
    for (int i = 0; i < 4; ++i) {
      const Node* node = list_.producer(name);
      if (!node || !node->domain.empty()) break;
      if ((node->op == "Mul" || node->op == "Div") && is_number(node->input(1))) name = node->input(0);
      else if (node->op == "Mul" && is_number(node->input(0))) name = node->input(1);
      else break;
    }
    return name;
  }

  // From keys turned for the product back to keys; `order` is a turn that is left to do.
  void resolve_keys(std::string& k, std::vector<std::int64_t>& order) const {
    const Constant* turned = list_.value(k);
    const int rank = turned->shape.rank();
    Shape wanted = turned->shape;
    wanted.set(-1, turned->shape[-2]);
    wanted.set(-2, turned->shape[-1]);
    if (const Node* node = list_.producer(k, "Transpose")) {
      order = node->integers("perm");
      if (order.size() == static_cast<std::size_t>(rank)) {
        std::swap(order[order.size() - 1], order[order.size() - 2]);
        const bool idle = std::is_sorted(order.begin(), order.end());
        k = unscaled(node->input(0));
        if (idle) order.clear();
        return;
      }
    }
    if (const Node* back = list_.producer(k, "Reshape")) {
      const Node* node = list_.producer(back->input(0), "Transpose");
      const Node* flat = node ? list_.producer(node->input(0), "Reshape") : nullptr;
      const Constant* from = flat ? list_.value(flat->input(0)) : nullptr;
      if (from && from->shape == wanted && node->integers("perm") == std::vector<std::int64_t>{0, 2, 1}) {
        k = unscaled(flat->input(0));
        order.clear();
        return;
      }
    }
    order.clear();
    for (int i = 0; i < rank; ++i) order.push_back(i);
    std::swap(order[order.size() - 1], order[order.size() - 2]);
  }

  // Reshape(Expand(Unsqueeze(x))): every head of x repeated for its group of queries. Returns x, or "".
  std::string ungrouped(const std::string& name) const {
    const Node* joined = list_.producer(name, "Reshape");
    if (!joined) return {};
    const Node* repeated = list_.producer(joined->input(0), "Expand");
    if (!repeated) repeated = list_.producer(joined->input(0), "Tile");
    const Node* opened = repeated ? list_.producer(repeated->input(0)) : nullptr;
    if (!opened || (opened->op != "Unsqueeze" && opened->op != "Reshape")) return {};
    const Constant *x = list_.value(opened->input(0)), *wide = list_.value(repeated->outputs[0]), *result = list_.value(name);
    if (!x || !wide || !result || x->shape.rank() != 4 || wide->shape.rank() != 5 || result->shape.rank() != 4) return {};
    const bool same = wide->shape[0] == x->shape[0] && wide->shape[1] == x->shape[1] && wide->shape[3] == x->shape[2] &&
                      wide->shape[4] == x->shape[3] && result->shape[1] == x->shape[1] * wide->shape[2];
    return same ? opened->input(0) : std::string();
  }

  NodeList& list_;
  Recognised& found_;
  std::vector<Mask> masks_;
  double dropout_ = 0;
};

}  // namespace

void join_attention(NodeList& list, Recognised& found) {
  for (const Node& node : list.nodes)
    if (node.op == "Dropout" && node.domain.empty())
      found.dropout = std::max(found.dropout, list.number(node.input(1)).value_or(node.real("ratio", 0.5)));
  for (std::size_t i = 0; i < list.nodes.size(); ++i) {
    const Node softmax = list.nodes[i];
    if (softmax.op == "Softmax" && softmax.domain.empty()) Matcher(list, found).match(softmax);
  }
  if (!found.packed.empty()) {  // outside a trace that code looks at the sum's end, and the host waits for it
    const Node* sum = list.producer(found.packed);
    Node check;
    check.op = "ReadBack";
    check.domain = "precog";
    check.module = sum->module;
    check.inputs = {found.packed};
    check.outputs = {kPackedCheck};
    list.nodes.insert(list.nodes.begin() + (sum - list.nodes.data()) + 1, check);
  }
  list.refresh();
}

}  // namespace precog::onnx
