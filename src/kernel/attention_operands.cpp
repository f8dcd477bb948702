#include "kernel/attention_operands.h"

#include <span>
#include <vector>

#include "parallel/forward_rewrite.h"

namespace precog {
namespace {

const Tensor& block_of(const Graph& graph, TensorId id) { return graph.tensors[graph.tensors[id].storage]; }

// Of one block of memory, which holds nothing else.
bool make_up_one(const Graph& graph, std::span<const TensorId> operands) {
  std::int64_t elements = 0;
  for (TensorId id : operands) {
    if (graph.tensors[id].storage != graph.tensors[operands[0]].storage) return false;
    elements += graph.tensors[id].shape.elements();
  }
  return elements == block_of(graph, operands[0]).shape.elements();
}

bool lies_apart(const Graph& graph, TensorId id) { return block_of(graph, id).shape.elements() > graph.tensors[id].shape.elements(); }

class AttentionOperands {
 public:
  explicit AttentionOperands(Graph forward) : rewrite_(std::move(forward)), in_(rewrite_.in), made_by_(in_.tensors.size()), copied_(in_.tensors.size(), 0) {
    for (std::size_t i = 0; i < in_.tensors.size(); ++i) now_.push_back(in_.tensors.id_at(i));
    for (const Op& op : in_.ops)
      for (TensorId id : in_.outputs(op)) made_by_[id.index()] = &op;
    for (const Op& op : in_.ops)
      if (op.kind == OpKind::scaled_dot_product_attention) choose(in_.inputs(op).first(3));
  }

  Graph run() {
    for (const Op& op : in_.ops) {
      std::vector<TensorId> inputs;
      for (TensorId id : in_.inputs(op)) inputs.push_back(now_[id.index()]);
      rewrite_.out.add_op(op, inputs, std::vector(in_.outputs(op).begin(), in_.outputs(op).end()));
      for (TensorId id : in_.outputs(op)) look_through(op, id);
    }
    return std::move(rewrite_.out);
  }

 private:
  void choose(std::span<const TensorId> operands) {
    const auto shape = [&](std::size_t i) -> const Shape& { return in_.tensors[operands[i]].shape; };
    if (shape(0) == shape(1) && shape(1) == shape(2) && make_up_one(in_, operands)) return;
    const bool pair = make_up_one(in_, operands.last(2));
    for (std::size_t i = 0; i < operands.size(); ++i)
      if (!(pair && i > 0) && lies_apart(in_, operands[i])) copied_[before_turned(operands[i]).index()] = 1;
  }
  // Heads are next to their tokens there, so that the copy is made of what our operand is another order of axes of.
  TensorId before_turned(TensorId id) const {
    for (const Op* op = made_by_[id.index()]; op && is_view(*op, ViewKind::transpose); op = made_by_[id.index()]) id = in_.input(*op, 0);
    return id;
  }
  static bool is_view(const Op& op, ViewKind kind) {
    const auto* view = std::get_if<ViewAttributes>(&op.attributes);
    return op.kind == OpKind::view && view && view->kind == kind;
  }

  // Whoever reads the tensor from now on reads its copy; views of what was copied are views of the copy.
  void look_through(const Op& op, TensorId id) {
    Graph& out = rewrite_.out;
    if (op.kind == OpKind::view && in_.tensors[id].storage != id) out.tensors[id].storage = out.tensors[now_[in_.input(op, 0).index()]].storage;
    if (!copied_[id.index()]) return;
    const TensorId copy = rewrite_.like(id);
    rewrite_.put(rewrite_.beside(op, OpKind::contiguous), {id}, {copy});
    now_[id.index()] = copy;
  }

  ForwardRewrite rewrite_;
  const Graph& in_;
  std::vector<const Op*> made_by_;
  std::vector<char> copied_;
  std::vector<TensorId> now_;  // by tensor: itself, or its copy
};

}  // namespace

Graph lay_out_operands(Graph forward) { return AttentionOperands(std::move(forward)).run(); }

}  // namespace precog
