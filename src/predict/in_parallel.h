// One piece of work many times, by a few threads; whatever their number, the pieces do the same.
#pragma once

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>
#include <vector>

namespace precog {

inline constexpr unsigned kMostThreads = 4;

// `work(i)` for every i below `count`; what the first of them throws is thrown when all are done.
template <class Work>
void in_parallel(std::size_t count, Work work) {
  std::atomic<std::size_t> next{0};
  std::vector<std::exception_ptr> broken(count);
  const auto loop = [&] {
    for (std::size_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {
        broken[i] = std::current_exception();
      }
    }
  };
  {
    std::vector<std::jthread> helpers;
    const unsigned threads = std::min(kMostThreads, std::max(1u, std::thread::hardware_concurrency()));
    for (unsigned i = 1; i < threads && i < count; ++i) helpers.emplace_back(loop);
    loop();
  }
  for (const std::exception_ptr& one : broken)
    if (one) std::rethrow_exception(one);
}

}  // namespace precog
