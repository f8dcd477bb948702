#include "memory/allocator.h"

#include <algorithm>
#include <array>

#include "base/ensure.h"

namespace precog {
namespace {

constexpr std::int64_t kUnit = 512;                // kMinBlockSize: every size is a multiple
constexpr std::int64_t kSmall = 1 << 20;           // kSmallSize: up to here a block comes from the small pool
constexpr std::int64_t kSmallSegment = 2 << 20;    // kSmallBuffer
constexpr std::int64_t kLargeSegment = 20 << 20;   // kLargeBuffer: for large blocks under ...
constexpr std::int64_t kOwnSegment = 10 << 20;     // ... kMinLargeAlloc; above, a segment of their own,
constexpr std::int64_t kSegmentUnit = 2 << 20;     // a multiple of kRoundLarge

std::int64_t up_to(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

std::int64_t CachingAllocator::rounded(std::int64_t bytes) { return std::max(kUnit, up_to(bytes, kUnit)); }

std::int64_t CachingAllocator::segment_for(std::int64_t bytes) {
  if (bytes <= kSmall) return kSmallSegment;
  return bytes < kOwnSegment ? kLargeSegment : up_to(bytes, kSegmentUnit);
}

std::int64_t CachingAllocator::most_unsplit(std::int64_t bytes, Allocator kind) { return kind == Allocator::caching && bytes > kSmall ? kSmall : 0; }

CachingAllocator::Block CachingAllocator::new_piece(const Piece& made) {
  if (spare_.empty()) {
    blocks_.push_back(made);
    return static_cast<Block>(blocks_.size() - 1);
  }
  const Block block = spare_.back();
  spare_.pop_back();
  piece(block) = made;
  return block;
}
void CachingAllocator::drop_piece(Block block) { spare_.push_back(block); }

void CachingAllocator::set_free(Block block) {
  Piece& p = piece(block);
  p.in_use = false;
  pool(p).insert({p.size, p.address, block});
}
void CachingAllocator::set_taken(Block block) {
  const Piece& p = piece(block);
  pool(p).erase({p.size, p.address, block});
}

// try_allocate_expandable_block: memory is mapped behind whole pages at the end of the range.
CachingAllocator::Block CachingAllocator::grow(std::int64_t size, bool small) {
  const std::int64_t page = small ? kSmallSegment : kLargeSegment;
  Block& last = last_[small ? 0 : 1];
  const std::int32_t segment = small ? 0 : 1;
  if (segments_.empty()) segments_ = {{0, 0, true}, {0, 0, false}};
  const bool joins = last != kNone && !piece(last).in_use;
  const std::int64_t more = up_to(size - (joins ? piece(last).size : 0), page);
  Segment& range = segments_[static_cast<std::size_t>(segment)];
  if (joins) {
    set_taken(last);
    piece(last).size += more;
  } else {
    const Block made = new_piece({range.size, more, last, kNone, segment, false});
    if (last != kNone) piece(last).after = made;
    last = made;
  }
  range.size += more;
  reserved_ += more;
  return last;
}

// The pages between a block's first and last are its own.
void CachingAllocator::use_pages(const Piece& p, int change) {
  const bool small = segments_[static_cast<std::size_t>(p.segment)].small;
  const std::int64_t page = small ? kSmallSegment : kLargeSegment;
  const auto touch = [&](std::int64_t at) {
    std::unordered_map<std::int64_t, std::int32_t>& ends = used_ends_[small ? 0 : 1];
    const std::int32_t used = ends[at] += change;
    if (used == (change > 0 ? 1 : 0)) pinned_ += change * page;
    if (used == 0) ends.erase(at);
  };
  const std::int64_t first = p.address / page, last = (p.address + p.size - 1) / page;
  touch(first);
  if (last == first) return;
  touch(last);
  pinned_ += change * page * (last - first - 1);
}

CachingAllocator::Block CachingAllocator::take(std::int64_t bytes) {
  if (kind_ == Allocator::planned) {
    const Block block = new_piece({.size = rounded(bytes), .in_use = true});
    allocated_ += piece(block).size;
    pinned_ = allocated_;
    reserved_ = std::max(reserved_, allocated_);
    return block;
  }
  const std::int64_t size = rounded(bytes);
  const bool small = size <= kSmall;
  FreeBlocks& free = free_[small ? 0 : 1];
  Block block = kNone;
  if (free.take_at_least(size, block)) {
  } else if (kind_ == Allocator::expandable) {
    block = grow(size, small);
  } else {
    const std::int64_t wanted = segment_for(size);
    if (reserved_ + wanted > limit_ && (!give_back_unused() || reserved_ + wanted > limit_)) return kNone;
    reserved_ += wanted;
    segments_.push_back({wanted, 0, small});
    block = new_piece({next_address_, wanted, kNone, kNone, static_cast<std::int32_t>(segments_.size() - 1), false});
    next_address_ += wanted;
  }
  // A rest is split off where it can serve somebody: any in the small pool, more than a small block in the large one.
  // Otherwise it counts as allocated.
  const std::int64_t rest = piece(block).size - size;
  if (small || kind_ == Allocator::expandable ? rest >= kUnit : rest > kSmall) {
    const Piece whole = piece(block);
    const Block left = new_piece({whole.address + size, rest, block, whole.after, whole.segment, false});
    if (whole.after != kNone) piece(whole.after).before = left;
    else if (kind_ == Allocator::expandable) last_[small ? 0 : 1] = left;
    piece(block).after = left;
    piece(block).size = size;
    set_free(left);
  }
  Piece& p = piece(block);
  p.in_use = true;
  allocated_ += p.size;
  Segment& segment = segments_[static_cast<std::size_t>(p.segment)];
  if (kind_ == Allocator::expandable) use_pages(p, 1);
  else if (segment.used++ == 0) pinned_ += segment.size;
  return pinned_ > limit_ ? kNone : block;
}

void CachingAllocator::give(Block block) {
  ensure(piece(block).in_use, "a block is given back once");
  allocated_ -= piece(block).size;
  if (kind_ == Allocator::planned) {
    pinned_ = allocated_;
    piece(block).in_use = false;
    return drop_piece(block);
  }
  Segment& segment = segments_[static_cast<std::size_t>(piece(block).segment)];
  if (kind_ == Allocator::expandable) use_pages(piece(block), -1);
  else if (--segment.used == 0) pinned_ -= segment.size;
  const auto joins = [&](Block other) { return other != kNone && !piece(other).in_use; };
  if (const Block before = piece(block).before; joins(before)) {
    set_taken(before);
    piece(before).size += piece(block).size;
    piece(before).after = piece(block).after;
    if (piece(block).after != kNone) piece(piece(block).after).before = before;
    for (Block& last : last_)
      if (last == block) last = before;
    drop_piece(block);
    block = before;
  }
  if (const Block after = piece(block).after; joins(after)) {
    set_taken(after);
    piece(block).size += piece(after).size;
    piece(block).after = piece(after).after;
    if (piece(after).after != kNone) piece(piece(after).after).before = block;
    for (Block& last : last_)
      if (last == after) last = block;
    drop_piece(after);
  }
  set_free(block);
}

bool CachingAllocator::give_back_unused() {
  bool any = false;
  for (FreeBlocks& free : free_)
    for (const FreeBlock& unused : free.all()) {
      const Piece& p = piece(unused.block);
      if (p.before != kNone || p.after != kNone) continue;
      reserved_ -= p.size;
      any = true;
      free.erase(unused);
      drop_piece(unused.block);
    }
  return any;
}

}  // namespace precog
