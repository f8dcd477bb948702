#include "calibrate/operator_kernels.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "calibrate/operator_line.h"
#include "training/optimizer.h"

namespace precog {
namespace {

// One of the calls that an optimizer's foreach form makes.
Graph listed_call(const Line& line, const std::string& op, DType dtype) {
  struct Known {
    std::string_view op, name;
    int depth, passes;
    bool scalars;
  };
  static constexpr std::array kKnown = {Known{"foreach mul", "mul_", 1, 2, false},       Known{"foreach add", "add_", 1, 2, false},   Known{"foreach lerp", "lerp_", 2, 3, false},
                                        Known{"foreach addcmul", "addcmul_", 3, 3, false}, Known{"foreach sqrt", "sqrt", 2, 2, false}, Known{"foreach div list", "div_", 1, 2, true},
                                        Known{"foreach addcdiv list", "addcdiv_", 3, 4, true}};
  const auto known = std::find_if(kKnown.begin(), kKnown.end(), [&](const Known& one) { return one.op == op; });
  if (known == kKnown.end()) throw Unusable{"is no call of an optimizer that is known; like: foreach mul, foreach div list"};
  const std::int64_t elements = line.extent("elements"), tensors = line.extent("tensors");
  if (tensors > 100'000 || elements < tensors || elements % tensors != 0 || elements / tensors % 4 != 0) throw Unusable{"wants tensors of one size, a multiple of four"};
  Graph graph;
  for (std::int64_t i = 0; i < tensors; ++i) graph.add_tensor({.shape = Shape{elements / tensors}, .dtype = dtype, .role = Role::parameter});
  Op call;
  call.kind = OpKind::multi_tensor;
  call.phase = Phase::optimizer;
  call.math = dtype;
  call.label = graph.intern(known->name);
  const std::vector<std::int64_t> sizes(static_cast<std::size_t>(tensors), elements / tensors);
  call.attributes = MultiTensorAttributes{tensors, elements, multi_tensor_launches(sizes, known->depth, known->scalars), static_cast<int>(known->passes * bits_of(dtype) / 8)};
  graph.add_op(call, {}, {});
  return graph;
}

constexpr std::string_view kNorms = "grad norm foreach";  // torch.nn.utils.get_total_norm

// The end of a step over so many parameters, as the training stage writes it; of a loss scaler its unscaling alone, of a limit to gradients their norm.
Graph end_of_step(const Line& line, const std::string& op, DType dtype) {
  const std::int64_t elements = line.extent("elements"), tensors = line.extent("tensors");
  if (tensors > 100'000 || elements < tensors) throw Unusable{"has more tensors than elements, or than any model"};
  if (elements / tensors % 4 != 0) throw Unusable{"tensors of such a size are read element by element, four at a time being the rule: few of a model's are"};
  PrecisionRecipe recipe;
  recipe.optimizer_state = dtype;
  TrainingOptions options;
  if (op.starts_with("adamw")) options.optimizer = OptimizerKind::adamw;
  else if (op.starts_with("adam ")) options.optimizer = OptimizerKind::adam;
  else if (op.starts_with("sgd-momentum")) options.optimizer = OptimizerKind::sgd_momentum;
  else if (op.starts_with("sgd")) options.optimizer = OptimizerKind::sgd;
  else if (op == "unscale") recipe.loss_scaling = true;
  else if (op == kNorms) options.clip_grad_norm = true;
  else throw Unusable{"is no optimizer that is known; like: adamw foreach, sgd-momentum fused, unscale"};
  if (op.ends_with("fused")) options.optimizer_impl = OptimizerImpl::fused;
  StepGraph step;
  for (std::int64_t i = 0; i < tensors; ++i) {
    Tensor one;
    one.shape = Shape{elements / tensors};
    one.dtype = dtype;
    one.role = Role::parameter;
    const TensorId parameter = step.graph.add_tensor(one);
    one.role = Role::gradient;
    step.gradients.push_back({parameter, step.graph.add_tensor(one), {}});
  }
  append_loss_scaler_and_optimizer(step, recipe, options);
  return std::move(step.graph);
}

const LineFamily* line_family(std::string_view name) {
  for (std::span<const LineFamily> list : {compute_lines(), memory_lines(), operand_lines(), layer_lines()})
    for (const LineFamily& one : list)
      if (one.name == name) return &one;
  return nullptr;
}

// A line may time one of a convolution's layout copies alone: of its first operand, of its second, of its result.
Kernel layout_copy(const std::vector<Kernel>& kernels, const std::string& which) {
  std::vector<Kernel> in, back;
  for (const Kernel& kernel : kernels)
    if (const auto* shape = std::get_if<MemoryShape>(&kernel.shape); shape && shape->pattern == MemoryPattern::layout)
      (kernel.name == "nhwc_to_nchw" ? back : in).push_back(kernel);
  if (which == "first" && !in.empty()) return in[0];
  if (which == "second" && in.size() > 1) return in[1];
  if (which == "result" && !back.empty()) return back[0];
  throw Unusable{"times a layout copy that such a convolution is not expected to make"};
}

std::vector<Kernel> lowered(const Line& line, const GpuSpec& gpu) {
  const std::string family = line.text("family"), op = line.text("op");
  const MemoryFormat format = line.channels_last() ? MemoryFormat::channels_last : MemoryFormat::contiguous;
  if (family == "transfer" || family == "sustained") throw Unusable{"is for links and clocks, not for kernels"};
  if (family == "optimizer") {
    const Graph graph = op.starts_with("foreach ") ? listed_call(line, op, line.dtype()) : end_of_step(line, op, line.dtype());
    const KernelProgram program = make_kernels(graph, gpu, format);
    std::vector<Kernel> out;
    const auto timed = [&](const Op& one) {
      if (op == "unscale") return one.kind == OpKind::unscale_and_check;
      if (op != kNorms) return true;
      const std::string_view label = one.label.valid() ? graph.name(one.label) : std::string_view();
      return label == "norm" || label == "stack" || label == "linalg_vector_norm";
    };
    for (const Call& call : program.calls)
      if (timed(graph.ops[call.op]))
        out.insert(out.end(), program.kernels.begin() + call.first_kernel, program.kernels.begin() + call.first_kernel + call.kernel_count);
    return out;
  }
  const LineFamily* known = line_family(family);
  if (!known) throw Unusable{fmt::format("family '{}' is not known", family.substr(0, 40))};
  Calls calls(line.dtype());
  known->describe(line, op, calls);
  std::vector<Kernel> kernels = make_kernels(calls.graph(), gpu, format, nullptr, &calls.strides()).kernels;
  return line.has("copy") ? std::vector<Kernel>{layout_copy(kernels, line.text("copy"))} : kernels;
}

}  // namespace

Result<std::vector<Kernel>> kernels_of(const Json& json, const GpuSpec& gpu) {
  try {
    std::vector<Kernel> kernels = lowered(Line(json), gpu);
    if (kernels.empty()) return fail("", "launches nothing");
    for (const Kernel& kernel : kernels)
      if (kernel.emulated) return fail("", fmt::format("{} has no arithmetic in {}", gpu.name, to_text(kernel.math)));
    return kernels;
  } catch (const Unusable& why) {
    return fail("", why.reason);
  }
}

}  // namespace precog
