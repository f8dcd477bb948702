// Mixture-of-experts feed-forward as transformers runs it by default ("grouped_mm"): rows sorted by expert, two grouped
// products over all experts' weights, rows put back and summed. Routing is assumed even over the experts.
#pragma once

#include <string_view>

#include "frontend/families.h"

namespace precog::zoo {

// x[tokens, hidden], weights and indices [tokens, top_k]; gate_up_proj and down_proj are made in the current module.
// weigh_inside: as Megatron-Core does it (from 0.12 on): the weights multiply what goes into down_proj, whose results need not be kept then;
// rows are permuted by kernels that gather both ways; nothing is masked.
TensorId grouped_experts(GraphBuilder& b, TensorId x, TensorId weights, TensorId indices, std::int64_t experts, std::int64_t intermediate,
                         std::string_view act = "silu", bool weigh_inside = false);

}  // namespace precog::zoo
