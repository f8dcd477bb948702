#include "predict/compare.h"

#include <fmt/format.h>

namespace precog {
namespace {

// A recipe that differs from fp32 in the convolutions' TF32 alone: where there is no TF32, its row would be fp32's again.
bool repeats_fp32(const PrecisionRecipe& recipe, const GpuSpec& gpu) {
  return !recipe.autocast && recipe.parameters == DType::fp32 && recipe.inputs == DType::fp32 && !recipe.loss_scaling &&
         !recipe.tf32_matmul && recipe.tf32_convolution && !gpu.matrix.has(DType::tf32);
}

// The arithmetic a recipe needs and the GPU lacks, as a reason; empty when nothing is missing.
std::string missing_hardware(const PrecisionRecipe& recipe, const GpuSpec& gpu) {
  for (DType dtype : recipe.required_types())
    if (!gpu.computes(dtype)) return fmt::format("{} has no {} hardware", gpu.name, to_text(dtype));
  return "";
}

}  // namespace

Result<Comparison> compare_precisions(Json json, const std::vector<const PrecisionRecipe*>& chosen, const Catalog& catalog,
                                      const std::string& where, const std::filesystem::path& folder) {
  if (json.is_object()) json["precision"] = "fp32";  // every GPU has it: enough to check the rest of the request
  PRECOG_TRY(probe, parse_request(json, catalog, where, folder));
  std::vector<const PrecisionRecipe*> recipes = chosen;
  if (chosen.empty())
    for (const PrecisionRecipe& recipe : catalog.precisions) recipes.push_back(&recipe);

  std::vector<Report> reports;
  std::vector<LeftOut> left_out;
  Error first_error;
  for (const PrecisionRecipe* recipe : recipes) {
    if (chosen.empty() && repeats_fp32(*recipe, *probe.gpu)) {
      left_out.push_back({recipe->name, fmt::format("the same as fp32: {} has no TF32", probe.gpu->name)});
      continue;
    }
    json["precision"] = recipe->name;
    auto request = parse_request(json, catalog, where, folder);
    auto prediction = request ? predict(*request, catalog) : Result<Prediction>(tl::unexpected(request.error()));
    if (prediction) {
      reports.push_back(std::move(prediction->report));
      continue;
    }
    if (first_error.problems.empty()) first_error = prediction.error();
    std::string missing = request ? "" : missing_hardware(*recipe, *probe.gpu);
    left_out.push_back({recipe->name, missing.empty() ? prediction.error().text() : missing});
  }
  if (reports.empty()) return tl::unexpected(std::move(first_error));
  return make_comparison(std::move(reports), std::move(left_out));
}

}  // namespace precog
