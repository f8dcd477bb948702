// Of all changes that were found to make a job fit, those that are shown.
#pragma once

#include <optional>
#include <vector>

#include "report/fit_report.h"

namespace precog {

// Cheapest first, at most `most`. None that changes all that another changes, is no nearer to the same result, and is hardly cheaper; none many
// times dearer than another that is as near. `smaller`: the job with a smaller step.
std::vector<Fix> listed_fixes(std::vector<Fix> all, std::optional<Fix> smaller, std::size_t most);

}  // namespace precog
