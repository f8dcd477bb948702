#include "parallel/shard_groups.h"

#include <algorithm>
#include <map>
#include <utility>

#include "parallel/rewrite.h"

namespace precog {
namespace {

// The precision pass says that a weight arrives in 8 or 4 bits by letting its reader read such a copy beside it.
std::optional<DType> quantised_copy(Graph& graph, const Op& op, TensorId parameter) {
  for (TensorId id : graph.inputs(op)) {
    Tensor& tensor = graph.tensors[id];
    if ((tensor.role != Role::buffer && tensor.role != Role::gathered) || bits_of(tensor.dtype) > 8 || !is_floating(tensor.dtype)) continue;
    if (tensor.shape.elements() != graph.tensors[parameter].shape.elements()) continue;
    tensor.role = Role::gathered;
    return tensor.dtype;
  }
  return std::nullopt;
}

}  // namespace

std::int64_t padded(const Shape& shape, const ShardGroup& group) {
  const std::size_t axis = group.of_experts && shape[0] < group.ranks ? 1 : 0;
  const std::int64_t rows = shape.rank() > 0 ? std::max<std::int64_t>(1, shape[axis]) : 1;
  return share_of(rows, group.ranks) * group.ranks * (shape.elements() / rows);
}

int ShardGroups::unit_of(const Op& op) const {
  switch (unit_) {
    case UnitGathers::Unit::module: return op.module.value;
    case UnitGathers::Unit::model: return -1;
    case UnitGathers::Unit::block: break;
  }
  return op.block < 0 ? -1 : op.block / layers_;
}

ShardGroups::ShardGroups(int ranks, const Replicas& how, const PrecisionRecipe& recipe, StepGraph& step)
    : unit_(how.by_module ? UnitGathers::Unit::module : how.gathers.unit), layers_(how.gathers.layers) {
  Graph& graph = step.graph;
  std::map<std::int32_t, int> owner;  // parameter -> its unit; the root's where several use it
  std::map<int, ShardGroup> groups;
  arrives_as_.assign(graph.tensors.size(), DType::model);
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    const Op& op = graph.ops[graph.ops.id_at(i)];
    if (unit_of(op) >= 0) {
      ShardGroup& group = groups[unit_of(op)];
      const bool forward = op.phase == Phase::forward;
      if (op.phase <= Phase::backward) {
        std::size_t& first = forward ? group.first_forward : group.first_backward;
        if (first == ShardGroup::kNever) first = i;
        (forward ? group.last_forward : group.last_backward) = i;
      }
    }
    if (op.phase != Phase::forward) continue;
    for (TensorId id : graph.inputs(op)) {
      const TensorId base = graph.tensors[id].storage;
      if (graph.tensors[base].role != Role::parameter) continue;
      auto [known, first] = owner.emplace(base.value, unit_of(op));
      if (!first && known->second != unit_of(op)) known->second = -1;
      if (!recipe.gathers_fp8) continue;
      if (auto narrow = quantised_copy(graph, op, base)) arrives_as_[base.index()] = *narrow;
    }
  }
  std::map<int, ShardGroup> experts;
  const auto group_of = [&](TensorId parameter, int unit) -> ShardGroup& {
    const bool apart = step.experts_own_replicas() && is_expert_parameter(graph, parameter);
    ShardGroup& group = apart ? experts[unit] : groups[unit];
    group.of_experts = apart;
    group.ranks = ranks_sharing(step, parameter, ranks);
    group.stride = apart ? step.expert_stride : step.replica_stride;
    return group;
  };
  for (auto [parameter, unit] : owner) {
    const TensorId id{parameter};
    ShardGroup& group = group_of(id, unit);
    if (how.by_module && graph.tensors[id].shape.elements() <= how.by_module->persistent) continue;
    const std::int64_t elements = padded(graph.tensors[id].shape, group);
    group.parameters.push_back(id);
    group.elements += elements;
    if (arrives_quantised(id)) group.quantised_elements += elements, ++group.quantised_tensors;
    group.gathered += bytes_of(elements, arrives_quantised(id) ? arrives_as_[id.index()] : graph.tensors[id].dtype);
  }
  for (std::size_t i = 0; i < step.gradients.size(); ++i) {
    const ParameterGradient& g = step.gradients[i];
    const auto known = owner.find(g.parameter.value);
    const int unit = known == owner.end() ? -1 : known->second;
    ShardGroup& own = group_of(g.parameter, unit);
    own.gradients.push_back(i);
    if (own.of_experts && unit >= 0) own.last_backward = own.last_backward == ShardGroup::kNever ? g.made_by.index() : std::max(own.last_backward, g.made_by.index());
    if (ShardGroup& group = groups[unit]; group.last_backward != ShardGroup::kNever) group.last_backward = std::max(group.last_backward, g.made_by.index());
  }

  if (!groups.empty()) by_unit_.resize(static_cast<std::size_t>(std::max(0, groups.rbegin()->first + 1)));
  all.reserve(groups.size() + experts.size());  // pointers into it stay valid
  for (auto& [unit, group] : groups) {
    const auto beside = experts.find(unit);
    if (group.parameters.empty() && group.gradients.empty() && beside == experts.end()) continue;
    group.unit = unit;
    ShardGroup* made = &all.emplace_back(std::move(group));
    if (beside != experts.end()) {
      beside->second.unit = unit;
      made->experts = &all.emplace_back(std::move(beside->second));
    }
    if (unit < 0) root = made;
    else by_unit_[static_cast<std::size_t>(unit)] = made;
    if (unit >= 0 && made->first_forward != ShardGroup::kNever) by_begin_of_forward.push_back(made);
    if (unit >= 0 && made->last_backward != ShardGroup::kNever) by_begin_of_backward.push_back(made);
  }
  by_end_of_backward = by_begin_of_backward;
  for (ShardGroup* unit : by_begin_of_backward)
    if (unit->experts && unit->experts->last_backward != ShardGroup::kNever) by_end_of_backward.push_back(unit->experts);
  std::sort(by_begin_of_forward.begin(), by_begin_of_forward.end(), [](auto* a, auto* b) { return a->first_forward < b->first_forward; });
  std::sort(by_begin_of_backward.begin(), by_begin_of_backward.end(), [](auto* a, auto* b) { return a->first_backward < b->first_backward; });
  std::sort(by_end_of_backward.begin(), by_end_of_backward.end(), [](auto* a, auto* b) { return std::pair(a->last_backward, !a->of_experts) < std::pair(b->last_backward, !b->of_experts); });
}

}  // namespace precog
