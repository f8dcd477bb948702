#include <doctest/doctest.h>

#include "base/ensure.h"
#include "validate/validate.h"

using namespace precog;

namespace {

// "Predicts" what the request itself says: {"step": 1.1, "peak": 5, "fits": true}.
Result<Report> predicted_as_asked(const Json& request, const std::string& where) {
  if (request.contains("bug")) throw BrokenPromise("a promise");
  if (!request.contains("step")) return fail(where + ".model", "unknown model 'x'");
  Report report;
  report.request = request;
  report.step = {request["step"].get<double>()};
  report.step_low = report.step * 0.95;
  report.step_high = report.step * 1.05;
  report.gpu_busy = report.step;
  report.kernels = 110;
  report.memory.peak = {request.value("peak", std::int64_t{1})};
  report.memory.fits = request.value("fits", true);
  report.memory.device = {report.memory.fits ? 80 : 120};
  report.memory.capacity = {100};
  return report;
}

std::string run(const char* id, const char* precision, double predicted, double measured, const char* more = "") {
  return std::string("{\"id\": \"") + id + "\", \"request\": {\"model\": \"m\", \"precision\": \"" + precision + "\"" + more +
         ", \"step\": " + std::to_string(predicted) + "}, \"measured\": {\"step_s\": " + std::to_string(measured) + "}}\n";
}

}  // namespace

TEST_CASE("ErrorsAreOfTheMeasuredStepInPerCent") {
  RunsFile file = parse_runs_jsonl(run("a", "fp32", 1.1, 1.0) + run("b", "fp32", 0.8, 1.0) + run("c", "bf16", 1.0, 1.0));
  ValidationReport report = validate_runs(file, predicted_as_asked, {});
  CHECK(report.overall.rows == 3);
  CHECK(report.overall.predicted == 3);
  CHECK(*report.overall.mape == doctest::Approx(10));
  CHECK(*report.overall.median == doctest::Approx(10));
  CHECK(*report.overall.p95 == doctest::Approx(19));  // between 10 and 20, nine tenths of the way
  CHECK(*report.overall.bias == doctest::Approx(-10.0 / 3));
  CHECK(*report.groups.at("precision=fp32").mape == doctest::Approx(15));
  CHECK(*report.groups.at("precision=bf16").mape == doctest::Approx(0));
  CHECK(*report.runs[1].error == doctest::Approx(-20));
  CHECK(report.interval.rows == 3);
  CHECK(report.interval.right == 1);
}

TEST_CASE("AStepOfABlockHasItsShareOfTheStart") {
  auto begins_slowly = [](const Json& request, const std::string& where) {
    Result<Report> report = predicted_as_asked(request, where);
    report->start_up = {0.3};
    return report;
  };
  const std::string head = "{\"request\": {\"step\": 1}, \"measured\": {\"step_s\": 1.1", ends = "}}\n";
  const ValidationReport report = validate_runs(parse_runs_jsonl(head + ", \"steps_per_block\": 3" + ends + head + ends), begins_slowly, {});
  CHECK(*report.runs.at(0).predicted_s == doctest::Approx(1.1));
  CHECK(*report.runs.at(0).error == doctest::Approx(0).scale(1));
  CHECK(*report.runs.at(1).predicted_s == doctest::Approx(1.0));  // measured in a steady run
  CHECK(report.interval.right == 1);  // the interval goes with it
  CHECK(*parse_runs_csv("model,step_s,steps_per_block\ngpt2,1,5\n").runs.at(0).steps_per_block == doctest::Approx(5));
}

TEST_CASE("ThreadsDoNotChangeTheAnswer") {
  std::string text;
  for (int i = 0; i < 40; ++i) text += run(("r" + std::to_string(i)).c_str(), i % 2 ? "fp32" : "bf16", 1 + i * 0.01, 1);
  RunsFile file = parse_runs_jsonl(text);
  std::size_t last = 0;
  ValidateOptions many{.by = {"precision"}, .jobs = 4, .progress = [&](std::size_t done, std::size_t) { last = done; }};
  CHECK(to_json(validate_runs(file, predicted_as_asked, many)) == to_json(validate_runs(file, predicted_as_asked, {})));
  CHECK(last == 40);
}

TEST_CASE("NothingIsDropped") {
  std::string text = run("good", "fp32", 1, 1) + "{not json\n\n[1]\n{\"id\": \"x\", \"request\": {}}\n" +
                     "{\"id\": \"unknown\", \"request\": {\"model\": \"x\"}, \"measured\": {\"step_s\": 1}}\n" +
                     "{\"id\": \"bug\", \"request\": {\"bug\": 1}, \"measured\": {\"step_s\": 1}}\n" +
                     "{\"id\": \"zero\", \"request\": {\"step\": 1}, \"measured\": {\"step_s\": 0}}\n";
  RunsFile file = parse_runs_jsonl(text);
  ValidationReport report = validate_runs(file, predicted_as_asked, {});
  CHECK(report.overall.rows == 7);
  CHECK(report.overall.predicted == 1);
  REQUIRE(report.unpredicted.size() == 6);
  CHECK(report.unpredicted[0].id == "line 2");
  CHECK(report.unpredicted[1].id == "line 4");
  CHECK(report.unpredicted[2].id == "x (line 5)");
  CHECK(report.unpredicted[3].id == "zero (line 8)");
  CHECK(report.unpredicted[4].id == "unknown");
  CHECK(report.unpredicted[4].reason == "request.model: unknown model 'x'");
  CHECK(report.unpredicted[5].reason == "this is a bug in precog: a promise");
}

TEST_CASE("SpeedupsPairRunsThatDifferInPrecisionOnly") {
  // Measured 4x, predicted 5x: 25% off. The batch of "other" differs: it pairs with nothing.
  RunsFile file = parse_runs_jsonl(run("a", "amp-bf16", 1.0, 1.0) + run("b", "fp32", 5.0, 4.0) +
                                   run("other", "fp32", 9.0, 9.0, ", \"batch\": 2"));
  // The predictor's answer is in the request here, so make the requests equal by predicting from the measured table.
  auto predictor = [](const Json& request, const std::string&) -> Result<Report> {
    Report report;
    report.request = request;
    bool fp32 = request["precision"] == "fp32";
    report.step = {fp32 ? 5.0 : 1.0};
    return report;
  };
  for (MeasuredRun& measured : file.runs) measured.request.erase("step");
  ValidationReport report = validate_runs(file, predictor, {});
  REQUIRE(report.speedups.size() == 1);
  const SpeedupSummary& summary = report.speedups.at("fp32->amp-bf16");
  CHECK(summary.pairs == 1);
  CHECK(summary.median == doctest::Approx(25));
  CHECK(summary.bias == doctest::Approx(25));
}

TEST_CASE("RunningOutOfMemoryIsCountedByItself") {
  RunsFile file = parse_runs_jsonl(
      "{\"id\": \"a\", \"request\": {\"step\": 1, \"fits\": false}, \"measured\": {\"oom\": true}}\n"
      "{\"id\": \"b\", \"request\": {\"step\": 1, \"fits\": true}, \"measured\": {\"oom\": true}}\n"
      "{\"id\": \"c\", \"request\": {\"step\": 1, \"peak\": 50}, \"measured\": {\"step_s\": 1, \"peak_bytes\": 100}}\n");
  ValidationReport report = validate_runs(file, predicted_as_asked, {});
  CHECK(report.oom.rows == 2);
  CHECK(report.oom.right == 1);
  CHECK(report.fits.rows == 1);
  CHECK(report.fits.right == 1);
  CHECK(*report.overall.mape == doctest::Approx(0));  // of the run that has a step
  CHECK(*report.memory.bias == doctest::Approx(-50));
  CHECK(report.overall.predicted == 3);
  CHECK(report.overall.oom == 2);
  CHECK(to_json(report)["overall"]["oom"] == 2);
  std::string text = to_text(report, {});
  CHECK(text.find("runs  predicted  OOM") != std::string::npos);
  CHECK(text.find("Ran out of memory, as predicted: 1 of 2.") != std::string::npos);
}

TEST_CASE("KernelsAreComparedWhereMeasured") {
  RunsFile file = parse_runs_jsonl(
      "{\"id\": \"a\", \"request\": {\"step\": 1}, \"measured\": {\"step_s\": 1, \"kernels\": 100}}\n"
      "{\"id\": \"b\", \"request\": {\"step\": 1}, \"measured\": {\"step_s\": 1, \"kernels\": 220}}\n"
      "{\"id\": \"c\", \"request\": {\"step\": 1}, \"measured\": {\"step_s\": 1}}\n");
  ValidationReport report = validate_runs(file, predicted_as_asked, {});
  CHECK(report.kernels.rows == 2);
  CHECK(*report.kernels.mape == doctest::Approx(30));
  CHECK(*report.kernels.bias == doctest::Approx(-20));
  CHECK(to_json(report)["kernels"]["predicted"] == 2);
  CHECK(to_text(report, {}).find("  kernels ") != std::string::npos);
  RunsFile csv = parse_runs_csv("model,step_s,kernels\ngpt2,1,3\n");
  CHECK(*csv.runs.at(0).kernels == doctest::Approx(3));
}

TEST_CASE("RegimesFollowTheBusyShare") {
  MeasuredRun measured;
  measured.step_s = 1.0;
  CHECK(regime_of(measured) == "unknown");
  measured.gpu_busy_s = 0.95;
  CHECK(regime_of(measured) == "gpu-bound");
  measured.gpu_busy_s = 0.9;
  CHECK(regime_of(measured) == "gpu-bound");
  measured.gpu_busy_s = 0.7;
  CHECK(regime_of(measured) == "between");
  measured.gpu_busy_s = 0.69;
  CHECK(regime_of(measured) == "host-bound");
}

TEST_CASE("GroupsMayBeNestedFieldsAndCombinations") {
  RunsFile file = parse_runs_jsonl(
      "{\"id\": \"a\", \"request\": {\"step\": 1, \"precision\": \"fp32\", \"cluster\": {\"gpu\": \"t4\"}}, \"measured\": "
      "{\"step_s\": 1}}\n");
  ValidationReport report = validate_runs(
      file, predicted_as_asked, {.by = {"gpu", "precision+cluster.gpu", "regime", "nonsense"}, .jobs = 1, .progress = {}});
  CHECK(report.groups.count("gpu=t4") == 1);
  CHECK(report.groups.count("precision=fp32,cluster.gpu=t4") == 1);
  CHECK(report.groups.count("regime=unknown") == 1);
  CHECK(report.groups.count("nonsense=none") == 1);
  CHECK(report.groups.at("precision=fp32,cluster.gpu=t4").value == "fp32, t4");
  CHECK(to_text(report, {}).find("by precision+cluster.gpu\n  fp32, t4") != std::string::npos);
}

TEST_CASE("CsvRowsBecomeRuns") {
  RunsFile file = parse_runs_csv(
      "\xEF\xBB\xBFid,source,model,batch,precision,gpu,request.cluster.gpus,step_s,peak_bytes,notes\r\n"
      "r1,\"a, \"\"quoted\"\" source\",bert-large,32,amp-bf16,h100-sxm,8,0.1196,26730000000,x\r\n"
      "\r\n"
      "r2,s,bert-large,32\r\n"
      "r3,s,bert-large,many,fp32,h100-sxm,8,0.5,,\r\n");
  REQUIRE(file.runs.size() == 2);
  CHECK(file.runs[0].id == "r1");
  CHECK(file.runs[0].source == "a, \"quoted\" source");
  CHECK(file.runs[0].request["batch"] == 32);
  CHECK(file.runs[0].request["cluster"]["gpu"] == "h100-sxm");
  CHECK(file.runs[0].request["cluster"]["gpus"] == 8);
  CHECK(*file.runs[0].step_s == doctest::Approx(0.1196));
  CHECK(*file.runs[0].peak_bytes == doctest::Approx(26.73e9));
  CHECK(file.runs[1].request["batch"] == "many");  // the request's own check will say what is wrong with it
  CHECK(file.runs[1].line == 5);
  REQUIRE(file.unreadable.size() == 1);
  CHECK(file.unreadable[0].id == "line 4");
  CHECK(file.unreadable[0].reason == "has 4 fields, the header 10");
  REQUIRE(file.warnings.size() == 1);
  CHECK(file.warnings[0] == "column 'notes' is not used");
}

TEST_CASE("CsvQuotesMaySpanLinesAndMayBeBroken") {
  RunsFile file = parse_runs_csv("id,model,step_s\n\"two\nlines\",m,1\nb,\"m,1\n");
  REQUIRE(file.runs.size() == 1);
  CHECK(file.runs[0].id == "two\nlines");
  REQUIRE(file.unreadable.size() == 1);
  CHECK(file.unreadable[0].id == "line 4");
}

TEST_CASE("HostileColumnsMakeNoLists") {
  RunsFile file = parse_runs_csv("id,request.x.999999999,request..y,request.,step_s\na,1,1,1,1\n");
  CHECK(file.runs.size() == 1);
  CHECK(file.warnings.size() == 3);
}

TEST_CASE("ADepthBelongsToTheModel") {
  RunsFile file = parse_runs_csv("model,layers,step_s\ngpt2,3,1\n");
  REQUIRE(file.runs.size() == 1);
  CHECK(file.runs[0].request["model"]["name"] == "gpt2");
  CHECK(file.runs[0].request["model"]["layers"] == 3);
}

TEST_CASE("AFileWithoutARunIsAnError") {
  CHECK_FALSE(parse_runs("", "x.jsonl"));
  CHECK_FALSE(parse_runs("id,model\n", "x.csv"));
  auto garbage = parse_runs(std::string("\x00\xff\x01garbage\nmore", 14), "x.jsonl");
  REQUIRE_FALSE(garbage);
  CHECK(garbage.error().text().find("none of its 2 lines is a measured run") != std::string::npos);
}

TEST_CASE("ValidationViews") {
  RunsFile file = parse_runs_jsonl(run("a", "fp32", 1.1, 1.0) + "{bad\n");
  ValidationReport report = validate_runs(file, predicted_as_asked, {});
  Json json = to_json(report);
  for (const char* key : {"overall", "groups", "speedups", "unpredicted", "runs"}) CHECK(json.contains(key));
  for (const char* key : {"rows", "predicted", "mape", "median", "p95", "bias"}) CHECK(json["overall"].contains(key));
  for (const char* key : {"id", "measured_s", "predicted_s", "error", "measured_peak_bytes", "predicted_peak_bytes", "predicted_fits"})
    CHECK(json["runs"][0].contains(key));
  const Json& first = json["runs"][0];
  CHECK((first["predicted_filled"].get<double>() <= 1) == first["predicted_fits"].get<bool>());
  CHECK(json["unpredicted"][0]["id"] == "line 2");
  CHECK(json["memory"]["mape"].is_null());
  std::string text = to_text(report, {});
  CHECK(text.find("overall          2          1  10.0%   10.0%  10.0%  +10.0%\n") != std::string::npos);
  CHECK(text.find("Not predicted: 1") != std::string::npos);
}
