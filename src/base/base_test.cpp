#include <filesystem>

#include <doctest/doctest.h>

#include "base/json.h"
#include "base/text.h"
#include "base/units.h"

using namespace precog;

TEST_CASE("QuantitiesReadTheirUnits") {
  CHECK(parse_quantity<BytesPerSecond>("3.35 TB/s")->value == doctest::Approx(3.35e12));
  CHECK(parse_quantity<Bytes>("80 GiB")->value == 80LL << 30);
  CHECK(parse_quantity<Seconds>("2.5us")->value == doctest::Approx(2.5e-6));
  CHECK(parse_quantity<FlopsPerSecond>("2.25 PFLOP/s")->value == doctest::Approx(2.25e15));
}

TEST_CASE("AQuantityWithoutItsUnitIsAnErrorThatShowsARightOne") {
  for (const char* wrong : {"3.35", "3.35 TB", "TB/s", "", "-1 TB/s", "0 TB/s", "nan TB/s", "1e999 TB/s", "3 TB/s extra"})
    CHECK_MESSAGE(!parse_quantity<BytesPerSecond>(wrong), wrong);
  CHECK(parse_quantity<BytesPerSecond>("3.35").error().text().find("3.35 TB/s") != std::string::npos);
}

TEST_CASE("BytesOverBandwidthIsTime") {
  CHECK((Bytes{1'000'000} / BytesPerSecond{1e9}).value == doctest::Approx(1e-3));
  CHECK((Flops{2e12} / FlopsPerSecond{1e12}).value == doctest::Approx(2));
}

TEST_CASE("QuantitiesPrintForPeople") {
  CHECK(to_text(Seconds{0.1196}) == "119.6 ms");
  CHECK(to_text(Seconds{86400 * 10}) == "10 days");
  CHECK(to_text(Bytes{26'730'000'000}) == "26.73 GB");
  CHECK(to_text(Seconds{}) == "0 s");
}

TEST_CASE("NearestNamesFindATypo") {
  const std::vector<std::string> known = {"h100-sxm", "a100-sxm-80gb", "v100-pcie"};
  CHECK(nearest_names("h10-sxm", known, 1) == std::vector<std::string>{"h100-sxm"});
  CHECK(nearest_names("V100", known, 1) == std::vector<std::string>{"v100-pcie"});
  CHECK(nearest_names("h1000", {"l40s", "t4", "h100-sxm"}, 1) == std::vector<std::string>{"h100-sxm"});  // its beginning, mistyped
  CHECK(differ_by_one("h1000", "h100"));
  CHECK_FALSE(differ_by_one("h100", "h100"));
  CHECK(normalised_name("H100_SXM") == "h100-sxm");
}

TEST_CASE("AReaderReportsEveryProblemWithItsPath") {
  const Json json = Json::parse(R"({"batch": "two", "cluster": {"gpus": 1.5}, "modle": 1})");
  std::vector<Problem> problems;
  JsonReader reader(json, "job.json", problems);
  reader.integer("batch", 1, 10);
  reader.object("cluster")->integer("gpus", 1, 10);
  reader.text("model");
  reader.reject_unknown_keys();
  REQUIRE(problems.size() == 3);
  CHECK(problems[0].where == "job.json: batch");
  CHECK(problems[1].where == "job.json: cluster.gpus");
  CHECK(problems[2].message.find("model") != std::string::npos);
}

TEST_CASE("AFieldSaidTwiceInOneObjectIsAnError") {
  CHECK(parse_json(R"({"a": 1, "b": {"a": 2}, "c": [{"a": 3}, {"a": 4}]})", "f").has_value());
  for (const char* wrong : {R"({"a": 1, "b": 2, "a": 1})", R"({"c": {"d": [{"a": 1, "a": 2}]}})", R"({"b": {"x": 1}, "a": 1, "a": {}})"})
    CHECK_MESSAGE(parse_json(wrong, "f").error().text().find("'a' twice") != std::string::npos, wrong);
}

TEST_CASE("LimitsArePrintedInAllTheirDigits") {
  const Json json = Json::parse(R"({"gpus": 2000000, "price": 2.5e17, "share": 0.25})");
  std::vector<Problem> problems;
  JsonReader reader(json, "f", problems);
  reader.integer("gpus", 1, 1'000'000);
  reader.number("price", 0, 1e16);
  reader.number("share", 0.5, 1);
  REQUIRE(problems.size() == 3);
  CHECK(problems[0].message == "is 2000000; it must be from 1 to 1000000");
  CHECK(problems[1].message == "is 2.5e+17; it must be from 0 to 1e+16");
  CHECK(problems[2].message == "is 0.25; it must be from 0.5 to 1");
}

TEST_CASE("BrokenJsonIsOneClearError") {
  for (const char* wrong : {"", "{", "{\"a\": }", "[1,2", "\xff\xfe", "{\"a\": 1e999999}"}) {
    auto parsed = parse_json(wrong, "file.json");
    CHECK_MESSAGE(!parsed, wrong);
  }
  std::string deep(100'000, '[');
  CHECK(!parse_json(deep, "deep.json"));
  std::string closed = std::string(1000, '[') + std::string(1000, ']');
  CHECK(parse_json(closed, "deep.json").error().text().find("deeper") != std::string::npos);
}

TEST_CASE("FilesThatCannotBeReadSayWhy") {
  CHECK(read_json_file("/no/such/file.json").error().text().find("no such file") != std::string::npos);
  CHECK(read_json_file(std::filesystem::temp_directory_path()).error().text().find("folder") != std::string::npos);
  const auto path = std::filesystem::temp_directory_path() / "precog_base_test.json";
  REQUIRE(write_text_file(path, "{\"a\": 1}"));
  CHECK(read_json_file(path, 4).error().text().find("largest accepted") != std::string::npos);
  CHECK((*read_json_file(path))["a"] == 1);
  std::filesystem::remove(path);
  CHECK(!write_text_file("/no/such/folder/file", "x"));
  const auto link = path.parent_path() / (path.filename().string() + ".link");
  std::filesystem::remove(link);
  std::filesystem::create_symlink(path, link);
  REQUIRE(write_text_file(link, "{}"));  // what a link leads to is written, and the link stays
  CHECK((std::filesystem::is_symlink(link) && read_text_file(path).value() == "{}"));
  std::filesystem::remove(link);
  std::filesystem::remove(path);
  REQUIRE(write_text_file("/dev/null", "x"));
  CHECK(std::filesystem::is_character_file("/dev/null"));
}
