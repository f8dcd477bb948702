// The cheapest combinations of changes that make a job fit. Plans are tried on few layers (fix_trials.h); from what each change did to those,
// plans near the cheapest are estimated, and what promises most is tried next; then every setting of the best is changed in turn (fix_walk.h). The cheapest of each kind are predicted
// whole and made as simple as they can be (fix_finish.h). Nothing of an estimate is reported.
#pragma once

#include "predict/fix_choices.h"
#include "predict/predict.h"

namespace precog {

// Cheapest first, at most `most`; empty where nothing that was tried helps. `base`: the job as asked for, which does not fit.
std::vector<Fix> search_fixes(const Json& request, const Report& base, const Catalog& catalog, const std::string& where,
                              const std::filesystem::path& folder, std::size_t most);

}  // namespace precog
