// A step's operators after the precision pass: the arithmetic of each, why, what it takes, the casts around it and what those
// take, ending in what a person can act on. Takes what a prediction made; knows nothing of requests.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "graph/graph.h"
#include "report/inspection.h"
#include "report/report.h"
#include "report/style.h"

namespace precog {

struct WhatIf {  // the same step with one more override, predicted
  std::string override_text;  // "op:layer_norm=bf16"
  Seconds step;
};

struct Inspected {
  const Graph& graph;  // of the whole step
  const Inspection& inspection;
  const Report& report;
  std::vector<WhatIf> what_ifs;
};

struct InspectOptions {
  std::string title;        // "bert-large in amp-bf16 on h100-sxm"
  bool everything = false;  // every repeated layer, and views too
};

std::string inspect_text(const Inspected& inspected, const InspectOptions& options, const Style& style);
Json inspect_json(const Inspected& inspected);

// Pieces that the side-by-side view shares.
std::string dtype_cell(const Graph& graph, const Op& op);  // "bf16", "fp32=bf16" where the result is stored as another type
std::string without_numbers(std::string_view path);        // "h.*.attn" for "h.0.attn" and "h.1.attn": the same place
std::string short_time(Seconds time);                      // three digits; nothing for nothing

}  // namespace precog
