// Rebuilds a forward graph's operators in order, with others put between them: what the passes share that change the forward
// graph before types are decided. Tensors keep their ids; new ones come behind them.
#pragma once

#include <utility>
#include <vector>

#include "graph/operator.h"

namespace precog {

struct ForwardRewrite {
  explicit ForwardRewrite(Graph from) : in(std::move(from)), out(in.empty_with_names()) { out.tensors = in.tensors; }

  Graph in, out;

  // An activation of the same type and fate, of another shape.
  TensorId like(TensorId id, const Shape& shape) {
    Tensor tensor = out.tensors[id];
    tensor.role = Role::activation;
    tensor.name = {};
    tensor.storage = {};
    tensor.shape = shape;
    return out.add_tensor(tensor);
  }
  TensorId like(TensorId id) { return like(id, Shape(out.tensors[id].shape)); }

  // An operator that belongs where `at` does.
  Op beside(const Op& at, OpKind kind, Attributes attributes = {}, std::string_view label = {}) {
    Op op;
    op.kind = kind;
    op.module = at.module;
    op.block = at.block;
    op.autocast = definition(kind).autocast;
    op.attributes = std::move(attributes);
    if (!label.empty()) op.label = out.intern(label);
    return op;
  }
  void put(const Op& op, std::initializer_list<TensorId> inputs, std::initializer_list<TensorId> outputs) {
    out.add_op(op, std::span(inputs.begin(), inputs.size()), std::span(outputs.begin(), outputs.size()));
  }
  void keep(const Op& op) {
    const std::vector<TensorId> inputs(in.inputs(op).begin(), in.inputs(op).end()), outputs(in.outputs(op).begin(), in.outputs(op).end());
    out.add_op(op, inputs, outputs);
  }
};

}  // namespace precog
