#include "memory/peak_bounds.h"

#include <algorithm>

#include "memory/allocator.h"

namespace precog {

PeakBounds peak_bounds(const MemoryTrace& trace, const Graph& graph, Allocator allocator) {
  struct Range {
    std::int64_t low = 0, high = 0;
  };
  Range now, at_work, at_end;
  const auto change = [&](std::int32_t block, std::int64_t sign) {
    const std::int64_t size = CachingAllocator::rounded(trace.blocks[static_cast<std::size_t>(block)].bytes);
    now.low += sign * size;
    now.high += sign * (size + CachingAllocator::most_unsplit(size, allocator));
  };
  for (std::int32_t block : trace.resident) change(block, 1);
  for (const MemoryEvent& event : trace.events)
    if (event.kind == MemoryEvent::Kind::take_once) change(event.block, 1);
  std::vector<char> alive(trace.blocks.size(), 0);
  for (std::size_t op = 0; op + 1 < trace.first_event.size(); ++op) {
    Range& most = graph.ops[graph.ops.id_at(op)].phase >= Phase::loss_scaling ? at_end : at_work;
    for (std::size_t e = trace.first_event[op]; e < trace.first_event[op + 1]; ++e) {
      const MemoryEvent& event = trace.events[e];
      char& lives = alive[static_cast<std::size_t>(event.block)];
      if (event.kind == MemoryEvent::Kind::take_once || lives == (event.kind == MemoryEvent::Kind::take ? 1 : 0)) continue;
      lives ^= 1;
      change(event.block, lives ? 1 : -1);
      if (!lives) continue;
      most.low = std::max(most.low, now.low);
      most.high = std::max(most.high, now.high);
    }
  }
  return {{std::max(at_work.low, at_end.low)}, {std::max(at_work.high, at_end.high)}, at_work.low > at_end.high};
}

}  // namespace precog
