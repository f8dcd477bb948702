// What the framework's precision settings do to a forward graph: every floating tensor gets its type, every cast that
// autocast would make becomes an operator, every operator the arithmetic it runs in and the rule that decided.
// In: a precision-free graph. Out: the same graph, decided. Nothing about time happens here.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "spec/gpu_spec.h"
#include "spec/precision_recipe.h"

namespace precog {

// The reason of operators that attention was written as, where no fused kernel takes its operands.
inline constexpr std::string_view kMathPath = "no fused attention kernel for these operands: math path";

Graph apply_precision(const PrecisionRecipe& recipe, const GpuSpec& gpu, const Graph& forward);

// Rules that no operator of this graph answers to, each as a message with the nearest names.
std::vector<std::string> unmatched_rules(const Graph& forward, std::span<const PrecisionRule> rules);

// Which kernel PyTorch's scaled_dot_product_attention picks for these operands on this GPU.
AttentionBackend attention_backend(const AttentionAttributes& attention, DType dtype, const GpuSpec& gpu,
                                   bool mask_needs_gradient = false);

}  // namespace precog
