// Completion scripts, read off the very description that parses the command line, so that they cannot fall behind.
// Names of models, GPUs and the rest are asked for when needed: `precog __names gpus`.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "arguments.h"
#include "base/text.h"
#include "job_flags.h"
#include "predict/predict.h"

namespace precog::cli {
namespace {

struct Values {  // what may follow a flag or stand as an argument
  enum Kind { none, names, words, files, folders } kind = none;
  std::string text;  // the kind of names, or the words separated by blanks
};

std::string spaced(std::string text) {
  for (char& c : text)
    if (c == '|') c = ' ';
  return text;
}

Values values_of(const std::string& flag) {
  for (const JobFlag& job : job_flags()) {
    if (flag != job.flag) continue;
    std::string complete = job.complete;
    if (complete.empty()) return {};
    if (complete.find('|') != std::string::npos) return {Values::words, spaced(complete)};
    return {Values::names, complete};
  }
  if (flag == "--precisions" || flag == "--diff") return {Values::names, "precisions"};
  if (flag == "--trace" || flag == "--html") return {Values::files, ""};
  if (flag == "--data") return {Values::folders, ""};
  if (flag == "--color") return {Values::words, "auto always never"};
  if (flag == "--dump-after") return {Values::words, join(stage_names(), " ")};
  if (flag == "--by") return {Values::words, "precision gpu model regime source"};
  return {};
}

Values argument_of(const std::string& command) {
  for (const std::string& kind : list_kinds())
    if (command == kind) return {Values::names, kind};
  if (command == "inspect") return {Values::names, "models"};
  if (command == "completion") return {Values::words, "bash zsh fish"};
  return {Values::files, ""};
}

struct Flag {
  std::string name, help;
  bool takes_value = false;
};
struct Command {
  std::string name, help;
  std::vector<Flag> flags;
};

std::vector<Command> commands() {
  CLI::App app;
  Arguments unused;
  describe(app, unused);
  std::vector<Command> out;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    Command command{sub->get_name(), sub->get_description(), {}};
    for (const CLI::Option* option : sub->get_options())
      for (const std::string& name : option->get_lnames())
        command.flags.push_back({"--" + name, option->get_description(), option->get_type_size() != 0 && name != "help"});
    out.push_back(std::move(command));
  }
  return out;
}

std::map<std::string, Values> valued_flags(const std::vector<Command>& all) {
  std::map<std::string, Values> out;
  for (const Command& command : all)
    for (const Flag& flag : command.flags)
      if (flag.takes_value) out[flag.name] = values_of(flag.name);
  return out;
}

std::string command_names(const std::vector<Command>& all, std::string_view separator) {
  std::vector<std::string> names;
  for (const Command& command : all) names.push_back(command.name);
  return join(names, separator);
}

std::string flag_names(const Command& command) {
  std::vector<std::string> names;
  for (const Flag& flag : command.flags) names.push_back(flag.name);
  return join(names, " ");
}

std::string bash_script(const std::vector<Command>& all) {
  auto reply = [](const Values& values) -> std::string {
    switch (values.kind) {
      case Values::names:
        return fmt::format("COMPREPLY=($(compgen -W \"$(\"${{COMP_WORDS[0]}}\" __names {} 2>/dev/null)\" -- \"$cur\"))",
                           values.text);
      case Values::words:
        return fmt::format("COMPREPLY=($(compgen -W \"{}\" -- \"$cur\"))", values.text);
      case Values::files:
        return "compopt -o filenames; COMPREPLY=($(compgen -f -- \"$cur\"))";
      case Values::folders:
        return "compopt -o filenames; COMPREPLY=($(compgen -d -- \"$cur\"))";
      case Values::none:
        break;
    }
    return "COMPREPLY=()";
  };
  std::string out =
      "# bash completion for precog. Use: source <(precog completion bash)\n_precog() {\n"
      "  local cur=\"${COMP_WORDS[COMP_CWORD]}\" prev=\"${COMP_WORDS[COMP_CWORD-1]}\" cmd=\"\" i\n  COMPREPLY=()\n"
      "  for ((i = 1; i < COMP_CWORD; i++)); do\n    case \"${COMP_WORDS[i]}\" in\n";
  out += fmt::format("      {}) cmd=\"${{COMP_WORDS[i]}}\"; break ;;\n    esac\n  done\n  case \"$prev\" in\n",
                     command_names(all, "|"));
  for (const auto& [flag, values] : valued_flags(all)) out += fmt::format("    {}) {}; return ;;\n", flag, reply(values));
  out += fmt::format(
      "  esac\n  if [[ -z $cmd ]]; then\n    COMPREPLY=($(compgen -W \"{} --help --version\" -- \"$cur\")); return\n  fi\n",
      command_names(all, " "));
  out += "  if [[ $cur == -* ]]; then\n    case \"$cmd\" in\n";
  for (const Command& command : all)
    out += fmt::format("      {}) COMPREPLY=($(compgen -W \"{}\" -- \"$cur\")) ;;\n", command.name, flag_names(command));
  out += "    esac\n    return\n  fi\n  case \"$cmd\" in\n";
  for (const Command& command : all) out += fmt::format("    {}) {} ;;\n", command.name, reply(argument_of(command.name)));
  return out + "  esac\n}\ncomplete -F _precog precog\n";
}

std::string single_quoted(const std::string& text) {
  std::string out = "'";
  for (char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string zsh_script(const std::vector<Command>& all) {
  auto reply = [](const Values& values) -> std::string {
    switch (values.kind) {
      case Values::names:
        return fmt::format("compadd -- ${{(f)\"$(${{words[1]}} __names {} 2>/dev/null)\"}}", values.text);
      case Values::words:
        return "compadd -- " + values.text;
      case Values::files:
        return "_files";
      case Values::folders:
        return "_files -/";
      case Values::none:
        break;
    }
    return "_message value";
  };
  auto described = [](const std::string& name, const std::string& help) {
    std::string text = name + ":";
    for (char c : help) text += c == ':' ? std::string("\\:") : std::string(1, c);
    return single_quoted(text);
  };
  std::string out =
      "#compdef precog\n# zsh completion for precog: a file named _precog in a folder of $fpath\n_precog() {\n"
      "  local cur=\"${words[CURRENT]}\" prev=\"${words[CURRENT-1]}\" cmd=\"\" i\n  local -a items\n"
      "  for ((i = 2; i < CURRENT; i++)); do\n    case \"${words[i]}\" in\n";
  out += fmt::format("      {}) cmd=\"${{words[i]}}\"; break ;;\n    esac\n  done\n  case \"$prev\" in\n", command_names(all, "|"));
  for (const auto& [flag, values] : valued_flags(all)) out += fmt::format("    {}) {}; return ;;\n", flag, reply(values));
  out += "  esac\n  if [[ -z $cmd ]]; then\n    items=(";
  for (const Command& command : all) out += "\n      " + described(command.name, command.help);
  out += "\n    )\n    _describe command items; return\n  fi\n  if [[ $cur == -* ]]; then\n    case \"$cmd\" in\n";
  for (const Command& command : all) {
    out += fmt::format("      {}) items=(", command.name);
    for (const Flag& flag : command.flags) out += ' ' + described(flag.name, flag.help);
    out += ") ;;\n";
  }
  out += "    esac\n    _describe flag items; return\n  fi\n  case \"$cmd\" in\n";
  for (const Command& command : all) out += fmt::format("    {}) {} ;;\n", command.name, reply(argument_of(command.name)));
  return out + "  esac\n}\nif [ \"$funcstack[1]\" = \"_precog\" ]; then\n  _precog \"$@\"\nelse\n  compdef _precog precog\nfi\n";
}

std::string fish_script(const std::vector<Command>& all) {
  auto values_text = [](const Values& values) -> std::string {
    switch (values.kind) {
      case Values::names:
        return fmt::format(" -x -a '(precog __names {} 2>/dev/null)'", values.text);
      case Values::words:
        return fmt::format(" -x -a '{}'", values.text);
      case Values::files:
        return " -r -F";
      case Values::folders:
        return " -x -a '(__fish_complete_directories)'";
      case Values::none:
        break;
    }
    return " -x";
  };
  std::string out = "# fish completion for precog\ncomplete -c precog -f\n";
  for (const Command& command : all) {
    out += fmt::format("complete -c precog -n __fish_use_subcommand -a {} -d {}\n", command.name, single_quoted(command.help));
    std::string when = fmt::format("complete -c precog -n '__fish_seen_subcommand_from {}'", command.name);
    for (const Flag& flag : command.flags)
      out += fmt::format("{} -l {} -d {}{}\n", when, flag.name.substr(2), single_quoted(flag.help),
                         flag.takes_value ? values_text(values_of(flag.name)) : "");
    Values argument = argument_of(command.name);
    if (argument.kind == Values::files) out += when + " -F\n";
    else if (argument.kind == Values::names) out += fmt::format("{} -a '(precog __names {} 2>/dev/null)'\n", when, argument.text);
    else out += fmt::format("{} -a '{}'\n", when, argument.text);
  }
  return out;
}

}  // namespace

Result<std::string> completion_script(const std::string& shell) {
  if (shell == "bash") return bash_script(commands());
  if (shell == "zsh") return zsh_script(commands());
  if (shell == "fish") return fish_script(commands());
  return fail("completion", fmt::format("'{}' is not a shell it knows: bash, zsh, fish", shell.substr(0, 40)));
}

}  // namespace precog::cli
