// Freezing parameters of a forward graph, as `requires_grad_(False)` on them does: what they alone feed needs no gradient
// either. Patterns are matched against whole names: `*` any text (dots included), `?` any one character.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "graph/graph.h"

namespace precog {

// An error where a pattern matches no parameter, or where nothing is left to train.
Result<Graph> freeze(Graph graph, const std::vector<std::string>& patterns);

}  // namespace precog
