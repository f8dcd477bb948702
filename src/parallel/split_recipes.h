// A recorded gradient on one rank's part: where its tensors have the shape of an operand or a result that is split, they are.
#pragma once

#include <utility>
#include <vector>

#include "graph/graph.h"

namespace precog {

using Resized = std::vector<std::pair<Shape, Shape>>;  // the shape it was recorded with, and the rank's

Recipe resized_recipe(Recipe recipe, const Resized& resized);

}  // namespace precog
