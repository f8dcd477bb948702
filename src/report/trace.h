// The last simulated step as a Chrome trace, which Perfetto opens: host, compute stream, communication stream.
#pragma once

#include <string>

#include "report/timeline_view.h"

namespace precog {

std::string chrome_trace(const TimelineParts& parts, const std::string& title);

}  // namespace precog
