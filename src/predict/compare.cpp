#include "predict/compare.h"

#include <fmt/format.h>

namespace precog {
namespace {

// A recipe that differs from fp32 in the convolutions' TF32 alone: where there is no TF32, its row would be fp32's again.
bool repeats_fp32(const PrecisionRecipe& recipe, const GpuSpec& gpu) {
  return !recipe.autocast && recipe.parameters == DType::fp32 && recipe.inputs == DType::fp32 && !recipe.loss_scaling && !recipe.fp8 &&
         recipe.rules.empty() && !recipe.tf32_matmul && recipe.tf32_convolution && !gpu.matrix.has(DType::tf32);
}

// The arithmetic a recipe needs and the GPU lacks, as a reason; empty when nothing is missing.
std::string missing_hardware(const PrecisionRecipe& recipe, const GpuSpec& gpu) {
  for (DType dtype : recipe.required_types())
    if (!gpu.computes(dtype)) return fmt::format("{} has no {} hardware", gpu.name, to_text(dtype));
  return "";
}

std::string name_of(const Json& precision) {
  if (precision.is_string()) return precision.get<std::string>();
  return precision.is_object() ? precision.value("name", "inline") : "inline";
}

}  // namespace

std::vector<Problem> wrong_precisions(Json json, const CompareOptions& options, const Catalog& catalog, const std::string& field,
                                      const std::filesystem::path& folder) {
  std::vector<Problem> problems;
  json["allow_emulated"] = true;
  for (const Json& precision : options.chosen) {
    json["precision"] = precision;
    if (auto request = parse_request(json, catalog, "request", folder); !request)
      for (const Problem& problem : request.error().problems) problems.push_back({field, problem.message});
  }
  return problems;
}

Result<Comparison> compare_precisions(Json json, const CompareOptions& options, const Catalog& catalog, const std::string& where,
                                      const std::filesystem::path& folder) {
  if (json.is_object()) json["precision"] = "fp32";  // every GPU has it: enough to check the rest of the request
  PRECOG_TRY(probe, parse_request(json, catalog, where, folder));
  std::vector<Json> precisions = options.chosen;
  std::vector<LeftOut> left_out;
  if (precisions.empty())
    for (const PrecisionRecipe& recipe : catalog.precisions) {
      if (recipe.is_part || (!recipe.listed && !options.all)) continue;
      if (repeats_fp32(recipe, *probe.gpu)) left_out.push_back({recipe.name, fmt::format("the same as fp32: {} has no TF32", probe.gpu->name)});
      else precisions.push_back(recipe.name);
    }

  std::vector<Report> reports;
  Error first_error;
  for (const Json& precision : precisions) {
    json["precision"] = precision;
    auto request = parse_request(json, catalog, where, folder);
    auto prediction = request ? predict(*request, catalog) : Result<Prediction>(tl::unexpected(request.error()));
    if (prediction) {
      reports.push_back(std::move(prediction->report));
      continue;
    }
    if (first_error.problems.empty()) first_error = prediction.error();
    Json emulated = json;
    emulated["allow_emulated"] = true;
    const auto elsewhere = request ? std::move(request) : parse_request(emulated, catalog, where, folder);
    const std::string missing = elsewhere ? missing_hardware(*elsewhere->precision, *probe.gpu) : "";
    left_out.push_back({name_of(precision), missing.empty() ? prediction.error().text() : missing});
  }
  if (reports.empty()) return tl::unexpected(std::move(first_error));
  return make_comparison(std::move(reports), std::move(left_out));
}

}  // namespace precog
