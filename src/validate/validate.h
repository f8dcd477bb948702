// Predicted against measured: errors overall and by group, errors of predicted speed-ups between precisions.
// The predictor is an argument, so that the arithmetic here is checked without one.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "report/report.h"
#include "report/style.h"
#include "validate/runs.h"

namespace precog {

// Called from several threads at once when jobs > 1. `where` names the run in messages.
using Predictor = std::function<Result<Report>(const Json& request, const std::string& where)>;

struct ValidateOptions {
  std::vector<std::string> by = {"precision"};  // any request field, "regime", "source"; a+b groups by both
  unsigned jobs = 1;
  std::function<void(std::size_t done, std::size_t all)> progress;  // called from one thread at a time
};

struct ErrorSummary {  // per cent of the measured value
  std::size_t rows = 0, predicted = 0;
  std::size_t oom = 0;  // of the predicted: ran out of memory when measured, so that there is no error to speak of
  std::optional<double> mape, median, p95, bias;  // absent without a prediction
};

struct GroupSummary : ErrorSummary {
  std::string by, value;  // "precision+gpu", "amp-bf16, h100-sxm"
};

struct SpeedupSummary {
  std::size_t pairs = 0;
  double median = 0, p95 = 0, bias = 0;
};

struct ValidatedRun {
  std::string id;
  std::optional<double> measured_s, predicted_s, error;  // error in per cent, positive when predicted too slow
  std::optional<double> measured_peak_bytes, predicted_peak_bytes;
  std::optional<double> predicted_filled;  // what the job needs of the device's memory, as a share of the capacity
  std::optional<bool> predicted_fits;
  std::map<std::string, Seconds> predicted_by_op_class;  // the report's
};

struct Count {
  std::size_t rows = 0, right = 0;
};

struct ValidationReport {
  ErrorSummary overall;
  std::vector<std::string> by;                     // as asked for
  std::map<std::string, GroupSummary> groups;      // "precision=amp-bf16"
  std::map<std::string, SpeedupSummary> speedups;  // "fp32->amp-bf16"
  std::vector<UnreadableRun> unpredicted;
  std::vector<ValidatedRun> runs;
  ErrorSummary memory, gpu_busy, kernels;  // of peak_bytes, gpu_busy_s and kernels, where measured
  Count interval;                 // measured steps inside the predicted 80% interval
  Count fits;                     // runs that ran, predicted to fit
  Count oom;                      // runs that ran out of memory, predicted not to fit
  std::vector<std::string> warnings;
};

ValidationReport validate_runs(const RunsFile& file, const Predictor& predictor, const ValidateOptions& options);

Json to_json(const ValidationReport& report);
std::string to_text(const ValidationReport& report, const Style& style);

// The group a run belongs to: "gpu-bound" from 0.9 of the step with a busy GPU, "host-bound" below 0.7.
std::string regime_of(const MeasuredRun& run);

}  // namespace precog
