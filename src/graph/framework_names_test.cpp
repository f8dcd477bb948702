#include <fstream>
#include <map>
#include <set>
#include <string>

#include <doctest/doctest.h>

#include "graph/builder.h"
#include "graph/framework_names.h"
#include "graph/operator.h"
#include "support.h"

using namespace precog;

// The page holds PyTorch's lists as the dispatcher gave them; the table must say the same of every name on them.
TEST_CASE("EveryNameOnAnAutocastListHasItsClass") {
  std::ifstream page(std::string(PRECOG_SOURCE_DIR) + "/docs/model_notes/autocast_lists.md");
  REQUIRE(page);
  const std::map<std::string, Autocast> sections = {{"AT_FORALL_LOWER_PRECISION_FP", Autocast::lower}, {"AT_FORALL_FP32_SET_OPT_DTYPE", Autocast::fp32_result},
      {"AT_FORALL_FP32", Autocast::fp32}, {"AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE", Autocast::fp32_result}, {"AT_FORALL_PROMOTE", Autocast::promote}};
  const std::set<std::string> elsewhere = {"_scaled_dot_product_flash_attention"};  // below the level at which we look
  std::map<std::string, Autocast> expected;
  std::string line;
  const Autocast* section = nullptr;
  bool listing = false;
  while (std::getline(page, line)) {
    if (line.rfind("## ", 0) == 0) {
      const auto found = sections.find(line.substr(3, line.find(' ', 3) - 3));
      section = found == sections.end() ? nullptr : &found->second;
    } else if (line == "```") {
      listing = !listing;
    } else if (listing && section) {
      expected[line.substr(0, line.find('.'))] = *section;
    }
  }
  CHECK(expected.size() > 90);
  for (const auto& [name, autocast] : expected) {
    if (elsewhere.contains(name)) continue;
    CAPTURE(name);
    REQUIRE(framework_name(name) != nullptr);
    CHECK(framework_name(name)->autocast == autocast);
  }
  for (const FrameworkName& known : framework_names()) {
    if (known.autocast == Autocast::none || expected.contains(std::string(known.name))) continue;
    CAPTURE(known.name);  // recurrent layers and cuDNN's own names go through wrappers of their own
    CHECK(known.autocast == Autocast::lower);
  }
}

TEST_CASE("OurOwnOperatorsAndTheTableAgreeOnAutocast") {
  for (const FrameworkName& known : framework_names()) {
    if (to_text(known.kind) != known.name || is_generic(known.kind) || known.kind == OpKind::log_softmax) continue;  // log_softmax: cross_entropy's
    CAPTURE(known.name);
    CHECK((known.autocast == definition(known.kind).autocast || known.kind == OpKind::mm || known.kind == OpKind::bmm));
  }
}

TEST_CASE("ABuilderTakesAnyOperatorByName") {
  GraphBuilder b;
  const TensorId x = b.input("x", {4, 8});
  const TensorId both[] = {x, x};
  const TensorId y = b.by_name("erfinv", std::span(both).first(1), {4, 8});
  b.by_name("nobody_knows", both, {4, 8});
  const Graph graph = std::move(b).finish();
  CHECK(graph.ops[OpId{0}].kind == OpKind::pointwise);
  CHECK(graph.ops[OpId{0}].autocast == Autocast::fp32);
  CHECK(name_of(graph, graph.ops[OpId{0}]) == "erfinv");
  CHECK(graph.ops[OpId{1}].kind == OpKind::unknown);
  CHECK(graph.tensors[y].shape == Shape{4, 8});
}

TEST_CASE("ASplitIntoManyPiecesAndACatOfManyAreAllowed") {
  GraphBuilder b;
  const TensorId x = b.linear_layer("l", b.input("x", {2, 600}), 600, false);
  const auto pieces = b.split(x, 1, std::vector<std::int64_t>(600, 1));
  CHECK(pieces.size() == 600);
  b.mean(b.cat(pieces, 1), 1);
  CHECK(verify(std::move(b).finish()).empty());
}
