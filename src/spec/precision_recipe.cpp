#include "spec/precision_recipe.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "base/text.h"

namespace precog {
namespace {

constexpr std::array<std::string_view, 6> kScalings = {"tensorwise", "rowwise", "delayed", "blockwise", "mx", "nvfp4"};

std::optional<DType> read_type(JsonReader& reader, std::string_view key, std::initializer_list<DType> known = {DType::fp32, DType::fp16, DType::bf16}) {
  auto name = reader.text(key);
  if (!name) return std::nullopt;
  auto dtype = dtype_named(*name);
  if (dtype && std::find(known.begin(), known.end(), *dtype) != known.end()) return *dtype;
  std::vector<std::string> names;
  for (DType type : known) names.emplace_back(to_text(type));
  reader.problem(key, fmt::format("is '{}'; known: {}", name->substr(0, 80), join(names, ", ")));
  return std::nullopt;
}

template <std::size_t N>
std::size_t read_choice(JsonReader& reader, std::string_view key, const std::array<std::string_view, N>& known) {
  auto name = reader.text(key);
  if (!name) return 0;
  const auto found = std::find(known.begin(), known.end(), *name);
  if (found != known.end()) return static_cast<std::size_t>(found - known.begin());
  reader.problem(key, fmt::format("is '{}'; known: {}", name->substr(0, 80), join({known.begin(), known.end()}, ", ")));
  return 0;
}

PrecisionRule read_rule(JsonReader rule) {
  PrecisionRule out;
  if (!rule.has("modules") && !rule.has("operators")) rule.problem("modules", "or operators is missing: whom the rule is for");
  out.modules = rule.text("modules").value_or("*");
  out.operators = rule.text("operators").value_or("*");
  out.run_in = read_type(rule, "run_in");
  out.parameters = read_type(rule, "parameters");
  out.fp8 = rule.boolean("fp8");
  if (auto region = rule.text("autocast")) {
    out.autocast = dtype_named(*region);
    out.autocast_off = *region == "off";
    if (!out.autocast_off && (!out.autocast || !is_16bit(*out.autocast))) rule.problem("autocast", "is '" + region->substr(0, 80) + "'; known: off, fp16, bf16");
  }
  if (!rule.has("run_in") && !rule.has("parameters") && !rule.has("fp8") && !rule.has("autocast"))
    rule.problem("run_in", "or autocast, parameters, fp8 is missing: what the rule changes");
  rule.text("why");
  rule.reject_unknown_keys();
  const bool by_module = out.modules != "*";
  out.text = by_module ? out.modules : out.operators;
  if (by_module && out.operators != "*") out.text += ":" + out.operators;
  return out;
}

void read_fp8(JsonReader fp8, PrecisionRecipe& recipe) {
  recipe.gathers_fp8 = fp8.boolean("all_gather").value_or(false);
  if (!fp8.has("scaling")) {  // a part may speak of layers that another part brings
    if (!recipe.is_part) fp8.problem("scaling", "is missing, so there are no fp8 layers: tensorwise, rowwise, delayed, blockwise, mx, nvfp4 (or add a part such as fp8-layers)");
    return;
  }
  Fp8Layers layers;
  layers.scaling = static_cast<Scaling>(read_choice(fp8, "scaling", kScalings));
  layers.fused = read_choice(fp8, "quantised_by", std::array<std::string_view, 2>{"operators", "one_kernel"}) == 1;
  if (!layers.fused && layers.scaling != Scaling::tensorwise && layers.scaling != Scaling::rowwise)
    fp8.problem("quantised_by", fmt::format("must be one_kernel for {} scaling: no framework writes it with ordinary operators", to_text(layers.scaling)));
  if (fp8.has("modules")) layers.modules = fp8.texts("modules");
  layers.except = fp8.texts("except");
  fp8.reject_unknown_keys();
  recipe.fp8 = std::move(layers);
}

void read_end_of_step(JsonReader& file, PrecisionRecipe& recipe) {
  if (auto master = file.object("master_weights")) {
    recipe.master_weights = MasterWeights{read_type(*master, "dtype").value_or(DType::fp32),
                                          static_cast<MasterWeights::Copied>(read_choice(*master, "copied", std::array<std::string_view, 2>{"after_step", "on_gather"}))};
    master->reject_unknown_keys();
  }
  if (auto main = file.object("main_gradients")) {
    recipe.main_gradients = MainGradients{read_type(*main, "dtype").value_or(DType::fp32),
                                          static_cast<MainGradients::Made>(read_choice(*main, "made", std::array<std::string_view, 4>{"in_backward", "in_product", "after_reduce", "at_step"}))};
    main->reject_unknown_keys();
  }
  if (auto communication = file.object("communication")) {
    recipe.reduced_gradients = read_type(*communication, "gradients");
    recipe.reduces_after_backward = communication->boolean("after_backward").value_or(false);
    communication->reject_unknown_keys();
  }
  recipe.fused_optimizer = file.boolean("fused_optimizer").value_or(false);
  recipe.optimizer_state = read_type(file, "optimizer_state", {DType::fp32, DType::fp16, DType::bf16, DType::int8}).value_or(recipe.updated_weights());
}

}  // namespace

std::string_view to_text(Scaling scaling) { return kScalings[static_cast<std::size_t>(scaling)]; }

DType Fp8Layers::arithmetic() const {
  switch (scaling) {
    case Scaling::blockwise: return DType::fp8_block;
    case Scaling::mx: return DType::mxfp8;
    case Scaling::nvfp4: return DType::nvfp4;
    default: return DType::fp8;
  }
}

// torch._scaled_mm and cuBLASLt want 16-byte rows; scales that cover a stretch want whole stretches.
std::int64_t Fp8Layers::multiple() const {
  switch (scaling) {
    case Scaling::blockwise: return 128;
    case Scaling::mx: return 32;
    case Scaling::nvfp4: return 32;
    default: return 16;
  }
}

std::vector<DType> PrecisionRecipe::required_types() const {
  std::vector<DType> out;
  auto need = [&](DType dtype) {
    if (dtype != DType::fp32 && std::find(out.begin(), out.end(), dtype) == out.end()) out.push_back(dtype);
  };
  need(parameters);
  if (autocast) need(*autocast);
  // TF32 in convolutions only is PyTorch's default and does nothing on older hardware; asking for it in
  // matrix products is a choice, and needs the hardware.
  if (tf32_matmul) need(DType::tf32);
  if (fp8) need(fp8->arithmetic());
  for (const PrecisionRule& rule : rules)
    for (const std::optional<DType>& type : {rule.run_in, rule.autocast, rule.parameters})
      if (type) need(*type);
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
  recipe.is_part = file.boolean("part").value_or(false);
  recipe.listed = file.boolean("listed").value_or(true) && !recipe.is_part;
  recipe.parameters = read_type(file, "parameters").value_or(DType::fp32);
  recipe.inputs = read_type(file, "inputs").value_or(recipe.parameters);
  recipe.buffers = read_type(file, "buffers").value_or(recipe.parameters);
  recipe.casts_inputs = file.boolean("casts_inputs").value_or(false);
  if (auto autocast = file.object("autocast")) {
    recipe.autocast = read_type(*autocast, "dtype", {DType::fp16, DType::bf16}).value_or(DType::bf16);
    recipe.weight_cache = autocast->boolean("weight_cache").value_or(true);
    autocast->reject_unknown_keys();
  }
  if (auto tf32 = file.object("tf32")) {
    recipe.tf32_matmul = tf32->boolean("matmul").value_or(false);
    recipe.tf32_convolution = tf32->boolean("convolution").value_or(false);
    tf32->reject_unknown_keys();
  }
  if (const Json* scaling = file.raw("loss_scaling"); scaling && scaling->is_object()) {
    recipe.loss_scaling = true;
    auto reader = *file.object("loss_scaling");
    recipe.scale_growth_interval = reader.integer("growth_interval", 1, 1'000'000'000).value_or(recipe.scale_growth_interval);
    reader.reject_unknown_keys();
  } else {
    recipe.loss_scaling = file.boolean("loss_scaling").value_or(false);
  }
  read_end_of_step(file, recipe);
  if (auto fp8 = file.object("fp8")) read_fp8(*fp8, recipe);
  if (const Json* rules = file.raw("rules")) {
    if (!rules->is_array()) file.problem("rules", "wants a list of rules");
    else
      for (std::size_t i = 0; i < rules->size(); ++i) {
        const std::string place = file.path(fmt::format("rules[{}]", i));
        if ((*rules)[i].is_object()) recipe.rules.push_back(read_rule(JsonReader((*rules)[i], place, problems)));
        else problems.push_back({place, R"(wants an object such as {"modules": "lm_head", "run_in": "fp32"})"});
      }
  }
  file.reject_unknown_keys();
  if (!problems.empty()) return fail(std::move(problems));
  return recipe;
}

}  // namespace precog
