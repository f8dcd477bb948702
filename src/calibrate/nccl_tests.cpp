#include "calibrate/nccl_tests.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>

namespace precog {
namespace {

std::vector<std::string_view> words(std::string_view line) {
  std::vector<std::string_view> out;
  for (std::size_t at = 0; at < line.size();) {
    at = line.find_first_not_of(" \t\r", at);
    if (at == std::string_view::npos) break;
    const std::size_t end = std::min(line.find_first_of(" \t\r", at), line.size());
    out.push_back(line.substr(at, end - at));
    at = end;
  }
  return out;
}

std::optional<double> number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

// The test's program, or a file named after it.
std::optional<Collective> named_collective(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  std::erase_if(text, [](char c) { return c == '_' || c == '-' || c == ' '; });
  for (const auto& [name, kind] : {std::pair{"allreduce", Collective::all_reduce}, {"allgather", Collective::all_gather}, {"reducescatter", Collective::reduce_scatter},
                                   {"alltoall", Collective::all_to_all}, {"sendrecv", Collective::send_recv}})
    if (text.find(name) != std::string::npos) return kind;
  return std::nullopt;
}

struct Reading {
  NcclTest test;
  std::optional<Collective> said;
  std::set<std::string, std::less<>> hosts;
  std::size_t time = 0, bus = 0, algorithm = 0, wrong = 0, columns = 0;  // of the table's header
  double ratio = 0;        // bus over algorithm bandwidth, of the fastest line
  double fastest = 0;
  bool sums = false;       // the operation column says so
};

Result<NcclTest> finished(Reading reading, const std::string& name) {
  NcclTest& test = reading.test;
  const double ratio = reading.ratio;
  if (!reading.said) reading.said = named_collective(name.substr(name.find_last_of('/') + 1));
  // Bus over algorithm bandwidth: 2(n-1)/n of an all-reduce, (n-1)/n of the three others, 1 of a send.
  if (!reading.said && ratio > 1.005) reading.said = Collective::all_reduce;
  if (!reading.said && ratio > 0 && ratio < 0.999 && reading.sums) reading.said = Collective::reduce_scatter;
  if (!reading.said)
    return fail(test.where, "does not say which collective it is of: keep the line that names the program, or name the file after it, as in all_gather.txt (known: all_reduce, all_gather, "
                            "reduce_scatter, alltoall, sendrecv)");
  test.kind = *reading.said;
  if (test.ranks == 0 && ratio > 0 && test.kind != Collective::send_recv) {
    const double share = test.kind == Collective::all_reduce ? ratio / 2 : ratio;
    if (share > 0.4 && share < 0.9999) test.ranks = static_cast<int>(std::lround(1 / (1 - share)));
  }
  if (test.ranks < 2) return fail(test.where, "does not say how many GPUs took part: keep the lines '# Rank 0 ... on HOST device ...' above the table");
  test.hosts = static_cast<int>(reading.hosts.size());
  if (test.timings.empty()) return fail(test.where, "has a table without lines");
  return std::move(test);
}

}  // namespace

Result<std::vector<NcclTest>> parse_nccl_tests(std::string_view text, const std::string& name) {
  std::vector<NcclTest> out;
  std::optional<Reading> table;  // once its header was met
  Reading next;
  std::size_t number_of_line = 0;
  const auto close = [&]() -> Result<int> {
    if (!table) return 0;
    PRECOG_TRY(test, finished(std::move(*table), name));
    out.push_back(std::move(test));
    table.reset();
    return 0;
  };
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    ++number_of_line;
    const auto where = [&] { return fmt::format("{}: line {}", name, number_of_line); };
    const std::vector<std::string_view> cells = words(line);
    if (cells.empty()) continue;
    const bool comment = cells[0].starts_with('#');
    const std::size_t skip = cells[0] == "#" ? 1 : 0;
    const auto header = std::find(cells.begin(), cells.end(), "busbw");
    if (comment && header != cells.end() && std::find(cells.begin(), cells.end(), "size") != cells.end()) {
      PRECOG_TRY(closed, close());
      (void)closed;
      table = std::move(next);
      next = {};
      table->test.where = where();
      table->columns = cells.size() - skip;
      table->time = static_cast<std::size_t>(std::find(cells.begin(), cells.end(), "time") - cells.begin()) - skip;
      table->algorithm = static_cast<std::size_t>(std::find(cells.begin(), cells.end(), "algbw") - cells.begin()) - skip;
      table->bus = static_cast<std::size_t>(header - cells.begin()) - skip;
      table->wrong = table->bus + 1;
      continue;
    }
    if (comment || !number(cells[0])) {
      if (auto program = line.find("_perf"); program != std::string_view::npos)
        if (auto kind = named_collective(std::string(line.substr(program > 20 ? program - 20 : 0, program > 20 ? 20 : program)))) {
          PRECOG_TRY(closed, close());
          (void)closed;
          next.said = kind;
        }
      if (line.find("nThread ") != std::string_view::npos) {
        PRECOG_TRY(closed, close());
        (void)closed;
      }
      if (cells.size() > skip + 1 && cells[skip] == "Rank" && number(cells[skip + 1])) {
        ++next.test.ranks;
        const auto on = std::find(cells.begin(), cells.end(), "on");
        if (on != cells.end() && on + 1 != cells.end()) next.hosts.insert(std::string(*(on + 1)));
        if (auto bracket = line.find("] "); next.test.device.empty() && bracket != std::string_view::npos) {
          std::string_view device = line.substr(bracket + 2);
          while (!device.empty() && (device.back() == '\r' || device.back() == ' ')) device.remove_suffix(1);
          next.test.device = std::string(device);
        }
      }
      continue;
    }
    if (!table) continue;  // numbers before any table: a job's own log
    if (cells.size() < table->columns) {
      if (cells.size() < 6) continue;
      return fail(where(), fmt::format("has {} values where the table's header has {}", cells.size(), table->columns));
    }
    const auto bytes = number(cells[0]), time = number(cells[table->time]), bus = number(cells[table->bus]), algorithm = number(cells[table->algorithm]);
    if (!bytes || !time || *bytes < 0 || *bytes > 1e15 || *time < 0 || *time > 1e12) return fail(where(), "wants a size in bytes and a time in microseconds");
    if (const auto wrong = table->wrong < cells.size() ? number(cells[table->wrong]) : std::nullopt; wrong && *wrong > 0)
      return fail(where(), fmt::format("says that {:.0f} values came out wrong: such a run's times mean nothing", *wrong));
    if (std::find(cells.begin(), cells.end(), "sum") != cells.end()) table->sums = true;
    if (*bytes < 1 || *time <= 0) continue;  // an empty message
    table->test.timings.push_back({static_cast<std::int64_t>(*bytes), *time * 1e-6});
    if (bus && algorithm && *algorithm > table->fastest) table->fastest = *algorithm, table->ratio = *bus / *algorithm;
  }
  PRECOG_TRY(closed, close());
  (void)closed;
  if (out.empty()) return fail(name, "has no table of nccl-tests in it (a line '# size count type ... time algbw busbw')");
  return out;
}

}  // namespace precog
