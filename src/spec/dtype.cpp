#include "spec/dtype.h"

namespace precog {
namespace {
constexpr std::array<std::string_view, kDTypeCount> kNames = {
    "model", "fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp8-e5m2", "fp8-block", "mxfp8", "nvfp4", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64"};
}

std::string_view to_text(DType dtype) { return kNames[static_cast<std::size_t>(dtype)]; }

std::optional<DType> dtype_named(std::string_view name) {
  for (std::size_t i = 0; i < kNames.size(); ++i)
    if (kNames[i] == name) return static_cast<DType>(i);
  return std::nullopt;
}

}  // namespace precog
