#include "cli.h"

#include <fmt/format.h>

#include "job_flags.h"
#include "predict/predict.h"
#include "report/inspect_report.h"

namespace precog::cli {
namespace {

// The precision pass knows nothing of GPUs, so any will do, and hardware support does not matter here.
Result<Graph> graph_in(const std::string& precision, const Arguments& arguments, const Context& context) {
  PRECOG_TRY(json, request_json(arguments));
  json["precision"] = precision;
  json["allow_emulated"] = true;
  if (!json.contains("batch")) json["batch"] = 1;
  if (!json.contains("cluster")) json["cluster"] = {{"gpu", context.catalog.gpus.front().name}};
  auto request = parse_request(json, context.catalog, request_name(arguments));
  if (!request) {
    Error error = with_flag_names(request.error(), arguments);
    for (Problem& problem : error.problems)
      if (problem.where == "--model") problem.where = "GRAPH";
    return tl::unexpected(std::move(error));
  }
  return forward_after_precision(*request);
}

}  // namespace

Result<Output> run_inspect(const Arguments& given, const Context& context) {
  Arguments arguments = given;
  arguments.flags["--model"] = given.name;
  Output out;
  InspectOptions options{"", given.everything};
  if (!given.diff.empty()) {
    const std::string &a = given.diff[0], &b = given.diff[1];
    PRECOG_TRY(graph_a, graph_in(a, arguments, context));
    PRECOG_TRY(graph_b, graph_in(b, arguments, context));
    options.title = fmt::format("{}: {} against {}", given.name, a, b);
    out.text = given.json ? json_document(diff_json(graph_a, graph_b)) : diff_text(graph_a, graph_b, a, b, options, context.style);
    return out;
  }
  auto precision = given.flags.find("--precision");
  if (precision == given.flags.end()) return fail("--precision", "is missing: a name from `precog precisions` (or --diff A B)");
  PRECOG_TRY(graph, graph_in(precision->second, arguments, context));
  options.title = fmt::format("{} in {}", given.name, precision->second);
  out.text = given.json ? json_document(inspect_json(graph)) : inspect_text(graph, options, context.style);
  return out;
}

}  // namespace precog::cli
