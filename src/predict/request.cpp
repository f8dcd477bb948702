#include "predict/request.h"

#include <algorithm>
#include <span>

#include <fmt/format.h>

#include "frontend/frozen.h"
#include "frontend/pad_vocabulary.h"
#include "import/import.h"
#include "precision/precision.h"
#include "predict/request_reader.h"

namespace precog {

Result<Request> RequestReader::read() {
  root_.integer("schema", 1, 1);
  for (const char* key : {"max_batch", "fixes"})  // taken out before, where they are answered (fit.h)
    if (root_.raw(key)) root_.problem(key, "is answered by `precog predict` alone: leave it out here");
  const Json* imported = root_.raw("imported");  // kept for the reader
  read_model();
  read_cluster();
  read_plan();
  read_batch();
  read_precision();
  settle_sharding();
  settle_offload();
  read_training();
  read_host();
  read_profile();
  read_input();
  read_run();
  root_.reject_unknown_keys();
  // Who imported a configuration knows batches by its names.
  if (const std::string names = imported ? batches_said_by(*imported) : std::string(); !names.empty())
    for (Problem& problem : problems_)
      if (problem.where.ends_with("batch") || problem.where.ends_with("micro_batches")) problem.message += fmt::format(" ({})", names);
  if (!problems_.empty()) return fail(std::move(problems_));
  echo();
  return std::move(request_);
}

Result<Request> parse_request(const Json& json, const Catalog& catalog, const std::string& where, const std::filesystem::path& folder,
                              std::int64_t default_batch, std::shared_ptr<const ModelSource> model) {
  if (!json.is_object() || !(json.contains("from") || json.contains("from_kind"))) return RequestReader(json, catalog, where, folder, default_batch, std::move(model)).read();
  PRECOG_TRY(whole, with_imports(json, where, folder));
  return RequestReader(whole, catalog, where, folder, default_batch, std::move(model)).read();
}

ModelInputs inputs_of_rank(const Request& request) {
  ModelInputs inputs = request.inputs;
  inputs.seq /= request.plan.cp;
  inputs.src_seq /= request.plan.cp;
  return inputs;
}

Result<Graph> build_forward(const Request& request, std::vector<char> left_out) {
  ModelInputs inputs = inputs_of_rank(request);
  inputs.left_out = std::move(left_out);
  PRECOG_TRY(built, request.model->build(inputs));
  if (request.pad_vocabulary > 1) {
    if (vocabulary_of(built) == 0) return fail("pad_vocabulary", fmt::format("does not apply: {} has no table of tokens with a linear layer of that many scores", request.model->name));
    built = pad_vocabulary(std::move(built), request.pad_vocabulary);
  }
  if (request.attention == Attention::flash || request.attention == Attention::flash1)
    for (std::size_t i = 0; i < built.ops.size(); ++i)
      if (auto* attention = std::get_if<AttentionAttributes>(&built.ops[built.ops.id_at(i)].attributes)) attention->backend = AttentionBackend::flash;
  PRECOG_TRY(graph, freeze(std::move(built), request.frozen));
  const std::span<const PrecisionRule> rules(request.precision->rules);
  std::vector<Problem> problems;
  for (std::string& message : unmatched_rules(graph, rules.last(std::min(request.own_rules, rules.size())))) problems.push_back({"overrides", std::move(message)});
  if (!problems.empty()) return fail(std::move(problems));
  return graph;
}

std::vector<const PrecisionRecipe*> supported_precisions(const Catalog& catalog, const GpuSpec& gpu) {
  std::vector<const PrecisionRecipe*> out;
  for (const PrecisionRecipe& recipe : catalog.precisions) {
    if (recipe.is_part) continue;
    const auto types = recipe.required_types();
    if (std::all_of(types.begin(), types.end(), [&](DType dtype) { return gpu.computes(dtype); })) out.push_back(&recipe);
  }
  return out;
}

}  // namespace precog
