#include <doctest/doctest.h>

#include "spec/software_spec.h"

using namespace precog;

namespace {
Json file() {
  return Json::parse(R"({"schema": 1, "name": "old", "title": "Old", "aliases": ["older"],
    "tensor_by_tensor": {"value": true, "source": "s"}, "clip_reads": {"value": "every norm", "source": "s"},
    "sources": {"s": "release notes"}})");
}
}  // namespace

TEST_CASE("SoftwareSaysWhatDiffersFromToday") {
  const auto spec = parse_software(file(), "old.json");
  REQUIRE(spec);
  CHECK(spec->tensor_by_tensor);
  CHECK_FALSE(spec->zeroes_gradients);
  CHECK_FALSE(spec->aligned_tensor_cores);
  CHECK(spec->clip_reads == ClipReads::every_norm);
  CHECK(spec->aliases == std::vector<std::string>{"older"});
}

TEST_CASE("WrongSoftwareIsNamedFieldByField") {
  Json wrong = file();
  wrong["clip_reads"]["value"] = "sometimes";
  wrong["zeroes_gradients"] = {{"value", 1}, {"source", "s"}};
  wrong["kernels"] = "slow";
  const auto spec = parse_software(wrong, "old.json");
  REQUIRE_FALSE(spec);
  const std::string text = spec.error().text();
  for (const char* field : {"clip_reads", "zeroes_gradients", "kernels"}) CHECK(text.find(field) != std::string::npos);
}
