// The forward operators after the precision pass: the arithmetic of each, the casts that were put in, and why.
#pragma once

#include <string>

#include "base/json.h"
#include "graph/graph.h"
#include "report/style.h"

namespace precog {

struct InspectOptions {
  std::string title;        // "bert-large in amp-bf16"
  bool everything = false;  // every repeated layer, and views too
};

std::string inspect_text(const Graph& graph, const InspectOptions& options, const Style& style);
Json inspect_json(const Graph& graph);

// Operators whose arithmetic or result type differs between two precisions of one model, casts aside.
std::string diff_text(const Graph& a, const Graph& b, const std::string& name_a, const std::string& name_b,
                      const InspectOptions& options, const Style& style);
Json diff_json(const Graph& a, const Graph& b);

}  // namespace precog
