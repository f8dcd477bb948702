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

// PyTorch's default differs from fp32 in TF32 alone: where there is no TF32, its row would be fp32's again.
bool repeats_fp32(const std::string& precision, const GpuSpec& gpu) {
  return precision == "fp32-default" && !gpu.matrix.has(DType::tf32);
}

// The precisions asked for, else those the GPU has hardware for, else (emulation allowed) all.
Result<std::vector<std::string>> precisions_to_compare(const Arguments& arguments, const Context& context, const Request& request) {
  std::vector<std::string> names;
  std::vector<Problem> problems;
  for (const std::string& name : arguments.precisions) {
    auto recipe = context.catalog.precision(name);
    if (recipe) names.push_back((*recipe)->name);
    else problems.push_back({"--precisions", recipe.error().text()});
  }
  if (!problems.empty()) return fail(std::move(problems));
  if (!names.empty()) return names;
  if (request.allow_emulated)
    for (const PrecisionRecipe& recipe : context.catalog.precisions) names.push_back(recipe.name);
  else
    for (const PrecisionRecipe* recipe : supported_precisions(context.catalog, *request.gpu)) names.push_back(recipe->name);
  return names;
}

}  // namespace

Result<Output> run_compare(const Arguments& arguments, const Context& context) {
  PRECOG_TRY(json, request_json(arguments));
  json["precision"] = "fp32";  // every GPU has it: enough to check the rest of the request
  auto probe = parse_request(json, context.catalog, request_name(arguments));
  if (!probe) return tl::unexpected(with_flag_names(probe.error(), arguments));
  PRECOG_TRY(names, precisions_to_compare(arguments, context, *probe));

  std::vector<Report> reports;
  std::vector<LeftOut> left_out;
  Error first_error;
  for (const std::string& name : names) {
    if (arguments.precisions.empty() && repeats_fp32(name, *probe->gpu)) {
      left_out.push_back({name, fmt::format("the same as fp32 here: {} has no TF32", probe->gpu->name)});
      continue;
    }
    json["precision"] = name;
    auto request = parse_request(json, context.catalog, request_name(arguments));
    auto prediction = request ? predict(*request, context.catalog) : Result<Prediction>(tl::unexpected(request.error()));
    if (prediction) {
      reports.push_back(std::move(prediction->report));
      continue;
    }
    if (first_error.problems.empty()) first_error = with_flag_names(prediction.error(), arguments);
    left_out.push_back({name, prediction.error().text()});
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
