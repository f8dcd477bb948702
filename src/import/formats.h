// The formats behind import.h, for this folder only: each turns settings into fields of a request and marks what it knew.
#pragma once

#include <filesystem>

#include "import/settings.h"

namespace precog {

struct ImportContext {
  bool model_wanted = true;
  std::filesystem::path folder;       // what paths in the file are relative to
  std::vector<std::string> programs;  // a command line's
  int depth = 0;                      // files that name files
  bool linked = false;                // another configuration names this one, and says what it leaves open
  Json request;                       // what is said beside the file

  // Whether the request itself says a field: "batch", or "plan.tp".
  bool said(std::string_view field) const;
  bool gpus_said() const;
};

Json from_deepspeed(Settings& s, const ImportContext& context);
Json from_megatron(Settings& s, const ImportContext& context);
Json from_torchtitan(Settings& s, const ImportContext& context);
Json from_accelerate(Settings& s, const ImportContext& context);
Json from_trainer(Settings& s, const ImportContext& context);
Json from_lightning(Settings& s, const ImportContext& context);

// Another file that a setting names (a DeepSpeed JSON in an Accelerate YAML), or an object in its place, as fields of a request;
// none where nothing is said.
Json linked_deepspeed(Settings& s, std::string_view key, const ImportContext& context);
// Fields of `from` that `into` has not.
void fill_in(Json& into, const Json& from);
// How a plan that was read so far shards; "none" where nothing was said, or what was said is a problem already.
std::string sharding_said(const Json& plan);
// An optimizer by the name that a framework or a class has for it; an error where it is none of ours.
void set_optimizer(Settings& s, std::string_view key, Json& request);

}  // namespace precog
