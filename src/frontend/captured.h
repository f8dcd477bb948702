// Captured models: the file that `precog.capture` writes (docs/graph_format.md), read into a forward graph.
// read_captured parses and checks the file once; build_captured evaluates it for a batch and sequence. A file is outside
// data: truncated, hostile or of a future version it gives one clear error, never an exception and never a number.
// Not here: what an operator is (src/graph) and how its precision is decided (src/precision).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "frontend/zoo.h"
#include "graph/graph.h"
#include "spec/plan.h"
#include "spec/scores.h"

namespace precog {

namespace captured {
struct Document;
}

// What may be read at most; an honest file of the largest model stays far below each.
struct CapturedLimits {
  static constexpr std::size_t kFileBytes = 64u << 20;          // as it lies on disk
  static constexpr std::size_t kTextBytes = 256u << 20;         // decompressed
  static constexpr std::int64_t kEntries = 2'000'000;           // repeats and recorded gradients counted
  static constexpr std::int64_t kOperands = 20'000'000;         // of all of them together
  static constexpr std::int64_t kRepeat = 10'000;
  static constexpr std::int64_t kElements = std::int64_t{1} << 50;  // of a tensor
  static constexpr std::int64_t kAllElements = std::int64_t{1} << 54;
};

struct CapturedModel {
  std::string name;
  bool has_batch = false, has_seq = false, has_src_seq = false;  // symbolic: may be asked for at another size
  std::int64_t captured_batch = 0, captured_seq = 0, captured_src_seq = 0;  // 0: not said
  MemoryFormat memory_format = MemoryFormat::contiguous;
  Scores scores = Scores::returned;
  std::map<std::string, std::string> fixed_because;  // why a size is not symbolic
  std::vector<std::string> notes;
  std::shared_ptr<const captured::Document> document;
};

Result<CapturedModel> read_captured(const std::filesystem::path& path);
// The same from the file's bytes, compressed or not; `where` names them in messages.
Result<CapturedModel> parse_captured(std::string_view bytes, const std::string& where);

// The forward graph at these sizes; another size than the captured one where it is not symbolic is an error. `layers`
// cannot be changed. The last operator makes the loss.
Result<Graph> build_captured(const CapturedModel& model, const ModelInputs& inputs);

// What a training run counts per sample; 0 where the file says nothing.
std::int64_t tokens_per_sample(const CapturedModel& model, const ModelInputs& inputs);

}  // namespace precog
