#include "cli.h"

#include <fmt/format.h>

#include "job_flags.h"
#include "predict/advise.h"
#include "predict/predict.h"
#include "report/diff_report.h"
#include "report/inspect_report.h"

namespace precog::cli {
namespace {

struct Looked {
  Json json;
  Prediction prediction;
  Inspection inspection;
  std::string gpu;
  Inspected view(std::vector<WhatIf> what_ifs = {}) const { return {prediction.graph, inspection, prediction.report, std::move(what_ifs)}; }
};

// What the precision pass decides depends on the GPU: whether there is TF32, and which attention kernels take the types. So do the
// costs. A precision without hardware there is still shown, as emulated.
Result<Looked> look(const std::string& precision, const Arguments& arguments, const Context& context) {
  PRECOG_TRY(json, request_json(arguments));
  if (!precision.empty()) json["precision"] = precision;
  json["allow_emulated"] = true;
  if (json.contains("imported")) {  // the operators of the whole model on one GPU, whatever plan the configuration has
    for (const char* key : {"plan", "global_batch", "micro_batches", "recompute_layers"}) json.erase(key);
    const Json gpu = json.contains("cluster") && json["cluster"].is_object() ? json["cluster"].value("gpu", Json()) : Json();
    json["cluster"] = {{"gpu", gpu.is_null() ? Json(kInspectedGpu) : gpu}};
  }
  if (!json.contains("cluster")) json["cluster"] = {{"gpu", kInspectedGpu}};
  const auto refused = [&](const Error& error) {
    Error named = with_flag_names(error, arguments);
    for (Problem& problem : named.problems)
      if (problem.where == "--model") problem.where = "GRAPH";
    return tl::unexpected(std::move(named));
  };
  auto request = parse_request(json, context.catalog, request_name(arguments), request_folder(arguments), /*default_batch=*/1);
  if (!request) return refused(request.error());
  json["batch"] = request->inputs.batch;
  auto predicted = predict(*request, context.catalog);
  if (!predicted) return refused(predicted.error());
  Prediction& prediction = *predicted;
  Inspection inspection = inspect_step(prediction.graph, prediction.program, prediction.costs, prediction.report.micro_batches);
  return Looked{std::move(json), std::move(prediction), std::move(inspection), request->gpu->name};
}

// The two precisions of a comparison were given with --diff.
Result<Looked> named_diff(Result<Looked> looked) {
  if (!looked)
    for (Problem& problem : looked.error().problems)
      if (problem.where == "--precision" || problem.where.ends_with("precision")) problem.where = "--diff";
  return looked;
}

}  // namespace

Result<Output> run_inspect(const Arguments& given, const Context& context) {
  Arguments arguments = given;
  if (!given.name.empty()) arguments.flags["--model"] = given.name;
  else if (!given.flags.contains("--from")) return fail("GRAPH", "is missing: a model's name or file (or --from a configuration that has one)");
  Output out;
  InspectOptions options{"", given.everything};
  if (!given.diff.empty()) {
    const std::string &a = given.diff[0], &b = given.diff[1];
    PRECOG_TRY(first, named_diff(look(a, arguments, context)));
    PRECOG_TRY(second, named_diff(look(b, arguments, context)));
    options.title = fmt::format("{}: {} against {} on {}", given.name.empty() ? first.prediction.report.model : given.name, a, b, first.gpu);
    if (given.json) {
      Json json = diff_json(first.view(), second.view());
      json["gpu"] = first.gpu;
      out.text = json_document(json);
    } else {
      out.text = diff_text(first.view(), second.view(), options, context.style);
    }
    return out;
  }
  auto precision = given.flags.find("--precision");
  if (precision == given.flags.end() && !given.flags.contains("--from")) return fail("--precision", "is missing: a name from `precog precisions` (or --diff A B)");
  PRECOG_TRY(looked, look(precision == given.flags.end() ? "" : precision->second, arguments, context));
  options.title = fmt::format("{} in {} on {}", given.name.empty() ? looked.prediction.report.model : given.name, looked.prediction.report.precision, looked.gpu);
  const Inspected view = looked.view(fp32_what_ifs(looked.json, looked.prediction, context.catalog, request_name(arguments), request_folder(arguments)));
  if (given.json) {
    Json json = inspect_json(view);
    json["gpu"] = looked.gpu;
    out.text = json_document(json);
  } else {
    out.text = inspect_text(view, options, context.style);
  }
  return out;
}

}  // namespace precog::cli
