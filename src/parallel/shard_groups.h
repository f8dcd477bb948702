// Which parameters fully_shard gathers together, and where in the step: one group for each unit (a repeated block, several, or a
// module), one for the rest of the model (the root's); DeepSpeed's are modules, without parameters that every rank keeps. Experts that
// are shared out have a group of their own beside their unit's: fewer ranks have the same. Takes a step before anything is put into it; positions are indices into its operators.
#pragma once

#include <optional>
#include <vector>

#include "parallel/parallel.h"
#include "training/step_graph.h"

namespace precog {

struct ShardGroup {
  static constexpr std::size_t kNever = static_cast<std::size_t>(-1);
  int unit = -1;                  // -1: the root's, all that no single one has
  int ranks = 1, stride = 1;      // that share these parameters out, and how far they lie apart
  bool of_experts = false;
  ShardGroup* experts = nullptr;  // of the same unit
  std::vector<TensorId> parameters;
  std::vector<std::size_t> gradients;  // indices into StepGraph::gradients
  std::size_t first_forward = kNever, last_forward = kNever, first_backward = kNever, last_backward = kNever;
  std::int64_t elements = 0, quantised_elements = 0, quantised_tensors = 0;  // with padding
  Bytes gathered;                     // the whole message
  TensorId arriving, arrived, whole;  // while it is gathered: the message, its event, and the parameters copied out of it
  bool here = false;                  // on its way, or gathered, before it is asked for
};

// A parameter is cut along its first axis, into equal parts: what is missing in the last ones is padding, and travels. Experts that are fewer
// than the ranks are cut along their second (torchtitan's apply_fsdp).
std::int64_t padded(const Shape& shape, const ShardGroup& group);

struct ShardGroups {
  ShardGroups(int ranks, const Replicas& how, const PrecisionRecipe& recipe, StepGraph& step);
  ShardGroups(const ShardGroups&) = delete;

  std::vector<ShardGroup> all;
  ShardGroup* root = nullptr;
  std::vector<ShardGroup*> by_begin_of_forward, by_begin_of_backward, by_end_of_backward;  // the units' that have one; in the last, experts' too

  ShardGroup* of(const Op& op) const {
    const int unit = unit_of(op);
    return unit >= 0 && static_cast<std::size_t>(unit) < by_unit_.size() ? by_unit_[static_cast<std::size_t>(unit)] : nullptr;
  }
  bool arrives_quantised(TensorId parameter) const { return arrives_as_[parameter.index()] != DType::model; }

 private:
  int unit_of(const Op& op) const;

  UnitGathers::Unit unit_;
  int layers_;
  std::vector<ShardGroup*> by_unit_;
  std::vector<DType> arrives_as_;  // per tensor; model: in its own type
};

}  // namespace precog
