// Operators of backward that read something else in place of what forward made: a copy that came back from the host, or was gathered. Through views
// of its own where they read views. For passes that rewrite a step.
#pragma once

#include <map>

#include "parallel/rewrite.h"

namespace precog {

class ReadCopies {
 public:
  explicit ReadCopies(Rewrite& out) : out_(out) {}

  // A tensor of its own, read from now on where `id` would be.
  TensorId copy_of(TensorId id) {
    Tensor copy = out_.graph.tensors[id];
    copy.storage = {};
    return copies_[id.value] = out_.graph.add_tensor(copy);
  }

  void keep(std::size_t i) {
    const Op& op = out_.old(i);
    const std::vector<TensorId> read(out_.graph.inputs(op).begin(), out_.graph.inputs(op).end());
    bool changed = false;
    std::vector<TensorId> inputs;
    for (TensorId id : read) {
      const auto copy = copies_.find(out_.graph.tensors[id].storage.value);
      inputs.push_back(copy == copies_.end() || op.in_place ? id : view_of(id, copy->second, op));
      changed = changed || inputs.back() != id;
    }
    if (changed) out_.keep(i, inputs);
    else out_.keep(i);
  }

 private:
  TensorId view_of(TensorId id, TensorId copy, const Op& reader) {
    if (out_.graph.tensors[id].storage == id) return copy;
    auto [known, first] = views_.try_emplace(id.value);
    if (!first) return known->second;
    Tensor view = out_.graph.tensors[id];
    view.storage = copy;
    known->second = out_.graph.add_tensor(view);
    out_.put({OpKind::view, reader.phase, view.dtype}, {copy}, {known->second});
    return known->second;
  }

  Rewrite& out_;
  std::map<std::int32_t, TensorId> copies_, views_;
};

}  // namespace precog
