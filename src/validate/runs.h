// Measured runs read from JSON lines or CSV. Nothing is dropped: a line that cannot be read is kept with its reason.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace precog {

struct MeasuredRun {
  std::string id, source;
  std::size_t line = 0;  // of the file, from 1
  Json request;
  std::optional<double> step_s, gpu_busy_s, peak_bytes, kernels;
  std::optional<double> steps_per_block;  // step_s is the mean of so many steps between two waits for the GPU
  bool oom = false;  // the run ran out of memory: it has no step; nor has one of which only the peak was measured
};

struct UnreadableRun {
  std::string id;  // "line 7"
  std::string reason;
};

struct RunsFile {
  std::vector<MeasuredRun> runs;
  std::vector<UnreadableRun> unreadable;
  std::vector<std::string> warnings;  // columns that mean nothing to us, for one
  std::size_t rows() const { return runs.size() + unreadable.size(); }
};

RunsFile parse_runs_jsonl(std::string_view text);
RunsFile parse_runs_csv(std::string_view text);

// One record of a CSV: fields, quotes removed. `at` moves past it and its line end; lines counts the lines it spans.
// An unclosed quote ends at the end of its text and is reported through `broken`.
std::vector<std::string> next_csv_record(std::string_view text, std::size_t& at, std::size_t& lines, bool& broken);

// By the name's ending, .csv or else JSON lines; an error when there is nothing in it that can be read.
Result<RunsFile> parse_runs(std::string_view text, const std::string& name);

}  // namespace precog
