// One self-contained HTML page per report: inline styles and pictures, nothing fetched, light and dark.
#pragma once

#include <string>

#include "report/pipeline_view.h"
#include "report/text_report.h"
#include "report/timeline_view.h"

namespace precog {

std::string comparison_html(const Comparison& comparison);
std::string report_html(const Report& report, const TimelineView& timeline);
std::string report_html(const Report& report, const PipelineView& pipeline);

}  // namespace precog
