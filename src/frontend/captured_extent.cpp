#include <charconv>

#include "frontend/captured_document.h"

namespace precog::captured {
namespace {

constexpr std::size_t kMaxText = 200;  // of an extent; honest ones have a dozen characters
constexpr int kMaxPower = 8;

bool parse_factor(std::string_view text, Extent::Term& term, std::array<bool, 3>& symbols) {
  struct Symbol {
    std::string_view name;
    std::uint8_t Extent::Term::* power;
  };
  static constexpr std::array<Symbol, 3> kSymbols = {
      {{"batch", &Extent::Term::batch}, {"seq", &Extent::Term::seq}, {"src_seq", &Extent::Term::src_seq}}};
  for (std::size_t i = 0; i < kSymbols.size(); ++i)
    if (text == kSymbols[i].name) {
      symbols[i] = true;
      return ++(term.*kSymbols[i].power) <= kMaxPower;
    }
  std::int64_t value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size() || value < 0) return false;
  return !__builtin_mul_overflow(term.factor, value, &term.factor);
}

}  // namespace

std::optional<Extent> parse_extent(std::string_view text, std::array<bool, 3>& symbols) {
  if (text.empty() || text.size() > kMaxText) return std::nullopt;
  Extent extent;
  while (!text.empty()) {
    Extent::Term term{.factor = 1};
    if (!extent.terms.empty() || text.front() == '-') {
      if (text.front() != '+' && text.front() != '-') return std::nullopt;
      if (text.front() == '-') term.factor = -1;
      text.remove_prefix(1);
    }
    std::string_view product = text.substr(0, text.find_first_of("+-"));
    text.remove_prefix(product.size());
    do {
      const std::size_t star = product.find('*');
      if (!parse_factor(product.substr(0, star), term, symbols)) return std::nullopt;
      if (star == std::string_view::npos) break;
      product.remove_prefix(star + 1);
    } while (true);
    extent.terms.push_back(term);
  }
  return extent;
}

std::optional<std::int64_t> evaluate(const Extent& extent, const Symbols& symbols, std::int64_t most) {
  std::int64_t sum = 0;
  for (const Extent::Term& term : extent.terms) {
    std::int64_t product = term.factor;
    const std::pair<std::int64_t, std::uint8_t> powers[] = {{symbols.batch, term.batch}, {symbols.seq, term.seq}, {symbols.src_seq, term.src_seq}};
    for (auto [value, power] : powers)
      for (; power > 0; --power)
        if (__builtin_mul_overflow(product, value, &product)) return std::nullopt;
    if (__builtin_add_overflow(sum, product, &sum)) return std::nullopt;
  }
  if (sum < 0 || sum > most) return std::nullopt;
  return sum;
}

}  // namespace precog::captured
