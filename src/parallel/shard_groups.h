// Which parameters fully_shard gathers together, and where in the step: one group for each repeated block, one for the rest
// of the model (the root's); or one for each module that has any, without those that every rank keeps. Takes a step before anything is put into it; positions are indices into its operators.
#pragma once

#include <optional>
#include <vector>

#include "parallel/parallel.h"
#include "training/step_graph.h"

namespace precog {

struct ShardGroup {
  static constexpr std::size_t kNever = static_cast<std::size_t>(-1);
  int block = -1;  // or module; -1: the root's, all that no single one has
  std::vector<TensorId> parameters;
  std::vector<std::size_t> gradients;  // indices into StepGraph::gradients
  std::size_t first_forward = kNever, last_forward = kNever, first_backward = kNever, last_backward = kNever;
  std::int64_t elements = 0, quantised_elements = 0, quantised_tensors = 0;  // with padding
  Bytes gathered;                     // the whole message
  TensorId arriving, arrived, whole;  // while it is gathered: the message, its event, and the parameters copied out of it
  bool here = false;                  // module by module: on its way, or gathered
};

// A parameter is cut along its first axis, into equal parts: what is missing in the last ones is padding, and travels.
std::int64_t padded(const Shape& shape, int ranks);

struct ShardGroups {
  ShardGroups(int ranks, const ModuleGathers* by_module, const PrecisionRecipe& recipe, StepGraph& step);
  ShardGroups(const ShardGroups&) = delete;

  std::vector<ShardGroup> all;
  ShardGroup* root = nullptr;
  std::vector<ShardGroup*> by_begin_of_forward, by_begin_of_backward, by_end_of_backward;  // the blocks' that have one

  ShardGroup* of(const Op& op) const {
    const int unit = unit_of(op);
    return unit >= 0 && static_cast<std::size_t>(unit) < by_block_.size() ? by_block_[static_cast<std::size_t>(unit)] : nullptr;
  }
  bool arrives_quantised(TensorId parameter) const { return arrives_as_[parameter.index()] != DType::model; }

 private:
  int unit_of(const Op& op) const { return by_module_ ? op.module.value : op.block; }

  bool by_module_;
  std::vector<ShardGroup*> by_block_;
  std::vector<DType> arrives_as_;  // per tensor; model: in its own type
};

}  // namespace precog
