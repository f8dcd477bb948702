#include "spec/precision_recipe.h"

namespace precog {
namespace {

DType read_type(JsonReader& reader, std::string_view key, DType fallback) {
  auto name = reader.text(key);
  if (!name) return fallback;
  auto dtype = dtype_named(*name);
  if (dtype && (*dtype == DType::fp32 || is_16bit(*dtype))) return *dtype;
  reader.problem(key, "is '" + *name + "'; known: fp32, fp16, bf16");
  return fallback;
}

}  // namespace

std::vector<DType> PrecisionRecipe::required_types() const {
  std::vector<DType> out;
  auto need = [&](DType dtype) {
    if (dtype == DType::fp32) return;
    for (DType known : out)
      if (known == dtype) return;
    out.push_back(dtype);
  };
  need(parameters);
  if (autocast) need(*autocast);
  // TF32 in convolutions only is PyTorch's default and does nothing on older hardware; asking for it in
  // matrix products is a choice, and needs the hardware.
  if (tf32_matmul) need(DType::tf32);
  return out;
}

Result<PrecisionRecipe> parse_precision(const Json& json, const std::string& where) {
  std::vector<Problem> problems;
  JsonReader file(json, where, problems);
  file.required_integer("schema", 1, 1);
  PrecisionRecipe recipe;
  recipe.name = file.required_text("name");
  recipe.title = file.required_text("title");
  recipe.source = file.required_text("source");
  recipe.aliases = file.texts("aliases");
  recipe.parameters = read_type(file, "parameters", DType::fp32);
  recipe.inputs = read_type(file, "inputs", recipe.parameters);
  recipe.optimizer_state = read_type(file, "optimizer_state", recipe.parameters);
  if (auto autocast = file.object("autocast")) {
    recipe.autocast = read_type(*autocast, "dtype", DType::bf16);
    if (!is_16bit(*recipe.autocast)) autocast->problem("dtype", "must be fp16 or bf16");
    recipe.weight_cache = autocast->boolean("weight_cache").value_or(true);
    autocast->reject_unknown_keys();
  }
  if (auto tf32 = file.object("tf32")) {
    recipe.tf32_matmul = tf32->boolean("matmul").value_or(false);
    recipe.tf32_convolution = tf32->boolean("convolution").value_or(false);
    tf32->reject_unknown_keys();
  }
  recipe.loss_scaling = file.boolean("loss_scaling").value_or(false);
  file.reject_unknown_keys();
  if (!problems.empty()) return fail(std::move(problems));
  return recipe;
}

}  // namespace precog
