#include "cli.h"

#include <fmt/format.h>

#include "base/text.h"
#include "job_flags.h"
#include "predict/predict.h"
#include "report/html_report.h"
#include "report/svg.h"
#include "report/text_report.h"

namespace precog::cli {
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

// The precisions asked for, else all there are. The request knows best what is wrong with a name.
Result<std::vector<const PrecisionRecipe*>> precisions_to_compare(const Arguments& arguments, const Context& context, Json json) {
  std::vector<const PrecisionRecipe*> recipes;
  std::vector<Problem> problems;
  for (const std::string& name : arguments.precisions) {
    auto recipe = context.catalog.precision(name);
    if (recipe) {
      recipes.push_back(*recipe);
      continue;
    }
    json["precision"] = name;
    auto request = parse_request(json, context.catalog, request_name(arguments));
    for (const Problem& problem : request ? recipe.error().problems : request.error().problems)
      problems.push_back({"--precisions", problem.message});
  }
  if (!problems.empty()) return fail(std::move(problems));
  if (recipes.empty())
    for (const PrecisionRecipe& recipe : context.catalog.precisions) recipes.push_back(&recipe);
  return recipes;
}

}  // namespace

Result<Output> run_compare(const Arguments& arguments, const Context& context) {
  PRECOG_TRY(json, request_json(arguments));
  json["precision"] = "fp32";  // every GPU has it: enough to check the rest of the request
  auto probe = parse_request(json, context.catalog, request_name(arguments));
  if (!probe) return tl::unexpected(with_flag_names(probe.error(), arguments));
  PRECOG_TRY(recipes, precisions_to_compare(arguments, context, json));

  std::vector<Report> reports;
  std::vector<LeftOut> left_out;
  Error first_error;
  for (const PrecisionRecipe* recipe : recipes) {
    if (arguments.precisions.empty() && repeats_fp32(*recipe, *probe->gpu)) {
      left_out.push_back({recipe->name, fmt::format("the same as fp32: {} has no TF32", probe->gpu->name)});
      continue;
    }
    json["precision"] = recipe->name;
    auto request = parse_request(json, context.catalog, request_name(arguments));
    auto prediction = request ? predict(*request, context.catalog) : Result<Prediction>(tl::unexpected(request.error()));
    if (prediction) {
      reports.push_back(std::move(prediction->report));
      continue;
    }
    if (first_error.problems.empty()) first_error = with_flag_names(prediction.error(), arguments);
    std::string missing = request ? "" : missing_hardware(*recipe, *probe->gpu);
    left_out.push_back({recipe->name, missing.empty() ? prediction.error().text() : missing});
  }
  if (reports.empty()) return tl::unexpected(first_error);

  Comparison comparison = make_comparison(std::move(reports), std::move(left_out));
  Output out;
  out.code = comparison.any_fits() ? kDone : kDoesNotFit;
  if (!arguments.html.empty())
    out.files.push_back(
        {arguments.html, arguments.html.ends_with(".svg") ? comparison_svg(comparison) : comparison_html(comparison)});
  out.text = arguments.json ? json_document(to_json(comparison)) : compare_text(comparison, context.style);
  return out;
}

}  // namespace precog::cli
