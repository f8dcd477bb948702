// What backward keeps. Facts of torch/_functorch/partitioners.py (PyTorch 2.11): what a library call of backward reads is
// saved, never recomputed; so are results of library calls, of reductions and random numbers; a pointwise value is
// recomputed where that costs less memory, a value that nobody writes otherwise counting twice and one step further from
// backward a tenth more; nothing is recomputed from a value whose other use in forward lies before a library call (that
// keeps the residual stream).
#include <algorithm>

#include "graph/operator.h"
#include "kernel/fuse_flow.h"

namespace precog {
namespace {

constexpr double kUnwrittenWeight = 2, kDistanceWeight = 1.1;
constexpr int kDeepest = 6;  // a chain of casts and views before an operator; longer ones are judged link by link

class Partition {
 public:
  Partition(const Graph& graph, const Flow& flow) : graph_(graph), flow_(flow), saved_(graph.tensors.size(), 0), needed_(saved_) {}

  std::vector<char> run() {
    measure_depth();
    const std::size_t ops = graph_.ops.size();
    for (std::size_t i = 0; i < ops; ++i) {
      if (flow_.where[i] != Flow::forward) continue;
      for (TensorId id : graph_.outputs(op_at(i))) {
        if (flow_.value[id.index()] != id) continue;
        needed_[id.index()] = read_by_backward(id, false);
        if (needed_[id.index()] && (read_by_backward(id, true) || !may_be_recomputed(i, id))) saved_[id.index()] = 1;
      }
    }
    for (std::size_t i = ops; i-- > 0;) {
      if (flow_.where[i] != Flow::forward || flow_.part[i] == Part::view) continue;
      for (TensorId id : graph_.outputs(op_at(i)))
        if (needed_[id.index()] && !saved_[id.index()]) decide(i, id);
    }
    return std::move(saved_);
  }

 private:
  const Op& op_at(std::size_t i) const { return graph_.ops[graph_.ops.id_at(i)]; }

  bool read_by_backward(TensorId value, bool by_library) const {
    for (std::int32_t reader : flow_.readers[value.index()]) {
      const auto i = static_cast<std::size_t>(reader);
      if (flow_.where[i] != Flow::backward) continue;
      if (!by_library || flow_.part[i] == Part::library || flow_.part[i] == Part::window) return true;
    }
    return false;
  }

  // How many library calls lie before each operator.
  void measure_depth() {
    depth_.resize(graph_.ops.size());
    for (std::size_t i = 0; i < graph_.ops.size(); ++i)
      for (TensorId input : graph_.inputs(op_at(i))) {
        const std::int32_t maker = flow_.maker[flow_.value[input.index()].index()];
        if (maker < 0) continue;
        const auto m = static_cast<std::size_t>(maker);
        depth_[i] = std::max(depth_[i], depth_[m] + (flow_.part[m] == Part::library || flow_.part[i] == Part::library ? 1 : 0));
      }
  }

  bool may_be_recomputed(std::size_t i, TensorId id) const {
    const Op& op = op_at(i);
    if (op.kind == OpKind::dropout || op.kind == OpKind::random || op.kind == OpKind::embedding) return false;
    const Part part = flow_.part[i];
    const bool applied = (part == Part::rows || part == Part::batch_norm) && id == graph_.output(op) && op.input_count > 0 &&
                         graph_.tensors[id].shape == graph_.tensors[graph_.input(op, 0)].shape;
    if (part != Part::pointwise && !applied) return false;
    for (TensorId input : graph_.inputs(op)) {
      const TensorId value = flow_.value[input.index()];
      if (flow_.maker[value.index()] < 0) continue;
      for (std::int32_t reader : flow_.readers[value.index()]) {
        const auto r = static_cast<std::size_t>(reader);
        if (flow_.where[r] == Flow::forward && depth_[r] < depth_[i]) return false;
      }
    }
    return true;
  }

  void decide(std::size_t i, TensorId id) {
    const Op& op = op_at(i);
    if (recomputing(op, kDeepest) >= weight(id)) {
      saved_[id.index()] = 1;
      return;
    }
    for (TensorId input : graph_.inputs(op)) {
      const TensorId value = flow_.value[input.index()];
      const std::int32_t maker = flow_.maker[value.index()];
      if (maker < 0) continue;
      needed_[value.index()] = 1;
      if (!may_be_recomputed(static_cast<std::size_t>(maker), value)) saved_[value.index()] = 1;
    }
  }
  // What must be kept more so that the operator can run again.
  double recomputing(const Op& op, int depth) const {
    double more = 0;
    for (TensorId input : graph_.inputs(op)) {
      const TensorId value = flow_.value[input.index()];
      const std::int32_t maker = flow_.maker[value.index()];
      if (maker < 0 || saved_[value.index()] || promised(value)) continue;
      const auto made_by = static_cast<std::size_t>(maker);
      double own = weight(value);
      if (depth > 0 && may_be_recomputed(made_by, value)) own = std::min(own, recomputing(op_at(made_by), depth - 1));
      more += own * kDistanceWeight;
    }
    return more;
  }
  // What keeping a value costs: twice as much where forward itself does not write it.
  double weight(TensorId value) const {
    const std::int32_t maker = flow_.maker[value.index()];
    bool written = maker >= 0 && flow_.part[static_cast<std::size_t>(maker)] == Part::library;
    for (std::int32_t reader : flow_.readers[value.index()])
      written = written || (flow_.where[static_cast<std::size_t>(reader)] == Flow::forward && flow_.part[static_cast<std::size_t>(reader)] == Part::library);
    return static_cast<double>(graph_.bytes(value).value) * (written ? 1 : kUnwrittenWeight);
  }
  // Backward needs it anyway, saved or recomputed.
  bool promised(TensorId value) const { return needed_[value.index()] != 0; }

  const Graph& graph_;
  const Flow& flow_;
  std::vector<char> saved_, needed_;
  std::vector<int> depth_;
};

}  // namespace

std::vector<char> saved_values(const Graph& graph, const Flow& flow) { return Partition(graph, flow).run(); }

}  // namespace precog
