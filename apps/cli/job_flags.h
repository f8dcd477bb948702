// The flags that describe a job: one table says what each is called, where it goes in the request, how its value is
// read and what completes it. The job file is read first; flags override it.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "cli.h"

namespace precog::cli {

enum class ValueKind { text, whole, number, truth, list };  // a list: the flag may be given several times

struct JobFlag {
  const char* flag;     // "--gpus"
  const char* pointer;  // "/cluster/gpus" in the request
  ValueKind kind;
  const char* value;  // what help calls the value
  const char* group;  // heading in help
  const char* help;
  const char* complete;  // a kind for `precog __names`, "a|b|c" for fixed words, or nothing
};

std::span<const JobFlag> job_flags();

// The request that the job file and the flags say. Flags alone suffice.
Result<Json> request_json(const Arguments& arguments);
// What messages about the request call it.
std::string request_name(const Arguments& arguments);
// What paths in the request are relative to: the job file's folder, but for a --model of the command line.
std::filesystem::path request_folder(const Arguments& arguments);
// Problems of fields that a flag gave are put under the flag's name.
Error with_flag_names(Error error, const Arguments& arguments);

// The whole text must be a number: "8", "1e12" (for a whole number too, when it is one).
Result<std::int64_t> whole_number(const std::string& text, const std::string& where);
Result<double> any_number(const std::string& text, const std::string& where);

}  // namespace precog::cli
