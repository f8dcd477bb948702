#include "cli.h"

#include <cstdio>
#include <thread>

#include <fmt/format.h>

#include "predict/predict.h"
#include "validate/validate.h"

namespace precog::cli {
namespace {

constexpr std::size_t kShowProgressFrom = 50;  // rows; fewer are done before anyone wonders

Result<std::vector<std::string>> checked_groups(const std::vector<std::string>& by) {
  for (const std::string& name : by)
    for (char c : name)
      if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '+'))
        return fail("--by", fmt::format("'{}' is not a field; like: precision, gpu, model, regime, cluster.gpus, precision+gpu",
                                        name.substr(0, 40)));
  return by;
}

}  // namespace

Result<Output> run_validate(const Arguments& arguments, const Context& context) {
  PRECOG_TRY(text, read_text_file(arguments.runs_file));
  PRECOG_TRY(file, parse_runs(text, arguments.runs_file));
  ValidateOptions options;
  if (!arguments.by.empty()) {
    PRECOG_TRY(by, checked_groups(arguments.by));
    options.by = std::move(by);
  }
  options.jobs = std::max(1u, std::thread::hardware_concurrency());
  bool progress = context.progress && file.runs.size() > kShowProgressFrom;
  if (progress)
    options.progress = [](std::size_t done, std::size_t all) {
      if (done % 10 == 0 || done == all) fmt::print(stderr, "\r{} of {} runs predicted", done, all);
    };
  auto predictor = [&](const Json& json, const std::string& where) -> Result<Report> {
    PRECOG_TRY(request, parse_request(json, context.catalog, where, std::filesystem::path(arguments.runs_file).parent_path()));
    PRECOG_TRY(prediction, predict(request, context.catalog));
    return std::move(prediction.report);
  };
  ValidationReport report = validate_runs(file, predictor, options);
  if (progress) fmt::print(stderr, "\r\x1b[K");
  Output out;
  out.text = arguments.json ? json_document(to_json(report)) : to_text(report, context.style);
  return out;
}

}  // namespace precog::cli
