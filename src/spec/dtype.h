// Element types. Besides what tensors store there are some that nothing stores: `model` (a floating type that the precision
// recipe has yet to decide) and arithmetics on another type's storage: `tf32` (on fp32), `fp8_block` and `mxfp8` (on fp8, with
// a scale per block of 128 or 32 elements).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace precog {

enum class DType : std::uint8_t {
  model, fp64, fp32, tf32, bf16, fp16, fp8, fp8_e5m2, fp8_block, mxfp8, nvfp4, int64, int32, int16, int8, uint8, boolean, complex64, kCount
};

inline constexpr std::size_t kDTypeCount = static_cast<std::size_t>(DType::kCount);

std::string_view to_text(DType dtype);
std::optional<DType> dtype_named(std::string_view name);

constexpr bool is_floating(DType dtype) { return dtype <= DType::nvfp4; }
constexpr bool is_8bit_float(DType dtype) { return dtype >= DType::fp8 && dtype <= DType::mxfp8; }
constexpr bool is_16bit(DType dtype) { return dtype == DType::bf16 || dtype == DType::fp16; }

// Bits, so that 4-bit types can be counted. An undecided `model` counts as fp32, what a capture stores.
constexpr std::int64_t bits_of(DType dtype) {
  switch (dtype) {
    case DType::fp64: case DType::int64: case DType::complex64: return 64;
    case DType::model: case DType::fp32: case DType::tf32: case DType::int32: return 32;
    case DType::bf16: case DType::fp16: case DType::int16: return 16;
    case DType::fp8: case DType::fp8_e5m2: case DType::fp8_block: case DType::mxfp8: case DType::int8: case DType::uint8: case DType::boolean: return 8;
    case DType::nvfp4: return 4;
    case DType::kCount: break;
  }
  return 0;
}

// PyTorch's type promotion between two floating types: the wider wins, and fp16 with bf16 gives fp32.
constexpr DType promoted(DType a, DType b) {
  if (a == b) return a;
  if (!is_floating(a)) return b;
  if (!is_floating(b)) return a;
  if (is_16bit(a) && is_16bit(b)) return DType::fp32;
  return bits_of(a) >= bits_of(b) ? a : b;
}

}  // namespace precog
