// Our own invariants. A broken one is a bug of ours, never the user's: it throws, and is caught only at the
// program's edges (CLI main, bindings), where it is shown as such. Outside data goes through Result instead.
#pragma once

#include <stdexcept>
#include <string>

namespace precog {

class BrokenPromise : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

inline void ensure(bool holds, const char* promise) {
  if (!holds) throw BrokenPromise(promise);
}

}  // namespace precog
