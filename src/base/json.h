// Reading JSON from outside into checked values.
// read_json_file turns a file into a Json value or one clear error (missing, too large, truncated, too deep).
// JsonReader walks an object field by field, collecting every problem with its path, unknown keys included.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/result.h"
#include "base/units.h"

namespace precog {

using Json = nlohmann::ordered_json;

inline constexpr std::size_t kMaxInputFileBytes = 256u << 20;  // nothing we read is honestly larger

Result<std::string> read_text_file(const std::filesystem::path& path, std::size_t max_bytes = kMaxInputFileBytes);
struct TextFile {
  std::filesystem::path path;
  std::string text;
};
// All of them or none: temporaries beside each path come first and are renamed once the last is written, so that
// nothing half-written is ever left behind.
Result<bool> write_text_files(const std::vector<TextFile>& files);
Result<bool> write_text_file(const std::filesystem::path& path, std::string_view text);
Result<Json> parse_json(std::string_view text, const std::string& where);
Result<Json> read_json_file(const std::filesystem::path& path, std::size_t max_bytes = kMaxInputFileBytes);

struct Sourced {  // a figure of a data file before its unit is read, with the text of its source
  Json value;
  std::string source;
};

class JsonReader {
 public:
  // `where` names the file or the request; `problems` outlives the reader.
  JsonReader(const Json& object, std::string where, std::vector<Problem>& problems);

  bool has(std::string_view key) const;  // present and not null
  std::optional<std::string> text(std::string_view key);
  std::optional<double> number(std::string_view key, double min, double max);
  std::optional<std::int64_t> integer(std::string_view key, std::int64_t min, std::int64_t max);
  std::optional<bool> boolean(std::string_view key);
  std::vector<std::string> texts(std::string_view key);   // an array of strings; empty when absent
  std::optional<JsonReader> object(std::string_view key);
  const Json* raw(std::string_view key);                   // any type; marks the key as known

  std::string required_text(std::string_view key);         // "" after reporting
  std::int64_t required_integer(std::string_view key, std::int64_t min, std::int64_t max);
  JsonReader required_object(std::string_view key);

  // A figure of a data file: {"value": "3.35 TB/s", "source": "key"}; the key must be in the file's "sources".
  template <class Q>
  std::optional<Q> quantity(std::string_view key) {
    auto figure = sourced(key);
    if (!figure) return std::nullopt;
    if (!figure->value.is_string()) {
      problem(key, "wants a text with a unit, not a bare value");
      return std::nullopt;
    }
    auto parsed = parse_quantity<Q>(figure->value.template get<std::string>());
    if (!parsed) {
      problem(key, parsed.error().text());
      return std::nullopt;
    }
    return *parsed;
  }
  std::optional<double> sourced_number(std::string_view key, double min, double max);
  std::optional<Sourced> sourced(std::string_view key);
  void set_sources(const Json* sources) { sources_ = sources; }

  std::vector<std::string> keys() const;
  std::string path(std::string_view key) const;
  void problem(std::string_view key, std::string message);
  void reject_unknown_keys();  // call last: every key that nobody asked for is reported with the nearest known

 private:
  const Json* find(std::string_view key);

  const Json* object_;
  std::string where_;
  std::vector<Problem>* problems_;
  std::vector<std::string> known_;
  const Json* sources_ = nullptr;
};

}  // namespace precog
