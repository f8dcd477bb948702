#include "cli.h"

#include <fmt/format.h>

#include "base/text.h"
#include "job_flags.h"
#include "predict/advise.h"
#include "predict/compare.h"
#include "report/html_report.h"
#include "report/svg.h"
#include "report/text_report.h"

namespace precog::cli {

Result<Output> run_compare(const Arguments& arguments, const Context& context) {
  PRECOG_TRY(json, request_json(arguments));
  const std::string name = request_name(arguments);
  const std::filesystem::path folder = request_folder(arguments);
  CompareOptions options{.chosen = {}, .all = arguments.everything};
  for (const std::string& precision : arguments.precisions) options.chosen.emplace_back(precision);
  Json own = json.value("precision", Json());
  if (!options.chosen.empty()) {  // what is wrong with the rest of the job comes before what is wrong with a name
    json["precision"] = "fp32";
    if (auto probe = parse_request(json, context.catalog, name, folder); !probe) return tl::unexpected(with_flag_names(probe.error(), arguments));
    if (auto problems = wrong_precisions(json, options, context.catalog, "--precisions", folder); !problems.empty()) return fail(std::move(problems));
  }
  auto compared = compare_precisions(json, options, context.catalog, name, folder);
  if (!compared) return tl::unexpected(with_flag_names(compared.error(), arguments));
  Comparison& comparison = *compared;
  if (arguments.advise) {
    json["precision"] = own.is_null() ? Json(advised(comparison).precision) : own;
    auto advice = advise(json, comparison.reports, context.catalog, name, folder);
    if (!advice) return tl::unexpected(with_flag_names(advice.error(), arguments));
    comparison.advice = std::move(*advice);
  }
  Output out;
  out.code = comparison.any_fits() ? kDone : kDoesNotFit;
  if (!arguments.html.empty())
    out.files.push_back(
        {arguments.html, arguments.html.ends_with(".svg") ? comparison_svg(comparison) : comparison_html(comparison)});
  out.text = arguments.json ? json_document(to_json(comparison)) : compare_text(comparison, context.style);
  return out;
}

}  // namespace precog::cli
