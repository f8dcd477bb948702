// The wire form of protocol buffers, as far as ONNX uses it: a cursor over the fields of one message. Nothing is copied; a
// length-delimited field comes back as a view of the file's bytes, so that gigabytes of weights are stepped over unread.
// Not here: what the fields mean (onnx_read.cpp). Malformed bytes throw OnnxError, caught where the file was opened.
// Format: https://protobuf.dev/programming-guides/encoding/
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>

namespace precog::onnx {

// What is wrong with a file or a model; becomes one Problem at the door (read_onnx, build_onnx).
struct OnnxError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class WireReader {
 public:
  explicit WireReader(std::string_view message) : rest_(message) {}

  // Moves to the next field; false at the message's end. Groups, long gone from the format, are refused.
  bool next() {
    if (rest_.empty()) return false;
    const std::uint64_t key = take_varint();
    field_ = static_cast<std::uint32_t>(key >> 3);
    wire_ = static_cast<int>(key & 7);
    if (field_ == 0 || key >> 32 != 0) throw OnnxError("a field number is out of range: the file is damaged or no ONNX model");
    switch (wire_) {
      case 0:
        number_ = take_varint();
        break;
      case 1:
        number_ = take_fixed(8);
        break;
      case 2:
        bytes_ = take(take_varint());
        break;
      case 5:
        number_ = take_fixed(4);
        break;
      default:
        throw OnnxError("an unknown kind of field: the file is damaged or no ONNX model");
    }
    return true;
  }
  std::uint32_t field() const { return field_; }
  bool is_bytes() const { return wire_ == 2; }

  std::int64_t integer() const { return wire_ == 2 ? wrong<std::int64_t>() : static_cast<std::int64_t>(number_); }
  double real() const {
    if (wire_ == 5) return std::bit_cast<float>(static_cast<std::uint32_t>(number_));
    return wire_ == 1 ? std::bit_cast<double>(number_) : wrong<double>();
  }
  std::string_view bytes() const { return wire_ == 2 ? bytes_ : wrong<std::string_view>(); }
  std::string text() const { return std::string(bytes()); }

  // Repeated numbers, packed into one field or one field each: calls `take` for every one.
  template <class F>
  void integers(F&& take) const {
    if (wire_ != 2) return take(integer());
    for (WireReader packed(bytes_); !packed.rest_.empty();) take(static_cast<std::int64_t>(packed.take_varint()));
  }
  template <class F>
  void reals(int width, F&& take) const {
    if (wire_ != 2) return take(real());
    if (bytes_.size() % static_cast<std::size_t>(width) != 0) throw OnnxError("a packed field ends within a number");
    for (WireReader packed(bytes_); !packed.rest_.empty();) {
      const std::uint64_t bits = packed.take_fixed(static_cast<std::size_t>(width));
      take(width == 4 ? static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(bits))) : std::bit_cast<double>(bits));
    }
  }

 private:
  template <class T>
  static T wrong() {
    throw OnnxError("a field has another wire type than ONNX gives it: the file is damaged or no ONNX model");
  }
  std::string_view take(std::uint64_t size) {
    if (size > rest_.size()) throw OnnxError("the file ends within a field: it is truncated or no ONNX model");
    const std::string_view out = rest_.substr(0, static_cast<std::size_t>(size));
    rest_.remove_prefix(static_cast<std::size_t>(size));
    return out;
  }
  std::uint64_t take_fixed(std::size_t width) {
    const std::string_view raw = take(width);
    std::uint64_t out = 0;
    for (std::size_t i = width; i-- > 0;) out = out << 8 | static_cast<unsigned char>(raw[i]);
    return out;
  }
  std::uint64_t take_varint() {
    std::uint64_t out = 0;
    for (int shift = 0; shift < 70; shift += 7) {
      const std::uint64_t byte = static_cast<unsigned char>(take(1)[0]);
      if (shift < 64) out |= (byte & 127) << shift;
      if (byte < 128) return out;
    }
    throw OnnxError("a number has more than ten bytes: the file is damaged or no ONNX model");
  }

  std::string_view rest_, bytes_;
  std::uint64_t number_ = 0;
  std::uint32_t field_ = 0;
  int wire_ = 0;
};

}  // namespace precog::onnx
