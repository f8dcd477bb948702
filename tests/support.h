// Small, hand-checkable things that several tests share.
#pragma once

#include <string>
#include <vector>

#include "graph/builder.h"
#include "spec/gpu_spec.h"
#include "spec/precision_recipe.h"

namespace precog::testing {

inline GpuSpec gpu(std::string capability = "9.0") {
  GpuSpec gpu;
  gpu.name = "test-gpu";
  gpu.vendor = "nvidia";
  gpu.architecture = "hopper";
  gpu.compute_capability = std::move(capability);
  gpu.sms = 100;
  gpu.boost_clock = {1e9};
  gpu.memory_capacity = {80'000'000'000};
  gpu.memory_bandwidth = {1e12};
  gpu.l2 = {50'000'000};
  gpu.matrix.set(DType::fp16, {1e15});
  if (gpu.compute_capability >= "8.0") {
    gpu.matrix.set(DType::bf16, {1e15});
    gpu.matrix.set(DType::tf32, {5e14});
  }
  gpu.vector.set(DType::fp32, {1e14});
  gpu.link_bandwidth = {1e11};
  return gpu;
}

inline PrecisionRecipe uniform(DType dtype) {
  PrecisionRecipe recipe;
  recipe.name = "uniform";
  recipe.parameters = recipe.inputs = recipe.optimizer_state = dtype;
  return recipe;
}
inline PrecisionRecipe amp(DType dtype) {
  PrecisionRecipe recipe;
  recipe.name = "amp";
  recipe.autocast = dtype;
  recipe.weight_cache = true;
  recipe.loss_scaling = dtype == DType::fp16;
  return recipe;
}

// x[batch,in] -> linear -> relu -> linear -> cross entropy over 10 classes.
inline Graph two_layers(std::int64_t batch = 32, std::int64_t in = 64, std::int64_t hidden = 128) {
  GraphBuilder b;
  TensorId x = b.input("x", {batch, in});
  TensorId target = b.input("target", {batch}, DType::int64);
  x = b.relu(b.linear_layer("first", x, hidden));
  b.cross_entropy(b.linear_layer("second", x, 10), target);
  return std::move(b).finish();
}

inline std::vector<std::string> kinds(const Graph& graph, Phase phase) {
  std::vector<std::string> out;
  for (const Op& op : graph.ops)
    if (op.phase == phase) out.emplace_back(to_text(op.kind));
  return out;
}
inline int count(const Graph& graph, OpKind kind) {
  int found = 0;
  for (const Op& op : graph.ops) found += op.kind == kind ? 1 : 0;
  return found;
}

}  // namespace precog::testing
