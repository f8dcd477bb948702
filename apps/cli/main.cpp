// The program's edge: reads the command line, runs one command, writes what it answers. Nothing is written before
// everything is computed. Exit codes are the contract's: 0 done, 2 wrong input, 3 does not fit, 1 our bug.
#include <unistd.h>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>

#include <fmt/format.h>

#include "arguments.h"
#include "base/json.h"
#include "cli.h"

namespace precog::cli {

namespace {

int complain(const Error& error) {
  constexpr std::size_t kShown = 25;  // a broken data file may have hundreds of the same
  for (std::size_t i = 0; i < error.problems.size(); ++i) {
    if (i == kShown) {
      fmt::print(stderr, "precog: error: and {} more\n", error.problems.size() - kShown);
      break;
    }
    const Problem& problem = error.problems[i];
    fmt::print(stderr, "precog: error: {}{}{}\n", printable(problem.where), problem.where.empty() ? "" : ": ",
               printable(problem.message));
  }
  return kWrongInput;
}

// A reader that has seen enough (head, less) is not an error; a full disk is.
int write_out(const std::string& text, int code) {
  errno = 0;
  bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  written = std::fflush(stdout) == 0 && written;
  if (written || errno == EPIPE) return code;
  return complain(Error{{{"standard output", fmt::format("cannot be written: {}", std::strerror(errno))}}});
}

Style style_for(const Arguments& arguments) {
  if (arguments.colour != "auto") return {arguments.colour == "always"};
  const char *no_colour = std::getenv("NO_COLOR"), *terminal = std::getenv("TERM");
  bool dumb = terminal && std::strcmp(terminal, "dumb") == 0;
  return {::isatty(STDOUT_FILENO) == 1 && !(no_colour && *no_colour) && !dumb};
}

Result<Output> run(const Arguments& arguments, const Context& context) {
  if (arguments.command == "predict") return run_predict(arguments, context);
  if (arguments.command == "compare") return run_compare(arguments, context);
  if (arguments.command == "validate") return run_validate(arguments, context);
  if (arguments.command == "calibrate") return run_calibrate(arguments, context);
  if (arguments.command == "inspect") return run_inspect(arguments, context);
  return run_list(arguments, context);
}

// `precog __names gpus`: for completion scripts, so it fails in silence.
int print_names(const char* kind) {
  auto data_dir = find_data_dir("");
  auto catalog = data_dir ? load_catalog(*data_dir) : Result<Catalog>(tl::unexpected(data_dir.error()));
  auto names = catalog ? names_of(kind, *catalog) : Result<std::vector<std::string>>(tl::unexpected(catalog.error()));
  if (!names) return kWrongInput;
  std::string text;
  for (const std::string& name : *names) text += name + '\n';
  return write_out(text, kDone);
}

int command_line(int argc, const char* const* argv) {
  if (argc == 3 && std::strcmp(argv[1], "__names") == 0) return print_names(argv[2]);
  for (const char* command : {"capture", "host", "measure", "profile"})
    if (argc > 1 && std::strcmp(argv[1], command) == 0)
      return complain(Error{{{"", fmt::format("{0} needs PyTorch and lives in the Python package: python3 -m precog {0} ... (docs/how_to/use_from_python.md)",
                                              command)}}});
  Parsed parsed = parse_arguments(argc, argv);
  if (!parsed.problem.empty()) {
    fmt::print(stderr, "{}", parsed.out);  // help, where a command is missing
    return complain(Error{{{"", parsed.problem}}});
  }
  if (parsed.finished) return write_out(parsed.out, parsed.code);
  const Arguments& arguments = parsed.arguments;
  if (arguments.command == "completion") {
    auto script = completion_script(arguments.shell);
    return script ? write_out(*script, kDone) : complain(script.error());
  }

  auto data_dir = find_data_dir(arguments.data_dir);
  if (!data_dir) return complain(data_dir.error());
  auto catalog = load_catalog(*data_dir);
  if (!catalog) return complain(catalog.error());
  Context context{*catalog, *data_dir, style_for(arguments), ::isatty(STDERR_FILENO) == 1};
  auto output = run(arguments, context);
  if (!output) return complain(output.error());
  if (auto written = write_text_files(output->files); !written) return complain(written.error());
  if (!arguments.json)
    for (const TextFile& file : output->files)
      output->text += fmt::format("{}wrote {}\n", &file == &output->files.front() ? "\n" : "", printable(file.path.string()));
  return write_out(output->text, output->code);
}

}  // namespace
}  // namespace precog::cli

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  try {
    return precog::cli::command_line(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "precog: this is a bug in precog: {}\n", precog::printable(error.what()));
    return precog::cli::kOurBug;
  }
}
