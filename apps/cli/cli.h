// What the command line says, and what a command answers. Commands are functions from arguments and the catalog to
// an Output; only main.cpp writes anything.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "predict/catalog.h"
#include "report/style.h"

namespace precog::cli {

enum ExitCode : int { kDone = 0, kOurBug = 1, kWrongInput = 2, kDoesNotFit = 3 };

struct Arguments {
  std::string command;                       // "predict"; empty when there is nothing left to do
  std::map<std::string, std::string> flags;  // flags that describe the job, by name: {"--batch", "32"}
  std::string job_file, runs_file, name, shell;
  std::string trace, html, dump_after, scale, data_dir, colour = "auto";
  std::vector<std::string> precisions, diff, by, measurements, nccl;
  std::string cluster;  // of calibrate --nccl
  std::string gpu, out, report, base;  // of calibrate
  bool json = false, everything = false, advise = false, max_batch = false, print_request = false;
};

// The GPU of `inspect` when none is named; its headline says which it was.
inline constexpr const char* kInspectedGpu = "h100-sxm";

struct Output {
  std::string text;             // for standard output
  std::vector<TextFile> files;  // written before it, all or none
  int code = kDone;
};

struct Context {
  const Catalog& catalog;
  std::filesystem::path data_dir;
  Style style;
  bool progress = false;  // standard error is a terminal
};

Result<Output> run_predict(const Arguments& arguments, const Context& context);
Result<Output> run_compare(const Arguments& arguments, const Context& context);
Result<Output> run_validate(const Arguments& arguments, const Context& context);
Result<Output> run_calibrate(const Arguments& arguments, const Context& context);
Result<Output> run_inspect(const Arguments& arguments, const Context& context);
Result<Output> run_list(const Arguments& arguments, const Context& context);  // models, gpus, clusters, ...

// The kinds of `run_list`, and the names of one kind for shell completion.
const std::vector<std::string>& list_kinds();
Result<std::vector<std::string>> names_of(const std::string& kind, const Catalog& catalog);

// Where data/ is: given, installed beside the program, or in the source tree it was built from.
Result<std::filesystem::path> find_data_dir(const std::string& given);

std::string json_document(const Json& json);  // as it is printed: indented, a line end after it

}  // namespace precog::cli
