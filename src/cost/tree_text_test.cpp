#include "cost/tree_text.h"

#include <doctest/doctest.h>

namespace precog {
namespace {

std::vector<Tree> read_back(const TreeTexts& texts) {
  TreeSplits splits;
  REQUIRE(read_splits(texts.splits, 200, splits));
  std::vector<Tree> out;
  for (const std::string& text : texts.trees) REQUIRE(read_tree(text, splits, texts.unit, out.emplace_back()));
  return out;
}

}  // namespace

TEST_CASE("trees come back from their texts as they were") {
  const std::vector<Tree> trees = {{{7, 2, 0.125}, {-1, 0, 0.3}, {120, 4, -1234.5}, {-1, 0, -0.25}, {-1, 0, 0.001}}, {{-1, 0, -0.0625}}, {{7, 2, 3.0}, {-1, 0, 0.0}, {-1, 0, 0.1}}};
  const TreeTexts texts = tree_texts(trees);
  CHECK(texts.splits == "7 2 0.125 3 120 1 -1234");
  CHECK(texts.trees[0].size() == 3 * trees[0].size());
  const std::vector<Tree> back = read_back(texts);
  REQUIRE(back.size() == trees.size());
  for (std::size_t t = 0; t < trees.size(); ++t) {
    REQUIRE(back[t].size() == trees[t].size());
    for (std::size_t i = 0; i < trees[t].size(); ++i) {
      CHECK(back[t][i].feature == trees[t][i].feature);
      CHECK(back[t][i].right == trees[t][i].right);
      CHECK(back[t][i].number == doctest::Approx(trees[t][i].number).epsilon(0.0005));
    }
  }
  CHECK(tree_texts(back).trees == texts.trees);
  CHECK(tree_texts(back).unit == texts.unit);
}

TEST_CASE("texts that are no trees are refused") {
  TreeSplits splits;
  CHECK(read_splits("", 5, splits));
  CHECK(tree_texts({}).splits == "");
  for (const char* bad : {"5 1 0.5", "-1 1 0.5", "1 2 0.5", "1 0", "1 1 nan", "x"}) {
    TreeSplits none;
    CHECK_MESSAGE(!read_splits(bad, 5, none), bad);
  }
  REQUIRE(read_splits("1 1 0.5", 5, splits));
  Tree tree;
  CHECK(read_tree("AAAgAAgAA", splits, 0.5, tree));
  for (const char* bad : {"", "AA", "AAA", "AAAgAA", "AABgAAgAA", "AAAgAAgAAgAA", "AAA\"AAgAA"}) {
    Tree none;
    CHECK_MESSAGE(!read_tree(bad, splits, 0.5, none), bad);
  }
}

}  // namespace precog
