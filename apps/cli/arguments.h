// The command line read into Arguments. Values stay text here; whoever uses one checks it.
#pragma once

#include <string>
#include <vector>

#include "cli.h"

namespace CLI {
class App;
}

namespace precog::cli {

struct Parsed {
  Arguments arguments;
  // Set when the answer is known without running a command: help, version, a wrong command line.
  bool finished = false;
  int code = kDone;
  std::string out, problem;
};

Parsed parse_arguments(int argc, const char* const* argv);

// Every command and flag, filling `arguments` when parsed; completion scripts are read off it.
void describe(CLI::App& app, Arguments& arguments);

Result<std::string> completion_script(const std::string& shell);

}  // namespace precog::cli
