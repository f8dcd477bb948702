#include "calibrate/reference_data.h"

#include <algorithm>
#include <charconv>
#include <map>

#include <fmt/format.h>

#include "base/compression.h"
#include "base/json.h"

namespace precog {
namespace {

constexpr std::size_t kMostBytes = 256u << 20;
constexpr double kAboveFloor = 4;  // fp8_block: times the shortest call of the file

std::uint32_t shape_hash(const std::vector<std::int64_t>& values) {  // FNV-1a, then mixed: the same on every machine
  std::uint32_t hash = 2166136261u;
  for (std::int64_t value : values)
    for (int byte = 0; byte < 4; ++byte) hash = (hash ^ static_cast<std::uint32_t>(value >> (8 * byte) & 255)) * 16777619u;
  hash ^= hash >> 15;
  hash *= 2246822519u;
  return hash ^ (hash >> 13);
}

// A file of comma-separated values without quotes: its columns by name, its lines as pieces of the text.
class Table {
 public:
  static Result<Table> read(const std::filesystem::path& file) {
    PRECOG_TRY(raw, read_text_file(file, kMostBytes));
    PRECOG_TRY(text, opened(std::move(raw), kMostBytes, file.string()));
    Table table;
    table.where_ = file.string();
    table.text_ = std::make_unique<std::string>(std::move(text));
    std::string_view rest = *table.text_;
    for (std::size_t line = 0; !rest.empty(); ++line) {
      const std::string_view one = rest.substr(0, rest.find('\n'));
      rest.remove_prefix(std::min(rest.size(), one.size() + 1));
      std::vector<std::string_view> cells = cut(one.ends_with('\r') ? one.substr(0, one.size() - 1) : one);
      if (line == 0) {
        for (std::size_t i = 0; i < cells.size(); ++i) table.columns_.emplace(std::string(cells[i]), i);
        continue;
      }
      if (cells.size() != table.columns_.size()) return fail(table.where_, fmt::format("line {} has {} values, its header {}", line + 1, cells.size(), table.columns_.size()));
      table.rows_.push_back(std::move(cells));
    }
    return table;
  }

  std::size_t size() const { return rows_.size(); }
  Result<std::size_t> column(const std::string& name) const {
    auto it = columns_.find(name);
    if (it == columns_.end()) return fail(where_, fmt::format("has no column '{}'", name));
    return it->second;
  }
  std::string_view text(std::size_t row, std::size_t column) const { return rows_[row][column]; }
  Result<double> number(std::size_t row, std::size_t column) const {
    const std::string_view cell = rows_[row][column];
    double value = 0;
    const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
    if (error != std::errc() || end != cell.data() + cell.size() || !(value >= 0) || value > 1e15) return fail(where_, fmt::format("line {}: '{}' is no number", row + 2, cell));
    return value;
  }

 private:
  static std::vector<std::string_view> cut(std::string_view line) {
    std::vector<std::string_view> cells;
    for (std::size_t at = 0; at <= line.size();) {
      const std::size_t comma = std::min(line.find(',', at), line.size());
      cells.push_back(line.substr(at, comma - at));
      at = comma + 1;
    }
    return cells;
  }
  std::string where_;
  std::unique_ptr<std::string> text_;
  std::map<std::string, std::size_t> columns_;
  std::vector<std::vector<std::string_view>> rows_;
};

// The named columns of every row that is wanted, as numbers.
template <class Wanted>
Result<std::vector<std::vector<double>>> numbers(const Table& table, const std::vector<std::string>& names, Wanted wanted) {
  std::vector<std::size_t> columns;
  for (const std::string& name : names) {
    PRECOG_TRY(column, table.column(name));
    columns.push_back(column);
  }
  std::vector<std::vector<double>> out;
  for (std::size_t row = 0; row < table.size(); ++row) {
    if (!wanted(row)) continue;
    std::vector<double> values;
    for (std::size_t column : columns) {
      PRECOG_TRY(value, table.number(row, column));
      values.push_back(value);
    }
    out.push_back(std::move(values));
  }
  return out;
}

std::vector<ReferenceRow> sample(std::vector<ReferenceRow> rows, std::size_t most) {
  std::stable_sort(rows.begin(), rows.end(), [](const ReferenceRow& a, const ReferenceRow& b) { return a.shape < b.shape; });
  if (rows.size() > most) rows.resize(most);
  return rows;
}

std::int64_t whole(double x) { return static_cast<std::int64_t>(x); }

}  // namespace

Result<std::vector<ReferenceRow>> read_reference_products(const std::filesystem::path& file, const std::string& dtype, std::size_t most) {
  static const std::map<std::string, DType> kTypes = {{"bfloat16", DType::bf16}, {"fp8", DType::fp8}, {"fp8_block", DType::fp8_block}, {"nvfp4", DType::nvfp4}};
  const auto type = kTypes.find(dtype);
  if (type == kTypes.end()) return fail(file.string(), fmt::format("'{}' is none of bfloat16, fp8, fp8_block, nvfp4", dtype));
  PRECOG_TRY(table, Table::read(file));
  PRECOG_TRY(spelled, table.column("dtype"));
  PRECOG_TRY(values, numbers(table, {"m", "n", "k", "latency_ms"}, [&](std::size_t row) { return table.text(row, spelled) == dtype; }));
  double least = 0;
  if (type->second == DType::fp8_block) {
    least = 1e300;
    for (const auto& v : values) least = std::min(least, v[3]);
    least *= kAboveFloor;
  }
  std::vector<ReferenceRow> rows;
  for (const auto& v : values) {
    const double m = v[0], n = v[1], k = v[2], size = static_cast<double>(bits_of(type->second)) / 8;
    if (v[3] <= least || m < 1 || n < 1 || k < 1) continue;
    ReferenceRow row;
    row.kernel.shape = GemmShape{1, whole(m), whole(n), whole(k), false};
    row.kernel.math = type->second;
    row.kernel.input = type->second == DType::fp8_block ? DType::fp8 : type->second;
    row.kernel.output = DType::bf16;
    row.kernel.flops = {2 * m * n * k};
    row.kernel.read = {whole(size * (m * k + n * k))};
    row.kernel.written = {whole(2 * m * n)};
    row.kernel.name = "linear";
    row.seconds = v[3] * 1e-3;
    row.shape = shape_hash({whole(m), whole(n), whole(k)});
    row.rotated = size * n * k;
    row.beside = type->second == DType::bf16 ? 0 : m * k;
    rows.push_back(row);
  }
  return sample(std::move(rows), most);
}

Result<std::vector<ReferenceRow>> read_reference_attention(const std::filesystem::path& file, std::size_t most) {
  PRECOG_TRY(table, Table::read(file));
  PRECOG_TRY(window, table.column("window"));
  PRECOG_TRY(length, table.column("seq"));
  PRECOG_TRY(library, table.column("kernel"));
  // Every file is of one library, but for a few rows.
  const std::string_view first = table.size() > 0 ? table.text(0, library) : std::string_view();
  const bool paged = first == "vllm_flash_attn" || first == "vllm_flash_attn_fa2";
  PRECOG_TRY(values, numbers(table, {"batch", "seq", "heads", "kv_heads", "head_dim", "latency_ms"},
                             [&](std::size_t row) { return table.text(row, window) == "0" && table.text(row, length) != "1"; }));
  std::vector<ReferenceRow> rows;
  for (const auto& v : values) {
    const double batch = v[0], seq = v[1], heads = v[2], kv_heads = v[3], dim = v[4];
    ReferenceRow row;
    row.kernel.shape = AttentionShape{whole(batch), whole(heads), whole(kv_heads), whole(seq), whole(seq), whole(dim), whole(dim), true, false, AttentionBackend::flash};
    row.kernel.math = row.kernel.input = row.kernel.output = DType::bf16;
    row.kernel.flops = {2 * batch * heads * seq * seq * dim};
    row.kernel.read = {whole(2 * batch * seq * dim * (heads + 2 * kv_heads))};
    row.kernel.written = {whole(2 * batch * seq * dim * heads)};
    row.kernel.name = "scaled_dot_product_attention";
    row.seconds = v[5] * 1e-3;
    row.shape = shape_hash({whole(batch), whole(seq), whole(heads), whole(kv_heads), whole(dim)});
    row.paged = paged;
    row.beside = 2 * batch * seq * kv_heads * dim;
    rows.push_back(row);
  }
  return sample(std::move(rows), most);
}

}  // namespace precog
