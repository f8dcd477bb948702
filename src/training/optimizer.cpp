#include "training/optimizer.h"

#include <array>
#include <span>
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
    case OptimizerKind::lamb: break;  // fused only
  }
  return calls;
}

}  // namespace

std::int64_t state_tensors(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::sgd: return 0;
    case OptimizerKind::sgd_momentum: return 1;
    case OptimizerKind::adam:
    case OptimizerKind::adamw:
    case OptimizerKind::lamb: return 2;
  }
  return 0;
}

// aten/src/ATen/native/cuda/MultiTensorApply.cuh: a launch is full when it has so many tensors (by depth) or 320
// chunks of 65,536 elements. Launch counts recorded on an H200 follow this rule exactly.
namespace {

struct Listed {
  std::int64_t launches = 0, walked = 0;  // elements of each launch's longest chunk, which one block walks, added up
};

Listed listed(const std::vector<std::int64_t>& elements, int depth, bool scalar_list) {
  constexpr std::array<std::int64_t, 5> kMaxTensors = {110, 64, 48, 36, 30};
  constexpr std::int64_t kChunk = 65536, kMaxBlocks = 320, kMaxWithScalars = 96;
  const std::int64_t max_tensors = std::min(kMaxTensors[static_cast<std::size_t>(depth - 1)], scalar_list ? kMaxWithScalars : 110);
  Listed out;
  std::int64_t tensors = 0, blocks = 0, longest = 0;
  const auto launch = [&] { ++out.launches, out.walked += longest, longest = 0; };
  for (std::int64_t count : elements) {
    ++tensors;
    std::int64_t chunks = (count + kChunk - 1) / kChunk;
    while (chunks > 0) {
      const std::int64_t taken = std::min(chunks, kMaxBlocks - blocks);
      blocks += taken;
      chunks -= taken;
      longest = std::max(longest, std::min(count, kChunk));
      const bool tensors_full = chunks == 0 && tensors == max_tensors;
      if (tensors_full || blocks == kMaxBlocks) {
        launch();
        blocks = 0;
        tensors = chunks == 0 ? 0 : 1;  // a tensor cut in two begins the next launch
      }
    }
  }
  if (blocks > 0) launch();
  return out;
}

}  // namespace

std::int64_t multi_tensor_launches(const std::vector<std::int64_t>& elements, int depth, bool scalar_list) { return listed(elements, depth, scalar_list).launches; }

std::int64_t multi_tensor_walk(const std::vector<std::int64_t>& elements, std::string_view call) {
  for (const auto& list : {std::span<const ForeachCall>(kAdam), std::span<const ForeachCall>(kMomentum)})
    for (const ForeachCall& one : list)
      if (one.name == call) return listed(elements, one.depth, one.scalar_list).walked;
  return listed(elements, call == "fused" ? 4 : 1, false).walked;
}

namespace {

int bytes_of(DType dtype) { return static_cast<int>(bits_of(dtype) / 8); }

// Parameters that one multi-tensor call can take together: the framework groups them by type.
struct ParameterGroup {
  DType parameter, updated, gradient;  // as the model has it; what the optimizer updates; what it reads
  std::vector<std::int64_t> sizes;
  std::int64_t elements = 0;
  std::int64_t tensors() const { return static_cast<std::int64_t>(sizes.size()); }
  bool has_master() const { return updated != parameter; }
};

class EndOfStep {
 public:
  EndOfStep(StepGraph& step, const PrecisionRecipe& recipe, const TrainingOptions& options)
      : step_(step), graph_(step.graph), recipe_(recipe), options_(options) {
    for (const ParameterGradient& g : step.gradients) {
      const Tensor& parameter = graph_.tensors[g.parameter];
      ParameterGroup& group = group_of(parameter.dtype, graph_.tensors[g.gradient].dtype);
      group.sizes.push_back(parameter.shape.elements());
      group.elements += parameter.shape.elements();
      if ((group.has_master() || step.gradients_folded) && keeps_main_gradients() && graph_.tensors[g.gradient].role != Role::gradient_bucket)
        step_.main_gradients += Bytes{parameter.shape.elements() * bytes_of(group.gradient)};
    }
  }

  void append() {
    step_.optimizer_state_type = recipe_.optimizer_state;
    for (const ParameterGroup& group : groups_)
      if (group.has_master() && recipe_.master_weights->copied == MasterWeights::Copied::after_step)
        step_.master_weights += Bytes{group.elements * bytes_of(group.updated)};
    TensorId scale;
    if (recipe_.loss_scaling) scale = unscale();
    else if (recipe_.main_gradients && recipe_.main_gradients->made == MainGradients::Made::at_step) make_main_gradients();
    if (options_.optimizer == OptimizerKind::lamb) lamb_norm();
    else if (options_.clip_grad_norm) clip();
    for (const ParameterGroup& group : groups_) update(group);
    for (const ParameterGroup& group : groups_) refresh(group);
    if (options_.zeroes_gradients && !recipe_.master_weights)
      for (const ParameterGroup& group : groups_) put(OpKind::multi_tensor, Phase::optimizer, "zero_", passing(group, 1, bytes_of(group.gradient)), {}, {}, group.gradient);
    if (recipe_.fp8 && recipe_.fp8->scaling == Scaling::delayed)
      for (const char* direction : {"amax_and_scale_update (forward)", "amax_and_scale_update (backward)"}) put(OpKind::multi_tensor, Phase::optimizer, direction, scales());
    if (recipe_.loss_scaling) put(OpKind::update_scale, Phase::loss_scaling, "", {}, std::array{scale});
  }

 private:
  ParameterGroup& group_of(DType parameter, DType gradient) {
    const bool master = recipe_.master_weights && parameter != recipe_.master_weights->dtype;
    const DType updated = master ? recipe_.master_weights->dtype : parameter;
    const DType read = master && recipe_.main_gradients ? recipe_.main_gradients->dtype : gradient;
    for (ParameterGroup& group : groups_)
      if (group.parameter == parameter && group.gradient == read) return group;
    groups_.push_back({parameter, updated, read, {}, 0});
    return groups_.back();
  }
  bool keeps_main_gradients() const { return recipe_.main_gradients && recipe_.main_gradients->made != MainGradients::Made::after_reduce; }

  void put(OpKind kind, Phase phase, std::string_view label, Attributes attributes, std::span<const TensorId> inputs = {},
           std::span<const TensorId> outputs = {}, DType math = DType::fp32) {
    Op op;
    op.kind = kind;
    op.phase = phase;
    op.math = math;
    op.attributes = std::move(attributes);
    if (!label.empty()) op.label = graph_.intern(label);
    graph_.add_op(op, inputs, outputs);
  }
  TensorId scalar(DType type) { return graph_.add_tensor({.shape = {}, .dtype = type}); }

  static MultiTensorAttributes over(const ParameterGroup& group, int depth, int element_bytes, bool scalar_list = false) {
    return {group.tensors(), group.elements, multi_tensor_launches(group.sizes, depth, scalar_list), element_bytes};
  }
  MultiTensorAttributes scales() const { return {1, static_cast<std::int64_t>(step_.gradients.size()) * 3, 1, 8}; }

  // GradScaler.unscale_: the inverse scale, taken in fp64, and a cleared flag, each copied for the parameters' device; then
  // every gradient is multiplied and looked at, on its way to fp32 where the optimizer reads another copy.
  TensorId unscale() {
    const TensorId scale = graph_.add_tensor({.shape = {1}, .dtype = DType::fp32, .role = Role::buffer, .name = graph_.intern("loss_scale")});
    const TensorId wide = scalar(DType::fp64), inverse = scalar(DType::fp64), narrow = scalar(DType::fp32), flag = scalar(DType::fp32);
    constexpr Phase phase = Phase::loss_scaling;
    put(OpKind::cast, phase, "", CastAttributes{.to = DType::fp64}, std::array{scale}, std::array{wide});
    put(OpKind::pointwise, phase, "reciprocal", {}, std::array{wide}, std::array{inverse});
    put(OpKind::cast, phase, "", CastAttributes{.to = DType::fp32}, std::array{inverse}, std::array{narrow});
    put(OpKind::fill, phase, "", {}, {}, std::array{flag});
    put(OpKind::copy, phase, "copy", {}, std::array{narrow}, std::array{scalar(DType::fp32)});
    put(OpKind::copy, phase, "copy", {}, std::array{flag}, std::array{scalar(DType::fp32)});
    const bool converts = recipe_.main_gradients && recipe_.main_gradients->made == MainGradients::Made::at_step;
    for (const ParameterGroup& group : groups_) {
      const bool copies = converts && group.has_master();
      const int moved = bytes_of(copies ? group.parameter : group.gradient) + bytes_of(group.gradient);
      put(OpKind::unscale_and_check, phase, "", over(group, copies ? 2 : 1, moved), {}, {}, group.gradient);
    }
    // A fused optimizer takes the flag on the GPU; the others make the host wait for it, and so does every wrapper that
    // copies master weights afterwards (FSDP's are cast as they are gathered).
    const bool copies_after = recipe_.master_weights && recipe_.master_weights->copied == MasterWeights::Copied::after_step;
    if (options_.optimizer_impl != OptimizerImpl::fused || copies_after) put(OpKind::read_back, phase, "found_inf", {});
    return scale;
  }

  void make_main_gradients() {
    for (const ParameterGroup& group : groups_)
      if (group.has_master())
        put(OpKind::multi_tensor, Phase::optimizer, "copy main gradients", over(group, 2, bytes_of(group.parameter) + bytes_of(group.gradient)), {}, {}, group.gradient);
  }

  // One call over all tensors, or where the software has none, one per tensor.
  MultiTensorAttributes passing(const ParameterGroup& group, int depth, int element_bytes) const {
    if (options_.tensor_by_tensor) return {group.tensors(), group.elements, group.tensors(), element_bytes, true};
    return over(group, depth, element_bytes);
  }

  // torch.nn.utils.clip_grad_norm_: a norm per tensor, the norm of those, its ratio to the limit, every gradient times that.
  void clip() {
    for (const ParameterGroup& group : groups_) {
      const TensorId norms = graph_.add_tensor({.shape = {group.tensors()}, .dtype = group.gradient});
      if (options_.clip_reads == ClipReads::every_norm) {
        for (std::int64_t size : group.sizes) {
          put(OpKind::multi_tensor, Phase::optimizer, "norm", MultiTensorAttributes{1, size, 1, bytes_of(group.gradient), true}, {}, {}, group.gradient);
          put(OpKind::read_back, Phase::optimizer, "norm", {});
        }
        put(OpKind::multi_tensor, Phase::optimizer, "mul_", passing(group, 1, 2 * bytes_of(group.gradient)), {}, {}, group.gradient);
        continue;
      }
      put(OpKind::multi_tensor, Phase::optimizer, "norm", passing(group, 1, bytes_of(group.gradient)), {}, std::array{norms}, group.gradient);
      const TensorId total = scalar(group.gradient), ratio = scalar(group.gradient), limited = scalar(group.gradient);
      put(OpKind::copy, Phase::optimizer, "stack", {}, std::array{norms}, std::array{graph_.add_tensor({.shape = {group.tensors()}, .dtype = group.gradient})});
      put(OpKind::reduction, Phase::optimizer, "linalg_vector_norm", {}, std::array{norms}, std::array{total}, group.gradient);
      put(OpKind::pointwise, Phase::optimizer, "reciprocal", {}, std::array{total}, std::array{ratio}, group.gradient);
      put(OpKind::pointwise, Phase::optimizer, "clamp", {}, std::array{ratio}, std::array{limited}, group.gradient);
      if (options_.clip_reads == ClipReads::norm) put(OpKind::read_back, Phase::optimizer, "norm", {});
      put(OpKind::multi_tensor, Phase::optimizer, "mul_", passing(group, 1, 2 * bytes_of(group.gradient)), {}, {}, group.gradient);
    }
  }

  // One pass over everything: reads weight, gradient and states once and writes all but the gradient.
  int fused_bytes(const ParameterGroup& group) const {
    const int states = static_cast<int>(state_tensors(options_.optimizer));
    return 2 * bytes_of(group.updated) + bytes_of(group.gradient) + 2 * states * bytes_of(recipe_.optimizer_state);
  }

  // apex.optimizers.FusedLAMB (csrc/multi_tensor_lamb.cu): all gradients' norm first, by which they are limited in passing; then norms of
  // the weights, moments and updates in one pass with the updates written over the gradients, norms of these, and the weights.
  void lamb_norm() {
    for (const ParameterGroup& group : groups_)
      put(OpKind::multi_tensor, Phase::optimizer, "norm", over(group, 1, bytes_of(group.gradient)), {}, {}, group.gradient);
  }
  void lamb(const ParameterGroup& group) {
    const int weight = bytes_of(group.updated), gradient = bytes_of(group.gradient), states = 2 * bytes_of(recipe_.optimizer_state);
    const auto pass = [&](std::string_view name, int depth, int moved) { put(OpKind::multi_tensor, Phase::optimizer, name, over(group, depth, moved), {}, {}, group.updated); };
    pass("lamb weight norms", 1, weight);
    pass("fused", 4, weight + 2 * gradient + 2 * states);
    pass("lamb update norms", 1, gradient);
    pass("lamb weights", 2, gradient + 2 * weight);
  }

  void update(const ParameterGroup& group) {
    if (options_.optimizer == OptimizerKind::lamb) return lamb(group);
    const DType dtype = group.updated, state = recipe_.optimizer_state;
    // PyTorch's foreach terms take operands of one type; states of another are somebody's own one-pass kernel, and 8-bit
    // ones are updated tensor by tensor (bitsandbytes).
    const bool mixed = state != dtype || group.gradient != dtype;
    if (state == DType::int8)
      return put(OpKind::multi_tensor, Phase::optimizer, "8-bit", MultiTensorAttributes{group.tensors(), group.elements, group.tensors(), fused_bytes(group), true}, {}, {}, dtype);
    if (options_.optimizer_impl == OptimizerImpl::fused || mixed)
      return put(OpKind::multi_tensor, Phase::optimizer, "fused", over(group, 4, fused_bytes(group)), {}, {}, dtype);
    TensorId temporary;
    for (const ForeachCall& call : foreach_calls(options_.optimizer)) {
      const int moved = call.parameter_passes * bytes_of(dtype) + call.state_passes * bytes_of(state);
      if (options_.optimizer_impl == OptimizerImpl::for_loop) {  // the same terms, one ordinary operator per tensor and term
        put(OpKind::multi_tensor, Phase::optimizer, call.name, MultiTensorAttributes{group.tensors(), group.elements, group.tensors(), moved, true}, {}, {}, dtype);
        continue;
      }
      const MultiTensorAttributes attributes = over(group, call.depth, moved, call.scalar_list);
      if (call.makes_temporary) {
        temporary = graph_.add_tensor({.shape = {group.elements}, .dtype = state});
        put(OpKind::multi_tensor, Phase::optimizer, call.name, attributes, {}, std::array{temporary}, dtype);
      } else if (call.uses_temporary) {
        put(OpKind::multi_tensor, Phase::optimizer, call.name, attributes, std::array{temporary}, {}, dtype);
      } else {
        put(OpKind::multi_tensor, Phase::optimizer, call.name, attributes, {}, {}, dtype);
      }
    }
  }

  // The model's copy of updated master weights, and a cleared buffer for the next step's main gradients.
  void refresh(const ParameterGroup& group) {
    if (!group.has_master()) return;
    if (recipe_.master_weights->copied == MasterWeights::Copied::after_step)
      put(OpKind::multi_tensor, Phase::optimizer, "copy master weights", over(group, 2, bytes_of(group.updated) + bytes_of(group.parameter)), {}, {}, group.parameter);
    const auto made = recipe_.main_gradients ? recipe_.main_gradients->made : MainGradients::Made::after_reduce;
    if (made == MainGradients::Made::in_backward || made == MainGradients::Made::in_product)
      put(OpKind::multi_tensor, Phase::optimizer, "zero_", MultiTensorAttributes{1, group.elements, 1, bytes_of(group.gradient)}, {}, {}, group.gradient);
  }

  StepGraph& step_;
  Graph& graph_;
  const PrecisionRecipe& recipe_;
  const TrainingOptions& options_;
  std::vector<ParameterGroup> groups_;
};

}  // namespace

void append_loss_scaler_and_optimizer(StepGraph& step, const PrecisionRecipe& recipe, const TrainingOptions& options) {
  EndOfStep(step, recipe, options).append();
}

}  // namespace precog
