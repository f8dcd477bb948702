#include "arguments.h"

#include <algorithm>
#include <filesystem>
#include <span>
#include <sstream>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "base/text.h"
#include "job_flags.h"

#ifndef PRECOG_VERSION
#define PRECOG_VERSION "0.1.0"
#endif

namespace precog::cli {
namespace {

constexpr const char* kOutputGroup = "Output";

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> out;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');)
    if (!part.empty()) out.push_back(part);
  return out;
}

void add_text(CLI::App& app, const char* flag, std::string& target, const char* value, const char* help,
              const char* group = kOutputGroup) {
  app.add_option(flag, target, help)->type_name(value)->group(group)->take_last();
}

void add_general(CLI::App& app, Arguments& arguments) {
  add_text(app, "--data", arguments.data_dir, "DIR", "the data folder to read");
  add_text(app, "--color", arguments.colour, "WHEN", "auto, always, never");
  app.allow_extras();  // checked by us, so that the nearest known flag can be named
}

void add_json(CLI::App& app, Arguments& arguments) {
  app.add_flag("--json", arguments.json, "one JSON document, nothing else")->group(kOutputGroup);
}

void add_job_flag(CLI::App& app, Arguments& arguments, const JobFlag& flag) {
  std::string name = flag.flag;
  if (flag.kind == ValueKind::truth)
    app.add_flag_callback(
           name, [&arguments, name] { arguments.flags[name] = "true"; }, flag.help)
        ->group(flag.group);
  else if (flag.kind == ValueKind::list)
    app.add_option_function<std::vector<std::string>>(
           name, [&arguments, name](const std::vector<std::string>& values) { arguments.flags[name] = join(values, "\n"); }, flag.help)
        ->type_name(flag.value)
        ->group(flag.group)
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  else
    app.add_option_function<std::string>(
           name, [&arguments, name](const std::string& value) { arguments.flags[name] = value; }, flag.help)
        ->type_name(flag.value)
        ->group(flag.group)
        ->take_last();
}

CLI::App& command(CLI::App& app, Arguments& arguments, const std::string& name, const char* help, const char* footer) {
  CLI::App* sub = app.add_subcommand(name, help);
  sub->footer(footer);
  sub->callback([&arguments, name] { arguments.command = name; });
  add_general(*sub, arguments);
  return *sub;
}

void add_job(CLI::App& sub, Arguments& arguments, bool one_precision = true) {
  sub.add_option("JOB.json", arguments.job_file, "a request (-: standard input); flags override")->type_name("");
  for (JobFlag flag : job_flags()) {
    if (!one_precision && flag.flag == std::string("--precision")) flag.help = "what --advise starts from";
    add_job_flag(sub, arguments, flag);
  }
  add_json(sub, arguments);
  add_text(sub, "--html", arguments.html, "FILE", "also write a page (or FILE.svg)");
}

std::vector<std::string> flag_names(const CLI::App& app) {
  std::vector<std::string> out;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) out.push_back("--" + name);
  return out;
}

// Promised for a later version; whoever has read of them deserves a plainer answer than "unknown".
constexpr std::string_view kLaterCommands[] = {"search", "serve"};

bool among(std::span<const std::string_view> names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string not_yet(std::string_view name) { return fmt::format("{}: this version of precog does not have it yet", name); }

// What other programs call it.
struct Synonym {
  std::string_view theirs, ours;
};
constexpr Synonym kSynonyms[] = {
    {"--nodes", "--gpus (of all nodes), or --cluster NAME:NODES"}, {"--num-nodes", "--gpus (of all nodes), or --cluster NAME:NODES"},
    {"--num-gpus", "--gpus"}, {"--world-size", "--gpus"}, {"--batch-size", "--batch"}, {"--micro-batch-size", "--batch"}, {"--train-batch-size", "--global-batch"},
    {"--seq-len", "--seq"}, {"--seq-length", "--seq"}, {"--sequence-length", "--seq"}, {"--max-seq-len", "--seq"},
    {"--dtype", "--precision"}, {"--amp", "--precision amp-bf16 or amp-fp16"}, {"--fp16", "--precision fp16 or amp-fp16"}, {"--bf16", "--precision bf16 or amp-bf16"}, {"--mixed-precision", "--precision"},
    {"--compile", "--mode compile"}, {"--zero", "--fsdp"}, {"--zero-stage", "--fsdp"}, {"--lora", "--frozen, on a captured model"},
    {"--gradient-checkpointing", "--recompute"}, {"--checkpointing", "--recompute"}, {"--gradient-accumulation-steps", "--micro-batches"},
    {"--output", "--json, --html FILE or --trace FILE"}, {"-o", "--json, --html FILE or --trace FILE"}};

// What nobody asked for: an unknown command, an unknown flag, one positional too many.
std::string unexpected(const CLI::App& app, const CLI::App* sub) {
  const CLI::App& where = sub ? *sub : app;
  std::vector<std::string> extras = where.remaining();
  if (sub)
    for (const std::string& extra : app.remaining()) extras.push_back(extra);
  std::string help = sub ? fmt::format("precog {} --help", sub->get_name()) : "precog --help";
  if (!sub && !extras.empty() && among(kLaterCommands, extras.front())) return not_yet(extras.front());
  for (const std::string& extra : extras) {
    if (extra.size() < 2 || extra[0] != '-') continue;
    std::string name = extra.substr(0, extra.find('='));
    if (name == "--advise") return "--advise: belongs to compare: precog compare .. --advise";
    if (name == "--max-batch") return "--max-batch: belongs to predict: precog predict .. --max-batch";
    const std::vector<std::string> flags = flag_names(where);
    for (const Synonym& synonym : kSynonyms)
      if (name == synonym.theirs && std::find(flags.begin(), flags.end(), synonym.ours.substr(0, synonym.ours.find_first_of(" ,"))) != flags.end())
        return fmt::format("unknown flag '{}'; here it is {} (all: {})", name, synonym.ours, help);
    return unknown_name("flag", name, flags, help);
  }
  if (extras.empty()) return "";
  if (sub) return fmt::format("'{}' is one argument too many (see: {})", extras.front().substr(0, 80), help);
  std::vector<std::string> commands;
  for (const CLI::App* known : app.get_subcommands([](const CLI::App*) { return true; })) commands.push_back(known->get_name());
  return unknown_name("command", extras.front(), commands, help);
}

// A flag with nothing in it, or two files under one name: nobody means that.
std::string senseless(const CLI::App& sub, const Arguments& arguments) {
  for (const CLI::Option* option : sub.get_options()) {
    if (option->count() == 0 || option->get_expected_max() == 0) continue;
    const std::string name = option->get_lnames().empty() ? option->get_name() : "--" + option->get_lnames().front();
    const std::string& value = option->results().back();
    bool list = name == "--precisions" || name == "--by";
    if (value.empty() || (list && split(value).empty())) {
      std::string wants = option->get_type_name().empty() ? "a value" : option->get_type_name();
      return fmt::format("{}: is empty; it wants {}", name, wants);
    }
  }
  auto whole = [](const std::string& path) {  // "a" and "./a" are one file, there or not
    std::error_code code;
    std::filesystem::path full = std::filesystem::weakly_canonical(std::filesystem::absolute(path, code), code);
    return code ? std::filesystem::path(path) : full;
  };
  if (!arguments.trace.empty() && !arguments.html.empty() && whole(arguments.trace) == whole(arguments.html))
    return fmt::format("--trace, --html: both are '{}'; give them two files, not the same", arguments.html.substr(0, 80));
  return "";
}

}  // namespace

void describe(CLI::App& app, Arguments& arguments) {
  app.description(
      "Predicts how long a deep-learning training step takes, what it needs and costs,\nat every numeric precision. No GPU "
      "needed.");
  app.name("precog");
  app.set_version_flag("--version", "precog " PRECOG_VERSION);
  app.get_formatter()->column_width(30);
  app.allow_extras();
  app.footer(
      "\nExamples:\n"
      "  precog compare --model bert-large --gpu h100-sxm --gpus 8 --batch 32\n"
      "  precog predict --model llama3-8b --gpu h200-sxm --batch 1 --precision bf16\n"
      "  precog gpus h100-sxm\n\n"
      "Exit codes: 0 done, 2 wrong input, 3 does not fit in memory, 1 a bug in precog.");

  CLI::App& predict = command(app, arguments, "predict", "one prediction",
                              "\nExamples:\n"
                              "  precog predict --model resnet50 --gpu a100-sxm-80gb --batch 256 \\\n    --precision amp-fp16\n"
                              "  precog predict job.json --precision fp16 --json\n"
                              "  precog predict job.json --trace step.json --html step.html\n"
                              "  precog predict job.json --dump-after precision\n"
                              "  precog predict --from ds_config.json --model gpt2-xl --gpu h100-sxm --gpus 8\n"
                              "  precog predict job.json --scale 8..65536 --html scaling.html");
  add_job(predict, arguments);
  add_text(predict, "--trace", arguments.trace, "FILE", "write the timeline for Perfetto");
  add_text(predict, "--scale", arguments.scale, "A..B", "at doubling numbers of GPUs, as 1..65536");
  add_text(predict, "--dump-after", arguments.dump_after, "STAGE", "print what a stage made instead");
  predict.add_flag("--print-request", arguments.print_request, "the request it became, and no more")->group(kOutputGroup);
  predict.add_flag("--max-batch", arguments.max_batch, "the largest batch that fits, predicted")->group(kOutputGroup);

  CLI::App& compare = command(app, arguments, "compare", "one job at every precision, fastest first",
                              "\nExamples:\n"
                              "  precog compare --model bert-large --gpu h100-sxm --gpus 8 --batch 32\n"
                              "  precog compare job.json --precisions fp32,tf32,amp-bf16 --html out.html\n"
                              "  precog compare --model resnet50 --gpu t4 --batch 64 --allow-emulated\n"
                              "  precog compare --model gpt2 --gpu h100-sxm --batch 8 --advise");
  add_job(compare, arguments, false);
  compare
      .add_option_function<std::string>(
          "--precisions", [&](const std::string& text) { arguments.precisions = split(text); }, "only these, separated by commas")
      ->type_name("A,B,..")
      ->group("The job")
      ->take_last();
  compare.add_flag("--all", arguments.everything, "recipes that are not listed too (apex, ...)")->group("The job");
  compare.add_flag("--advise", arguments.advise, "changes that would save time, predicted")->group(kOutputGroup);

  CLI::App& validate = command(app, arguments, "validate", "predicted against measured runs",
                               "\nOne measured run per line (JSON), or a CSV with columns such as id, model,\n"
                               "batch, seq, precision, gpu, gpus, step_s, peak_bytes, gpu_busy_s, kernels.\n"
                               "\nExamples:\n"
                               "  precog validate runs.jsonl --by precision,gpu\n"
                               "  precog validate runs.csv --by regime,precision+gpu --json");
  validate.add_option("RUNS", arguments.runs_file, "RUNS.jsonl or RUNS.csv")->required()->type_name("");
  validate
      .add_option_function<std::string>(
          "--by", [&](const std::string& text) { arguments.by = split(text); }, "groups: request fields, regime, a+b")
      ->type_name("A,B,..")
      ->group(kOutputGroup)
      ->take_last();
  add_json(validate, arguments);

  CLI::App& calibrate = command(app, arguments, "calibrate", "fit a GPU's or a cluster's costs from measurements",
                                "\nMEASUREMENTS are files of precog.profile (.jsonl, .jsonl.zst, .jsonl.gz).\n"
                                "A fifth of their shapes is held out to judge the fit by.\n"
                                "\nExamples:\n"
                                "  precog calibrate h100.jsonl.zst --gpu h100-sxm --out h100-sxm.json\n"
                                "  precog calibrate quick.jsonl --gpu h100-sxm --out h100-sxm.json\n"
                                "  precog predict job.json --profile h100-sxm.json\n"
                                "  precog calibrate --nccl all_reduce.txt all_gather.txt --cluster dgx-h100 \\\n    --out my-cluster.json\n"
                                "  precog predict job.json --cluster my-cluster.json:4");
  calibrate.add_option("MEASUREMENTS", arguments.measurements, "files of measured operators")->type_name("");
  calibrate.add_option("--nccl", arguments.nccl, "what nccl-tests printed: calibrates a cluster")->type_name("FILE..")->group("The hardware");
  add_text(calibrate, "--cluster", arguments.cluster, "NAME", "the cluster it ran on (precog clusters)", "The hardware");
  add_text(calibrate, "--gpu", arguments.gpu, "NAME", "the GPU they were measured on (precog gpus)", "The hardware");
  add_text(calibrate, "--base", arguments.base, "PROFILE", "profile to start from, or none", "The hardware");
  add_text(calibrate, "--out", arguments.out, "PROFILE", "write the profile");
  add_text(calibrate, "--report", arguments.report, "FILE", "write the errors as a Markdown page");
  add_json(calibrate, arguments);

  CLI::App& inspect = command(app, arguments, "inspect", "each operator's type, why, and what casts cost",
                              "\nExamples:\n"
                              "  precog inspect bert-large --precision amp-bf16\n"
                              "  precog inspect gpt2 --batch 8 --diff amp-bf16 bf16\n"
                              "  precog inspect gpt2 --precision amp-bf16 --override op:layer_norm=bf16\n"
                              "  precog inspect resnet50 --precision tf32 --gpu v100-pcie");
  inspect.add_option("GRAPH", arguments.name, "a model (precog models), or its file")->type_name("");
  for (const JobFlag& flag : job_flags())
    for (const char* used : {"--from", "--from-kind", "--precision", "--override", "--batch", "--seq", "--src-seq", "--global-batch", "--layers", "--frozen", "--pad-vocabulary",
                             "--mode", "--optimizer", "--optimizer-impl", "--clip-grad-norm", "--recompute", "--memory-format", "--host"})
      if (flag.flag == std::string(used)) add_job_flag(inspect, arguments, flag);
  for (JobFlag flag : job_flags()) {
    if (flag.flag != std::string("--gpu")) continue;
    static const std::string kHelp = fmt::format("GPU (default: {})", kInspectedGpu);
    flag.help = kHelp.c_str();
    add_job_flag(inspect, arguments, flag);
  }
  inspect.add_option("--diff", arguments.diff, "two precisions side by side")
      ->expected(2)
      ->type_name("A B")
      ->group("The job");
  inspect.add_flag("--all", arguments.everything, "every layer, views too")->group(kOutputGroup);
  add_json(inspect, arguments);

  struct List {
    const char *name, *help, *example;
  };
  constexpr List kLists[] = {
      {"models", "models that are known", "bert-large"},       {"gpus", "GPUs that are known", "h100-sxm"},
      {"clusters", "systems that are known", "dgx-h100"},      {"networks", "networks between nodes", "ib-ndr"},
      {"precisions", "precisions that are known", "amp-bf16"}, {"hosts", "hosts that are known", "default"},
      {"software", "framework versions that are told apart", "pytorch-1.4"}};
  for (const List& list : kLists) {
    std::string footer = fmt::format("\nExamples:\n  precog {0}\n  precog {0} {1}\n  precog {0} --json", list.name, list.example);
    CLI::App& sub = command(app, arguments, list.name, list.help, footer.c_str());
    sub.add_option("NAME", arguments.name, "one of them, with all figures and sources")->type_name("");
    add_json(sub, arguments);
  }

  CLI::App& completion = command(app, arguments, "completion", "a completion script for your shell",
                                 "\nExamples:\n"
                                 "  source <(precog completion bash)\n"
                                 "  precog completion zsh > ~/.zfunc/_precog\n"
                                 "  precog completion fish > ~/.config/fish/completions/precog.fish");
  completion.add_option("SHELL", arguments.shell, "bash, zsh or fish")->required()->type_name("");
}

Parsed parse_arguments(int argc, const char* const* argv) {
  Parsed parsed;
  CLI::App app;
  describe(app, parsed.arguments);
  auto wrong = [&](std::string problem) {
    parsed.finished = true;
    parsed.code = kWrongInput;
    parsed.problem = std::move(problem);
  };
  auto chosen = [&]() -> const CLI::App* {
    auto subs = app.get_subcommands();
    return subs.empty() ? nullptr : subs.front();
  };
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& answer) {  // --help, --version
    std::ostringstream out, ignored;
    app.exit(answer, out, ignored);
    parsed.finished = true;
    parsed.out = out.str();
    return parsed;
  } catch (const CLI::ArgumentMismatch& error) {  // "--batch: 1 required N missing"
    std::string what = error.what();
    wrong(what.substr(0, std::min(what.find(':'), std::size_t{60})) + ": wants another value after it");
    return parsed;
  } catch (const CLI::ConversionError& error) {  // "Could not convert: --sp = maybe": values are texts, so it is a flag without one
    std::string what = error.what();
    what = what.substr(std::min(what.find("--"), what.size()));
    wrong(fmt::format("{}: takes no value: give it, or leave it out", what.substr(0, std::min(what.find(' '), std::size_t{60}))));
    return parsed;
  } catch (const CLI::ParseError& error) {
    std::string extra = unexpected(app, chosen());
    std::string help = chosen() ? fmt::format("precog {} --help", chosen()->get_name()) : "precog --help";
    wrong(!extra.empty() ? extra : fmt::format("{} (see: {})", std::string(error.what()).substr(0, 200), help));
    return parsed;
  }
  if (std::string extra = unexpected(app, chosen()); !extra.empty()) {
    wrong(extra);
    return parsed;
  }
  if (!chosen()) {
    parsed.out = app.help();
    wrong("a command is missing");
    return parsed;
  }
  if (app.get_subcommands().size() > 1)
    wrong(fmt::format("'{}' and '{}' are two commands; give one", app.get_subcommands()[0]->get_name(),
                      app.get_subcommands()[1]->get_name()));
  const auto& colour = parsed.arguments.colour;
  if (colour != "auto" && colour != "always" && colour != "never")
    wrong(fmt::format("--color: '{}' is not auto, always or never", colour.substr(0, 40)));
  if (std::string problem = senseless(*chosen(), parsed.arguments); !problem.empty()) wrong(problem);
  if (chosen()->get_name() == "compare" && parsed.arguments.flags.count("--precision") && !parsed.arguments.advise)
    wrong("--precision: compare takes --precisions A,B,.. (or none of it, for every precision); with --advise it is the one to start from");
  return parsed;
}

}  // namespace precog::cli
