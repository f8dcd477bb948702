#include <algorithm>
#include <cctype>
#include <map>

#include <fmt/format.h>

#include "import/read_tree.h"

namespace precog {
namespace {

constexpr int kMostNested = 4;        // texts of flags inside texts of flags
constexpr std::size_t kLongest = 1 << 16;  // of one word, variables put in

bool word_character(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }
bool is_flag(std::string_view word) { return word.size() > 2 && word.starts_with("--") && std::isalpha(static_cast<unsigned char>(word[2])); }
bool is_option(std::string_view word) { return word.size() > 1 && word[0] == '-' && (std::isalpha(static_cast<unsigned char>(word[1])) || word[1] == '-'); }

// Whether a text holds flags of its own: GPT_ARGS="--num-layers 24 ...".
bool holds_flags(std::string_view text) {
  for (std::size_t at = text.find("--"); at != std::string_view::npos; at = text.find("--", at + 1))
    if ((at == 0 || std::isspace(static_cast<unsigned char>(text[at - 1]))) && is_flag(text.substr(at, 3))) return true;
  return false;
}

class FlagReader {
 public:
  ShellFlags read(std::string_view text) {
    lex(text, 0);
    end_value();
    return std::move(out_);
  }

 private:
  // Words one by one, in order: assignments are remembered, flags and their values collected.
  void lex(std::string_view text, int depth) {
    int parentheses = 0;
    for (std::size_t i = 0; i < text.size();) {
      const char c = text[i];
      if (c == '\\' && i + 1 < text.size() && (text[i + 1] == '\n' || text[i + 1] == '\r')) {
        i += text[i + 1] == '\r' && i + 2 < text.size() ? 3 : 2;
      } else if (c == '\n' || c == ';' || c == '|' || c == '&' || c == '<' || c == '>') {
        if (parentheses == 0 || c != '\n') end_value();
        ++i;
      } else if (std::isspace(static_cast<unsigned char>(c)) || c == '(' || c == ')') {
        if (c == '(') ++parentheses;
        if (c == ')') parentheses = std::max(0, parentheses - 1), end_value();
        ++i;
      } else if (c == '#') {
        while (i < text.size() && text[i] != '\n') ++i;
      } else {
        i = word(text, i, depth);
      }
    }
  }

  std::size_t word(std::string_view text, std::size_t i, int depth) {
    std::string out;
    bool dropped = false;  // it was a variable whose flags have been seen where it was set
    char quote = 0;
    while (i < text.size() && out.size() < kLongest) {
      const char c = text[i];
      if (quote == 0 && (std::isspace(static_cast<unsigned char>(c)) || c == ';' || c == '|' || c == '&' || c == '<' || c == '>' || c == ')')) break;
      if (quote == 0 && c == '(') break;  // NAME=( and the like
      if (c == '\\' && quote != '\'') {
        if (i + 1 < text.size() && text[i + 1] != '\n') out += text[i + 1];
        i += 2;
        if (quote == 0 && i <= text.size() && i >= 1 && text[i - 1] == '\n') break;
      } else if ((c == '"' || c == '\'') && (quote == 0 || quote == c)) {
        quote = quote == 0 ? c : 0;
        ++i;
      } else if (c == '$' && quote != '\'') {
        i = variable(text, i, out, dropped);
      } else {
        out += c;
        ++i;
      }
    }
    take(out, dropped, depth);
    return std::max<std::size_t>(i, 1);
  }

  // $NAME, ${NAME}, ${NAME:-default}, ${NAME[@]}; what is not set here stays as it is written.
  std::size_t variable(std::string_view text, std::size_t i, std::string& out, bool& dropped) {
    std::size_t end = i + 1;
    std::string name, fallback;
    bool has_fallback = false, array = false;
    if (end < text.size() && text[end] == '{') {
      std::size_t close = text.find('}', end);
      if (close == std::string_view::npos) close = text.size();
      std::string_view inside = text.substr(end + 1, close - end - 1);
      std::size_t length = 0;
      while (length < inside.size() && word_character(inside[length])) ++length;
      name = inside.substr(0, length);
      inside.remove_prefix(length);
      array = inside.starts_with("[@]") || inside.starts_with("[*]");
      if (inside.starts_with(":-") || inside.starts_with(":=")) has_fallback = true, fallback = inside.substr(2);
      else if (inside.starts_with("-")) has_fallback = true, fallback = inside.substr(1);
      end = std::min(text.size(), close + 1);
    } else if (end < text.size() && text[end] == '(') {  // a command or arithmetic: its value is not known here
      int open = 0;
      do {
        open += text[end] == '(' ? 1 : text[end] == ')' ? -1 : 0;
        ++end;
      } while (end < text.size() && open > 0);
    } else {
      while (end < text.size() && word_character(text[end])) ++end;
      name = text.substr(i + 1, end - i - 1);
    }
    const auto known = set_.find(name);
    if (array || (known != set_.end() && holds_flags(known->second))) dropped = true;
    else if (known != set_.end()) out += known->second;
    else if (has_fallback) out += fallback;
    else out += text.substr(i, end - i);
    return end;
  }

  void take(const std::string& text, bool dropped, int depth) {
    if (dropped && !is_flag(text)) {
      end_value();
      return;
    }
    if (text.empty()) return;
    const std::size_t equals = text.find('=');
    const bool assigns = equals != std::string::npos && equals > 0 && std::all_of(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(equals), word_character) &&
                         !std::isdigit(static_cast<unsigned char>(text[0]));
    if (assigns) {
      end_value();
      const std::string value = text.substr(equals + 1);
      if (holds_flags(value) && depth < kMostNested) lex(value, depth + 1), end_value();
      if (set_.size() < 10'000) set_[text.substr(0, equals)] = value;
    } else if (is_flag(text)) {
      end_value();
      flag_ = text.substr(2, equals == std::string::npos ? equals : equals - 2);
      std::replace(flag_.begin(), flag_.end(), '_', '-');
      values_ = Json::array();
      if (equals != std::string::npos) values_.push_back(text.substr(equals + 1));
    } else if (holds_flags(text) && depth < kMostNested) {
      end_value();
      lex(text, depth + 1);
      end_value();
    } else if (text.ends_with(".py")) {
      end_value();
      out_.programs.push_back(text);
    } else if (is_option(text)) {
      end_value();
    } else if (!flag_.empty()) {
      values_.push_back(text);
    }
  }

  void end_value() {
    if (flag_.empty()) return;
    out_.flags[flag_] = values_.empty() ? Json(true) : values_.size() == 1 ? values_[0] : values_;
    flag_.clear();
  }

  ShellFlags out_;
  std::map<std::string, std::string> set_;
  std::string flag_;
  Json values_;
};

}  // namespace

ShellFlags parse_flags(std::string_view text) { return FlagReader().read(text); }

}  // namespace precog
