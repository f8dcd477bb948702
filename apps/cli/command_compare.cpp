#include "cli.h"

#include <fmt/format.h>

#include "base/text.h"
#include "job_flags.h"
#include "predict/compare.h"
#include "report/html_report.h"
#include "report/svg.h"
#include "report/text_report.h"

namespace precog::cli {
namespace {

// The precisions asked for; none means all. The request knows best what is wrong with a name.
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
    auto request = parse_request(json, context.catalog, request_name(arguments), request_folder(arguments));
    for (const Problem& problem : request ? recipe.error().problems : request.error().problems)
      problems.push_back({"--precisions", problem.message});
  }
  if (!problems.empty()) return fail(std::move(problems));
  return recipes;
}

}  // namespace

Result<Output> run_compare(const Arguments& arguments, const Context& context) {
  PRECOG_TRY(json, request_json(arguments));
  if (!arguments.precisions.empty()) {  // what is wrong with the rest of the job comes before what is wrong with a name
    json["precision"] = "fp32";
    if (auto probe = parse_request(json, context.catalog, request_name(arguments), request_folder(arguments)); !probe)
      return tl::unexpected(with_flag_names(probe.error(), arguments));
  }
  PRECOG_TRY(recipes, precisions_to_compare(arguments, context, json));
  auto compared = compare_precisions(std::move(json), recipes, context.catalog, request_name(arguments), request_folder(arguments));
  if (!compared) return tl::unexpected(with_flag_names(compared.error(), arguments));
  const Comparison& comparison = *compared;
  Output out;
  out.code = comparison.any_fits() ? kDone : kDoesNotFit;
  if (!arguments.html.empty())
    out.files.push_back(
        {arguments.html, arguments.html.ends_with(".svg") ? comparison_svg(comparison) : comparison_html(comparison)});
  out.text = arguments.json ? json_document(to_json(comparison)) : compare_text(comparison, context.style);
  return out;
}

}  // namespace precog::cli
