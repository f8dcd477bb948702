#include "report/precision_colours.h"

namespace precog {

const std::vector<PrecisionColour>& precision_colours() {
  // By the hash that Perfetto takes of the letters (ui/src/components/colorizer.ts), types that meet in one step lie far apart.
  static const std::vector<PrecisionColour> kColours = {
      {"fp64 double", "#332288", "startup"},          {"fp32 single", "#aa4499", "rail_animation"}, {"tf32 tensor", "#cc6677", "rail_idle"},
      {"bf16 bfloat", "#117733", "rail_response"},    {"fp16 half", "#44aa99", "thread_state_runnable"},
      {"fp8 eight bits", "#ddaa33", "rail_load"},     {"nvfp4 four bits", "#999933", "good"},       {"integers", "#888888", "grey"}};
  return kColours;
}

std::size_t precision_class(DType math) {
  switch (math) {
    case DType::fp64: return 0;
    case DType::model: case DType::fp32: return 1;
    case DType::tf32: return 2;
    case DType::bf16: return 3;
    case DType::fp16: return 4;
    case DType::nvfp4: return 6;
    default: return is_8bit_float(math) ? 5 : 7;
  }
}

DType arithmetic_of(const TimelineParts& parts, const Call& call) {
  const std::size_t first = call.first_kernel, end = first + call.kernel_count;
  std::size_t longest = first;
  for (std::size_t k = first; k < end; ++k)
    if (parts.costs[k].total > parts.costs[longest].total) longest = k;
  if (longest < end) return parts.program.kernels[longest].math;
  return call.op.valid() ? parts.graph.ops[call.op].math : DType::fp32;
}

}  // namespace precog
