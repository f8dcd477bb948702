#include "report/inspect_report.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "base/text.h"
#include "graph/operator.h"

namespace precog {
namespace {

bool inserted_cast(const Op& op) {
  const auto* cast = std::get_if<CastAttributes>(&op.attributes);
  return op.kind == OpKind::cast && cast && cast->by_autocast;
}
bool is_view(const Op& op) { return definition(op.kind).family == Family::view; }

DType result_type(const Graph& graph, const Op& op) { return op.output_count ? graph.tensors[graph.output(op)].dtype : op.math; }
DType operand_type(const Graph& graph, const Op& op) { return op.input_count ? graph.tensors[graph.input(op, 0)].dtype : op.math; }

bool casts_parameter(const Graph& graph, const Op& op) {
  return op.input_count > 0 && graph.tensors[graph.input(op, 0)].role == Role::parameter;
}

std::string dtype_cell(const Graph& graph, const Op& op) {
  if (op.kind == OpKind::cast) return fmt::format("{}>{}", to_text(operand_type(graph, op)), to_text(result_type(graph, op)));
  DType result = result_type(graph, op);
  // tf32 is an arithmetic on fp32 storage: its result type says nothing new.
  if (result == op.math || op.math == DType::tf32) return std::string(to_text(op.math));
  return fmt::format("{}={}", to_text(op.math), to_text(result));
}

// Reasons repeat a hundred times: each gets a letter, told once at the end.
class Notes {
 public:
  std::string letter(std::string_view reason) {
    if (reason.empty()) return "";
    auto it = std::find(reasons_.begin(), reasons_.end(), reason);
    if (it == reasons_.end()) it = reasons_.insert(reasons_.end(), std::string(reason));
    auto at = static_cast<std::size_t>(it - reasons_.begin());
    return at < 26 ? std::string(1, static_cast<char>('a' + at)) : fmt::format("a{}", at);
  }
  std::string text() const {
    std::string out;
    for (const std::string& reason : reasons_) out += wrapped(fmt::format("  {}  ", Notes(*this).letter(reason)), reason);
    return out;
  }

 private:
  std::vector<std::string> reasons_;
};

std::string kind_text(const Graph& graph, const Op& op) {
  std::string out(to_text(op.kind));
  if (op.label.valid()) out += fmt::format(".{}", graph.name(op.label));
  return inserted_cast(op) ? "+ " + out : out;
}

// Module paths are told apart at their ends.
std::string path_end(std::string_view path, std::size_t width) {
  if (path.size() <= width) return std::string(path);
  return ".." + std::string(path.substr(path.size() - (width - 2)));
}

struct Range {  // operators [first, last) of one repeated layer, or of what lies between
  std::size_t first = 0, last = 0;
  int block = -1;
  int repeats = 1;  // equal layers that this one stands for
};

// The part of a module path that does not name the layer: "h.0.attn" and "h.1.attn" are the same place.
std::string without_numbers(std::string_view path) {
  std::string out;
  for (char c : path)
    if (c < '0' || c > '9') out += c;
  return out;
}

std::string signature(const Graph& graph, const Range& range) {
  std::string out;
  for (std::size_t i = range.first; i < range.last; ++i) {
    const Op& op = graph.ops[graph.ops.id_at(i)];
    out += fmt::format("{} {} {} {};", static_cast<int>(op.kind), dtype_cell(graph, op), without_numbers(graph.name(op.module)),
                       op.reason.value);
  }
  return out;
}

std::vector<Range> ranges(const Graph& graph, bool everything) {
  std::vector<Range> out;
  std::string last_signature;
  auto close = [&](Range range) {
    if (range.first == range.last) return;
    std::string text = everything || range.block < 0 ? std::string() : signature(graph, range);
    if (!text.empty() && text == last_signature) {
      ++out.back().repeats;
      return;
    }
    last_signature = text;
    out.push_back(range);
  };
  Range current{0, 0, graph.ops.empty() ? -1 : graph.ops[graph.ops.id_at(0)].block, 1};
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    int block = graph.ops[graph.ops.id_at(i)].block;
    if (block != current.block) {
      close(current);
      current = {i, i, block, 1};
    }
    current.last = i + 1;
  }
  close(current);
  return out;
}

std::string range_title(const Range& range) {
  if (range.block < 0) return "outside the repeated layers";
  if (range.repeats == 1) return fmt::format("layer {}", range.block);
  return fmt::format("layers {} to {}, all alike (x {})", range.block, range.block + range.repeats - 1, range.repeats);
}

struct Summary {
  std::map<std::string, std::size_t> by_dtype;   // operators, casts and views aside
  std::map<std::string, std::size_t> casts_for;  // by the kind of operator that reads the result
  std::size_t casts = 0, parameter_casts = 0, operators = 0;
};

Summary summarise(const Graph& graph) {
  std::vector<OpKind> reader(graph.tensors.size(), OpKind::kCount);
  for (std::size_t i = graph.ops.size(); i-- > 0;)  // from the end, so that the first reader stays
    for (TensorId id : graph.inputs(graph.ops[graph.ops.id_at(i)])) reader[id.index()] = graph.ops[graph.ops.id_at(i)].kind;
  Summary out;
  for (const Op& op : graph.ops) {
    if (inserted_cast(op)) {
      ++out.casts;
      out.parameter_casts += casts_parameter(graph, op);
      OpKind kind = op.output_count ? reader[graph.output(op).index()] : OpKind::kCount;
      ++out.casts_for[kind == OpKind::kCount ? "nothing" : std::string(to_text(kind))];
    } else if (!is_view(op)) {
      ++out.operators;
      ++out.by_dtype[std::string(to_text(op.math))];
    }
  }
  return out;
}

std::string counts_text(const std::map<std::string, std::size_t>& counts) {
  std::vector<std::pair<std::size_t, std::string>> sorted;
  for (const auto& [name, count] : counts) sorted.emplace_back(count, name);
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<std::string> parts;
  for (const auto& [count, name] : sorted) parts.push_back(fmt::format("{} {}", name, count));
  return join(parts, ", ");
}

std::string summary_text(const Graph& graph, const Style& style) {
  Summary s = summarise(graph);
  std::string out = style(Ink::bold, "Summary of the forward pass") + '\n';
  out += wrapped("  ", fmt::format("{} operators by arithmetic: {}", s.operators, counts_text(s.by_dtype)));
  if (s.casts == 0) return out + "  no casts inserted\n";
  out += wrapped("  ", fmt::format("{} casts inserted, by what reads them: {}", s.casts, counts_text(s.casts_for)));
  if (s.parameter_casts)
    out += wrapped("  ",
                   fmt::format("{} of them cast a parameter (autocast keeps each copy until the region ends)", s.parameter_casts));
  return out;
}

Json op_json(const Graph& graph, std::size_t index, const Op& op) {
  Json outputs = Json::array();
  for (TensorId id : graph.outputs(op)) {
    const Tensor& tensor = graph.tensors[id];
    outputs.push_back({{"dtype", to_text(tensor.dtype)}, {"shape", to_text(tensor.shape)}});
  }
  Json out = {{"index", index},
              {"operator", name_of(graph, op)},
              {"module", graph.name(op.module)},
              {"block", op.block},
              {"dtype", to_text(op.math)},
              {"outputs", std::move(outputs)},
              {"inserted_cast", inserted_cast(op)},
              {"why", graph.name(op.reason)}};
  if (op.kind == OpKind::cast) {
    out["from"] = to_text(operand_type(graph, op));
    out["to"] = to_text(result_type(graph, op));
    out["of_parameter"] = casts_parameter(graph, op);
  }
  return out;
}

// The n-th operator of a kind in a module is the same operator at every precision.
std::map<std::string, OpId> by_place(const Graph& graph) {
  std::map<std::string, OpId> out;
  std::map<std::string, int> seen;
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    const Op& op = graph.ops[graph.ops.id_at(i)];
    if (inserted_cast(op) || is_view(op)) continue;
    std::string place = fmt::format("{}/{}", graph.name(op.module), name_of(graph, op));
    int nth = seen[place]++;
    out[fmt::format("{}/{}", place, nth)] = graph.ops.id_at(i);
  }
  return out;
}

struct Difference {
  OpId a, b;  // one is invalid where the other precision runs other operators
};

std::vector<Difference> differences(const Graph& a, const Graph& b) {
  auto places_a = by_place(a), places_b = by_place(b);
  std::vector<Difference> out;
  for (const auto& [place, id] : places_a) {
    auto other = places_b.find(place);
    if (other == places_b.end()) out.push_back({id, {}});
    else if (dtype_cell(a, a.ops[id]) != dtype_cell(b, b.ops[other->second])) out.push_back({id, other->second});
  }
  for (const auto& [place, id] : places_b)
    if (!places_a.count(place)) out.push_back({{}, id});
  auto position = [](const Difference& d) { return d.a.valid() ? d.a.index() : d.b.index(); };
  std::stable_sort(out.begin(), out.end(), [&](const Difference& x, const Difference& y) { return position(x) < position(y); });
  return out;
}

// The module path that all operators of a range share, with its last dot: told once, above them.
std::string common_path(const Graph& graph, const Range& range) {
  std::string common;
  bool first = true;
  for (std::size_t i = range.first; i < range.last; ++i) {
    std::string path = std::string(graph.name(graph.ops[graph.ops.id_at(i)].module)) + ".";
    if (first) common = path;
    first = false;
    std::size_t same = 0;
    while (same < common.size() && same < path.size() && common[same] == path[same]) ++same;
    common.resize(same);
    while (!common.empty() && common.back() != '.') common.pop_back();
  }
  return common;
}

std::string range_table(const Graph& graph, const Range& range, const InspectOptions& options, const std::string& prefix,
                        Notes& notes, std::size_t& views, const Style& style) {
  struct Row {
    std::string kind, dtype, module, why;
    Ink ink;
    int count = 1;
  };
  std::vector<Row> rows;
  for (std::size_t i = range.first; i < range.last; ++i) {
    const Op& op = graph.ops[graph.ops.id_at(i)];
    if (is_view(op) && !options.everything) {
      ++views;
      continue;
    }
    std::string_view path = graph.name(op.module);
    path.remove_prefix(std::min(prefix.size(), path.size()));
    Ink ink = op.kind == OpKind::cast ? Ink::magenta : is_16bit(op.math) ? Ink::green : Ink::plain;
    Row row{kind_text(graph, op), dtype_cell(graph, op), path_end(path, 28), notes.letter(graph.name(op.reason)), ink, 1};
    bool again = !rows.empty() && rows.back().kind == row.kind && rows.back().dtype == row.dtype &&
                 rows.back().module == row.module && rows.back().why == row.why;
    if (again) ++rows.back().count;
    else rows.push_back(row);
  }
  if (rows.empty()) return "";
  Table table({{"operator"}, {"", Table::Align::right}, {"dtype"}, {"why"}, {"module"}}, 2);
  for (const Row& row : rows)
    table.add({{row.kind, row.ink},
               {row.count > 1 ? fmt::format("x{}", row.count) : ""},
               {row.dtype, row.ink},
               {row.why, Ink::dim},
               {row.module}});
  return table.text(style);
}

}  // namespace

std::string inspect_text(const Graph& graph, const InspectOptions& options, const Style& style) {
  std::string out = style(Ink::bold, options.title) + '\n';
  out +=
      wrapped("", "The arithmetic of each operator (a=b where the result is stored as b), and casts: + marks one that was put in.");
  std::size_t views = 0;
  Notes notes;
  for (const Range& range : ranges(graph, options.everything)) {
    std::string prefix = common_path(graph, range);
    std::string table = range_table(graph, range, options, prefix, notes, views, style);
    if (table.empty()) continue;
    std::string title = range_title(range) + (prefix.empty() ? "" : ": " + path_end(prefix.substr(0, prefix.size() - 1), 40));
    out += '\n' + style(Ink::bold, title) + '\n' + table;
  }
  out += '\n' + style(Ink::bold, "Why") + '\n' + notes.text();
  out += '\n' + summary_text(graph, style);
  if (views > 0) out += "  views are not shown, equal layers once; --all shows everything\n";
  return out;
}

Json inspect_json(const Graph& graph) {
  Json operators = Json::array();
  for (std::size_t i = 0; i < graph.ops.size(); ++i) operators.push_back(op_json(graph, i, graph.ops[graph.ops.id_at(i)]));
  Summary s = summarise(graph);
  return {{"schema", 1},
          {"summary",
           {{"operators", s.operators},
            {"by_dtype", s.by_dtype},
            {"casts", s.casts},
            {"casts_for", s.casts_for},
            {"parameter_casts", s.parameter_casts}}},
          {"operators", std::move(operators)}};
}

std::string diff_text(const Graph& a, const Graph& b, const std::string& name_a, const std::string& name_b,
                      const InspectOptions& options, const Style& style) {
  std::string out = style(Ink::bold, options.title) + "\n\n";
  Table table({{"operator"}, {name_a}, {name_b}, {"module"}}, 2);
  std::size_t hidden = 0, shown = 0;
  std::map<std::string, int> seen;  // equal differences of other layers are counted, not repeated
  for (const Difference& d : differences(a, b)) {
    const Graph& graph = d.a.valid() ? a : b;
    const Op& op = graph.ops[d.a.valid() ? d.a : d.b];
    std::string left = d.a.valid() ? dtype_cell(a, a.ops[d.a]) : "-", right = d.b.valid() ? dtype_cell(b, b.ops[d.b]) : "-";
    std::string key = fmt::format("{} {} {} {}", name_of(graph, op), left, right, without_numbers(graph.name(op.module)));
    if (!options.everything && op.block > 0 && seen.count(key)) {
      ++hidden;
      continue;
    }
    ++seen[key];
    ++shown;
    table.add({{kind_text(graph, op)}, {left, Ink::blue}, {right, Ink::green}, {path_end(graph.name(op.module), 30)}});
  }
  if (shown == 0) out += "  no operator runs in another arithmetic\n";
  else out += table.text(style);
  if (hidden > 0) out += fmt::format("  and {} alike in the other layers (--all shows them)\n", hidden);
  Summary sa = summarise(a), sb = summarise(b);
  out += '\n' + wrapped("", fmt::format("Casts inserted in the forward pass: {} {}, {} {}.", name_a, sa.casts, name_b, sb.casts));
  return out;
}

Json diff_json(const Graph& a, const Graph& b) {
  Json rows = Json::array();
  for (const Difference& d : differences(a, b)) {
    const Graph& graph = d.a.valid() ? a : b;
    const Op& op = graph.ops[d.a.valid() ? d.a : d.b];
    rows.push_back({{"operator", name_of(graph, op)},
                    {"module", graph.name(op.module)},
                    {"block", op.block},
                    {"a", d.a.valid() ? Json(dtype_cell(a, a.ops[d.a])) : Json(nullptr)},
                    {"b", d.b.valid() ? Json(dtype_cell(b, b.ops[d.b])) : Json(nullptr)}});
  }
  return {{"schema", 1}, {"casts", {{"a", summarise(a).casts}, {"b", summarise(b).casts}}}, {"differences", std::move(rows)}};
}

}  // namespace precog
