// Configurations of training frameworks as requests: what they say of batch, precision, plan, recomputation, optimizer and, where
// they describe one, the model becomes the fields a request has for it. Nothing is guessed: a setting that nobody here knows is
// listed by name, one that is known to matter and cannot be modelled is an error that says why. GPUs are rarely named in such
// files: the request says them.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"

namespace precog {

struct Imported {
  std::string kind, title;             // "deepspeed", "DeepSpeed"
  Json request = Json::object();       // fields of a request, no more than the file says
  std::vector<std::string> notes;      // what was decided, and why
  std::vector<std::string> not_taken;  // settings that nobody here knows
  std::vector<std::string> quiet;      // known settings that change neither time nor memory here
  std::map<std::string, std::string> said_by;  // fields of batches -> the file's own names of them
};

// deepspeed megatron torchtitan accelerate trainer lightning
const std::vector<std::string>& import_kinds();

// `kind`: one of those; empty: told from the content. `model_wanted`: whether the file's model counts; where not, what it lacks for
// one is no error. `request`: what is said beside the file, and so need not be known from it.
Result<Imported> import_text(std::string_view text, const std::string& where, const std::string& kind = "", bool model_wanted = true,
                             const std::filesystem::path& folder = {}, const Json& request = Json());
Result<Imported> import_file(const std::filesystem::path& path, const std::string& shown, const std::string& kind = "", bool model_wanted = true);

// A request with "from" (a path, or several) as one without: fields that the files say and it does not itself. What was and was
// not taken over is kept in its "imported". Two files that contradict each other are an error; the request itself always wins.
Result<Json> with_imports(Json request, const std::string& where, const std::filesystem::path& folder);

// What a reader of the report should know of an "imported": notes, and what was not taken over. Anything that is no such list says
// nothing.
std::vector<std::string> import_notes(const Json& imported);

// "global_batch is train_batch_size of ds.json, ...": where a message about batches names the request's fields and files said them.
std::string batches_said_by(const Json& imported);

}  // namespace precog
