// One job at several precisions: what `precog compare` shows. Takes a request as JSON (its "precision" is replaced) and the
// recipes to try, returns their reports, fastest first, and what was left out with the reason.
#pragma once

#include <string>
#include <vector>

#include "predict/predict.h"
#include "report/text_report.h"

namespace precog {

struct CompareOptions {
  // What somebody asked for, each as a request's "precision" may say it; empty: the catalog's listed recipes but for those
  // that would repeat another.
  std::vector<Json> chosen;
  bool all = false;  // the catalog's unlisted recipes too (apex, DeepSpeed, ...); never its parts
};

// An error when the job itself is wrong or no precision can be predicted.
Result<Comparison> compare_precisions(Json request, const CompareOptions& options, const Catalog& catalog, const std::string& where,
                                      const std::filesystem::path& folder = {});

// What is wrong with the names of `options.chosen`, each problem under `field`; an empty list when nothing is. Hardware that a
// GPU lacks is not wrong here: compare_precisions leaves such a row out and says why.
std::vector<Problem> wrong_precisions(Json request, const CompareOptions& options, const Catalog& catalog, const std::string& field,
                                      const std::filesystem::path& folder = {});

}  // namespace precog
