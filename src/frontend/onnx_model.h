// The ONNX door: a forward graph from an exported model. The file holds no loss and no training; what is added or assumed is
// in `notes`. Weights are not read (the graph, its shapes and small integers are), so that a file without its external data,
// or with its weights stripped, serves as well.
// Takes versions 7 and later of ONNX's own operators; an unknown operator is costed by the bytes it moves, and noted.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "frontend/zoo.h"
#include "graph/graph.h"

namespace precog {

namespace onnx {
struct ParsedModel;
}

struct OnnxModel {
  std::string name;
  bool has_batch = false, has_seq = false, has_src_seq = false;             // symbolic: a request chooses them
  std::int64_t captured_batch = 0, captured_seq = 0, captured_src_seq = 0;  // where they are fixed; 0 otherwise
  std::vector<std::string> notes;
  std::shared_ptr<const onnx::ParsedModel> file;
};

// Reads the file and imports it once at small extents, so that what cannot be read is an error here.
Result<OnnxModel> read_onnx(const std::string& path);
Result<OnnxModel> read_onnx_bytes(std::string_view bytes, const std::string& where);

// The forward graph at a batch and sequence, ending in a loss.
Result<Graph> build_onnx(const OnnxModel& model, const ModelInputs& inputs);

}  // namespace precog
