#include "cli.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/text.h"
#include "job_flags.h"
#include "predict/fit.h"
#include "report/html_report.h"
#include "report/svg.h"
#include "report/text_report.h"
#include "report/trace.h"

namespace precog::cli {

Result<Output> run_predict(const Arguments& arguments, const Context& context) {
  if (!arguments.dump_after.empty()) {
    const auto& stages = stage_names();
    if (std::find(stages.begin(), stages.end(), arguments.dump_after) == stages.end())
      return fail("--dump-after",
                  fmt::format("'{}' is no stage; the stages are {}", arguments.dump_after.substr(0, 40), join(stages, ", ")));
    if (arguments.json) return fail("--dump-after", "prints a stage as text; leave out --json");
    if (arguments.max_batch) return fail("--dump-after", "prints a stage of one prediction; leave out --max-batch");
  }
  PRECOG_TRY(json, request_json(arguments));
  if (arguments.max_batch) json["max_batch"] = true;
  auto predicted = predict_job(json, context.catalog, request_name(arguments), request_folder(arguments), arguments.dump_after);
  if (!predicted) return tl::unexpected(with_flag_names(predicted.error(), arguments));
  Prediction& prediction = *predicted;
  const Report& report = prediction.report;

  Output out;
  out.code = report.memory.fits ? kDone : kDoesNotFit;
  TimelineParts parts{prediction.graph, prediction.program, prediction.costs, prediction.schedule, prediction.timeline};
  if (!arguments.trace.empty())
    out.files.push_back(
        {arguments.trace, chrome_trace(parts, fmt::format("{} {} on {}", report.model, report.precision, report.gpu), report.memory_points)});
  if (!arguments.html.empty()) {
    bool picture = arguments.html.ends_with(".svg");
    out.files.push_back({arguments.html, picture ? breakdown_svg(report) : report_html(report, timeline_view(parts))});
  }
  if (!arguments.dump_after.empty()) out.text = prediction.dump;
  else if (arguments.json) out.text = json_document(to_json(report));
  else out.text = text_report(report, context.style);
  if (!out.text.empty() && out.text.back() != '\n') out.text += '\n';
  return out;
}

}  // namespace precog::cli
