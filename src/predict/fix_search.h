// The cheapest combinations of changes that make a job fit. Each change alone is predicted; from what each does to the parts of
// memory and to time, combinations are estimated, and the cheapest that promise to fit are tried on few layers; from those that are
// tried, plans that differ in one or two settings are estimated anew, and so on. What remains is asked for its memory, cheapest first,
// and what fits is predicted whole. Nothing of an estimate is reported.
#pragma once

#include "predict/fix_choices.h"
#include "predict/predict.h"

namespace precog {

// Cheapest first, at most `most`; empty where nothing that was tried helps. `base`: the job as asked for, which does not fit.
std::vector<Fix> search_fixes(const Json& request, const Report& base, const Catalog& catalog, const std::string& where,
                              const std::filesystem::path& folder, std::size_t most);

}  // namespace precog
