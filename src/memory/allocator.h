// PyTorch's caching allocator, as far as it decides how much memory a training step takes: rounding, the pools of small and
// large blocks, best fit, splitting, merging, and giving unused segments back before it reports that memory is out.
// Facts of c10/cuda/CUDACachingAllocator.cpp and c10/core/AllocatorConfig.h (PyTorch 2.11, default settings), not their code.
// With expandable segments each pool is one range of addresses that grows, of which only pages in use need memory behind them.
// A program that plans its memory has neither pools nor segments. One device, one stream: a private pool is an allocator of its
// own, other streams' pools are not modelled.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "memory/free_blocks.h"
#include "spec/plan.h"

namespace precog {

class CachingAllocator {
 public:
  using Block = std::int32_t;
  static constexpr Block kNone = -1;

  // `limit`: what the device has left for segments; without one it has enough.
  explicit CachingAllocator(std::int64_t limit = std::int64_t{1} << 62, Allocator kind = Allocator::caching) : limit_(limit), kind_(kind) {}

  Block take(std::int64_t bytes);  // kNone where memory is out, even after giving every unused segment back
  void give(Block block);

  std::int64_t size(Block block) const { return blocks_[static_cast<std::size_t>(block)].size; }
  std::int64_t allocated() const { return allocated_; }  // sum of the blocks in use, each as large as it came out
  std::int64_t reserved() const { return reserved_; }    // sum of the segments
  std::int64_t pinned() const { return pinned_; }        // of the segments (or pages) that hold a block in use: cannot be given back

  // The sizes as they are asked for: rounded up, and what a new segment would be.
  static std::int64_t rounded(std::int64_t bytes);
  static std::int64_t segment_for(std::int64_t rounded_bytes);
  // What a block may come out larger than that: the rest of a free one that is not worth splitting.
  static std::int64_t most_unsplit(std::int64_t rounded_bytes, Allocator kind);

 private:
  struct Piece {
    std::int64_t address = 0, size = 0;
    Block before = kNone, after = kNone;  // neighbours in the segment
    std::int32_t segment = 0;
    bool in_use = false;
  };
  struct Segment {
    std::int64_t size = 0;
    std::int32_t used = 0;  // blocks of it in use
    bool small = false;
  };
  Block new_piece(const Piece& piece);
  void drop_piece(Block block);
  void set_free(Block block);
  void set_taken(Block block);
  bool give_back_unused();
  Block grow(std::int64_t size, bool small);           // expandable: the range's free end, made long enough
  void use_pages(const Piece& piece, int change);

  FreeBlocks& pool(const Piece& piece) { return free_[segments_[static_cast<std::size_t>(piece.segment)].small ? 0 : 1]; }
  Piece& piece(Block block) { return blocks_[static_cast<std::size_t>(block)]; }

  std::int64_t limit_;
  Allocator kind_;
  Block last_[2] = {kNone, kNone};           // expandable: each range's last block
  std::unordered_map<std::int64_t, std::int32_t> used_ends_[2];  // page -> how many blocks in use begin or end in it
  std::int64_t allocated_ = 0, reserved_ = 0, pinned_ = 0, next_address_ = 0;
  std::vector<Piece> blocks_;
  std::vector<Block> spare_;  // entries of blocks_ to use again
  std::vector<Segment> segments_;
  FreeBlocks free_[2];        // small, large
};

}  // namespace precog
