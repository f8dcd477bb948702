// The last simulated step as a Chrome trace, which Perfetto opens: host, compute stream, communication stream, memory.
#pragma once

#include <string>
#include <vector>

#include "report/report.h"
#include "report/timeline_view.h"

namespace precog {

// `memory`: the report's points, a counter track of stacked layers.
std::string chrome_trace(const TimelineParts& parts, const std::string& title, const std::vector<MemoryPoint>& memory = {}, std::int64_t micro_batches = 1);

}  // namespace precog
