// Of a job that was asked for its largest batch and does not fit with one sample: what each change lets through. The changes are sought for one sample;
// what is listed is the largest batch with each, which is what the program answers when it is typed in.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "predict/predict.h"

namespace precog {

// `job`: as it was written, without its batch; `asked`: its report, of one sample. Cheapest first again.
std::vector<Fix> at_their_largest(std::vector<Fix> fixes, const Json& job, const Report& asked, const Catalog& catalog, const std::string& where, const std::filesystem::path& folder);

}  // namespace precog
