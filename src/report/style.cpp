#include "report/style.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/ensure.h"

namespace precog {
namespace {

std::string_view code(Ink ink) {
  switch (ink) {
    case Ink::plain:
      return "";
    case Ink::bold:
      return "\x1b[1m";
    case Ink::dim:
      return "\x1b[2m";
    case Ink::red:
      return "\x1b[31m";
    case Ink::green:
      return "\x1b[32m";
    case Ink::yellow:
      return "\x1b[33m";
    case Ink::blue:
      return "\x1b[34m";
    case Ink::magenta:
      return "\x1b[35m";
    case Ink::cyan:
      return "\x1b[36m";
  }
  return "";
}

bool starts_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }

// How many bytes the character at the start of `text` has; 0 where it is not UTF-8 or is a control character.
std::size_t character_length(std::string_view text) {
  auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(0) < 0x80) return byte(0) >= 0x20 && byte(0) != 0x7F ? 1 : 0;
  std::size_t length = byte(0) >= 0xF5 ? 0 : byte(0) >= 0xF0 ? 4 : byte(0) >= 0xE0 ? 3 : byte(0) >= 0xC2 ? 2 : 0;
  if (length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i)
    if (starts_character(text[i])) return 0;
  bool second_control_set = byte(0) == 0xC2 && byte(1) < 0xA0;
  return second_control_set ? 0 : length;
}

}  // namespace

std::string Style::operator()(Ink ink, std::string_view text) const {
  if (!colour || ink == Ink::plain) return std::string(text);
  return fmt::format("{}{}\x1b[0m", code(ink), text);
}

std::string Style::bar(double share, std::size_t width) const {
  auto cells = static_cast<std::size_t>(std::lround(std::clamp(share, 0.0, 1.0) * static_cast<double>(width)));
  std::string out;
  for (std::size_t i = 0; i < cells; ++i) out += colour ? "\u2588" : "#";
  return out;
}

std::string number_text(double value) {
  struct Scale {
    double from;
    const char* suffix;
  };
  static constexpr Scale kScales[] = {{1e12, " T"}, {1e9, " G"}, {1e6, " M"}, {1e4, " k"}};
  for (const Scale& scale : kScales)
    if (std::abs(value) >= scale.from * 0.99995)
      return fmt::format("{:.4g}{}", value / (scale.from == 1e4 ? 1e3 : scale.from), scale.suffix);
  return fmt::format("{:.4g}", value);
}

std::string counted_exactly(double count, std::string_view what) { return fmt::format("{:.0f} {}{}", count, what, std::lround(count) == 1 ? "" : "s"); }

std::string counted(double count, std::string_view what) {
  const std::string number = number_text(count);
  return fmt::format("{} {}{}", number, what, number == "1" ? "" : "s");
}

std::string money_text(double dollars) {
  if (dollars < 0.01) return fmt::format("${:.2g}", dollars);
  if (dollars < 100) return fmt::format("${:.2f}", dollars);
  if (dollars >= 1e9) return fmt::format("${:.3g} bn", dollars / 1e9);
  std::string digits = fmt::format("{:.0f}", dollars);
  for (std::ptrdiff_t at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > 0; at -= 3)
    digits.insert(static_cast<std::size_t>(at), ",");
  return "$" + digits;
}

std::string percent_text(double share) {
  double percent = 100 * share;
  if (percent > 0 && percent < 0.05) return "<0.1%";
  return std::abs(percent) < 0.95 && percent != 0 ? fmt::format("{:.1f}%", percent) : fmt::format("{:.0f}%", percent);
}

std::size_t display_width(std::string_view text) {
  std::size_t width = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\x1b') {
      while (i < text.size() && text[i] != 'm') ++i;
      continue;
    }
    if (starts_character(text[i])) ++width;
  }
  return width;
}

std::string shortened(std::string_view text, std::size_t width) {
  if (display_width(text) <= width) return std::string(text);
  const std::size_t keep = width > 2 ? width - 2 : 0;
  std::size_t seen = 0, end = 0;
  for (; end < text.size(); ++end) {
    if (!starts_character(text[end])) continue;
    if (seen == keep) break;
    ++seen;
  }
  return std::string(text.substr(0, end)) + "..";
}

std::string path_end(std::string_view path, std::size_t width) {
  if (display_width(path) <= width) return std::string(path);
  std::size_t seen = 0, begin = path.size();
  const std::size_t keep = width > 2 ? width - 2 : 0;
  while (begin > 0 && seen < keep)
    if (starts_character(path[--begin])) ++seen;
  return ".." + std::string(path.substr(begin));
}

std::string printable(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    std::size_t length = character_length(text);
    if (length == 0) out += fmt::format("\\x{:02X}", static_cast<unsigned char>(text[0]));
    else out += text.substr(0, length);
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return out;
}

std::string wrapped(std::string_view first, std::string_view text) {
  std::string out(first);
  const std::size_t indent = display_width(first);
  std::size_t column = indent;
  bool fresh = true;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = text.find_first_of(" \n", at);
    if (end == std::string_view::npos) end = text.size();
    std::string_view word = text.substr(at, end - at);
    at = end + 1;
    if (word.empty()) continue;
    std::size_t width = display_width(word);
    if (!fresh && column + 1 + width > kTextWidth) {
      out += '\n' + std::string(indent, ' ');
      column = indent;
      fresh = true;
    }
    if (!fresh) {
      out += ' ';
      ++column;
    }
    // A word longer than a line is cut into pieces: nothing is lost, and no line is too long.
    while (width > kTextWidth - indent) {
      std::size_t take = 0, seen = 0;
      while (take < word.size() && (seen < kTextWidth - indent || !starts_character(word[take]))) {
        if (starts_character(word[take])) ++seen;
        ++take;
      }
      out += std::string(word.substr(0, take)) + '\n' + std::string(indent, ' ');
      word.remove_prefix(take);
      width = display_width(word);
      column = indent;
    }
    out += word;
    column += width;
    fresh = false;
  }
  return out + '\n';
}

void Table::add(std::vector<Cell> row) {
  ensure(row.size() == columns_.size(), "a table's row has one cell per column");
  for (Cell& cell : row) cell.text = printable(cell.text);
  rows_.push_back(std::move(row));
}

std::string Table::text(const Style& style) const {
  std::vector<std::size_t> widths;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    std::size_t width = display_width(columns_[c].title);
    for (const auto& row : rows_) width = std::max(width, display_width(row[c].text));
    widths.push_back(width);
  }
  std::size_t all = indent_;
  for (std::size_t width : widths) all += width + 2;
  if (!widths.empty() && all - 2 > kTextWidth) {
    auto yielding = std::find_if(columns_.begin(), columns_.end(), [](const Column& column) { return column.gives_way; });
    std::size_t& width = yielding == columns_.end() ? widths.back() : widths[static_cast<std::size_t>(yielding - columns_.begin())];
    std::size_t others = all - 2 - width;
    width = others + 8 < kTextWidth ? kTextWidth - others : 8;
  }

  std::string out;
  auto line = [&](auto cell_at) {
    std::string text(indent_, ' ');
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      Cell cell = cell_at(c);
      cell.text = columns_[c].keeps_end ? path_end(cell.text, widths[c]) : shortened(cell.text, widths[c]);
      std::string blanks(widths[c] - display_width(cell.text), ' ');
      if (c > 0) text += "  ";
      bool last = c + 1 == columns_.size();
      if (columns_[c].align == Align::right) text += blanks + style(cell.ink, cell.text);
      else text += style(cell.ink, cell.text) + (last ? std::string() : blanks);
    }
    while (!text.empty() && text.back() == ' ') text.pop_back();
    out += text + '\n';
  };
  line([&](std::size_t c) { return Cell{columns_[c].title, Ink::dim}; });
  for (const auto& row : rows_) line([&](std::size_t c) { return row[c]; });
  return out;
}

}  // namespace precog
