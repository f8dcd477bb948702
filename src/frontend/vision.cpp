#include "frontend/vision.h"

#include <fmt/format.h>

namespace precog::zoo {

ImageInputs image_inputs(GraphBuilder& b, const Sizes& sizes, std::int64_t side) {
  return {b.input("image", {sizes.batch, 3, side, side}), b.input("target", {sizes.batch}, DType::int64)};
}

void read_classifier(JsonReader& r, std::int64_t& classes, std::int64_t& image) {
  classes = r.required_integer("classes", 2, kMaxWidth);
  image = r.required_integer("image", 32, 4096);
}

std::vector<std::int64_t> integers(JsonReader& r, std::string_view key, std::int64_t min, std::int64_t max, std::size_t row) {
  const Json* array = r.raw(key);
  std::vector<std::int64_t> out;
  const std::string wanted = row == 0 ? fmt::format("wants an array of integers {}..{}", min, max)
                                      : fmt::format("wants rows of {} integers {}..{}", row, min, max);
  auto wrong = [&] {
    r.problem(key, wanted);
    return std::vector<std::int64_t>{};
  };
  auto take = [&](const Json& value) {
    if (!value.is_number_integer() || value.get<std::int64_t>() < min || value.get<std::int64_t>() > max) return false;
    out.push_back(value.get<std::int64_t>());
    return true;
  };
  if (!array || !array->is_array() || array->empty() || array->size() > 64) return wrong();
  for (const Json& entry : *array) {
    if (row == 0) {
      if (!take(entry)) return wrong();
      continue;
    }
    if (!entry.is_array() || entry.size() != row) return wrong();
    for (const Json& value : entry)
      if (!take(value)) return wrong();
  }
  return out;
}

}  // namespace precog::zoo
