#include "spec/software_spec.h"

#include <fmt/format.h>

namespace precog {
namespace {

bool read_flag(JsonReader& file, const char* key) {
  const auto figure = file.sourced(key);
  if (!figure) return false;
  if (!figure->value.is_boolean()) file.problem(key, "wants true or false");
  return figure->value == true;
}

ClipReads read_clip(JsonReader& file) {
  const auto figure = file.sourced("clip_reads");
  if (!figure) return ClipReads::nothing;
  if (figure->value == "nothing") return ClipReads::nothing;
  if (figure->value == "norm") return ClipReads::norm;
  if (figure->value == "every norm") return ClipReads::every_norm;
  file.problem("clip_reads", "wants one of: nothing, norm, every norm");
  return ClipReads::nothing;
}

}  // namespace

Result<SoftwareSpec> parse_software(const Json& json, const std::string& where) {
  std::vector<Problem> problems;
  JsonReader file(json, where, problems);
  const Json* sources = file.raw("sources");
  if (sources && sources->is_object()) file.set_sources(sources);
  else file.problem("sources", "is missing: every figure needs a source");
  SoftwareSpec out;
  file.required_integer("schema", 1, 1);
  out.name = file.required_text("name");
  out.title = file.required_text("title");
  out.aliases = file.texts("aliases");
  out.tensor_by_tensor = read_flag(file, "tensor_by_tensor");
  out.zeroes_gradients = read_flag(file, "zeroes_gradients");
  out.clip_reads = read_clip(file);
  out.aligned_tensor_cores = read_flag(file, "aligned_tensor_cores");
  if (sources && sources->is_object())
    for (const auto& [key, source] : sources->items())
      if (source.is_string()) out.sources.push_back(source.get<std::string>());
  file.reject_unknown_keys();
  if (!problems.empty()) return fail(std::move(problems));
  return out;
}

}  // namespace precog
