// What would make a job faster: settings, sizes, precisions and overrides, each tried by predicting the changed request. Nothing is
// estimated by a factor; a change that this version refuses, or that saves nothing, is left out.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "predict/predict.h"
#include "report/advice_report.h"
#include "report/inspect_report.h"
#include "report/text_report.h"

namespace precog {

// `request` says the job with the precision it runs at now; `others` are its predictions at other precisions (may be empty).
Result<AdviceList> advise(const Json& request, const std::vector<Report>& others, const Catalog& catalog, const std::string& where,
                          const std::filesystem::path& folder = {});

// The precision that advice starts from when nobody says one: the fastest that fits and updates its weights in fp32.
const Report& advised(const Comparison& comparison);

// Overrides that would run in 16 bits what the recipe keeps in fp32, the dearest operators first, each predicted.
std::vector<WhatIf> fp32_what_ifs(const Json& request, const Prediction& prediction, const Catalog& catalog, const std::string& where,
                                  const std::filesystem::path& folder = {});

}  // namespace precog
