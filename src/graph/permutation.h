// Rows taken in another order, some of them several times, by code that knows the way back as well as the way there (Transformer
// Engine's moe_permute, unpermute and sort_chunks_by_index; Megatron-Core's token dispatchers). An index_select with a third operand,
// the inverse: its gradient gathers too, and sums a row's copies, instead of adding row by row into zeros.
#pragma once

#include "graph/graph.h"

namespace precog {

// The gradient of index_select(x, index, inverse): from `taken`, [rows, width], back to `source`, of which rows are copies.
inline Recipe permutation_gradient(const Shape& taken, const Shape& source) {
  using From = RecipeOperand::From;
  Recipe out;
  RecipeOp back;
  back.kind = OpKind::index_select;
  back.inputs = {{From::gradient, 0}, {From::input, 2}};
  back.outputs.push_back({taken});
  out.ops.push_back(std::move(back));
  if (taken[0] > source[0]) {
    RecipeOp copies;
    copies.kind = OpKind::view;
    copies.attributes = ViewAttributes{};
    copies.inputs = {{From::made, 0}};
    copies.outputs.push_back({Shape{source[0], taken[0] / source[0], source[1]}, DType::model, 0});
    RecipeOp sum;
    sum.kind = OpKind::sum;
    sum.inputs = {{From::made, 1}};
    sum.outputs.push_back({source});
    out.ops.push_back(std::move(copies));
    out.ops.push_back(std::move(sum));
  }
  out.gifts.push_back({0, {From::made, static_cast<std::uint32_t>(out.ops.size() - 1)}});
  return out;
}

}  // namespace precog
