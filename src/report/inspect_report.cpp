#include "report/inspect_report.h"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "base/text.h"
#include "graph/operator.h"
#include "report/parts.h"

namespace precog {
namespace {

constexpr std::size_t kMostRows = 36;  // of one range; a longer one is folded by operator and type
constexpr std::size_t kMostNames = 4;  // in a sentence of the summary

bool is_view(const Op& op) { return definition(op.kind).family == Family::view; }

DType result_type(const Graph& graph, const Op& op) { return op.output_count ? graph.tensors[graph.output(op)].dtype : op.math; }
DType operand_type(const Graph& graph, const Op& op) { return op.input_count ? graph.tensors[graph.input(op, 0)].dtype : op.math; }

bool casts_parameter(const Graph& graph, const Op& op) {
  return op.input_count > 0 && graph.tensors[graph.input(op, 0)].role == Role::parameter;
}

const Op& op_at(const Inspected& x, std::size_t i) { return x.graph.ops[x.inspection.ops[i].op]; }

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

struct Range {  // entries [first, last) of one repeated layer, or of what lies between
  std::size_t first = 0, last = 0;
  int block = -1;
  std::vector<std::size_t> alike;  // where the equal layers begin that this one stands for
  std::vector<int> blocks;         // and their numbers
  int repeats() const { return 1 + static_cast<int>(alike.size()); }
};

std::string signature(const Inspected& x, const Range& range) {
  std::string out;
  for (std::size_t i = range.first; i < range.last; ++i) {
    const Op& op = op_at(x, i);
    out += fmt::format("{} {} {} {} {};", static_cast<int>(op.kind), dtype_cell(x.graph, op), without_numbers(x.graph.name(op.module)),
                       op.reason.value, x.inspection.ops[i].in.count);
  }
  return out;
}

std::vector<Range> ranges(const Inspected& x, bool everything) {
  std::vector<Range> out;
  std::map<std::string, std::size_t> seen;  // equal layers need not follow each other: a network's stages repeat
  auto close = [&](Range range) {
    if (range.first == range.last) return;
    range.blocks = {range.block};
    if (!everything && range.block >= 0) {
      auto [it, fresh] = seen.try_emplace(signature(x, range), out.size());
      if (!fresh) {
        out[it->second].alike.push_back(range.first);
        out[it->second].blocks.push_back(range.block);
        return;
      }
    }
    out.push_back(range);
  };
  Range current{0, 0, x.inspection.ops.empty() ? -1 : op_at(x, 0).block, {}, {}};
  for (std::size_t i = 0; i < x.inspection.ops.size(); ++i) {
    if (const int block = op_at(x, i).block; block != current.block) {
      close(current);
      current = {i, i, block, {}, {}};
    }
    current.last = i + 1;
  }
  close(current);
  return out;
}

std::string range_title(const Range& range) {
  if (range.block < 0) return "outside the repeated layers";
  if (range.alike.empty()) return fmt::format("layer {}", range.block);
  std::vector<std::string> runs;
  for (std::size_t i = 0; i < range.blocks.size();) {
    std::size_t end = i + 1;
    while (end < range.blocks.size() && range.blocks[end] == range.blocks[end - 1] + 1) ++end;
    runs.push_back(end - i == 1 ? fmt::format("{}", range.blocks[i]) : fmt::format("{} to {}", range.blocks[i], range.blocks[end - 1]));
    i = end;
  }
  return fmt::format("layers {}, all alike (x {})", join(runs, ", "), range.repeats());
}

// The module path that all operators of a range share, with its last dot: told once, above them.
std::string common_path(const Inspected& x, const Range& range) {
  std::string common;
  bool first = true;
  for (std::size_t i = range.first; i < range.last; ++i) {
    std::string path = std::string(x.graph.name(x.graph.ops[x.inspection.ops[i].op].module)) + ".";
    if (first) common = path;
    first = false;
    std::size_t same = 0;
    while (same < common.size() && same < path.size() && common[same] == path[same]) ++same;
    common.resize(same);
    while (!common.empty() && common.back() != '.') common.pop_back();
  }
  return common;
}

struct Row {
  std::string kind, dtype, module, why;
  Ink ink = Ink::plain;
  int count = 1;
  Seconds own;
  Casts in, back;
  DType cast_from = DType::model;
  bool same_as(const Row& other, bool anywhere) const {
    return kind == other.kind && dtype == other.dtype && why == other.why && cast_from == other.cast_from && (anywhere || module == other.module);
  }
};

// "3+3 from fp32": casts in front of it and behind it, of one of its layers.
std::string casts_cell(const Row& row) {
  if (row.in.count + row.back.count <= 0) return "";
  std::string out = row.back.count > 0 ? fmt::format("{:.0f}+{:.0f}", row.in.count, row.back.count) : fmt::format("{:.0f}", row.in.count);
  if (row.cast_from != DType::model) out += fmt::format(" {}>", to_text(row.cast_from));
  return out;
}

Row row_of(const Inspected& x, const Range& range, std::size_t i, const std::string& prefix, Notes& notes) {
  const Op& op = op_at(x, i);
  std::string_view path = x.graph.name(op.module);
  path.remove_prefix(std::min(prefix.size(), path.size()));
  Row row{std::string(shown_name(x.graph, op)), dtype_cell(x.graph, op), std::string(path), notes.letter(x.graph.name(op.reason)),
          op.kind == OpKind::cast ? Ink::magenta : bits_of(op.math) <= 16 && is_floating(op.math) ? Ink::green : Ink::plain, 1, {}, {}, {}, {}};
  auto add = [&](const InspectedOp& at) {
    row.own += at.own() + (op.kind == OpKind::cast ? at.casts().time : Seconds{});
    if (op.kind == OpKind::cast) return;
    row.in += at.in;
    row.back += at.back;
  };
  add(x.inspection.ops[i]);
  for (std::size_t begin : range.alike) add(x.inspection.ops[begin + (i - range.first)]);
  row.cast_from = row.in.count > 0 ? x.inspection.ops[i].cast_from : DType::model;
  return row;
}

std::string range_table(const Inspected& x, const Range& range, const InspectOptions& options, const std::string& prefix, Notes& notes,
                        std::size_t& views, const Style& style) {
  std::vector<Row> rows;
  auto add = [&](const Row& row, bool anywhere) {
    auto same = std::find_if(anywhere || rows.empty() ? rows.begin() : rows.end() - 1, rows.end(), [&](const Row& r) { return r.same_as(row, anywhere); });
    if (same == rows.end()) return rows.push_back(row);
    same->count += row.count;
    same->own += row.own;
    same->in += row.in;
    same->back += row.back;
    if (same->module != row.module) same->module = "(several)";
  };
  for (std::size_t i = range.first; i < range.last; ++i) {
    const Op& op = op_at(x, i);
    const InspectedOp& at = x.inspection.ops[i];
    const bool silent = is_view(op) ? at.own().value <= 0 : !is_floating(result_type(x.graph, op));  // counters, indices, masks
    if (silent && !options.everything && at.casts().count <= 0) ++views;
    else add(row_of(x, range, i, prefix, notes), false);
  }
  if (rows.empty()) return "";
  if (rows.size() > kMostRows && !options.everything)
    for (std::vector<Row> all = std::exchange(rows, {}); const Row& row : all) add(row, true);
  using Align = Table::Align;
  Table table({{"operator"}, {"dtype"}, {"why"}, {"time", Align::right}, {"casts"}, {"cost", Align::right}, {"module", Align::left, true, true}}, 2);
  for (const Row& row : rows)
    table.add({{row.count > 1 ? fmt::format("{} x{}", shortened(row.kind, 12), row.count) : shortened(row.kind, 16), row.ink},
               {row.dtype, row.ink},
               {row.why, Ink::dim},
               {short_time(row.own)},
               {casts_cell(row), Ink::magenta},
               {short_time(row.in.time + row.back.time), Ink::magenta},
               {row.module}});
  return table.text(style);
}

// -- the summary ---------------------------------------------------------------------------------------------------

struct Summary {
  std::map<std::string, std::size_t> by_dtype;   // forward operators, casts and views aside
  std::map<std::string, Seconds> time_by_dtype;  // with their gradients
  std::map<std::string, std::size_t> casts_for;  // forward casts by the kind of operator that they are for
  std::map<std::string, Casts> all_casts_for;    // both directions, per step
  std::size_t casts = 0, parameter_casts = 0, operators = 0;
  std::size_t linears = 0, narrow_linears = 0;
  std::string narrow;                            // "fp8", "mxfp8", ...
  std::map<std::string, std::vector<std::string>> wide_linears;  // "bf16: why" -> modules
};

Summary summarise(const Inspected& x) {
  Summary out;
  for (const InspectedOp& at : x.inspection.ops) {
    const Op& op = x.graph.ops[at.op];
    if (op.kind != OpKind::cast && at.casts().count > 0) out.all_casts_for[std::string(shown_name(x.graph, op))] += at.casts();
    if (is_view(op) || inserted_cast(op)) continue;
    ++out.operators;
    ++out.by_dtype[std::string(to_text(op.math))];
    out.time_by_dtype[std::string(to_text(op.math))] += at.own();
    if (op.kind != OpKind::linear && op.kind != OpKind::grouped_linear && op.kind != OpKind::scaled_mm) continue;
    ++out.linears;
    const bool narrow = bits_of(op.math) < 16;
    out.narrow_linears += narrow;
    if (narrow) out.narrow = to_text(op.math);
    else out.wide_linears[fmt::format("{}: {}", to_text(op.math), x.graph.name(op.reason))].push_back(without_numbers(x.graph.name(op.module)));
  }
  std::vector<std::string> reader(x.graph.tensors.size());
  for (std::size_t i = x.graph.ops.size(); i-- > 0;) {
    const Op& op = x.graph.ops[x.graph.ops.id_at(i)];
    if (op.phase != Phase::forward) continue;
    for (TensorId id : x.graph.inputs(op)) reader[id.index()] = name_of(x.graph, op);
    if (!inserted_cast(op)) continue;
    ++out.casts;
    out.parameter_casts += casts_parameter(x.graph, op);
    std::string whom(x.graph.name(op.label));
    if (whom.empty() && op.output_count) whom = reader[x.graph.output(op).index()];
    ++out.casts_for[whom.empty() ? "nothing" : whom];
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

double share(Seconds part, Seconds whole) { return whole.value > 0 ? part / whole : 0; }

std::vector<std::pair<std::string, Casts>> dearest(const std::map<std::string, Casts>& casts) {
  std::vector<std::pair<std::string, Casts>> out(casts.begin(), casts.end());
  std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.second.time > b.second.time; });
  return out;
}

std::string cast_sentence(const Inspected& x, const Summary& s) {
  const Casts all = x.inspection.all_casts();
  if (all.count <= 0) return "no casts: nothing is spent on changing types";
  std::vector<std::string> parts;
  for (const auto& [name, casts] : dearest(s.all_casts_for))
    if (parts.size() < kMostNames) parts.push_back(fmt::format("{:.0f} for {} ({})", casts.count, name, to_text(casts.time)));
  std::string out = fmt::format("casts cost {} of the step ({} in {}, backward{} included): {}", percent_text(share(all.time, x.report.step)),
                                to_text(all.time), counted_exactly(all.count, "kernel"), s.narrow_linears > 0 ? " and finding scales" : "", join(parts, ", "));
  if (x.inspection.of_weights.count > 0)
    out += fmt::format("; {:.0f} of them are of weights and their gradients ({}), the same at every batch size",
                       x.inspection.of_weights.count, to_text(x.inspection.of_weights.time));
  return out;
}

std::string fp8_sentence(const Summary& s) {
  std::string out = fmt::format("{}: {} of {} linear layers", s.narrow, s.narrow_linears, s.linears);
  for (const auto& [why, modules] : s.wide_linears) {
    std::vector<std::string> names;
    for (const std::string& module : modules)
      if (std::find(names.begin(), names.end(), module) == names.end()) names.push_back(module);
    const std::size_t more = names.size() > 3 ? names.size() - 3 : 0;
    names.resize(names.size() - more);
    out += fmt::format("; {}{} kept {}", join(names, ", "), more ? fmt::format(" and {} more", more) : "", why);
  }
  return out;
}

std::vector<std::string> summary_lines(const Inspected& x) {
  const Summary s = summarise(x);
  const Inspection& i = x.inspection;
  std::vector<std::string> out;
  std::vector<std::string> types;
  for (const auto& [type, count] : s.by_dtype) types.push_back(fmt::format("{} {} ({})", type, count, percent_text(share(s.time_by_dtype.at(type), x.report.step))));
  out.push_back(fmt::format("{} operators by arithmetic, with their share of the step: {}", s.operators, join(types, ", ")));
  if (s.casts > 0) {
    out.push_back(fmt::format("{} casts inserted in the forward pass, by what reads them: {}{}", s.casts, counts_text(s.casts_for),
                              s.parameter_casts ? fmt::format("; {} cast a parameter", s.parameter_casts) : ""));
  }
  out.push_back(cast_sentence(x, s));
  if (s.narrow_linears > 0) out.push_back(fp8_sentence(s));
  std::vector<std::string> kept;
  for (const KeptWide& wide : kept_in_fp32(x.graph, i))
    if (kept.size() < kMostNames && share(wide.own + wide.casts.time, x.report.step) >= 0.001)
      kept.push_back(fmt::format("{} {} cost {}{}", wide.count, wide.name, to_text(wide.own),
                                 wide.casts.time.value > 0 ? fmt::format(" and {} of casts", to_text(wide.casts.time)) : ""));
  if (!kept.empty()) out.push_back("kept in fp32: " + join(kept, ", "));
  for (const WhatIf& what_if : x.what_ifs)
    out.push_back(fmt::format("with --override {}: step {} ({:+.1f}%), predicted", what_if.override_text, to_text(what_if.step),
                              100 * (what_if.step / x.report.step - 1)));
  Bytes saved;
  std::vector<std::string> by_type;
  for (const auto& [type, bytes] : i.saved) {
    saved += bytes;
    by_type.push_back(fmt::format("{} {}", type, to_text(bytes)));
  }
  if (saved.value > 0) out.push_back(fmt::format("saved for backward: {} ({})", to_text(saved), join(by_type, ", ")));
  if (i.accumulation.value > 0)
    out.push_back(fmt::format("adding gradients to what is there: {} ({} of the step)", to_text(i.accumulation), percent_text(share(i.accumulation, x.report.step))));
  if (i.scaling_kernels > 0)
    out.push_back(fmt::format("loss scaling: {} in {} ({} of the step); {}", to_text(i.loss_scaling), counted_exactly(i.scaling_kernels, "kernel"),
                              percent_text(share(i.loss_scaling, x.report.step)),
                              i.waits > 0 ? "the host waits for the GPU before it may step, and cannot run ahead into the next one"
                                          : "the host does not wait for it"));
  out.push_back(fmt::format("optimizer: {} in {} ({} of the step){}", to_text(i.optimizer), counted_exactly(i.optimizer_kernels, "kernel"),
                            percent_text(share(i.optimizer, x.report.step)),
                            i.at_the_end.count > 0 ? fmt::format(", and {} around it ({})", counted_exactly(i.at_the_end.count, "cast"), to_text(i.at_the_end.time)) : ""));
  out.push_back(fmt::format("step {}: GPU busy {}, waiting for the host {}; {} kernels; bound by {}", to_text(x.report.step), to_text(x.report.gpu_busy),
                            to_text(x.report.breakdown.host), x.report.kernels, x.report.bound));
  return out;
}

Json op_json(const Inspected& x, std::size_t index, const Op& op, const InspectedOp* at) {
  Json outputs = Json::array();
  for (TensorId id : x.graph.outputs(op)) {
    const Tensor& tensor = x.graph.tensors[id];
    outputs.push_back({{"dtype", to_text(tensor.dtype)}, {"shape", to_text(tensor.shape)}});
  }
  Json out = {{"index", index},
              {"operator", shown_name(x.graph, op)},
              {"module", x.graph.name(op.module)},
              {"block", op.block},
              {"dtype", to_text(op.math)},
              {"outputs", std::move(outputs)},
              {"inserted_cast", inserted_cast(op)},
              {"why", x.graph.name(op.reason)}};
  if (op.kind == OpKind::cast) {
    out["from"] = to_text(operand_type(x.graph, op));
    out["to"] = to_text(result_type(x.graph, op));
    out["of_parameter"] = casts_parameter(x.graph, op);
  }
  if (!at) return out;
  out["forward_s"] = at->forward.value;
  out["backward_s"] = at->backward.value;
  out["casts"] = {{"in", at->in.count}, {"in_s", at->in.time.value}, {"back", at->back.count}, {"back_s", at->back.time.value}};
  return out;
}

}  // namespace

std::string dtype_cell(const Graph& graph, const Op& op) {
  if (op.kind == OpKind::cast) return fmt::format("{}>{}", to_text(operand_type(graph, op)), to_text(result_type(graph, op)));
  DType result = result_type(graph, op);
  // tf32 is an arithmetic on fp32 storage, and 8-bit products answer in 16: their result types say nothing new.
  if (bits_of(op.math) < 16) return std::string(to_text(op.math));
  if (result == op.math || op.math == DType::tf32 || !is_floating(result)) return std::string(to_text(op.math));
  return fmt::format("{}={}", to_text(op.math), to_text(result));
}

std::string without_numbers(std::string_view path) {
  std::string out;
  for (char c : path) {
    if (c < '0' || c > '9') out += c;
    else if (out.empty() || out.back() != '*') out += '*';
  }
  return out;
}

std::string short_time(Seconds time) {
  if (time.value < 1e-10) return "";
  for (auto [unit, name] : {std::pair{1.0, "s"}, {1e-3, "ms"}})
    if (time.value >= unit) return fmt::format("{:.3g} {}", time.value / unit, name);
  return fmt::format("{:.3g} us", time.value * 1e6);
}

std::string inspect_text(const Inspected& x, const InspectOptions& options, const Style& style) {
  std::string out = style(Ink::bold, options.title) + '\n';
  out += wrapped("", "The arithmetic of each operator (a=b where the result is stored as b) and its time in the step, forward and backward, all its "
                     "layers together; the casts around it (forward+backward, fp32> where they read fp32) and what they cost.");
  if (x.inspection.compiled)
    out += wrapped("", "Compiled: the time of a fused kernel is at the operator where it is launched; casts inside it cost nothing of their own.");
  std::size_t views = 0;
  Notes notes;
  for (const Range& range : ranges(x, options.everything)) {
    std::string prefix = common_path(x, range);
    std::string table = range_table(x, range, options, prefix, notes, views, style);
    if (table.empty()) continue;
    std::string title = range_title(range) + (prefix.empty() ? "" : ": " + path_end(prefix.substr(0, prefix.size() - 1), 40));
    out += '\n' + style(Ink::bold, title) + '\n' + table;
  }
  out += '\n' + style(Ink::bold, "Why") + '\n' + notes.text();
  out += '\n' + style(Ink::bold, "Summary") + '\n';
  for (const std::string& line : summary_lines(x)) out += wrapped("  - ", line);
  if (views > 0) out += "  views and integers are not shown, equal layers once; --all shows everything\n";
  return out;
}

Json inspect_json(const Inspected& x) {
  Json operators = Json::array();
  std::map<std::int32_t, const InspectedOp*> entries;
  for (const InspectedOp& at : x.inspection.ops) entries[at.op.value] = &at;
  for (std::size_t i = 0; i < x.graph.ops.size(); ++i) {
    const OpId id = x.graph.ops.id_at(i);
    if (x.graph.ops[id].phase != Phase::forward) break;
    const auto entry = entries.find(id.value);
    operators.push_back(op_json(x, i, x.graph.ops[id], entry == entries.end() ? nullptr : entry->second));
  }
  const Summary s = summarise(x);
  const Inspection& i = x.inspection;
  const Casts all = i.all_casts();
  Json cast_kernels_for = Json::object(), kept = Json::array(), saved = Json::object(), what_ifs = Json::array(), times = Json::object(), wide = Json::array();
  for (const auto& [name, casts] : s.all_casts_for) cast_kernels_for[name] = {{"kernels", casts.count}, {"s", casts.time.value}};
  for (const KeptWide& one : kept_in_fp32(x.graph, i))
    kept.push_back({{"operator", one.name}, {"count", one.count}, {"s", one.own.value}, {"casts", one.casts.count}, {"casts_s", one.casts.time.value}});
  for (const auto& [type, bytes] : i.saved) saved[type] = bytes.value;
  for (const auto& [type, time] : s.time_by_dtype) times[type] = time.value;
  for (const auto& [why, modules] : s.wide_linears)
    for (const std::string& module : modules) wide.push_back({{"module", module}, {"why", why}});
  for (const WhatIf& what_if : x.what_ifs)
    what_ifs.push_back({{"override", what_if.override_text}, {"step_s", what_if.step.value}, {"gain", 1 - what_if.step / x.report.step}});
  return {{"schema", 1},
          {"step_s", x.report.step.value},
          {"summary",
           {{"operators", s.operators},
            {"by_dtype", s.by_dtype},
            {"s_by_dtype", times},
            {"casts", s.casts},
            {"casts_for", s.casts_for},
            {"parameter_casts", s.parameter_casts},
            {"cast_kernels", all.count},
            {"cast_s", all.time.value},
            {"cast_share", share(all.time, x.report.step)},
            {"cast_kernels_for", cast_kernels_for},
            {"weight_casts", {{"kernels", i.of_weights.count}, {"s", i.of_weights.time.value}}},
            {"kept_fp32", kept},
            {"narrow_linear_layers", s.narrow_linears},
            {"linear_layers", s.linears},
            {"wide_linear_layers", s.narrow_linears > 0 ? wide : Json::array()},
            {"saved_bytes", saved},
            {"loss_scaling", {{"s", i.loss_scaling.value}, {"kernels", i.scaling_kernels}}},
            {"host_waits", i.waits},
            {"optimizer_s", i.optimizer.value},
            {"accumulation_s", i.accumulation.value},
            {"what_if", what_ifs},
            {"lines", summary_lines(x)}}},
          {"operators", std::move(operators)}};
}

}  // namespace precog
