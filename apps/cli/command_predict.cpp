#include "cli.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include <fmt/format.h>

#include "base/text.h"
#include "job_flags.h"
#include "predict/fit.h"
#include "predict/predict.h"
#include "predict/scale.h"
#include "report/html_report.h"
#include "report/svg.h"
#include "report/text_report.h"
#include "report/trace.h"

namespace precog::cli {
namespace {

constexpr std::int64_t kMostGpus = 1 << 20;

// "1..65536": doubling numbers of GPUs from the first to the second.
Result<std::pair<std::int64_t, std::int64_t>> range_of(const std::string& text) {
  const std::size_t dots = text.find("..");
  if (dots == std::string::npos) return fail("--scale", fmt::format("is '{}'; it wants two numbers of GPUs, as in 1..65536", text.substr(0, 40)));
  PRECOG_TRY(from, whole_number(text.substr(0, dots), "--scale"));
  PRECOG_TRY(to, whole_number(text.substr(dots + 2), "--scale"));
  if (from < 1 || to < from || to > kMostGpus) return fail("--scale", fmt::format("is {}..{}; it wants 1 <= A <= B <= {}", from, to, kMostGpus));
  return std::pair{from, to};
}

// On a terminal, from a second on: that something is being done.
class Notice {
 public:
  explicit Notice(bool shown) {
    if (!shown) return;
    waiting_ = std::jthread([this](std::stop_token stop) {
      std::unique_lock lock(mutex_);
      if (woken_.wait_for(lock, stop, std::chrono::seconds(1), [] { return false; }) || stop.stop_requested()) return;
      said_ = true;
      fmt::print(stderr, "looking for what fits ...");
    });
  }
  Notice(const Notice&) = delete;
  Notice& operator=(const Notice&) = delete;
  ~Notice() {
    if (!waiting_.joinable()) return;
    waiting_.request_stop();
    waiting_.join();
    if (said_) fmt::print(stderr, "\r\x1b[K");
  }

 private:
  std::mutex mutex_;
  std::condition_variable_any woken_;
  bool said_ = false;
  std::jthread waiting_;
};

Result<Output> run_scale(const Arguments& arguments, const Context& context) {
  for (const auto& [flag, given] : {std::pair{"--trace", !arguments.trace.empty()}, {"--dump-after", !arguments.dump_after.empty()},
                                    {"--gpus", arguments.flags.contains("--gpus")}, {"--dp", arguments.flags.contains("--dp")}, {"--max-batch", arguments.max_batch}})
    if (given) return fail(flag, "does not go with --scale, which predicts many numbers of GPUs");
  PRECOG_TRY(range, range_of(arguments.scale));
  PRECOG_TRY(json, request_json(arguments));
  auto study = scale(json, context.catalog, request_name(arguments), request_folder(arguments), range.first, range.second);
  if (!study) return tl::unexpected(with_flag_names(study.error(), arguments));
  Output out;
  const bool fits = std::any_of(study->points.begin(), study->points.end(), [](const ScalePoint& point) { return point.report && point.report->memory.fits; });
  out.code = fits ? kDone : kDoesNotFit;  // as long as one number of GPUs will do
  if (!arguments.html.empty()) out.files.push_back({arguments.html, arguments.html.ends_with(".svg") ? scale_svg(*study) : scale_html(*study)});
  out.text = arguments.json ? json_document(to_json(*study)) : scale_text(*study, context.style);
  return out;
}

}  // namespace

Result<Output> run_predict(const Arguments& arguments, const Context& context) {
  if (!arguments.dump_after.empty()) {
    const auto& stages = stage_names();
    if (std::find(stages.begin(), stages.end(), arguments.dump_after) == stages.end())
      return fail("--dump-after",
                  fmt::format("'{}' is no stage; the stages are {}", arguments.dump_after.substr(0, 40), join(stages, ", ")));
    if (arguments.json) return fail("--dump-after", "prints a stage as text; leave out --json");
    if (arguments.max_batch) return fail("--dump-after", "prints a stage of one prediction; leave out --max-batch");
  }
  if (!arguments.scale.empty()) return run_scale(arguments, context);
  PRECOG_TRY(json, request_json(arguments));
  if (arguments.max_batch) json["max_batch"] = true;
  if (arguments.print_request) {
    auto echo = echo_job(json, context.catalog, request_name(arguments), request_folder(arguments));
    if (!echo) return tl::unexpected(with_flag_names(echo.error(), arguments));
    return Output{.text = json_document(*echo)};
  }
  const Notice notice(context.progress);
  auto predicted = predict_job(json, context.catalog, request_name(arguments), request_folder(arguments), arguments.dump_after);
  if (!predicted) return tl::unexpected(with_flag_names(predicted.error(), arguments));
  Prediction& prediction = *predicted;
  const Report& report = prediction.report;
  if (arguments.json || !arguments.trace.empty() || !arguments.html.empty()) draw_memory(prediction);

  Output out;
  out.code = report.memory.fits ? kDone : kDoesNotFit;
  TimelineParts parts{prediction.graph, prediction.program, prediction.costs, prediction.schedule, prediction.timeline};
  if (!arguments.trace.empty()) {
    const std::string title = fmt::format("{} {} on {}", report.model, report.precision, report.gpu);
    out.files.push_back({arguments.trace, prediction.pipeline ? pipeline_trace(*prediction.pipeline, title, report.memory_points, report.memory_stage) : chrome_trace(parts, title, report.memory_points, report.micro_batches)});
  }
  if (!arguments.html.empty()) {
    bool picture = arguments.html.ends_with(".svg");
    out.files.push_back({arguments.html, picture               ? breakdown_svg(report)
                                         : prediction.pipeline ? report_html(report, *prediction.pipeline)
                                                               : report_html(report, timeline_view(parts, kTimelineBins, report.micro_batches))});
  }
  if (!arguments.dump_after.empty()) out.text = prediction.dump;
  else if (arguments.json) out.text = json_document(to_json(report));
  else out.text = text_report(report, context.style);
  if (!out.text.empty() && out.text.back() != '\n') out.text += '\n';
  return out;
}

}  // namespace precog::cli
