// A linear layer whose three products run in 8 or 4 bits, written out as what the framework launches: operands quantised
// (largest element, scale, conversion, and a transposed copy where the product wants one), the scaled product, and as its
// recorded gradient the same for the two products of backward. One custom autograd function: gradients go straight to
// the layer's input and weight, none through the quantisation.
// Takes tensors whose types are decided; returns the layer's result. Costs nothing, chooses no layer.
#pragma once

#include <map>
#include <tuple>

#include "graph/graph.h"
#include "spec/gpu_spec.h"
#include "spec/precision_recipe.h"

namespace precog {

class Fp8Expansion {
 public:
  Fp8Expansion(Graph& graph, const Fp8Layers& layers, const GpuSpec& gpu, bool weights_arrive_quantised)
      : graph_(graph), layers_(layers), gpu_(gpu), weights_arrive_quantised_(weights_arrive_quantised) {}

  // Why a product of these extents cannot run so; empty when it can.
  std::string refusal(const GemmAttributes& product) const;
  // `near` lends module, block and reason. `bias` may be invalid.
  TensorId linear(const Op& near, TensorId x, TensorId weight, TensorId bias, const Shape& result);

 private:
  RecipeId gradient_of(const GemmAttributes& product, const Shape& x, const Shape& weight, DType type, DType weight_type, bool bias);

  Graph& graph_;
  const Fp8Layers& layers_;
  const GpuSpec& gpu_;
  bool weights_arrive_quantised_;
  std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, int, DType, DType, bool>, RecipeId> gradients_;  // layers of one shape share one
};

}  // namespace precog
