#include "validate/validate.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <mutex>
#include <thread>

#include <fmt/format.h>

#include "base/text.h"

namespace precog {
namespace {

struct Pair {
  const MeasuredRun* run = nullptr;
  std::optional<Report> report;
  std::string reason;  // why there is no report
};

// Linear between the two nearest ranks, as NumPy and R do by default.
double percentile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  double at = share * static_cast<double>(values.size() - 1);
  auto low = static_cast<std::size_t>(at);
  if (low + 1 >= values.size()) return values.back();
  double weight = at - static_cast<double>(low);
  return values[low] * (1 - weight) + values[low + 1] * weight;
}

double per_cent(double predicted, double measured) { return 100 * (predicted / measured - 1); }

class Errors {
 public:
  void add(double signed_error) {
    magnitude_.push_back(std::abs(signed_error));
    sum_ += signed_error;
  }
  std::size_t size() const { return magnitude_.size(); }
  double median() const { return percentile(magnitude_, 0.5); }
  double p95() const { return percentile(magnitude_, 0.95); }
  double bias() const { return sum_ / static_cast<double>(size()); }
  double mape() const {
    double total = 0;
    for (double value : magnitude_) total += value;
    return total / static_cast<double>(size());
  }

 private:
  std::vector<double> magnitude_;
  double sum_ = 0;
};

struct Group {
  std::size_t rows = 0, predicted = 0, oom = 0;
  Errors errors;
  std::string by, value;
};

ErrorSummary summary(const Group& group) {
  ErrorSummary out{group.rows, group.predicted, group.oom, {}, {}, {}, {}};
  const Errors& errors = group.errors;
  if (errors.size() == 0) return out;
  out.mape = errors.mape();
  out.median = errors.median();
  out.p95 = errors.p95();
  out.bias = errors.bias();
  return out;
}

Pair predict_one(const MeasuredRun& run, const Predictor& predictor) {
  Pair pair{&run, {}, ""};
  try {
    auto report = predictor(run.request, "request");
    if (!report) pair.reason = report.error().text();
    else if (!run.oom && !(report->step.value > 0)) pair.reason = "this is a bug in precog: the predicted step is not positive";
    else pair.report = std::move(*report);
  } catch (const std::exception& error) {  // one bad row must not hide the others; the reason says whose fault it is
    pair.reason = fmt::format("this is a bug in precog: {}", error.what());
  }
  std::replace(pair.reason.begin(), pair.reason.end(), '\n', ';');
  return pair;
}

std::vector<Pair> predict_all(const std::vector<MeasuredRun>& runs, const Predictor& predictor, const ValidateOptions& options) {
  std::vector<Pair> pairs(runs.size());
  std::atomic<std::size_t> next{0};
  std::mutex reporting;
  std::size_t done = 0;
  auto work = [&] {
    for (std::size_t i = next++; i < runs.size(); i = next++) {
      pairs[i] = predict_one(runs[i], predictor);
      if (!options.progress) continue;
      std::lock_guard lock(reporting);
      options.progress(++done, runs.size());
    }
  };
  std::vector<std::jthread> helpers;
  for (unsigned i = 1; i < options.jobs && i < runs.size(); ++i) helpers.emplace_back(work);
  work();
  helpers.clear();
  return pairs;
}

std::string scalar_text(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_object() && value.contains("name") && value["name"].is_string()) return value["name"].get<std::string>();
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// A field by its name or dotted path: of the request as understood where there is one, so that aliases group together.
std::string field_of(const Pair& pair, const std::string& name) {
  if (name == "regime") return regime_of(*pair.run);
  if (name == "source") return pair.run->source.empty() ? "none" : pair.run->source;
  const std::string path = "/" + [&] {
    std::string out = name;
    std::replace(out.begin(), out.end(), '.', '/');
    return out;
  }();
  for (const Json* request : {pair.report ? &pair.report->request : nullptr, &pair.run->request}) {
    if (!request || !request->is_object()) continue;
    for (const char* inside : {"", "/cluster", "/plan", "/run"}) {
      Json::json_pointer pointer(inside + path);
      if (request->contains(pointer) && !(*request)[pointer].is_null()) return scalar_text((*request)[pointer]);
    }
  }
  return "none";
}

struct GroupName {
  std::string key, value;
};

GroupName group_name(const Pair& pair, const std::string& by) {
  GroupName name;
  std::size_t at = 0;
  while (at <= by.size()) {
    std::size_t end = std::min(by.find('+', at), by.size());
    std::string field = by.substr(at, end - at);
    const std::string value = field_of(pair, field);
    name.key += (at > 0 ? "," : "") + field + "=" + value;
    name.value += (at > 0 ? ", " : "") + value;
    at = end + 1;
  }
  return name;
}

int precision_rank(const std::string& name) {
  static const std::vector<std::string> kOrder = {
      "fp32",      "fp32-default",         "tf32", "bf16", "fp16", "amp-bf16", "amp-fp16", "bf16-master", "fp16-master",
      "fsdp-bf16", "fsdp-bf16-fp32reduce", "fp8"};
  auto it = std::find(kOrder.begin(), kOrder.end(), name);
  return static_cast<int>(it - kOrder.begin());
}

struct Mean {
  double measured = 0, predicted = 0;
  std::size_t count = 0;
};
using ByPrecision = std::map<std::pair<int, std::string>, Mean>;

// Runs equal in everything but precision. Repeats of one request count as their mean; runs of one source are paired
// among themselves before those of different sources are.
std::map<std::string, SpeedupSummary> speedups(const std::vector<Pair>& pairs) {
  std::map<std::string, std::map<std::string, ByPrecision>> jobs;  // request, then source
  for (const Pair& pair : pairs) {
    if (!pair.report || !pair.run->step_s || pair.run->oom) continue;
    // The request as understood, so that aliases and spelled-out defaults do not part what is equal; keys sorted.
    const Json& understood =
        pair.report->request.is_object() && !pair.report->request.empty() ? pair.report->request : pair.run->request;
    nlohmann::json job = nlohmann::json::parse(understood.dump(-1, ' ', false, Json::error_handler_t::replace));
    job.erase("precision");
    std::string precision = field_of(pair, "precision");
    Mean& mean = jobs[job.dump()][pair.run->source][{precision_rank(precision), precision}];
    mean.measured += *pair.run->step_s;
    mean.predicted += pair.report->step.value;
    ++mean.count;
  }
  std::map<std::string, Errors> errors;
  auto add_pairs = [&](const ByPrecision& times) {
    for (auto a = times.begin(); a != times.end(); ++a)
      for (auto b = std::next(a); b != times.end(); ++b) {
        auto ratio = [&](double Mean::*time) {
          return (a->second.*time / static_cast<double>(a->second.count)) /
                 (b->second.*time / static_cast<double>(b->second.count));
        };
        errors[a->first.second + "->" + b->first.second].add(per_cent(ratio(&Mean::predicted), ratio(&Mean::measured)));
      }
  };
  for (auto& [job, sources] : jobs) {
    ByPrecision alone;  // precisions that their source measured nothing to compare with
    for (auto& [source, times] : sources) {
      if (times.size() > 1) add_pairs(times);
      else {
        Mean& mean = alone[times.begin()->first];
        mean.measured += times.begin()->second.measured;
        mean.predicted += times.begin()->second.predicted;
        mean.count += times.begin()->second.count;
      }
    }
    add_pairs(alone);
  }
  std::map<std::string, SpeedupSummary> out;
  for (const auto& [name, error] : errors) out[name] = {error.size(), error.median(), error.p95(), error.bias()};
  return out;
}

// A block of steps begins with an idle GPU, which waits for the host once more than in a steady run: its mean step has a share of that.
void in_blocks(const MeasuredRun& run, Report& report) {
  if (!run.steps_per_block || !(report.step.value > 0)) return;
  const double longer = 1 + report.start_up / report.step / *run.steps_per_block;
  for (Seconds* time : {&report.step, &report.step_low, &report.step_high}) *time = *time * longer;
}

}  // namespace

std::string regime_of(const MeasuredRun& run) {
  if (!run.gpu_busy_s || !run.step_s) return "unknown";
  double busy = *run.gpu_busy_s / *run.step_s;
  return busy >= 0.9 ? "gpu-bound" : busy < 0.7 ? "host-bound" : "between";
}

ValidationReport validate_runs(const RunsFile& file, const Predictor& predictor, const ValidateOptions& options) {
  ValidationReport out;
  out.unpredicted = file.unreadable;
  out.warnings = file.warnings;
  std::vector<Pair> pairs = predict_all(file.runs, predictor, options);
  for (Pair& pair : pairs)
    if (pair.report) in_blocks(*pair.run, *pair.report);
  Group overall, memory, busy, kernels;
  overall.rows = file.rows();
  std::map<std::string, Group> groups;
  for (const Pair& pair : pairs) {
    const MeasuredRun& run = *pair.run;
    std::vector<Group*> mine = {&overall};
    for (const std::string& by : options.by) {
      GroupName name = group_name(pair, by);
      Group& group = groups[name.key];
      group.by = by;
      group.value = name.value;
      ++group.rows;
      mine.push_back(&group);
    }
    ValidatedRun row{run.id, run.step_s, {}, {}, run.peak_bytes, {}};
    memory.rows += run.peak_bytes.has_value();
    busy.rows += run.gpu_busy_s.has_value();
    kernels.rows += run.kernels.has_value();
    if (!pair.report) {
      out.unpredicted.push_back({run.id, pair.reason});
      out.runs.push_back(row);
      continue;
    }
    const Report& report = *pair.report;
    for (Group* group : mine) {
      ++group->predicted;
      group->oom += run.oom;
    }
    row.predicted_s = report.step.value;
    row.predicted_peak_bytes = static_cast<double>(report.memory.peak.value);
    row.predicted_by_op_class = report.by_op_class;
    row.predicted_fits = report.memory.fits;
    if (report.memory.capacity.value > 0) row.predicted_filled = static_cast<double>(report.memory.device.value) / static_cast<double>(report.memory.capacity.value);
    Count& fits = run.oom ? out.oom : out.fits;
    ++fits.rows;
    fits.right += report.memory.fits != run.oom;
    if (!run.oom) {
      if (run.step_s) {
        row.error = per_cent(report.step.value, *run.step_s);
        for (Group* group : mine) group->errors.add(*row.error);
        ++out.interval.rows;
        out.interval.right += *run.step_s >= report.step_low.value && *run.step_s <= report.step_high.value;
      }
      if (run.gpu_busy_s) {
        ++busy.predicted;
        busy.errors.add(per_cent(report.gpu_busy.value, *run.gpu_busy_s));
      }
      if (run.kernels) {
        ++kernels.predicted;
        kernels.errors.add(per_cent(static_cast<double>(report.kernels), *run.kernels));
      }
      if (run.peak_bytes) {
        ++memory.predicted;
        memory.errors.add(per_cent(*row.predicted_peak_bytes, *run.peak_bytes));
      }
    }
    out.runs.push_back(row);
  }
  out.overall = summary(overall);
  out.memory = summary(memory);
  out.gpu_busy = summary(busy);
  out.kernels = summary(kernels);
  out.by = options.by;
  for (const auto& [name, group] : groups) out.groups[name] = {summary(group), group.by, group.value};
  out.speedups = speedups(pairs);
  return out;
}

}  // namespace precog
