#include "predict/fit.h"

#include <fmt/format.h>

#include "predict/fix_search.h"
#include "predict/largest_batch.h"

namespace precog {

constexpr std::size_t kFixesShown = 8;

Result<Prediction> predict_job(const Json& request, const Catalog& catalog, const std::string& where, const std::filesystem::path& folder,
                               std::string_view dump_after) {
  Json job = request;
  bool largest = false, fixes = true;
  for (auto [key, value] : {std::pair{"max_batch", &largest}, {"fixes", &fixes}}) {
    if (!job.is_object() || !job.contains(key)) continue;
    if (!job[key].is_boolean()) return fail(fmt::format("{}.{}", where, key), "wants true or false");
    *value = job[key].get<bool>();
    job.erase(key);
  }
  auto run = [&]() -> Result<Prediction> {
    if (largest) return predict_largest_batch(job, catalog, where, folder);
    PRECOG_TRY(parsed, parse_request(job, catalog, where, folder));
    return predict(parsed, catalog, dump_after);
  };
  PRECOG_TRY(prediction, run());
  if (largest && job.contains("batch"))
    prediction.report.warnings.push_back(fmt::format("batch {} is not used: the largest that fits was asked for (max_batch)", job["batch"].dump().substr(0, 40)));
  if (largest) job["batch"] = prediction.report.batch;
  prediction.report.fixes_sought = fixes;
  if (fixes && !prediction.report.memory.fits) prediction.report.fixes = search_fixes(job, prediction.report, catalog, where, folder, kFixesShown);
  return prediction;
}

}  // namespace precog
