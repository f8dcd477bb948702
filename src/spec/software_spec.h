// What a version of the framework does at the end of a step that today's does not: a property of the software that a job names
// ("software" in the request), read from data/software/<name>.json. Without one a step is what the current PyTorch runs.
// Not kernels' speed: those of older libraries are not known here, but which of them run.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "spec/plan.h"

namespace precog {

struct SoftwareSpec {
  std::string name, title;
  std::vector<std::string> aliases;
  bool tensor_by_tensor = false;  // no multi-tensor ("foreach") kernels: clipping and the optimizer loop over tensors in Python
  bool zeroes_gradients = false;  // zero_grad fills gradients with zeros instead of dropping them, so that backward adds to them
  ClipReads clip_reads = ClipReads::nothing;
  bool aligned_tensor_cores = false;  // 16-bit products whose rows are no multiple of 16 bytes run on the vector units
  std::vector<std::string> sources;
};

Result<SoftwareSpec> parse_software(const Json& json, const std::string& where);

}  // namespace precog
