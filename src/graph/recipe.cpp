// Runs a recorded gradient: the framework's own operators, in its order, over this step's tensors and types.
#include <algorithm>
#include <optional>

#include "graph/operator.h"

namespace precog {
namespace {

// Which operators of a recipe anybody needs: those that lead to a gift somebody wants. Views and in-place results count as
// the memory they are in, so that a write into needed memory is kept.
std::vector<char> needed_ops(const Recipe& recipe, const std::vector<char>& wanted) {
  std::vector<std::size_t> root;  // per made tensor
  for (const RecipeOp& op : recipe.ops)
    for (const RecipeTensor& tensor : op.outputs) {
      std::size_t base = root.size();
      if (tensor.of >= 0) {
        const RecipeOperand& of = op.inputs[static_cast<std::size_t>(tensor.of)];
        if (of.from == RecipeOperand::From::made) base = root[of.index];
      }
      root.push_back(base);
    }
  std::vector<char> live(root.size(), 0), keep(recipe.ops.size(), 0);
  // Everything as recorded where nothing has been frozen since: formulas compute what nobody asked for, too.
  if (std::all_of(wanted.begin(), wanted.end(), [](char one) { return one != 0; })) return std::vector<char>(recipe.ops.size(), 1);
  auto use = [&](const RecipeOperand& operand) {
    if (operand.from == RecipeOperand::From::made) live[root[operand.index]] = 1;
  };
  for (std::size_t i = 0; i < recipe.gifts.size(); ++i)
    if (wanted[i]) use(recipe.gifts[i].gradient);
  std::size_t made = root.size();
  for (std::size_t i = recipe.ops.size(); i-- > 0;) {
    const RecipeOp& op = recipe.ops[i];
    made -= op.outputs.size();
    for (std::size_t j = 0; j < op.outputs.size(); ++j) keep[i] = static_cast<char>(keep[i] || live[root[made + j]]);
    if (keep[i])
      for (const RecipeOperand& operand : op.inputs) use(operand);
  }
  return keep;
}

}  // namespace

void GradientContext::run_recipe() {
  const Recipe& recipe = graph_.recipes[op().recipe];  // nothing here adds recipes: the reference stays good
  const DType math = op().math;
  DType computed = math == DType::tf32 ? DType::fp32 : math;
  if (op().kind == OpKind::scaled_mm) computed = tensor(output()).dtype;
  std::vector<char> wanted;
  for (const RecipeGift& gift : recipe.gifts) wanted.push_back(needs(gift.input));
  const std::vector<char> keep = needed_ops(recipe, wanted);

  std::vector<TensorId> made, zeros(output_gradients_.size());
  auto operand = [&](const RecipeOperand& from) -> TensorId {
    switch (from.from) {
      case RecipeOperand::From::gradient: {
        if (gradient(from.index).valid()) return gradient(from.index);
        TensorId& zero = zeros[from.index];  // nothing came back for this result: autograd hands over zeros
        if (!zero.valid()) zero = emit(OpKind::fill, {}, tensor(output(from.index)).shape, tensor(output(from.index)).dtype);
        return zero;
      }
      case RecipeOperand::From::input: return saved_input(from.index);
      case RecipeOperand::From::output: return saved_output(from.index);
      case RecipeOperand::From::made: return made[from.index];
    }
    return {};
  };
  if (!is_floating(computed))
    for (TensorId id : output_gradients_)
      if (id.valid()) computed = tensor(id).dtype;

  // A linear layer's gradient is looked at as rows, and its weight's at those turned round. The capture leaves out such views,
  // but the host makes them. A sum that is handed on keeps axes that a view drops again: one call here, as in `give`.
  const bool linear = op().kind == OpKind::linear;
  TensorId rows;
  auto as_rows = [&](const GemmAttributes& a, TensorId grad) {
    if (!rows.valid()) rows = emit_view(grad, a.transposed_a ? Shape{a.k, a.m} : Shape{a.m, a.k});
    return a.transposed_a ? emit_view(rows, Shape{a.m, a.k}, ViewKind::transpose) : rows;
  };

  std::vector<TensorId> inputs, outputs;
  for (std::size_t i = 0; i < recipe.ops.size(); ++i) {
    const RecipeOp& step = recipe.ops[i];
    if (!keep[i]) {
      made.resize(made.size() + step.outputs.size());
      continue;
    }
    inputs.clear();
    for (const RecipeOperand& from : step.inputs) inputs.push_back(operand(from));
    if (linear && step.kind == OpKind::mm && step.inputs[0].from == RecipeOperand::From::gradient)
      inputs[0] = as_rows(std::get<GemmAttributes>(step.attributes), inputs[0]);
    else if (const auto* gemm = std::get_if<GemmAttributes>(&step.attributes); linear && step.kind == OpKind::mm && gemm && gemm->transposed_a)
      inputs[0] = emit_view(inputs[0], Shape{gemm->m, gemm->k}, ViewKind::transpose);
    std::optional<Shape> summed_to;
    if (step.kind == OpKind::sum)
      for (const RecipeGift& gift : recipe.gifts)
        if (gift.gradient == RecipeOperand{RecipeOperand::From::made, static_cast<std::uint32_t>(made.size())} &&
            step.outputs[0].shape.elements() == tensor(input(gift.input)).shape.elements())
          summed_to = tensor(input(gift.input)).shape;
    // A cast to the type a tensor has already is no operator.
    if (step.kind == OpKind::cast && (step.outputs[0].dtype == DType::model ? computed : step.outputs[0].dtype) == tensor(inputs[0]).dtype) {
      made.push_back(inputs[0]);
      continue;
    }
    const bool same_type = definition(step.kind).family == Family::view || step.in_place;
    outputs.clear();
    for (const RecipeTensor& result : step.outputs) {
      Tensor one{.shape = summed_to ? *summed_to : result.shape, .dtype = result.dtype};
      if (result.dtype == DType::model) {
        one.dtype = computed;
        if (same_type && !inputs.empty()) one.dtype = tensor(inputs[0]).dtype;
        // Softmax may have read 16 bits and computed in fp32; its backward returns the input's type at once.
        if (step.kind == OpKind::softmax_backward || step.kind == OpKind::log_softmax_backward) one.dtype = tensor(input(0)).dtype;
      }
      if (result.of >= 0) one.storage = tensor(inputs[static_cast<std::size_t>(result.of)]).storage;
      outputs.push_back(sink_.make(one));
    }
    Op backward;
    backward.kind = step.kind;
    backward.label = step.label;
    backward.in_place = step.in_place;
    backward.strided = step.strided;
    backward.attributes = step.attributes;
    if (auto* cast = std::get_if<CastAttributes>(&backward.attributes)) cast->to = tensor(outputs[0]).dtype;
    const bool matrix = is_matrix_work(step.kind) && !outputs.empty();
    if (step.kind == OpKind::scaled_mm) backward.math = math;
    else if (matrix) backward.math = tensor(outputs[0]).dtype == DType::fp32 && math == DType::tf32 ? DType::tf32 : tensor(outputs[0]).dtype;
    sink_.emit_to(backward, inputs, outputs);
    made.insert(made.end(), outputs.begin(), outputs.end());
  }
  for (std::size_t i = 0; i < recipe.gifts.size(); ++i)
    if (wanted[i]) give(recipe.gifts[i].input, operand(recipe.gifts[i].gradient));
}

}  // namespace precog
