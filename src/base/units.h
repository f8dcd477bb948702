// Physical quantities as types: Bytes / FlopsPerSecond does not compile.
// Data files spell them with a unit ("3.35 TB/s"); parse_quantity reads that, to_text writes it for people.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace precog {

template <class Tag, class Rep = double>
struct Quantity {
  Rep value{};

  friend constexpr bool operator==(Quantity, Quantity) = default;
  friend constexpr auto operator<=>(Quantity, Quantity) = default;
  friend constexpr Quantity operator+(Quantity a, Quantity b) { return {static_cast<Rep>(a.value + b.value)}; }
  friend constexpr Quantity operator-(Quantity a, Quantity b) { return {static_cast<Rep>(a.value - b.value)}; }
  friend constexpr Quantity operator*(Quantity a, double b) { return {static_cast<Rep>(static_cast<double>(a.value) * b)}; }
  friend constexpr Quantity operator*(double a, Quantity b) { return b * a; }
  friend constexpr Quantity operator/(Quantity a, double b) { return {static_cast<Rep>(static_cast<double>(a.value) / b)}; }
  friend constexpr double operator/(Quantity a, Quantity b) {
    return static_cast<double>(a.value) / static_cast<double>(b.value);
  }
  constexpr Quantity& operator+=(Quantity other) { return *this = *this + other; }
  constexpr Quantity& operator-=(Quantity other) { return *this = *this - other; }
};

using Bytes = Quantity<struct BytesTag, std::int64_t>;
using Flops = Quantity<struct FlopsTag>;  // double: a large step passes 2^63
using Seconds = Quantity<struct SecondsTag>;
using BytesPerSecond = Quantity<struct BytesPerSecondTag>;
using FlopsPerSecond = Quantity<struct FlopsPerSecondTag>;
using Hertz = Quantity<struct HertzTag>;
using Watts = Quantity<struct WattsTag>;

constexpr Seconds operator/(Bytes a, BytesPerSecond b) { return {static_cast<double>(a.value) / b.value}; }
constexpr Seconds operator/(Flops a, FlopsPerSecond b) { return {a.value / b.value}; }

constexpr Seconds microseconds(double value) { return {value * 1e-6}; }

// Reads a positive number followed by one of the quantity's units. The error says what a right value looks like.
template <class Q>
Result<Q> parse_quantity(std::string_view text);

std::string to_text(Bytes bytes);      // "26.7 GB"
std::string to_text(Seconds seconds);  // "119.6 ms"
std::string to_text(FlopsPerSecond rate);
std::string to_text(BytesPerSecond rate);

}  // namespace precog
