#include "training/optimizer.h"

#include <array>
#include <string_view>

namespace precog {
namespace {

// One call of the foreach form: how many tensor lists it touches (which sets how many tensors fit one launch), and how
// often it reads or writes a list of the parameters' type (parameters, gradients) and of the states'.
struct ForeachCall {
  std::string_view name;
  int depth;
  int parameter_passes, state_passes;
  bool makes_temporary = false;
  bool uses_temporary = false;
  bool scalar_list = false;  // one number per tensor travels along, which leaves room for fewer tensors
};

// torch/optim/adam.py (_multi_tensor_adam), torch/optim/sgd.py (_multi_tensor_sgd), PyTorch 2.11: the calls in order.
constexpr std::array kAdam = {ForeachCall{"lerp_", 2, 1, 2},
                              ForeachCall{"mul_", 1, 0, 2},
                              ForeachCall{"addcmul_", 3, 1, 2},
                              ForeachCall{"sqrt", 2, 0, 2, true, false},
                              ForeachCall{"div_", 1, 0, 2, false, true, true},
                              ForeachCall{"add_", 1, 0, 2, false, true},
                              ForeachCall{"addcdiv_", 3, 2, 2, false, true}};
constexpr ForeachCall kDecay{"mul_", 1, 2, 0};
constexpr std::array kSgd = {ForeachCall{"add_", 2, 3, 0}};
constexpr std::array kMomentum = {ForeachCall{"mul_", 1, 0, 2}, ForeachCall{"add_", 2, 1, 2}, ForeachCall{"add_", 2, 2, 1}};

std::vector<ForeachCall> foreach_calls(OptimizerKind kind) {
  std::vector<ForeachCall> calls;
  switch (kind) {
    case OptimizerKind::sgd: calls.assign(kSgd.begin(), kSgd.end()); break;
    case OptimizerKind::sgd_momentum: calls.assign(kMomentum.begin(), kMomentum.end()); break;
    case OptimizerKind::adamw: calls.push_back(kDecay); [[fallthrough]];
    case OptimizerKind::adam: calls.insert(calls.end(), kAdam.begin(), kAdam.end()); break;
  }
  return calls;
}

}  // namespace

std::int64_t state_tensors(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::sgd: return 0;
    case OptimizerKind::sgd_momentum: return 1;
    case OptimizerKind::adam:
    case OptimizerKind::adamw: return 2;
  }
  return 0;
}

// aten/src/ATen/native/cuda/MultiTensorApply.cuh: a launch is full when it has so many tensors (by depth) or 320
// chunks of 65,536 elements. Launch counts recorded on an H200 follow this rule exactly.
std::int64_t multi_tensor_launches(const std::vector<std::int64_t>& elements, int depth, bool scalar_list) {
  constexpr std::array<std::int64_t, 5> kMaxTensors = {110, 64, 48, 36, 30};
  constexpr std::int64_t kChunk = 65536, kMaxBlocks = 320, kMaxWithScalars = 96;
  const std::int64_t max_tensors = std::min(kMaxTensors[static_cast<std::size_t>(depth - 1)], scalar_list ? kMaxWithScalars : 110);
  std::int64_t launches = 0, tensors = 0, blocks = 0;
  for (std::int64_t count : elements) {
    ++tensors;
    std::int64_t chunks = (count + kChunk - 1) / kChunk;
    while (chunks > 0) {
      const std::int64_t taken = std::min(chunks, kMaxBlocks - blocks);
      blocks += taken;
      chunks -= taken;
      const bool tensors_full = chunks == 0 && tensors == max_tensors;
      if (tensors_full || blocks == kMaxBlocks) {
        ++launches;
        blocks = 0;
        tensors = chunks == 0 ? 0 : 1;  // a tensor cut in two begins the next launch
      }
    }
  }
  return launches + (blocks > 0 ? 1 : 0);
}

void append_loss_scaler_and_optimizer(StepGraph& step, const PrecisionRecipe& recipe, const TrainingOptions& options) {
  Graph& graph = step.graph;
  std::vector<std::int64_t> sizes;
  std::int64_t elements = 0;
  for (const ParameterGradient& g : step.gradients) {
    sizes.push_back(graph.tensors[g.parameter].shape.elements());
    elements += sizes.back();
  }
  const auto tensors = static_cast<std::int64_t>(sizes.size());
  const DType dtype = recipe.parameters;
  const int bytes = static_cast<int>(bits_of(dtype) / 8), state_bytes = static_cast<int>(bits_of(recipe.optimizer_state) / 8);
  step.optimizer_state_type = recipe.optimizer_state;

  auto append = [&](OpKind kind, Phase phase, std::string_view label, Attributes attributes, std::span<const TensorId> inputs = {},
                    std::span<const TensorId> outputs = {}) {
    Op op;
    op.kind = kind;
    op.phase = phase;
    op.math = dtype;
    op.attributes = std::move(attributes);
    if (!label.empty()) op.label = graph.intern(label);
    graph.add_op(op, inputs, outputs);
  };

  TensorId scale;
  if (recipe.loss_scaling) {
    // GradScaler.unscale_: the inverse scale, taken in fp64, and a cleared flag, each copied for the parameters' device.
    auto scalar = [&](DType type) { return graph.add_tensor({.shape = {}, .dtype = type}); };
    scale = graph.add_tensor({.shape = {1}, .dtype = DType::fp32, .role = Role::buffer, .name = graph.intern("loss_scale")});
    const TensorId wide = scalar(DType::fp64), inverse = scalar(DType::fp64), narrow = scalar(DType::fp32), flag = scalar(DType::fp32);
    append(OpKind::cast, Phase::loss_scaling, "", CastAttributes{.to = DType::fp64}, std::array{scale}, std::array{wide});
    append(OpKind::pointwise, Phase::loss_scaling, "reciprocal", {}, std::array{wide}, std::array{inverse});
    append(OpKind::cast, Phase::loss_scaling, "", CastAttributes{.to = DType::fp32}, std::array{inverse}, std::array{narrow});
    append(OpKind::fill, Phase::loss_scaling, "", {}, {}, std::array{flag});
    append(OpKind::copy, Phase::loss_scaling, "copy", {}, std::array{narrow}, std::array{scalar(DType::fp32)});
    append(OpKind::copy, Phase::loss_scaling, "copy", {}, std::array{flag}, std::array{scalar(DType::fp32)});
    append(OpKind::unscale_and_check, Phase::loss_scaling, "",
           MultiTensorAttributes{tensors, elements, multi_tensor_launches(sizes, 1), 2 * bytes});
    // A fused optimizer takes the flag on the GPU; the others make the host wait for it.
    if (options.optimizer_impl != OptimizerImpl::fused) append(OpKind::read_back, Phase::loss_scaling, "found_inf", {});
  }

  switch (options.optimizer_impl) {
    case OptimizerImpl::fused: {  // reads parameter, gradient and states once and writes all but the gradient
      const int states = static_cast<int>(state_tensors(options.optimizer));
      append(OpKind::multi_tensor, Phase::optimizer, "fused",
             MultiTensorAttributes{tensors, elements, multi_tensor_launches(sizes, 4), 3 * bytes + 2 * states * state_bytes});
      break;
    }
    case OptimizerImpl::foreach_: {
      TensorId temporary;
      for (const ForeachCall& call : foreach_calls(options.optimizer)) {
        MultiTensorAttributes attributes{tensors, elements, multi_tensor_launches(sizes, call.depth, call.scalar_list),
                                         call.parameter_passes * bytes + call.state_passes * state_bytes};
        if (call.makes_temporary) {
          temporary = graph.add_tensor({.shape = {elements}, .dtype = recipe.optimizer_state});
          append(OpKind::multi_tensor, Phase::optimizer, call.name, attributes, {}, std::array{temporary});
        } else if (call.uses_temporary) {
          append(OpKind::multi_tensor, Phase::optimizer, call.name, attributes, std::array{temporary});
        } else {
          append(OpKind::multi_tensor, Phase::optimizer, call.name, attributes);
        }
      }
      break;
    }
    case OptimizerImpl::for_loop:  // the same terms, one ordinary operator per tensor and term
      for (const ForeachCall& call : foreach_calls(options.optimizer))
        append(OpKind::multi_tensor, Phase::optimizer, call.name,
               MultiTensorAttributes{tensors, elements, tensors, call.parameter_passes * bytes + call.state_passes * state_bytes, true});
      break;
  }
  if (recipe.loss_scaling) {
    append(OpKind::update_scale, Phase::loss_scaling, "", {}, std::array{scale});
  }
}

}  // namespace precog
