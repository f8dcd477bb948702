#include "base/json.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <system_error>
#include <unordered_set>
#include <unistd.h>

#include <fmt/format.h>

#include "base/text.h"

namespace precog {
namespace {

constexpr int kMaxDepth = 64;  // deeper than any honest request; keeps hostile nesting cheap
constexpr std::size_t kUnknownShown = 10;  // of the unknown fields; the rest are counted

const Json& empty_object() {
  static const Json empty = Json::object();
  return empty;
}

// A whole number in all its digits, as far as people write them.
std::string plain(double number) {
  return std::floor(number) == number && std::abs(number) < 1e15 ? fmt::format("{:.0f}", number) : fmt::format("{:g}", number);
}

const char* type_name(const Json& value) {
  if (value.is_number()) return "a number";
  if (value.is_string()) return "a text";
  if (value.is_boolean()) return "true/false";
  if (value.is_array()) return "a list";
  if (value.is_object()) return "an object";
  return "null";
}

}  // namespace

Result<std::string> read_text_file(const std::filesystem::path& path, std::size_t max_bytes) {
  std::error_code code;
  auto status = std::filesystem::status(path, code);
  if (code || !std::filesystem::exists(status)) return fail(path.string(), "no such file");
  if (std::filesystem::is_directory(status)) return fail(path.string(), "is a folder, not a file");
  if (!std::filesystem::is_regular_file(status)) return fail(path.string(), "is not a regular file");
  auto size = std::filesystem::file_size(path, code);
  if (code) return fail(path.string(), "cannot be read: " + code.message());
  if (size > max_bytes)
    return fail(path.string(), fmt::format("is {} MB; the largest accepted is {} MB", size >> 20, max_bytes >> 20));
  std::ifstream in(path, std::ios::binary);
  std::string text(size, '\0');
  if (!in || !in.read(text.data(), static_cast<std::streamsize>(size))) return fail(path.string(), "cannot be read");
  return text;
}

Result<bool> write_text_files(const std::vector<TextFile>& named) {
  constexpr int kMostLinks = 40;  // one to another
  std::error_code ignored;
  std::vector<TextFile> files;
  for (const TextFile& file : named) {
    const auto status = std::filesystem::status(file.path, ignored);  // of what a link leads to
    if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status) && !std::filesystem::is_directory(status)) {  // a device or a pipe is written to
      std::ofstream out(file.path, std::ios::binary);
      out.write(file.text.data(), static_cast<std::streamsize>(file.text.size()));
      if (!out.flush()) return fail(file.path.string(), "cannot be written");
      continue;
    }
    std::filesystem::path place = file.path;
    for (int links = 0; links < kMostLinks && std::filesystem::is_symlink(std::filesystem::symlink_status(place, ignored)); ++links)
      place = place.parent_path() / std::filesystem::read_symlink(place, ignored);  // an absolute one replaces what is before it
    files.push_back({place, file.text});
  }
  auto temporary = [](const TextFile& file) {
    std::filesystem::path path = file.path;
    return path += fmt::format(".{}.part", ::getpid());
  };
  auto give_up = [&](const TextFile& file, const std::string& why) {
    for (const TextFile& other : files) std::filesystem::remove(temporary(other), ignored);
    return fail(file.path.string(), "cannot be written" + why);
  };
  std::vector<bool> replaces;
  for (const TextFile& file : files) {
    if (std::filesystem::is_directory(file.path, ignored)) return give_up(file, ": is a folder");
    replaces.push_back(std::filesystem::exists(file.path, ignored));
    std::ofstream out(temporary(file), std::ios::binary);
    out.write(file.text.data(), static_cast<std::streamsize>(file.text.size()));
    out.flush();
    const std::filesystem::path folder = file.path.parent_path();
    if (!out) return give_up(file, folder.empty() || std::filesystem::is_directory(folder, ignored) ? "" : fmt::format(": there is no folder {}", folder.string()));
  }
  for (std::size_t i = 0; i < files.size(); ++i) {
    std::error_code code;
    std::filesystem::rename(temporary(files[i]), files[i].path, code);
    if (!code) continue;
    for (std::size_t made = 0; made < i; ++made)
      if (!replaces[made]) std::filesystem::remove(files[made].path, ignored);
    return give_up(files[i], ": " + code.message());
  }
  return true;
}

Result<bool> write_text_file(const std::filesystem::path& path, std::string_view text) {
  return write_text_files({{path, std::string(text)}});
}

Result<Json> parse_json(std::string_view text, const std::string& where) {
  bool too_deep = false;
  std::string twice;
  std::vector<std::unordered_set<std::string>> said(1);  // by depth: the fields of the object there, as far as it is read
  auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kMaxDepth) too_deep = true;
    if (too_deep) return false;
    const auto here = static_cast<std::size_t>(depth);
    if (event == Json::parse_event_t::object_start) {
      if (said.size() < here + 2) said.resize(here + 2);
      said[here + 1].clear();
    } else if (event == Json::parse_event_t::key && twice.empty()) {
      if (const auto& key = parsed.get_ref<const std::string&>(); !said[here].insert(key).second) twice = key;
    }
    return true;
  };
  try {
    Json value = Json::parse(text, watch, /*allow_exceptions=*/true, /*ignore_comments=*/true);
    if (too_deep) return fail(where, fmt::format("is nested deeper than {} levels", kMaxDepth));
    // Of two values a reader may take either: which one was meant?
    if (!twice.empty()) return fail(where, fmt::format("says '{}' twice in one object: leave one out", twice.substr(0, 80)));
    return value;
  } catch (const Json::exception& error) {
    std::string message = error.what();  // "[json.exception.parse_error.101] parse error at line 1, column 2: ..."
    if (auto bracket = message.find("] "); bracket != std::string::npos) message = message.substr(bracket + 2);
    return fail(where, "is not valid JSON: " + message.substr(0, 300));
  }
}

Result<Json> read_json_file(const std::filesystem::path& path, std::size_t max_bytes) {
  PRECOG_TRY(text, read_text_file(path, max_bytes));
  return parse_json(text, path.string());
}

JsonReader::JsonReader(const Json& object, std::string where, std::vector<Problem>& problems)
    : object_(&object), where_(std::move(where)), problems_(&problems) {
  if (!object.is_object()) {
    problems_->push_back({where_, fmt::format("wants an object, not {}", type_name(object))});
    object_ = &empty_object();
  }
}

const Json* JsonReader::find(std::string_view key) {
  known_.emplace_back(key);
  auto it = object_->find(std::string(key));
  return it == object_->end() || it->is_null() ? nullptr : &*it;
}

bool JsonReader::has(std::string_view key) const {
  auto it = object_->find(std::string(key));
  return it != object_->end() && !it->is_null();
}

std::string JsonReader::path(std::string_view key) const {
  if (where_.empty()) return std::string(key);
  bool is_file = where_.find('/') != std::string::npos || where_.find(".json") != std::string::npos || where_ == "standard input";
  return where_ + (is_file && where_.find(": ") == std::string::npos ? ": " : ".") + std::string(key);
}

void JsonReader::problem(std::string_view key, std::string message) {
  problems_->push_back({path(key), std::move(message)});
}

std::optional<std::string> JsonReader::text(std::string_view key) {
  const Json* value = find(key);
  if (!value) return std::nullopt;
  if (!value->is_string()) {
    problem(key, fmt::format("wants a text, not {}", type_name(*value)));
    return std::nullopt;
  }
  return value->get<std::string>();
}

std::optional<double> JsonReader::number(std::string_view key, double min, double max) {
  const Json* value = find(key);
  if (!value) return std::nullopt;
  if (!value->is_number()) {
    problem(key, fmt::format("wants a number, not {}", type_name(*value)));
    return std::nullopt;
  }
  double number = value->get<double>();
  if (!(number >= min && number <= max)) {
    problem(key, fmt::format("is {}; it must be from {} to {}", plain(number), plain(min), plain(max)));
    return std::nullopt;
  }
  return number;
}

std::optional<std::int64_t> JsonReader::integer(std::string_view key, std::int64_t min, std::int64_t max) {
  auto value = number(key, static_cast<double>(min), static_cast<double>(max));
  if (!value) return std::nullopt;
  if (*value != std::floor(*value)) {
    problem(key, fmt::format("is {}; it must be a whole number", plain(*value)));
    return std::nullopt;
  }
  return static_cast<std::int64_t>(*value);
}

std::optional<bool> JsonReader::boolean(std::string_view key) {
  const Json* value = find(key);
  if (!value) return std::nullopt;
  if (!value->is_boolean()) {
    problem(key, fmt::format("wants true or false, not {}", type_name(*value)));
    return std::nullopt;
  }
  return value->get<bool>();
}

std::vector<std::string> JsonReader::texts(std::string_view key) {
  const Json* value = find(key);
  std::vector<std::string> out;
  if (!value) return out;
  if (!value->is_array()) {
    problem(key, fmt::format("wants a list of texts, not {}", type_name(*value)));
    return out;
  }
  for (const Json& item : *value) {
    if (item.is_string())
      out.push_back(item.get<std::string>());
    else
      problem(key, fmt::format("wants texts, not {}", type_name(item)));
  }
  return out;
}

std::optional<JsonReader> JsonReader::object(std::string_view key) {
  const Json* value = find(key);
  if (!value) return std::nullopt;
  JsonReader reader(*value, path(key), *problems_);
  reader.set_sources(sources_);
  return reader;
}

const Json* JsonReader::raw(std::string_view key) { return find(key); }

std::string JsonReader::required_text(std::string_view key) {
  if (!has(key)) {
    find(key);
    problem(key, "is missing");
    return "";
  }
  return text(key).value_or("");
}

std::int64_t JsonReader::required_integer(std::string_view key, std::int64_t min, std::int64_t max) {
  if (!has(key)) {
    find(key);
    problem(key, "is missing");
    return min;
  }
  return integer(key, min, max).value_or(min);
}

JsonReader JsonReader::required_object(std::string_view key) {
  if (auto reader = object(key)) return *reader;
  problem(key, "is missing");
  JsonReader reader(empty_object(), path(key), *problems_);
  reader.set_sources(sources_);
  return reader;
}

std::optional<Sourced> JsonReader::sourced(std::string_view key) {
  const Json* value = find(key);
  if (!value) return std::nullopt;
  if (!value->is_object() || !value->contains("value") || !value->contains("source") || !(*value)["source"].is_string()) {
    problem(key, R"(wants {"value": ..., "source": "key of sources"}, so that the figure can be checked)");
    return std::nullopt;
  }
  std::string source_key = (*value)["source"].get<std::string>();
  std::string source = source_key;
  if (sources_) {
    auto it = sources_->find(source_key);
    if (it == sources_->end() || !it->is_string()) {
      problem(key, fmt::format("names the source '{}', which the file's sources do not list", source_key));
      return std::nullopt;
    }
    source = it->get<std::string>();
  }
  return Sourced{(*value)["value"], source};
}

std::optional<double> JsonReader::sourced_number(std::string_view key, double min, double max) {
  auto figure = sourced(key);
  if (!figure) return std::nullopt;
  if (!figure->value.is_number()) {
    problem(key, fmt::format("wants a number, not {}", type_name(figure->value)));
    return std::nullopt;
  }
  double number = figure->value.get<double>();
  if (!(number >= min && number <= max)) {
    problem(key, fmt::format("is {}; it must be from {} to {}", plain(number), plain(min), plain(max)));
    return std::nullopt;
  }
  return number;
}

std::vector<std::string> JsonReader::keys() const {
  std::vector<std::string> out;
  for (auto it = object_->begin(); it != object_->end(); ++it) out.push_back(it.key());
  return out;
}

void JsonReader::reject_unknown_keys() {
  std::size_t unknown = 0;
  for (const std::string& key : keys()) {
    if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
    if (++unknown <= kUnknownShown) problem(key.substr(0, 80), unknown_name("field", key, known_, ""));
  }
  if (unknown > kUnknownShown) problems_->push_back({where_, fmt::format("has {} more unknown fields", unknown - kUnknownShown)});
}

}  // namespace precog
