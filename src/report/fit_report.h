// What fits: the largest batch, and what would make a job fit; values and how they are shown. Who finds them: predict/fit.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/units.h"
#include "report/style.h"

namespace precog {

// A fix with one change more, which is not needed for the job to fit.
struct FasterFix {
  std::string flags;  // of that change
  Json request;       // of all
  Seconds step;
  double time_cost = 0;
  Bytes device;
  bool certain = false;
  std::int64_t batch = 0;  // as below
};

struct Fix {
  std::string change;  // "recompute activations"
  std::string flags;   // "--recompute full"
  Json request;        // the same, as fields of the request
  std::string note;
  std::string numerics;  // what training computes differently with it; empty: the same result
  std::vector<std::uint8_t> axes;  // which settings it changes (predict/fix_choices.h)
  bool smaller_step = false;       // of fewer samples than the job's
  std::uint8_t result = 0;         // how far from the job's own (FixResult there)
  Seconds step;
  double samples_per_s = 0;
  double time_cost = 0;  // of the time per sample, against the job as it was asked for had it enough memory; below 0: faster
  Bytes peak, device;
  Bytes host_of_node, host_capacity;  // what the GPUs of a node keep in its memory; what it has: 0 where nobody says
  bool much_of_host = false;  // more than machines have for so many GPUs, where nobody says what this one has
  bool certain = false;  // fits at the upper end of the interval too
  std::int64_t batch = 0;  // the largest that fits with it, where that was asked for: what is said of the fix is of that batch; else 0
  std::optional<FasterFix> faster;
};

struct LargestBatch {
  std::int64_t batch = 0;            // samples per replica and micro-batch; 0: not even one fits
  std::optional<std::int64_t> next;  // the smallest batch that was tried and does not fit ...
  Bytes next_device;                 // ... and what it would need
  std::int64_t tried = 0;            // predictions made
  std::vector<std::int64_t> holes;   // smaller batches that were tried and that fragmentation keeps from fitting
};

Json to_json(const Fix& fix);
Json to_json(const LargestBatch& largest);
std::string fixes_text(const std::vector<Fix>& fixes, const Style& style);
std::string fix_change(const Fix& fix);  // with the batch that fits then
std::string fix_notes(const Fix& fix);  // what it changes of the result, what it wants of the host
std::string largest_text(const LargestBatch& largest);  // one sentence

}  // namespace precog
