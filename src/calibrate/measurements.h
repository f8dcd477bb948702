// Measurement files, read line by line: JSON lines as precog.profile writes them, plain or compressed (.zst, .gz). Nothing is
// dropped in silence: a line that cannot be used is kept with its file, its number and the reason.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cost/residual.h"

namespace precog {

struct Measurement {
  std::size_t file = 0, line = 0;
  std::vector<Kernel> kernels;   // what the program would launch for it
  double seconds = 0;            // of the kernels alone: the idle time between them is taken off
  bool warm = false;             // operands that stayed in the L2 cache from one repetition to the next, as in a step they would not
  bool chilled = false;          // operands kept out of it that are so few that in a step they would be in it
  double bytes = 0;              // that its kernels move
  std::uint32_t shape = 0;       // the same for all types, layouts and directions of one shape
  std::uint64_t call = 0;        // the same for the same call, whenever it was timed
  std::string dtype;
};

struct UnusableLine {
  std::size_t file = 0, line = 0;  // line 0: the file as a whole
  std::string reason;
};

struct Measurements {
  std::vector<MeasurementSource> files;
  std::vector<Measurement> rows;
  std::vector<UnusableLine> unusable;   // lines of operators that no kernel of ours is
  std::size_t other_lines = 0;          // what is no operator: versions, clocks, the host
};

// An error for a file that cannot be read or opened, and for a line that is no JSON object: such a file is damaged.
Result<Measurements> read_measurements(const std::vector<std::string>& paths, const GpuSpec& gpu, const ArchitectureProfile& physics);
// The same from text that is there already: `name` is the file's in messages.
Result<bool> add_measurements(std::string_view text, const std::string& name, const GpuSpec& gpu, const ArchitectureProfile& physics, Measurements& out);

}  // namespace precog
