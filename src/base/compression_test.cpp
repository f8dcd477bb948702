#include <doctest/doctest.h>

#include "base/compression.h"

using namespace precog;

namespace {
std::string sample() {
  std::string text;
  for (int i = 0; i < 20000; ++i) text += std::to_string(i * 7919 % 10007) + ",";
  return text;
}
}  // namespace

TEST_CASE("WhatWasCompressedComesBack") {
  for (const std::string& text : {std::string(), std::string("x"), std::string("a\0b", 3), sample(), std::string(1 << 20, ' ')}) {
    auto packed = compress(text);
    REQUIRE(packed);
    CHECK(is_zstd(*packed));
    auto back = decompress(*packed, text.size(), "file");
    REQUIRE(back);
    CHECK(*back == text);
  }
  CHECK(compress(sample())->size() < sample().size() / 2);
}

TEST_CASE("FramesOneAfterTheOtherAreOneText") {
  CHECK(*decompress(*compress("one ") + *compress("two"), 100, "file") == "one two");
}

TEST_CASE("EveryCutIsSeen") {
  std::string packed = *compress(std::string("captured graph ") + sample().substr(0, 200));
  for (std::size_t size = 0; size < packed.size(); ++size)
    CHECK_MESSAGE(!decompress(packed.substr(0, size), 1 << 20, "file"), size);
}

TEST_CASE("EveryFlippedBitIsSeenOrHarmless") {
  std::string text = sample().substr(0, 300), packed = *compress(text);
  for (std::size_t i = 0; i < packed.size(); ++i) {
    std::string wrong = packed;
    wrong[i] = static_cast<char>(wrong[i] ^ 0x10);
    auto back = decompress(wrong, 1 << 20, "file");
    CHECK_MESSAGE((!back || *back == text), i);
  }
}

TEST_CASE("TheLimitHoldsBeforeMemoryIsTaken") {
  std::string bomb = *compress(std::string(64u << 20, ' '));  // a few kilobytes
  auto back = decompress(bomb, 1 << 20, "bomb.zst");
  REQUIRE(!back);
  CHECK(back.error().text() == "bomb.zst: is larger than 1048576 bytes when decompressed");
}

TEST_CASE("OtherBytesAreNotZstandard") {
  CHECK(decompress("{\"schema\": 1}", 100, "file").error().text() == "file: is not compressed with Zstandard");
  CHECK(!compress("x", 0));
  CHECK(!compress("x", 20));
}
