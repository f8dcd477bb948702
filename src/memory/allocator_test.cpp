#include <doctest/doctest.h>

#include "memory/allocator.h"

using precog::Allocator;
using precog::CachingAllocator;

namespace {
constexpr std::int64_t kMiB = 1 << 20;
}

TEST_CASE("AllocatorSizesAreRoundedAndSegmentsComeInThreeKinds") {
  CHECK(CachingAllocator::rounded(0) == 512);
  CHECK(CachingAllocator::rounded(513) == 1024);
  CHECK(CachingAllocator::segment_for(kMiB) == 2 * kMiB);
  CHECK(CachingAllocator::segment_for(kMiB + 512) == 20 * kMiB);
  CHECK(CachingAllocator::segment_for(10 * kMiB - 512) == 20 * kMiB);
  CHECK(CachingAllocator::segment_for(10 * kMiB) == 10 * kMiB);
  CHECK(CachingAllocator::segment_for(11 * kMiB) == 12 * kMiB);
}

TEST_CASE("SmallBlocksShareASegmentAndStayOutOfLargeOnes") {
  CachingAllocator allocator;
  const auto large = allocator.take(30 * kMiB);
  allocator.give(large);
  allocator.take(512);
  CHECK(allocator.reserved() == 32 * kMiB);  // the free large segment serves no small block
  allocator.take(kMiB);
  CHECK(allocator.reserved() == 32 * kMiB);
  CHECK(allocator.allocated() == kMiB + 512);
}

TEST_CASE("ARestOfAtMostAMebibyteIsNotSplitOffAndCounts") {
  CachingAllocator allocator;
  allocator.give(allocator.take(12 * kMiB));
  const auto tight = allocator.take(11 * kMiB);
  CHECK(allocator.allocated() == 12 * kMiB);
  allocator.give(tight);
  allocator.take(11 * kMiB - 512);
  CHECK(allocator.allocated() == 11 * kMiB - 512);
}

TEST_CASE("TheSmallestFreeBlockThatFitsIsTaken") {
  CachingAllocator allocator;
  const auto wide = allocator.take(40 * kMiB), narrow = allocator.take(16 * kMiB);
  allocator.give(wide);
  allocator.give(narrow);
  allocator.take(16 * kMiB);
  CHECK(allocator.pinned() == 16 * kMiB);
  CHECK(allocator.reserved() == 56 * kMiB);
}

TEST_CASE("NeighboursThatAreFreeBecomeOne") {
  CachingAllocator allocator;
  std::vector<CachingAllocator::Block> four;
  for (int i = 0; i < 4; ++i) four.push_back(allocator.take(5 * kMiB));
  CHECK(allocator.reserved() == 20 * kMiB);
  for (int i : {0, 2, 1, 3}) allocator.give(four[static_cast<std::size_t>(i)]);
  CHECK(allocator.allocated() == 0);
  CHECK(allocator.pinned() == 0);
  allocator.take(18 * kMiB);
  CHECK(allocator.reserved() == 20 * kMiB);
}

TEST_CASE("UnusedSegmentsAreGivenBackBeforeMemoryIsOut") {
  CachingAllocator allocator(100 * kMiB);
  allocator.give(allocator.take(60 * kMiB));
  const auto held = allocator.take(40 * kMiB);  // from the free 60, split
  CHECK(allocator.reserved() == 60 * kMiB);
  CHECK(allocator.take(50 * kMiB) == CachingAllocator::kNone);  // the 60 cannot be given back: part of it is in use
  allocator.give(held);
  CHECK(allocator.take(90 * kMiB) != CachingAllocator::kNone);
  CHECK(allocator.reserved() == 90 * kMiB);
  CHECK(allocator.take(20 * kMiB) == CachingAllocator::kNone);
  CHECK(allocator.allocated() == 90 * kMiB);
}

TEST_CASE("WhatIsTakenAndGivenBackLeavesNothing") {
  CachingAllocator allocator;
  std::vector<CachingAllocator::Block> held;
  std::uint64_t state = 1;
  auto random = [&] { return state = state * 6364136223846793005ULL + 1442695040888963407ULL, state >> 33; };
  std::int64_t sum = 0;
  for (int i = 0; i < 5000; ++i) {
    if (held.empty() || random() % 3 != 0) {
      const auto bytes = static_cast<std::int64_t>(random() % (random() % 4 == 0 ? 40 * kMiB : 2 * kMiB)) + 1;
      const auto block = allocator.take(bytes);
      CHECK(allocator.size(block) >= bytes);
      sum += allocator.size(block);
      held.push_back(block);
    } else {
      const std::size_t which = random() % held.size();
      sum -= allocator.size(held[which]);
      allocator.give(held[which]);
      held[which] = held.back();
      held.pop_back();
    }
    CHECK(allocator.allocated() == sum);
    CHECK(allocator.pinned() >= allocator.allocated());
    CHECK(allocator.reserved() >= allocator.pinned());
  }
  for (auto block : held) allocator.give(block);
  CHECK(allocator.allocated() == 0);
  CHECK(allocator.pinned() == 0);
}

TEST_CASE("ExpandableSegmentsNeedOnlyPagesInUse") {
  // Two large blocks with a small hole between: a segment of their own each, or three ranges of pages.
  CachingAllocator plain, expandable(std::int64_t{1} << 62, Allocator::expandable);
  constexpr std::int64_t kBlock = 200 << 20;
  for (CachingAllocator* allocator : {&plain, &expandable}) {
    const auto first = allocator->take(kBlock), second = allocator->take(kBlock), third = allocator->take(kBlock);
    allocator->give(second);
    const auto half = allocator->take(kBlock / 2);
    CHECK(allocator->allocated() == kBlock * 5 / 2);
    allocator->give(first), allocator->give(half), allocator->give(third);
    CHECK(allocator->allocated() == 0);
    CHECK(allocator->pinned() == 0);
  }
  const auto first = plain.take(kBlock * 2);
  CHECK(plain.pinned() == kBlock * 2);
  plain.give(first);
  // A segment that holds half of what it could is pinned whole; of a range only the pages are.
  CachingAllocator a, b(std::int64_t{1} << 62, Allocator::expandable), c(std::int64_t{1} << 62, Allocator::planned);
  for (CachingAllocator* allocator : {&a, &b, &c}) {
    const auto whole = allocator->take(kBlock);
    allocator->give(whole);
    allocator->take(kBlock / 4);
  }
  CHECK(a.pinned() == kBlock);
  CHECK(b.pinned() == 60 << 20);  // 50 MiB in pages of 20
  CHECK(c.pinned() == kBlock / 4);
  b.take(std::int64_t{1} << 58);  // absurd, and answered at once: pages are not listed one by one
  CHECK(b.pinned() > std::int64_t{1} << 58);
}
