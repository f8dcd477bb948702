// One model at two precisions side by side: what each operator runs in, by which rule, what it takes, and where the difference
// of the two steps comes from.
#pragma once

#include <string>

#include "report/inspect_report.h"

namespace precog {

std::string diff_text(const Inspected& a, const Inspected& b, const InspectOptions& options, const Style& style);
Json diff_json(const Inspected& a, const Inspected& b);

}  // namespace precog
