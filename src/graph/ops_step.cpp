// What a training step adds around forward and backward: gradient accumulation, the optimizer's multi-tensor calls,
// the loss scaler, data parallelism's copies. None has a gradient. Collectives: ops_parallel.cpp.
#include "graph/operator.h"

namespace precog {
namespace {

Work multi_tensor_work(const Graph&, const Op& op) {
  const auto& a = std::get<MultiTensorAttributes>(op.attributes);
  // Reads and writes share one bandwidth; counting them all as reads changes nothing in the cost.
  return {{static_cast<double>(a.elements)}, {a.elements * a.element_bytes_moved}, {0}};
}

Work shard_copy_work(const Graph&, const Op& op) {
  const auto& a = std::get<ShardCopyAttributes>(op.attributes);
  return {{0}, a.read, a.written};
}

// sum += gradient, in place; the sum may be of a wider type, the one it is computed in
Work accumulate_work(const Graph& graph, const Op& op) {
  const std::int64_t elements = graph.tensors[graph.input(op, 0)].shape.elements();
  const Bytes sum{elements * bits_of(op.math) / 8};
  return {{static_cast<double>(elements)}, graph.bytes(graph.input(op, 0)) + sum, sum};
}

Work work_on_host(const Graph&, const Op&) { return {}; }

}  // namespace

OperatorDefinition define_accumulate_gradient() { return {Family::pointwise, Autocast::none, accumulate_work}; }
OperatorDefinition define_multi_tensor() { return {Family::optimizer, Autocast::none, multi_tensor_work}; }
OperatorDefinition define_unscale_and_check() { return {Family::loss_scaling, Autocast::none, multi_tensor_work}; }
OperatorDefinition define_update_scale() { return {Family::loss_scaling}; }
OperatorDefinition define_read_back() { return {Family::host, Autocast::none, work_on_host}; }
OperatorDefinition define_bucket_copy() { return {Family::copy}; }
OperatorDefinition define_shard_copy() { return {Family::copy, Autocast::none, shard_copy_work}; }

}  // namespace precog
