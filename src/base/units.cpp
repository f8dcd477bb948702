#include "base/units.h"

#include <charconv>
#include <cmath>
#include <span>

#include <fmt/format.h>

namespace precog {
namespace {

struct Unit {
  std::string_view name;
  double factor;
};

constexpr Unit kByteUnits[] = {{"B", 1},        {"kB", 1e3},      {"MB", 1e6},      {"GB", 1e9},      {"TB", 1e12},
                               {"KiB", 1024.0}, {"MiB", 1048576.0}, {"GiB", 1073741824.0}, {"TiB", 1099511627776.0}};
constexpr Unit kSecondUnits[] = {{"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}};
constexpr Unit kByteRateUnits[] = {{"B/s", 1}, {"kB/s", 1e3}, {"MB/s", 1e6}, {"GB/s", 1e9}, {"TB/s", 1e12}};
constexpr Unit kFlopRateUnits[] = {{"FLOP/s", 1},     {"MFLOP/s", 1e6},  {"GFLOP/s", 1e9},
                                   {"TFLOP/s", 1e12}, {"PFLOP/s", 1e15}};
constexpr Unit kHertzUnits[] = {{"Hz", 1}, {"MHz", 1e6}, {"GHz", 1e9}};
constexpr Unit kWattUnits[] = {{"W", 1}, {"kW", 1e3}};

Result<double> parse(std::string_view text, std::span<const Unit> units, std::string_view example) {
  double number = 0;
  const char* end = text.data() + text.size();
  auto [rest, status] = std::from_chars(text.data(), end, number);
  auto wrong = [&] { return fail("", fmt::format("'{}' is not a quantity; write it like \"{}\"", text, example)); };
  if (status != std::errc{} || !std::isfinite(number)) return wrong();
  std::string_view unit_name(rest, static_cast<std::size_t>(end - rest));
  while (!unit_name.empty() && unit_name.front() == ' ') unit_name.remove_prefix(1);
  for (const Unit& unit : units) {
    if (unit.name != unit_name) continue;
    if (number <= 0) return fail("", fmt::format("'{}' must be positive", text));
    return number * unit.factor;
  }
  return wrong();
}

std::string scaled(double value, std::span<const Unit> units) {
  const Unit* best = units.data();
  for (const Unit& unit : units)
    if (unit.factor <= value && unit.factor >= best->factor) best = &unit;
  return fmt::format("{:.4g} {}", value / best->factor, best->name);
}

}  // namespace

template <>
Result<Bytes> parse_quantity<Bytes>(std::string_view text) {
  return parse(text, kByteUnits, "80 GB").map([](double v) { return Bytes{static_cast<std::int64_t>(std::llround(v))}; });
}
template <>
Result<Seconds> parse_quantity<Seconds>(std::string_view text) {
  return parse(text, kSecondUnits, "2.5 us").map([](double v) { return Seconds{v}; });
}
template <>
Result<BytesPerSecond> parse_quantity<BytesPerSecond>(std::string_view text) {
  return parse(text, kByteRateUnits, "3.35 TB/s").map([](double v) { return BytesPerSecond{v}; });
}
template <>
Result<FlopsPerSecond> parse_quantity<FlopsPerSecond>(std::string_view text) {
  return parse(text, kFlopRateUnits, "989.4 TFLOP/s").map([](double v) { return FlopsPerSecond{v}; });
}
template <>
Result<Hertz> parse_quantity<Hertz>(std::string_view text) {
  return parse(text, kHertzUnits, "1.83 GHz").map([](double v) { return Hertz{v}; });
}
template <>
Result<Watts> parse_quantity<Watts>(std::string_view text) {
  return parse(text, kWattUnits, "700 W").map([](double v) { return Watts{v}; });
}

std::string to_text(Bytes bytes) {
  return scaled(static_cast<double>(bytes.value), std::span(kByteUnits).first(5));
}
std::string to_text(Seconds seconds) {
  double v = seconds.value;
  if (v <= 0) return "0 s";
  if (v < 1e-6) return fmt::format("{:.3g} ns", v * 1e9);
  if (v < 1e-3) return fmt::format("{:.4g} us", v * 1e6);
  if (v < 1) return fmt::format("{:.4g} ms", v * 1e3);
  if (v < 120) return fmt::format("{:.4g} s", v);
  if (v < 7200) return fmt::format("{:.4g} min", v / 60);
  if (v < 172800) return fmt::format("{:.4g} h", v / 3600);
  return fmt::format("{:.4g} days", v / 86400);
}
std::string to_text(FlopsPerSecond rate) { return scaled(rate.value, kFlopRateUnits); }
std::string to_text(BytesPerSecond rate) { return scaled(rate.value, kByteRateUnits); }

}  // namespace precog
