// What reading any config.json needs, for hf_config.cpp and hf_families.cpp only: values by the file's own keys, written
// under the zoo's names, with both remembered so that a family's complaint comes back in the file's words.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace precog::hf {

enum class Head : std::uint8_t { language_model, masked, pretraining, classifier, translation };

struct Reader {
  Reader(const Json& config, const std::string& where, std::vector<Problem>& problems)
      : json(config), in(config, where, problems) {}

  const Json& json;
  JsonReader in;
  Json architecture = Json::object();         // in the zoo's words
  std::map<std::string, std::string> spelled; // the zoo's word -> the file's key
  std::vector<std::string> notes;
  Head head = Head::language_model;
  std::int64_t max_positions = 0;             // what the sequence may not pass, where positions are learned; else a default

  // The first of `keys` that is given (null is not), else the fallback; written under `name`.
  std::int64_t integer(const char* name, std::initializer_list<const char*> keys, std::int64_t fallback, std::int64_t min, std::int64_t max);
  bool boolean(const char* name, std::initializer_list<const char*> keys, bool fallback);
  double probability(const char* name, std::initializer_list<const char*> keys, double fallback);
  std::string activation(std::initializer_list<const char*> keys, const char* fallback);
  void set(const char* name, const char* key, Json value);  // decided by the caller from `key`

  bool given(const char* key) const;             // there, and not null
  bool null(const char* key) const;              // there, and null: some defaults tell this from absent
  void refuse(const char* key, bool asked, std::string_view what);  // a switch that no family here has
  // A number of rope_parameters (or the older rope_scaling), or at the top level.
  double rope_number(const char* key, double fallback);
  void read_rope_type();                         // sets dynamic_rotary where the frequencies follow the sequence
  // Which layers slide: the file's "layer_types", else `pattern`; written as sliding_layers.
  void sliding_layers(std::int64_t layers, bool (*pattern)(std::int64_t layer, std::int64_t parameter), std::int64_t parameter);
  void classes();                                // num_labels, or how many id2label names
};

// One model_type: what it may be called and how its keys are read.
struct Type {
  std::string_view name, family;
  std::vector<Head> heads;
  Head usual;                                    // where "architectures" names none
  void (*read)(Reader& r);
};
const std::vector<Type>& types();

}  // namespace precog::hf
