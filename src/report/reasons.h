// Why one step takes longer than another of the same job: the parts whose times differ, the largest first. The parts of a step
// are disjoint, so that differences add up to that of the steps.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "graph/operator.h"
#include "report/report.h"

namespace precog {

struct Reason {
  const char* part;    // "products", "casts", "optimizer", "host", ...
  Seconds difference;  // of `that` against `from`: negative where it is faster
  std::string text;    // "products -4.2 ms (bf16 for tf32)"
};

// The part that an operator of forward or backward belongs to.
const char* part_of(Family family);

std::vector<Reason> reasons(const Report& from, const Report& that);

// The first few that go the way the step goes, then the largest that goes against it: "products -4.2 ms, casts +1.1 ms".
std::string reasons_text(const Report& from, const Report& that, std::size_t most = 2);

// "1.63x as fast as tf32 (products -24.2 ms, casts +4.65 ms)": what `that` wins or loses against `from`, and why.
std::string against(const Report& from, const Report& that);

// Where a narrower recipe is slower than TF32 (or fp32), and what makes it so.
struct Loss {
  double share = 0;     // of the plain step
  const char* kind;     // host, convolution, casts, loss_scaling, other
  std::string because;
};
std::optional<Loss> loses_to(const Report& plain, const Report& mixed);

}  // namespace precog
