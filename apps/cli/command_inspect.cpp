#include "cli.h"

#include <fmt/format.h>

#include "job_flags.h"
#include "predict/predict.h"
#include "report/inspect_report.h"

namespace precog::cli {
namespace {

struct Decided {
  Graph graph;
  std::string gpu;
};

// What the precision pass decides depends on the GPU: whether there is TF32, and which attention kernels take the types.
// A precision without hardware there is still shown, as emulated.
Result<Decided> graph_in(const std::string& precision, const Arguments& arguments, const Context& context) {
  PRECOG_TRY(json, request_json(arguments));
  json["precision"] = precision;
  json["allow_emulated"] = true;
  if (!json.contains("cluster")) json["cluster"] = {{"gpu", kInspectedGpu}};
  auto request = parse_request(json, context.catalog, request_name(arguments), request_folder(arguments), /*default_batch=*/1);
  if (!request) {
    Error error = with_flag_names(request.error(), arguments);
    for (Problem& problem : error.problems)
      if (problem.where == "--model") problem.where = "GRAPH";
    return tl::unexpected(std::move(error));
  }
  PRECOG_TRY(graph, forward_after_precision(*request));
  return Decided{std::move(graph), request->gpu->name};
}

}  // namespace

Result<Output> run_inspect(const Arguments& given, const Context& context) {
  Arguments arguments = given;
  arguments.flags["--model"] = given.name;
  Output out;
  InspectOptions options{"", given.everything};
  if (!given.diff.empty()) {
    const std::string &a = given.diff[0], &b = given.diff[1];
    PRECOG_TRY(first, graph_in(a, arguments, context));
    PRECOG_TRY(second, graph_in(b, arguments, context));
    options.title = fmt::format("{}: {} against {} on {}", given.name, a, b, first.gpu);
    if (given.json) {
      Json json = diff_json(first.graph, second.graph);
      json["gpu"] = first.gpu;
      out.text = json_document(json);
    } else {
      out.text = diff_text(first.graph, second.graph, a, b, options, context.style);
    }
    return out;
  }
  auto precision = given.flags.find("--precision");
  if (precision == given.flags.end()) return fail("--precision", "is missing: a name from `precog precisions` (or --diff A B)");
  PRECOG_TRY(decided, graph_in(precision->second, arguments, context));
  options.title = fmt::format("{} in {} on {}", given.name, precision->second, decided.gpu);
  if (given.json) {
    Json json = inspect_json(decided.graph);
    json["gpu"] = decided.gpu;
    out.text = json_document(json);
  } else {
    out.text = inspect_text(decided.graph, options, context.style);
  }
  return out;
}

}  // namespace precog::cli
