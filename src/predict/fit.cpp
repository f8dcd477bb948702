#include "predict/fit.h"

#include <fmt/format.h>

#include "predict/fix_largest.h"
#include "predict/fix_search.h"
#include "predict/largest_batch.h"

namespace precog {

constexpr std::size_t kFixesShown = 8;

namespace {

// A request without what it asks of its memory, and that.
struct JobParts {
  Json job;
  bool largest = false, fixes = true;
};

Result<JobParts> parts_of_job(const Json& request, const std::string& where) {
  JobParts out{.job = request};
  for (auto [key, value] : {std::pair{"max_batch", &out.largest}, {"fixes", &out.fixes}}) {
    if (!out.job.is_object() || !out.job.contains(key)) continue;
    if (!out.job[key].is_boolean()) return fail(fmt::format("{}.{}", where, key), "wants true or false");
    *value = out.job[key].get<bool>();
    out.job.erase(key);
  }
  return out;
}

}  // namespace

Result<Json> echo_job(const Json& request, const Catalog& catalog, const std::string& where, const std::filesystem::path& folder) {
  PRECOG_TRY(parts, parts_of_job(request, where));
  auto& [job, largest, fixes] = parts;
  if (largest) job.erase("batch");
  PRECOG_TRY(parsed, parse_request(job, catalog, where, folder, largest ? 1 : 0));
  Json echo = std::move(parsed.echo);
  if (largest) {  // a batch that was not asked for would be a limit
    echo.erase("batch");
    if (!job.contains("global_batch")) echo.erase("global_batch");
    if (job.contains("micro_batches")) echo["micro_batches"] = job["micro_batches"];
    echo["max_batch"] = true;
  }
  if (!fixes) echo["fixes"] = false;
  return echo;
}

Result<Prediction> predict_job(const Json& request, const Catalog& catalog, const std::string& where, const std::filesystem::path& folder,
                               std::string_view dump_after) {
  PRECOG_TRY(parts, parts_of_job(request, where));
  auto& [job, largest, fixes] = parts;
  const auto run = [&](const JobParts& of) -> Result<Prediction> {
    if (of.largest) return predict_largest_batch(of.job, catalog, where, folder);
    PRECOG_TRY(parsed, parse_request(of.job, catalog, where, folder));
    return predict(parsed, catalog, dump_after);
  };
  PRECOG_TRY(prediction, run(parts));
  if (largest && job.contains("batch"))
    prediction.report.warnings.push_back(fmt::format("batch {} is not used: the largest that fits was asked for (max_batch)", job["batch"].dump().substr(0, 40)));
  if (largest && job.contains("global_batch") && job.contains("micro_batches"))
    prediction.report.warnings.push_back(fmt::format("max_batch had one batch to try: a global batch of {} in {} micro-batches is {} per GPU; leave one of them out for others", prediction.report.global_batch,
                                                     prediction.report.micro_batches, prediction.report.batch));
  prediction.report.fixes_sought = fixes;
  if (!fixes || prediction.report.memory.fits) return prediction;
  Json asked = job;
  if (largest) asked["batch"] = prediction.report.batch;
  prediction.report.fixes = search_fixes(asked, prediction.report, catalog, where, folder, kFixesShown);
  if (largest) prediction.report.fixes = at_their_largest(std::move(prediction.report.fixes), job, prediction.report, catalog, where, folder);
  return prediction;
}

}  // namespace precog
