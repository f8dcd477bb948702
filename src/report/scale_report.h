// Views of one job at many numbers of GPUs: a table, JSON, a plot, a page.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "report/report.h"
#include "report/style.h"

namespace precog {

struct ScalePoint {
  std::int64_t gpus = 1, dp = 1;
  std::optional<Report> report;
  std::string problem;  // why there is none
};

struct ScaleStudy {
  bool strong = false;  // the global batch stays; else each replica's does
  std::vector<ScalePoint> points;

  const ScalePoint* first() const {  // what efficiencies are relative to
    for (const ScalePoint& point : points)
      if (point.report) return &point;
    return nullptr;
  }
  // Throughput per GPU over the first point's.
  double efficiency(const ScalePoint& point) const;
};

std::string scale_text(const ScaleStudy& scaling, const Style& style);
Json to_json(const ScaleStudy& scaling);  // a list, one entry per number of GPUs
std::string scale_svg(const ScaleStudy& scaling);
std::string scale_html(const ScaleStudy& scaling);

}  // namespace precog
