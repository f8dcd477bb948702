// What `precog predict` says of requests: printed ones run again, and fields that cannot mean anything are refused.
#ifdef PRECOG_DATA_DIR
#include <filesystem>
#include <fstream>

#include <doctest/doctest.h>

#include "arguments.h"
#include "predict/predict.h"

using namespace precog;
using namespace precog::cli;

namespace {

Result<Output> predicted(std::vector<const char*> words) {
  static const Catalog kLoaded = std::move(*load_catalog(PRECOG_DATA_DIR));
  words.insert(words.begin(), {"precog", "predict", "--gpu", "t4", "--precision", "amp-fp16"});
  const Parsed parsed = parse_arguments(static_cast<int>(words.size()), words.data());
  REQUIRE_MESSAGE(!parsed.finished, parsed.problem);
  return run_predict(parsed.arguments, {kLoaded, PRECOG_DATA_DIR, {}, false});
}

std::string refusal(std::vector<const char*> words) {
  const auto out = predicted(std::move(words));
  return out ? "" : out.error().text();
}

Json answer(std::vector<const char*> words) {
  words.push_back("--json");
  const auto out = predicted(std::move(words));
  REQUIRE(out);
  return Json::parse(out->text);
}

// A request in a file of its own.
class RequestFile {
 public:
  explicit RequestFile(const std::string& text) : path_((std::filesystem::temp_directory_path() / "precog_predict_requests_test.json").string()) { std::ofstream(path_) << text; }
  RequestFile(const RequestFile&) = delete;
  RequestFile& operator=(const RequestFile&) = delete;
  ~RequestFile() { std::filesystem::remove(path_); }
  const char* path() const { return path_.c_str(); }

 private:
  std::string path_;
};

}  // namespace

TEST_CASE("APrintedRequestForTheLargestBatchGivesTheSameAnswer") {
  const std::vector<std::vector<const char*>> asked = {{}, {"--global-batch", "48"}, {"--micro-batches", "2"}};
  for (std::vector<const char*> words : asked) {
    words.insert(words.begin(), {"--model", "gpt2", "--seq", "128", "--max-batch"});
    std::vector<const char*> printing = words;
    printing.push_back("--print-request");
    const auto printed = predicted(printing);
    REQUIRE_MESSAGE(printed, printed.error().text());
    const Json request = Json::parse(printed->text);
    CHECK(request["max_batch"] == true);
    CHECK(!request.contains("batch"));
    const RequestFile again(printed->text);
    const Json first = answer(words), second = answer({again.path()});
    CHECK(first["max_batch"] == second["max_batch"]);
    CHECK(first["step_s"] == second["step_s"]);
  }
}

TEST_CASE("FieldsThatPredictAnswersItselfArePrintedToo") {
  const RequestFile file(R"({"schema": 1, "model": "gpt2", "batch": 8, "seq": 128, "max_batch": true, "fixes": false})");
  const auto printed = predicted({file.path(), "--print-request"});
  REQUIRE_MESSAGE(printed, printed.error().text());
  CHECK(Json::parse(printed->text)["fixes"] == false);
  CHECK(Json::parse(printed->text)["max_batch"] == true);
  const RequestFile typo(R"({"schema": 1, "model": "gpt2", "batch": 8, "fixs": false})");
  CHECK(refusal({typo.path()}).find("nearest known: fixes") != std::string::npos);
}

TEST_CASE("AGlobalBatchInSoManyMicroBatchesLeavesOneBatch") {
  const std::vector<const char*> asked = {"--model", "gpt2", "--seq", "128", "--max-batch", "--micro-batches", "4", "--global-batch", "64"};
  const Json found = answer(asked);
  CHECK(found["batch"] == 16);
  CHECK(found["max_batch"]["batch"] == 16);
  CHECK(refusal({"--model", "gpt2", "--max-batch", "--micro-batches", "3", "--global-batch", "64"}).find("64") != std::string::npos);
}

TEST_CASE("MoreLayersThanAModelHasAreNotRecomputed") {
  const auto of = [](const char* model, const char* layers) { return refusal({"--model", model, "--batch", "2", "--recompute", "full", "--recompute-layers", layers}); };
  CHECK(of("resnet18", "9").find("has 8 repeated layers") != std::string::npos);
  CHECK(of("resnet18", "8").empty());
  CHECK(of("vgg16", "1").find("has no repeated layers") != std::string::npos);
  CHECK(of("gpt2", "13").find("has 12 layers") != std::string::npos);
}

TEST_CASE("AnImageFormatWithoutImagesIsSaidToDoNothing") {
  const auto says = [](const char* model) { return answer({"--model", model, "--batch", "2", "--memory-format", "channels_last"})["warnings"].dump().find("channels_last has no effect") != std::string::npos; };
  CHECK(says("gpt2"));
  CHECK(!says("resnet18"));
  CHECK(!says("vit-b"));
}

TEST_CASE("TheTraceCountsInputsByThemselves") {
  const std::string path = (std::filesystem::temp_directory_path() / "precog_predict_requests_test.trace").string();
  const auto out = predicted({"--model", "resnet18", "--batch", "8", "--trace", path.c_str()});
  REQUIRE(out);
  std::int64_t inputs = 0;
  const Json trace = Json::parse(out->files.at(0).text);
  for (const Json& event : trace.is_array() ? trace : trace["traceEvents"])
    if (event.value("ph", "") == "C") inputs = std::max(inputs, event["args"].value("inputs", std::int64_t{0}));
  CHECK(inputs >= 8 * 3 * 224 * 224 * 2);
}
#endif
