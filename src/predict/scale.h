// The same job at doubling numbers of GPUs: the data-parallel degree grows, everything else of the plan stays.
// Weak scaling unless the request fixes the global batch: each replica keeps its own share of the batch.
#pragma once

#include <filesystem>
#include <string>

#include "predict/request.h"
#include "report/scale_report.h"

namespace precog {

// Points that cannot be (fewer GPUs than one replica takes) are there with the reason. An error when none can.
Result<ScaleStudy> scale(const Json& request, const Catalog& catalog, const std::string& where, const std::filesystem::path& folder, std::int64_t from, std::int64_t to);

}  // namespace precog
