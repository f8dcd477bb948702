#include <sstream>

#include <doctest/doctest.h>

#include "arguments.h"
#include "job_flags.h"

using namespace precog;
using namespace precog::cli;

namespace {

Parsed parse(std::vector<const char*> words) {
  words.insert(words.begin(), "precog");
  return parse_arguments(static_cast<int>(words.size()), words.data());
}

}  // namespace

TEST_CASE("FlagsBecomeARequest") {
  Parsed parsed = parse({"predict", "--model", "bert-large", "--batch", "32", "--gpu", "h100-sxm", "--gpus", "8", "--dp", "8",
                         "--tokens", "1e12", "--price", "2.5", "--allow-emulated", "--layers", "3"});
  REQUIRE_FALSE(parsed.finished);
  auto request = request_json(parsed.arguments);
  REQUIRE(request);
  CHECK((*request)["model"]["name"] == "bert-large");
  CHECK((*request)["model"]["layers"] == 3);
  CHECK((*request)["batch"] == 32);
  CHECK((*request)["cluster"]["gpu"] == "h100-sxm");
  CHECK((*request)["cluster"]["gpus"] == 8);
  CHECK((*request)["plan"]["dp"] == 8);
  CHECK((*request)["run"]["tokens"] == 1e12);
  CHECK((*request)["price_usd_per_gpu_hour"] == 2.5);
  CHECK((*request)["allow_emulated"] == true);
}

TEST_CASE("OverridesAreCollected") {
  Parsed parsed = parse({"predict", "--precision", "amp-bf16+optimizer-8bit", "--override", "lm_head=fp32", "--override", "op:softmax=bf16",
                         "--clip-grad-norm", "1.5", "--pad-vocabulary", "64"});
  REQUIRE_FALSE(parsed.finished);
  auto request = request_json(parsed.arguments);
  REQUIRE(request);
  CHECK((*request)["precision"] == "amp-bf16+optimizer-8bit");
  CHECK((*request)["overrides"] == Json{"lm_head=fp32", "op:softmax=bf16"});
  CHECK((*request)["clip_grad_norm"] == 1.5);
  CHECK((*request)["pad_vocabulary"] == 64);
}

TEST_CASE("AdviceStartsFromOnePrecision") {
  CHECK(parse({"compare", "--precision", "bf16"}).problem.find("--precisions") != std::string::npos);
  Parsed parsed = parse({"compare", "--precision", "bf16", "--advise"});
  REQUIRE_FALSE(parsed.finished);
  CHECK(parsed.arguments.advise);
  CHECK(parse({"predict", "--advise"}).problem == "--advise: belongs to compare: precog compare .. --advise");
}

TEST_CASE("TheLastOfARepeatedFlagCounts") {
  Parsed parsed = parse({"predict", "--batch", "1", "--batch", "2"});
  REQUIRE_FALSE(parsed.finished);
  CHECK((*request_json(parsed.arguments))["batch"] == 2);
}

TEST_CASE("NumbersAreReadStrictly") {
  CHECK(*whole_number("8", "--x") == 8);
  CHECK(*whole_number("1e3", "--x") == 1000);
  CHECK(*whole_number("-3", "--x") == -3);
  for (const char* bad : {"", "1e3x", "8 ", "0x10", "1.5", "nan", "inf", "99999999999999999999", "1e300"})
    CHECK_FALSE(whole_number(bad, "--x"));
  CHECK(*any_number("1e12", "--x") == 1e12);
  for (const char* bad : {"", "1e3x", "nan", "inf", "1e999"}) CHECK_FALSE(any_number(bad, "--x"));
  auto huge = whole_number(std::string(309, '9'), "--batch");
  REQUIRE_FALSE(huge);
  CHECK(huge.error().text().size() < 120);
}

TEST_CASE("EveryWrongFlagIsReportedAtOnce") {
  Parsed parsed = parse({"predict", "--batch", "many", "--gpus", "1.5"});
  REQUIRE_FALSE(parsed.finished);
  auto request = request_json(parsed.arguments);
  REQUIRE_FALSE(request);
  CHECK(request.error().problems.size() == 2);
  CHECK(request.error().problems[0].where == "--batch");
}

TEST_CASE("UnknownFlagsAndCommandsNameTheNearest") {
  CHECK(parse({"predict", "--batsh", "3"}).problem.find("unknown flag '--batsh'; nearest known: --batch") == 0);
  CHECK(parse({"predict", "--batsh=3"}).problem.find("unknown flag '--batsh'") == 0);
  CHECK(parse({"predcit"}).problem.find("unknown command 'predcit'; nearest known: predict") == 0);
  CHECK(parse({"gpus", "a", "b"}).problem.find("one argument too many") != std::string::npos);
  CHECK(parse({"predict", "--batch"}).code == kWrongInput);
  CHECK(parse({"validate"}).code == kWrongInput);
  CHECK(parse({"inspect", "gpt2", "--diff", "fp32"}).code == kWrongInput);
  CHECK(parse({}).problem == "a command is missing");
  CHECK(parse({"compare", "--precision", "bf16"}).problem.find("--precisions") != std::string::npos);
  CHECK(parse({"compare", "--precision=bf16"}).code == kWrongInput);
  CHECK(parse({"predict", "--color", "pink"}).code == kWrongInput);
}

TEST_CASE("EmptyOrClashingFlagsAreRefused") {
  for (const char* flag : {"--html", "--trace", "--dump-after", "--model", "--data"})
    CHECK_MESSAGE(parse({"predict", flag, ""}).problem.rfind(std::string(flag) + ": is empty", 0) == 0, flag);
  CHECK(parse({"compare", "--precisions", ""}).code == kWrongInput);
  CHECK(parse({"compare", "--precisions", ","}).code == kWrongInput);
  CHECK(parse({"validate", "x.jsonl", "--by", ""}).code == kWrongInput);
  CHECK(parse({"gpus", ""}).problem.rfind("NAME: is empty", 0) == 0);
  CHECK(parse({"predict", "--trace", "a", "--html", "./a"}).problem.find("not the same") != std::string::npos);
  CHECK_FALSE(parse({"predict", "--trace", "a", "--html", "b", "--sp", "--json"}).finished);
}

TEST_CASE("WhatIsPromisedForLaterSaysSo") {
  for (const char* command : {"search", "serve"})
    CHECK(parse({command, "--model", "gpt2"}).problem == std::string(command) + ": this version of precog does not have it yet");
}

TEST_CASE("HelpHasExamplesAndFits80Columns") {
  std::vector<const char*> commands = {"predict",  "compare",  "validate",   "calibrate", "inspect", "models",    "gpus",
                                       "clusters", "networks", "precisions", "hosts",   "software",  "completion"};
  for (const char* command : commands) {
    Parsed parsed = parse({command, "--help"});
    CHECK(parsed.code == kDone);
    CHECK_MESSAGE(parsed.out.find("Examples:") != std::string::npos, command);
    std::stringstream stream(parsed.out);
    for (std::string line; std::getline(stream, line);) CHECK_MESSAGE(line.size() <= kTextWidth, line);
  }
  CHECK(parse({"--version"}).out.find("precog ") == 0);
}

TEST_CASE("ProblemsOfFlagsAreNamedAfterThem") {
  Parsed parsed = parse({"predict", "--gpus", "0", "--batch", "1"});
  const Error error{{{"request.cluster.gpus", "is 0"}, {"request.model", "is missing"}, {"request.plan.wrap", "is 3, beside global_batch and m_batch.json"}, {"request.cluster", "has 0 GPUs"}}};
  Error named = with_flag_names(error, parsed.arguments);
  CHECK(named.problems[0].where == "--gpus");
  CHECK(named.problems[1].where == "--model");  // there is no file that it could be missing from
  CHECK(named.problems[2].where == "request.plan.wrap");
  CHECK(named.problems[2].message == "is 3, beside --global-batch and m_batch.json");
  CHECK(named.problems[3].where == "--gpu");
  parsed = parse({"predict", "job.json", "--gpus", "0", "--batch", "1"});
  named = with_flag_names(Error{{{"job.json: cluster.gpus", "is 0"}, {"job.json: model", "is missing"}, {"job.json: cluster", "has 0 GPUs"}}}, parsed.arguments);
  CHECK(named.problems[0].where == "--gpus");
  CHECK(named.problems[1].where == "job.json: model");
  CHECK(named.problems[2].where == "job.json: cluster");
}

TEST_CASE("CompletionKnowsEveryCommandAndFlag") {
  for (const char* shell : {"bash", "zsh", "fish"}) {
    auto script = completion_script(shell);
    REQUIRE(script);
    for (const char* command : {"predict", "compare", "validate", "inspect", "models", "precisions"})
      CHECK(script->find(command) != std::string::npos);
    for (const JobFlag& flag : job_flags())
      CHECK_MESSAGE(script->find(std::string(shell) == "fish" ? "-l " + std::string(flag.flag).substr(2)
                                                              : std::string(flag.flag)) != std::string::npos,
                    flag.flag);
    CHECK(script->find("__names gpus") != std::string::npos);
  }
  CHECK_FALSE(completion_script("csh"));
}
