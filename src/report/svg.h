// Pictures as SVG text: stacked bars of the step, memory against capacity, the timeline of one step.
// Each is a complete <svg> element with a title and a description, readable on light and dark pages.
#pragma once

#include <string>
#include <string_view>

#include "report/text_report.h"
#include "report/timeline_view.h"

namespace precog {

std::string escaped(std::string_view text);  // for XML text and attributes; control characters and bad UTF-8 replaced

std::string comparison_svg(const Comparison& comparison);
std::string breakdown_svg(const Report& report);
std::string memory_svg(const Report& report);
std::string memory_timeline_svg(const Report& report);  // stacked over one step; empty where the report has no timeline
std::string timeline_svg(const TimelineView& view);

}  // namespace precog
