// What the image families share: their inputs and the shape of their data files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "frontend/families.h"

namespace precog::zoo {

struct ImageInputs {
  TensorId image, target;
};
ImageInputs image_inputs(GraphBuilder& b, const Sizes& sizes, std::int64_t side);

// "classes" and "image" (pixels a side).
void read_classifier(JsonReader& r, std::int64_t& classes, std::int64_t& image);

// An array of integers, or of arrays of integers flattened row by row; a wrong one is reported and comes back empty.
std::vector<std::int64_t> integers(JsonReader& r, std::string_view key, std::int64_t min, std::int64_t max, std::size_t row = 0);

}  // namespace precog::zoo
