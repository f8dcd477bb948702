// Text for people: colour when a terminal asks for it, numbers at a readable length, aligned tables, wrapping.
// Pure functions; whether there is a terminal is the caller's knowledge.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace precog {

inline constexpr std::size_t kTextWidth = 80;

enum class Ink : unsigned char { plain, bold, dim, red, green, yellow, blue, magenta, cyan };

struct Style {
  bool colour = false;

  std::string operator()(Ink ink, std::string_view text) const;
  // A bar of `share` of `width` cells. Plain output stays ASCII, so that it survives any terminal and any pipe.
  std::string bar(double share, std::size_t width) const;
};

std::string number_text(double value);   // "1.096 M", "137 k", "12.3"
std::string counted(double count, std::string_view what);          // "1 step", "4.5 k steps"
std::string counted_exactly(double count, std::string_view what);  // the same of a whole number, all digits
std::string money_text(double dollars);  // "$5,120", "$0.0042"
std::string percent_text(double share);  // 0.432 -> "43%", 0.004 -> "0.4%"

std::size_t display_width(std::string_view text);                 // code points, colour codes not counted
std::string shortened(std::string_view text, std::size_t width);  // ends in ".." when cut
std::string path_end(std::string_view path, std::size_t width);   // begins with "..": module paths are told apart at their ends

// Text from outside as a terminal may show it: control characters and broken UTF-8 become \xNN.
std::string printable(std::string_view text);

// Lines of at most kTextWidth columns: the first starts with `first`, the others with as many blanks.
std::string wrapped(std::string_view first, std::string_view text);

struct Cell {
  std::string text;
  Ink ink = Ink::plain;
};

class Table {
 public:
  enum class Align { left, right };
  struct Column {
    std::string title;
    Align align = Align::left;
    bool gives_way = false;  // cut, rather than the last column, when the table is too wide
    bool keeps_end = false;  // and its beginning is what goes
  };

  explicit Table(std::vector<Column> columns, std::size_t indent = 0) : columns_(std::move(columns)), indent_(indent) {}
  void add(std::vector<Cell> row);
  // Two blanks between columns; the last column, or the one that gives way, is cut to what is left of kTextWidth.
  std::string text(const Style& style) const;

 private:
  std::vector<Column> columns_;
  std::size_t indent_;
  std::vector<std::vector<Cell>> rows_;
};

}  // namespace precog
