// A request answered with what its memory asks for: the largest batch where "max_batch" is true, and, where the job does not
// fit, the changes that would make it fit. Everything is found by predicting changed requests; nothing is estimated by a factor.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "predict/predict.h"

namespace precog {

// What every door of `precog predict` answers with. "fixes": false leaves out the search for what would make a job fit.
// `request` may have "max_batch": true; its "batch" is then not used,
// which the report says, and may be absent. The prediction is at the batch found (at one sample where nothing fits).
Result<Prediction> predict_job(const Json& request, const Catalog& catalog, const std::string& where, const std::filesystem::path& folder = {},
                               std::string_view dump_after = {});

// The request as understood, with what it asks of its memory: one that gives the same answer again.
Result<Json> echo_job(const Json& request, const Catalog& catalog, const std::string& where, const std::filesystem::path& folder = {});

}  // namespace precog
