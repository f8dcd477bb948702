#include <doctest/doctest.h>

#include "spec/host_spec.h"

using namespace precog;

namespace {

Json whole() {
  return *parse_json(R"({"schema": 1, "name": "whole", "title": "t", "aliases": ["all"], "sources": {"s": "measured: here"},
    "forward": {"default": {"value": "10 us", "source": "s"}, "view": {"value": "2 us", "source": "s"}},
    "backward": {"default": {"value": "20 us", "source": "s"}},
    "kernel_launch": {"value": "4 us", "source": "s"}, "autocast_cast": {"value": "8 us", "source": "s"},
    "parameter_gradient": {"value": "6 us", "source": "s"}, "optimizer_op": {"value": "30 us", "source": "s"},
    "optimizer_tensor": {"value": "10 us", "source": "s"}, "loss_scaler": {"value": "100 us", "source": "s"},
    "synchronise": {"value": "9 us", "source": "s"}, "step": {"value": "50 us", "source": "s"}})", "whole.json");
}
Result<HostSpec> parsed(const char* text) { return parse_host(*parse_json(text, "mine.json"), "mine.json", {{"whole", whole()}}); }

}  // namespace

TEST_CASE("AHostStandsOnAnotherScaled") {
  const auto host = parsed(R"({"schema": 1, "name": "mine", "title": "m", "extends": "all", "scale": {"value": 0.5, "source": "s"},
    "forward": {"view": {"value": "3 us", "source": "s"}}, "sources": {"s": "measured: there"}})");
  REQUIRE(host);
  CHECK(host->name == "mine");
  CHECK(host->forward.at("default").value == doctest::Approx(5e-6));
  CHECK(host->forward.at("view").value == doctest::Approx(3e-6));  // its own figures are not scaled
  CHECK(host->step.value == doctest::Approx(25e-6));
  CHECK(host->compiled.kernel.value == doctest::Approx(4e-6));  // two launches' worth where nobody measured it
  CHECK_FALSE(host->estimated);
  CHECK(host->aliases.empty());
}

TEST_CASE("AGuessedScaleIsAnEstimate") {
  const auto host = parsed(R"({"schema": 1, "name": "mine", "title": "m", "extends": "whole", "scale": {"value": 2, "source": "s"}, "sources": {"s": "estimate: a guess"}})");
  REQUIRE(host);
  CHECK(host->estimated);
}

TEST_CASE("WhatAHostMustSay") {
  auto message = [](const char* text) { return parsed(text).error().text(); };
  CHECK(message(R"({"schema": 1, "name": "m", "title": "m", "sources": {}})").find("forward") != std::string::npos);
  CHECK(message(R"({"schema": 1, "name": "m", "title": "m", "sources": {}, "extends": "hole"})").find("whole") != std::string::npos);
  CHECK(message(R"({"schema": 1, "name": "m", "title": "m", "sources": {"s": "x"}, "scale": {"value": 2, "source": "s"}})").find("there is none") != std::string::npos);
  CHECK(message(R"({"schema": 1, "name": "m", "title": "m", "extends": "whole", "sources": {}, "module_cal": 3})").find("module_call") != std::string::npos);
  CHECK(message(R"({"schema": 1, "name": "m", "title": "m", "extends": "whole", "sources": {}, "step": 3})").find("step") != std::string::npos);
}

TEST_CASE("AHostThatExtendsItselfIsRefused") {
  Json self = *parse_json(R"({"schema": 1, "name": "self", "title": "s", "sources": {}, "extends": "self"})", "self.json");
  CHECK_FALSE(parse_host(self, "self.json", {{"self", self}}));
}
