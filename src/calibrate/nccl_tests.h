// What nccl-tests prints (all_reduce_perf and its kin), read back: which collective, over how many ranks on how many hosts, and
// the time of every message size (out of place). One file may hold several tests after one another.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "kernel/kernel.h"

namespace precog {

struct NcclTest {
  Collective kind = Collective::all_reduce;
  int ranks = 0;
  int hosts = 0;    // 0: the output does not say
  std::string device;  // as printed for rank 0; empty: not said
  struct Timing {
    std::int64_t bytes;
    double seconds;
  };
  std::vector<Timing> timings;
  std::string where;  // file and line of its table
};

// `name` is the file's: it tells the collective where the output itself does not (all_gather-16.txt).
Result<std::vector<NcclTest>> parse_nccl_tests(std::string_view text, const std::string& name);

}  // namespace precog
