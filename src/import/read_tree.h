// Configuration files to one kind of value: JSON, TOML and YAML by the libraries that read them, command lines and shell scripts
// by our own reader of their flags. Scripts are read, never run: what a variable is set to in the same text is put in its place.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace precog {

Result<Json> parse_toml(std::string_view text, const std::string& where);
Result<Json> parse_yaml(std::string_view text, const std::string& where);

// Every "--flag value" of a text as an object, names without their dashes and with '-' between words. A flag without a value
// is true, one with several a list of texts; of one that is given twice the last counts, as argparse has it.
struct ShellFlags {
  Json flags = Json::object();
  std::vector<std::string> programs;  // words that end in ".py"
};
ShellFlags parse_flags(std::string_view text);  // any text has flags, or none

}  // namespace precog
