#include "validate/runs.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <set>

#include <fmt/format.h>

#include "base/text.h"

namespace precog {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

std::optional<double> positive(const Json& measured, const char* key, std::string& reason) {
  auto it = measured.find(key);
  if (it == measured.end() || it->is_null()) return std::nullopt;
  if (!it->is_number() || !std::isfinite(it->get<double>()) || it->get<double>() <= 0) {
    if (reason.empty()) reason = fmt::format("measured.{} must be a positive number", key);
    return std::nullopt;
  }
  return it->get<double>();
}

// A run from its JSON form, or the reason why it is none.
std::optional<MeasuredRun> read_run(const Json& json, std::size_t line, std::string& reason) {
  if (!json.is_object()) {
    reason = "is not an object with \"request\" and \"measured\"";
    return std::nullopt;
  }
  MeasuredRun run;
  run.line = line;
  run.id = fmt::format("line {}", line);
  if (auto it = json.find("id"); it != json.end() && !it->is_null())
    run.id = it->is_string() ? it->get<std::string>() : it->dump(-1, ' ', false, Json::error_handler_t::replace);
  if (auto it = json.find("source"); it != json.end() && it->is_string()) run.source = it->get<std::string>();
  auto request = json.find("request");
  if (request == json.end() || !request->is_object()) {
    reason = "has no \"request\" object";
    return std::nullopt;
  }
  run.request = *request;
  auto measured = json.find("measured");
  if (measured == json.end() || !measured->is_object()) {
    reason = "has no \"measured\" object";
    return std::nullopt;
  }
  if (auto it = measured->find("oom"); it != measured->end() && it->is_boolean()) run.oom = it->get<bool>();
  run.step_s = positive(*measured, "step_s", reason);
  run.gpu_busy_s = positive(*measured, "gpu_busy_s", reason);
  run.peak_bytes = positive(*measured, "peak_bytes", reason);
  run.kernels = positive(*measured, "kernels", reason);
  run.steps_per_block = positive(*measured, "steps_per_block", reason);
  if (reason.empty() && !run.oom && !run.step_s && !run.peak_bytes) reason = "measured.step_s is missing (or \"oom\": true, or peak_bytes alone)";
  if (!reason.empty()) return std::nullopt;
  return run;
}

void keep(RunsFile& file, const Json& json, std::size_t line) {
  std::string reason;
  if (auto run = read_run(json, line, reason)) {
    file.runs.push_back(std::move(*run));
    return;
  }
  std::string id = fmt::format("line {}", line);
  if (json.is_object() && json.contains("id") && json["id"].is_string())
    id = fmt::format("{} (line {})", json["id"].get<std::string>(), line);
  file.unreadable.push_back({id, reason});
}

// Where a CSV column goes in a run's JSON form.
struct ColumnPlace {
  const char* column;
  const char* pointer;
};
constexpr ColumnPlace kColumns[] = {{"id", "/id"},
                                    {"source", "/source"},
                                    {"step_s", "/measured/step_s"},
                                    {"peak_bytes", "/measured/peak_bytes"},
                                    {"gpu_busy_s", "/measured/gpu_busy_s"},
                                    {"kernels", "/measured/kernels"},
                                    {"steps_per_block", "/measured/steps_per_block"},
                                    {"oom", "/measured/oom"},
                                    {"model", "/request/model"},
                                    {"batch", "/request/batch"},
                                    {"seq", "/request/seq"},
                                    {"src_seq", "/request/src_seq"},
                                    {"global_batch", "/request/global_batch"},
                                    {"precision", "/request/precision"},
                                    {"mode", "/request/mode"},
                                    {"optimizer", "/request/optimizer"},
                                    {"optimizer_impl", "/request/optimizer_impl"},
                                    {"recompute", "/request/recompute"},
                                    {"host", "/request/host"},
                                    {"software", "/request/software"},
                                    {"stack", "/request/stack"},
                                    {"attention", "/request/attention"},
                                    {"memory_format", "/request/memory_format"},
                                    {"layers", "/request/layers"},
                                    {"allow_emulated", "/request/allow_emulated"},
                                    {"gpu", "/request/cluster/gpu"},
                                    {"gpus", "/request/cluster/gpus"},
                                    {"gpus_per_node", "/request/cluster/gpus_per_node"},
                                    {"network", "/request/cluster/network"},
                                    {"dp", "/request/plan/dp"},
                                    {"fsdp", "/request/plan/fsdp"},
                                    {"tp", "/request/plan/tp"},
                                    {"sp", "/request/plan/sp"},
                                    {"pp", "/request/plan/pp"},
                                    {"vpp", "/request/plan/vpp"},
                                    {"cp", "/request/plan/cp"},
                                    {"ep", "/request/plan/ep"}};

std::string pointer_of(const std::string& column) {
  for (const ColumnPlace& place : kColumns)
    if (column == place.column) return place.pointer;
  if (column.rfind("request.", 0) != 0 && column.rfind("measured.", 0) != 0) return "";
  // Names only: an index would make lists, and a huge one a huge list.
  bool name_starts = true;
  for (char c : column) {
    bool letter = (c >= 'a' && c <= 'z') || c == '_';
    if (c != '.' && !letter && (name_starts || c < '0' || c > '9')) return "";
    if (c == '.' && name_starts) return "";
    name_starts = c == '.';
  }
  if (name_starts) return "";
  std::string pointer = "/" + column;
  std::replace(pointer.begin(), pointer.end(), '.', '/');
  // "request.gpu" is as good as "request.cluster.gpu".
  std::string last = column.substr(column.rfind('.') + 1);
  for (const ColumnPlace& place : kColumns)
    if (last == place.column && pointer == "/request/" + last) return place.pointer;
  return pointer;
}

bool is_text_field(std::string_view pointer) {
  static const std::set<std::string_view> kText = {
      "id",       "source", "model",     "precision",     "mode", "optimizer", "optimizer_impl", "recompute", "host",
      "software", "stack",  "attention", "memory_format", "gpu",  "network",   "fsdp",           "schedule"};
  return kText.count(pointer.substr(pointer.rfind('/') + 1)) > 0;
}

Json cell_value(const std::string& text, std::string_view pointer) {
  if (is_text_field(pointer)) return text;
  std::string lower = normalised_name(text);
  if (lower == "true") return true;
  if (lower == "false") return false;
  std::int64_t whole = 0;
  const char* end = text.data() + text.size();
  if (auto [rest, status] = std::from_chars(text.data(), end, whole); status == std::errc{} && rest == end) return whole;
  double number = 0;
  if (auto [rest, status] = std::from_chars(text.data(), end, number); status == std::errc{} && rest == end) return number;
  return text;
}

std::string for_message(const std::string& text) { return text.substr(0, 60); }

std::string trimmed(std::string_view text) {
  auto from = text.find_first_not_of(" \t\r"), to = text.find_last_not_of(" \t\r");
  return from == std::string_view::npos ? std::string() : std::string(text.substr(from, to - from + 1));
}

}  // namespace

RunsFile parse_runs_jsonl(std::string_view text) {
  RunsFile file;
  if (text.substr(0, 3) == kByteOrderMark) text.remove_prefix(3);
  std::size_t line = 0;
  while (!text.empty()) {
    ++line;
    std::size_t end = text.find('\n');
    std::string_view current = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (trimmed(current).empty()) continue;
    auto json = parse_json(current, "");
    if (json) keep(file, *json, line);
    else file.unreadable.push_back({fmt::format("line {}", line), json.error().text()});
  }
  return file;
}

std::vector<std::string> next_csv_record(std::string_view text, std::size_t& at, std::size_t& lines, bool& broken) {
  std::vector<std::string> fields(1);
  bool inside = false;
  lines = 1;
  broken = false;
  for (; at < text.size(); ++at) {
    char c = text[at];
    if (inside) {
      if (c == '\n') ++lines;
      if (c != '"') fields.back() += c;
      else if (at + 1 < text.size() && text[at + 1] == '"') fields.back() += text[++at];
      else inside = false;
    } else if (c == '"' && trimmed(fields.back()).empty()) {
      fields.back().clear();
      inside = true;
    } else if (c == ',') {
      fields.emplace_back();
    } else if (c == '\n') {
      ++at;
      break;
    } else if (c != '\r') {
      fields.back() += c;
    }
  }
  broken = inside;
  return fields;
}

RunsFile parse_runs_csv(std::string_view text) {
  RunsFile file;
  if (text.substr(0, 3) == kByteOrderMark) text.remove_prefix(3);
  std::size_t at = 0, line = 1, lines = 0;
  bool broken = false;
  std::vector<std::string> header = next_csv_record(text, at, lines, broken), pointers;
  std::set<std::string> used;
  for (std::string& column : header) {
    column = trimmed(column);
    std::string pointer = pointer_of(column);
    if (pointer.empty()) file.warnings.push_back(fmt::format("column '{}' is not used", for_message(column)));
    else if (!used.insert(pointer).second) {
      file.warnings.push_back(fmt::format("column '{}' is there twice; the first counts", for_message(column)));
      pointer.clear();
    }
    pointers.push_back(pointer);
  }
  line += lines;
  while (at < text.size()) {
    std::size_t here = line;
    std::vector<std::string> fields = next_csv_record(text, at, lines, broken);
    line += lines;
    if (fields.size() == 1 && trimmed(fields[0]).empty()) continue;
    std::string id = fmt::format("line {}", here);
    if (broken) {
      file.unreadable.push_back({id, "a quote is opened and never closed"});
      continue;
    }
    if (fields.size() != header.size()) {
      file.unreadable.push_back({id, fmt::format("has {} fields, the header {}", fields.size(), header.size())});
      continue;
    }
    Json run = {{"request", Json::object()}, {"measured", Json::object()}};
    for (std::size_t i = 0; i < fields.size(); ++i) {
      std::string value = trimmed(fields[i]);
      if (pointers[i].empty() || value.empty()) continue;
      // A column such as "request.model.x" beside "request.model" cannot both be had.
      try {
        run[Json::json_pointer(pointers[i])] = cell_value(value, pointers[i]);
      } catch (const Json::exception&) {
        file.warnings.push_back(fmt::format("line {}: column '{}' contradicts another", here, for_message(header[i])));
      }
    }
    // Another depth belongs to the model.
    Json& request = run["request"];
    if (request.contains("layers")) {
      Json layers = request["layers"];
      request.erase("layers");
      request["model"] = {{"name", request.value("model", Json(""))}, {"layers", layers}};
    }
    keep(file, run, here);
  }
  return file;
}

Result<RunsFile> parse_runs(std::string_view text, const std::string& name) {
  bool csv = name.size() >= 4 && normalised_name(name.substr(name.size() - 4)) == ".csv";
  RunsFile file = csv ? parse_runs_csv(text) : parse_runs_jsonl(text);
  if (!file.runs.empty()) return file;
  if (file.unreadable.empty()) return fail(name, "has no measured runs");
  std::vector<Problem> problems = {{name, fmt::format("none of its {} lines is a measured run", file.unreadable.size())}};
  for (std::size_t i = 0; i < file.unreadable.size() && i < 3; ++i)
    problems.push_back({fmt::format("{}: {}", name, file.unreadable[i].id), file.unreadable[i].reason});
  return fail(std::move(problems));
}

}  // namespace precog
