// One job at several precisions: what `precog compare` shows. Takes a request as JSON (its "precision" is replaced) and the
// recipes to try, returns their reports, fastest first, and what was left out with the reason.
#pragma once

#include <string>
#include <vector>

#include "predict/predict.h"
#include "report/text_report.h"

namespace precog {

// `chosen`: the recipes somebody asked for by name; empty for every one of the catalog but those that would repeat another.
// An error when the job itself is wrong or no precision can be predicted.
Result<Comparison> compare_precisions(Json request, const std::vector<const PrecisionRecipe*>& chosen, const Catalog& catalog,
                                      const std::string& where, const std::filesystem::path& folder = {});

}  // namespace precog
