#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "base/json.h"
#include "precog/precog.h"

using namespace precog;

namespace {

struct Text {  // a returned text, freed
  char* pointer = nullptr;
  ~Text() { precog_free(pointer); }
  std::string text() const { return pointer ? pointer : ""; }
  Json json() const { return Json::parse(text()); }
};

struct Opened {
  precog_catalog* catalog = nullptr;
  Opened() {
    Text error;
    REQUIRE(precog_open(PRECOG_DATA_DIR, &catalog, &error.pointer) == PRECOG_DONE);
    CHECK(error.pointer == nullptr);
  }
  ~Opened() { precog_close(catalog); }
};

const Opened& data_folder() {  // read once: nobody changes it
  static const Opened opened;
  return opened;
}

const std::string kJob = R"({"model": "bert-base", "batch": 2, "seq": 64, "precision": "amp-bf16", "cluster": {"gpu": "h100-sxm"}})";

}  // namespace

TEST_CASE("ARequestBecomesAReport") {
  const Opened& opened = data_folder();
  Text answer;
  REQUIRE(precog_predict(opened.catalog, kJob.data(), kJob.size(), nullptr, &answer.pointer) == PRECOG_DONE);
  Json report = answer.json();
  CHECK(report["model"] == "bert-base");
  CHECK(report["step_s"].get<double>() > 0);
  CHECK(answer.text().back() == '\n');
}

TEST_CASE("WhatDoesNotFitIsStillAReport") {
  const Opened& opened = data_folder();
  std::string job = R"({"model": "llama3-8b", "batch": 1, "seq": 2048, "precision": "fp32", "cluster": {"gpu": "h100-sxm"}})";
  Text answer;
  CHECK(precog_predict(opened.catalog, job.data(), job.size(), nullptr, &answer.pointer) == PRECOG_DOES_NOT_FIT);
  CHECK(answer.json()["fits"] == false);
}

TEST_CASE("EveryProblemOfARequestComesBack") {
  const Opened& opened = data_folder();
  std::string job = R"({"model": "bert-base", "batch": -1, "seq": 64, "precision": "amp-bf99", "cluster": {"gpu": "h100-sxm"}})";
  Text answer;
  CHECK(precog_predict(opened.catalog, job.data(), job.size(), nullptr, &answer.pointer) == PRECOG_WRONG_INPUT);
  Json error = answer.json();
  CHECK(error["code"] == "wrong_input");
  CHECK(error["problems"].size() == 2);
  for (const Json& problem : error["problems"]) CHECK(problem["where"].get<std::string>().starts_with("request."));
}

TEST_CASE("BrokenRequestsAreErrorsNeverMore") {
  const Opened& opened = data_folder();
  for (std::string job : {std::string(), std::string("{"), std::string("[]"), std::string("null"), std::string("{\"model\": \"\\ud800\"}"),
                          std::string("\0\0", 2), std::string(100000, '['), std::string("\xff\xfe"), std::string("{\"precision\": 3}")}) {
    for (auto function : {precog_predict, precog_compare}) {
      Text answer;
      CHECK(function(opened.catalog, job.data(), job.size(), nullptr, &answer.pointer) == PRECOG_WRONG_INPUT);
      CHECK(answer.json()["problems"].size() >= 1);
    }
  }
}

TEST_CASE("MissingPointersAreErrorsNeverMore") {
  const Opened& opened = data_folder();
  Text answer;
  CHECK(precog_predict(nullptr, kJob.data(), kJob.size(), nullptr, &answer.pointer) == PRECOG_WRONG_INPUT);
  Text other;
  CHECK(precog_predict(opened.catalog, nullptr, 0, nullptr, &other.pointer) == PRECOG_WRONG_INPUT);
  CHECK(precog_predict(opened.catalog, kJob.data(), kJob.size(), nullptr, nullptr) == PRECOG_WRONG_INPUT);
  Text error;
  precog_catalog* unopened = nullptr;
  CHECK(precog_open(nullptr, &unopened, &error.pointer) == PRECOG_WRONG_INPUT);
  precog_catalog* none = nullptr;
  Text why;
  CHECK(precog_open("/nowhere", &none, &why.pointer) == PRECOG_WRONG_INPUT);
  CHECK(none == nullptr);
  CHECK(why.json()["message"].get<std::string>().find("/nowhere") != std::string::npos);
  precog_close(nullptr);
  precog_free(nullptr);
}

TEST_CASE("AComparisonTakesAllPrecisionsOrThoseNamed") {
  const Opened& opened = data_folder();
  Json job = Json::parse(kJob);
  Text some;
  job["precision"] = {"fp32", "amp-bf16"};
  std::string text = job.dump();
  REQUIRE(precog_compare(opened.catalog, text.data(), text.size(), nullptr, &some.pointer) == PRECOG_DONE);
  CHECK(some.json()["reports"].size() == 2);
  job.erase("precision");
  Text all;
  text = job.dump();
  REQUIRE(precog_compare(opened.catalog, text.data(), text.size(), nullptr, &all.pointer) == PRECOG_DONE);
  CHECK(all.json()["reports"].size() > 4);
  job["precision"] = {"fp32", "amp-bf16+optimizer-bf16"};
  job["advise"] = "amp-bf16";
  Text advised;
  text = job.dump();
  REQUIRE(precog_compare(opened.catalog, text.data(), text.size(), nullptr, &advised.pointer) == PRECOG_DONE);
  CHECK(advised.json()["reports"].size() == 2);
  CHECK(advised.json()["advice_for"]["precision"] == "amp-bf16");
  job["advise"] = 3;
  Text odd;
  text = job.dump();
  CHECK(precog_compare(opened.catalog, text.data(), text.size(), nullptr, &odd.pointer) == PRECOG_WRONG_INPUT);
  job.erase("advise");
  job["precision"] = {"amp-bf99"};
  Text wrong;
  text = job.dump();
  CHECK(precog_compare(opened.catalog, text.data(), text.size(), nullptr, &wrong.pointer) == PRECOG_WRONG_INPUT);
  CHECK(wrong.json()["problems"][0]["where"] == "request.precision");
}

TEST_CASE("ThreadsGetTheSameAnswer") {
  Opened opened;  // of its own: what is read when it is first asked for is read by all at once
  std::vector<std::string> answers(8);
  std::vector<std::thread> threads;
  for (std::string& out : answers)
    threads.emplace_back([&opened, &out] {
      Text answer;
      precog_predict(opened.catalog, kJob.data(), kJob.size(), nullptr, &answer.pointer);
      out = answer.text();
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& answer : answers) CHECK(answer == answers[0]);
  CHECK(answers[0].size() > 500);
}

TEST_CASE("NamesAndRuns") {
  const Opened& opened = data_folder();
  Text names, wrong, validated;
  REQUIRE(precog_names(opened.catalog, "gpus", &names.pointer) == PRECOG_DONE);
  CHECK(names.json()["names"].size() > 10);
  CHECK(precog_names(opened.catalog, "cpus", &wrong.pointer) == PRECOG_WRONG_INPUT);
  std::string runs = R"({"id": "a", "request": )" + kJob + R"(, "measured": {"step_s": 0.01}})" + "\n";
  REQUIRE(precog_validate(opened.catalog, runs.data(), runs.size(), "runs.jsonl", "precision,gpu", &validated.pointer) == PRECOG_DONE);
  CHECK(validated.json()["overall"]["predicted"] == 1);
}

TEST_CASE("BytesGoThroughTheInterfaceAndBack") {
  std::string text(10000, 'x');
  void *packed = nullptr, *back = nullptr;
  std::size_t packed_size = 0, back_size = 0;
  Text error;
  REQUIRE(precog_compress(text.data(), text.size(), 3, &packed, &packed_size, &error.pointer) == PRECOG_DONE);
  CHECK(packed_size < 100);
  REQUIRE(precog_decompress(packed, packed_size, text.size(), &back, &back_size, &error.pointer) == PRECOG_DONE);
  CHECK(std::string(static_cast<char*>(back), back_size) == text);
  precog_free(back);
  CHECK(precog_decompress(packed, packed_size, 10, &back, &back_size, &error.pointer) == PRECOG_WRONG_INPUT);
  CHECK(back == nullptr);
  CHECK(error.json()["code"] == "wrong_input");
  precog_free(packed);
}
