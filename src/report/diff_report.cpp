#include "report/diff_report.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "base/text.h"
#include "graph/operator.h"
#include "report/parts.h"
#include "report/reasons.h"

namespace precog {
namespace {

constexpr std::size_t kMostGroups = 30;

// The n-th operator of a kind in a module is the same operator at every precision.
std::map<std::string, std::size_t> by_place(const Inspected& x) {
  std::map<std::string, std::size_t> out;
  std::map<std::string, int> seen;
  for (std::size_t i = 0; i < x.inspection.ops.size(); ++i) {
    const Op& op = x.graph.ops[x.inspection.ops[i].op];
    if (definition(op.kind).family == Family::view || op.kind == OpKind::cast) continue;
    if (op.output_count > 0 && !is_floating(x.graph.tensors[x.graph.output(op)].dtype)) continue;  // a comparison: no arithmetic to speak of
    std::string place = fmt::format("{}/{}", x.graph.name(op.module), shown_name(x.graph, op));
    int nth = seen[place]++;
    out[fmt::format("{}/{}", place, nth)] = i;
  }
  return out;
}

struct Side {
  std::string dtype, why;
  Seconds own;
  Casts casts;
  int count = 0;
};
struct Group {  // operators of one name that both precisions treat alike, wherever they are in the repeated layers
  std::string name, module;
  std::size_t position = 0;
  Family family = Family::pointwise;
  Side a, b;
  int count = 0;
  bool differs() const { return a.dtype != b.dtype || a.casts.count != b.casts.count; }
  Seconds difference() const { return b.own + b.casts.time - a.own - a.casts.time; }
};

void take(Side& side, const Inspected& x, std::size_t i) {
  const Op& op = x.graph.ops[x.inspection.ops[i].op];
  side.dtype = dtype_cell(x.graph, op);
  side.why = x.graph.name(op.reason);
  side.own += x.inspection.ops[i].own();
  side.casts += x.inspection.ops[i].casts();
  ++side.count;
}

std::vector<Group> groups(const Inspected& a, const Inspected& b, bool everything) {
  std::map<std::string, Group> found;
  auto add = [&](const Inspected& x, std::size_t at, const std::size_t* in_a, const std::size_t* in_b) {
    const Op& op = x.graph.ops[x.inspection.ops[at].op];
    auto cell = [](const Inspected& side, const std::size_t* i) {
      return i ? dtype_cell(side.graph, side.graph.ops[side.inspection.ops[*i].op]) : std::string("-");
    };
    const std::string module = everything ? std::string(x.graph.name(op.module)) : without_numbers(x.graph.name(op.module));
    const std::string key = fmt::format("{}|{}|{}|{}", shown_name(x.graph, op), module, cell(a, in_a), cell(b, in_b));
    auto [it, fresh] = found.try_emplace(key);
    Group& group = it->second;
    if (fresh) {
      group.name = shown_name(x.graph, op);
      group.module = module;
      group.position = at;
      group.family = definition(op.kind).family;
      group.a.dtype = group.b.dtype = "-";
    }
    ++group.count;
    if (in_a) take(group.a, a, *in_a);
    if (in_b) take(group.b, b, *in_b);
  };
  const auto places_a = by_place(a), places_b = by_place(b);
  for (const auto& [place, i] : places_a) {
    const auto other = places_b.find(place);
    add(a, i, &i, other == places_b.end() ? nullptr : &other->second);
  }
  for (const auto& [place, i] : places_b)
    if (!places_a.count(place)) add(b, i, nullptr, &i);
  std::vector<Group> out;
  for (auto& [key, group] : found) out.push_back(std::move(group));
  std::stable_sort(out.begin(), out.end(), [](const Group& x, const Group& y) { return x.position < y.position; });
  return out;
}

std::string signed_short(Seconds time) {
  return std::abs(time.value) < 1e-10 ? "" : fmt::format("{}{}", time.value < 0 ? "-" : "+", short_time(Seconds{std::abs(time.value)}));
}

std::string casts_pair(const Group& group) {
  if (group.a.casts.count == group.b.casts.count) return group.a.casts.count > 0 ? fmt::format("{:.0f}", group.a.casts.count) : "";
  return fmt::format("{:.0f}>{:.0f}", group.a.casts.count, group.b.casts.count);
}

// The operators of a reason's part that differ by at least a tenth of it, the largest first.
std::vector<std::pair<std::string, Seconds>> by_operator(const std::vector<Group>& all, const Reason& reason) {
  std::map<std::string, Seconds> by_name;
  for (const Group& group : all)
    if (std::string_view(part_of(group.family)) == reason.part) by_name[group.name] += group.b.own - group.a.own;
  std::vector<std::pair<std::string, Seconds>> sorted;
  for (const auto& [name, time] : by_name)
    if (std::abs(time.value) > 0.1 * std::abs(reason.difference.value)) sorted.emplace_back(name, time);
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& x, const auto& y) { return std::abs(x.second.value) > std::abs(y.second.value); });
  return sorted;
}

// ": pow -2.1 ms, mul -1.9 ms", for a reason that many operators make up; "mostly" where those that go its way are more than half of it.
std::string made_of(const std::vector<Group>& all, const Reason& reason) {
  const auto sorted = by_operator(all, reason);
  std::vector<std::string> names;
  Seconds its_way;
  for (std::size_t i = 0; i < sorted.size() && i < 3; ++i) {
    names.push_back(fmt::format("{} {}", sorted[i].first, signed_short(sorted[i].second)));
    if ((sorted[i].second.value < 0) == (reason.difference.value < 0)) its_way += sorted[i].second;
  }
  if (names.empty()) return "";
  const bool most = std::abs(its_way.value) > 0.5 * std::abs(reason.difference.value);
  return (most ? ": mostly " : ": among others ") + join(names, ", ");
}

// "layer_norm" -> "fp32 list | runs in its inputs' type", for operators that the two treat differently by another rule.
struct RulePair {
  std::string a, b;
};
std::map<std::string, RulePair> rules_that_differ(const std::vector<Group>& all) {
  std::map<std::string, RulePair> out;
  auto said = [](const std::string& why) { return why.empty() ? std::string("the model's type") : why; };
  for (const Group& group : all)
    if (group.differs() && group.a.why != group.b.why) out.try_emplace(group.name, RulePair{said(group.a.why), said(group.b.why)});
  return out;
}

Bytes total(const std::map<std::string, Bytes>& saved) {
  Bytes sum;
  for (const auto& [type, bytes] : saved) sum += bytes;
  return sum;
}

std::string signed_bytes(Bytes before, Bytes after) {
  return after < before ? "-" + to_text(before - after) : "+" + to_text(after - before);
}

}  // namespace

std::string diff_text(const Inspected& a, const Inspected& b, const InspectOptions& options, const Style& style) {
  const std::string &name_a = a.report.precision, &name_b = b.report.precision;
  std::string out = style(Ink::bold, options.title) + '\n';
  out += wrapped("", fmt::format("a is {}, b is {}: what each operator runs in, its time in the step (all layers, forward, backward and the casts "
                                 "around it), the number of those casts.", name_a, name_b)) + '\n';
  std::vector<Group> all = groups(a, b, options.everything), shown;
  for (const Group& group : all)
    if (group.differs() || std::abs(group.difference().value) >= 5e-4 * a.report.step.value) shown.push_back(group);
  std::size_t hidden = 0;
  if (!options.everything && shown.size() > kMostGroups) {  // the largest differences, in the order of the model
    std::vector<double> sizes;
    for (const Group& group : shown) sizes.push_back(std::abs(group.difference().value));
    std::nth_element(sizes.begin(), sizes.begin() + kMostGroups, sizes.end(), std::greater<>());
    const double least = sizes[kMostGroups];
    const std::size_t before = shown.size();
    std::erase_if(shown, [&](const Group& group) { return std::abs(group.difference().value) <= least; });
    hidden = before - shown.size();
  }
  using Align = Table::Align;
  Table table({{"operator"}, {"a"}, {"b"}, {"time a", Align::right}, {"time b", Align::right}, {"b - a", Align::right}, {"casts", Align::right},
               {"module", Align::left, true, true}}, 2);
  bool rows = false, any_type = false;
  for (const Group& group : shown) {
    rows = true;
    any_type = any_type || group.a.dtype != group.b.dtype;
    table.add({{group.count > 1 ? fmt::format("{} x{}", shortened(group.name, 14), group.count) : shortened(group.name, 18)},
               {group.a.dtype, Ink::blue},
               {group.b.dtype, Ink::green},
               {short_time(group.a.own + group.a.casts.time)},
               {short_time(group.b.own + group.b.casts.time)},
               {signed_short(group.difference()), group.difference().value < 0 ? Ink::green : Ink::red},
               {casts_pair(group), Ink::magenta},
               {group.module}});
  }
  if (!any_type) out += "  no operator runs in another arithmetic\n";
  if (rows) out += table.text(style);
  if (hidden > 0) out += fmt::format("  and {} groups of operators that differ less (--all shows them)\n", hidden);

  const auto rules = rules_that_differ(all);
  if (!rules.empty()) {
    out += '\n' + style(Ink::bold, fmt::format("Why ({} | {})", name_a, name_b)) + '\n';
    std::map<std::string, std::vector<std::string>> by_rule;
    for (const auto& [name, rule] : rules) by_rule[fmt::format("{} | {}", rule.a, rule.b)].push_back(name);
    for (const auto& [rule, names] : by_rule) out += wrapped("  ", fmt::format("{}: {}", join(names, ", "), rule));
  }

  out += '\n' + style(Ink::bold, "In all") + '\n';
  Table sums({{""}, {shortened(name_a, 24), Align::right}, {shortened(name_b, 24), Align::right}, {"difference", Align::right}}, 2);
  sums.add({{"step", Ink::bold}, {to_text(a.report.step)}, {to_text(b.report.step)}, {signed_short(b.report.step - a.report.step), Ink::bold}});
  const auto parts_a = time_parts(a.report.breakdown), parts_b = time_parts(b.report.breakdown);
  for (std::size_t i = 0; i < parts_a.size() && i < parts_b.size(); ++i)
    if (!signed_short(parts_b[i].time - parts_a[i].time).empty())
      sums.add({{parts_a[i].label}, {part_text(parts_a[i])}, {part_text(parts_b[i])}, {signed_short(parts_b[i].time - parts_a[i].time)}});
  sums.add({{"peak memory"}, {to_text(a.report.memory.peak)}, {to_text(b.report.memory.peak)}, {signed_bytes(a.report.memory.peak, b.report.memory.peak)}});
  sums.add({{"saved for backward"}, {to_text(total(a.inspection.saved))}, {to_text(total(b.inspection.saved))},
            {signed_bytes(total(a.inspection.saved), total(b.inspection.saved))}});
  const double casts_a = a.inspection.all_casts().count, casts_b = b.inspection.all_casts().count;
  sums.add({{"casts"}, {fmt::format("{:.0f}", casts_a)}, {fmt::format("{:.0f}", casts_b)}, {casts_a == casts_b ? "" : fmt::format("{:+.0f}", casts_b - casts_a)}});
  sums.add({{"kernels"}, {fmt::format("{}", a.report.kernels)}, {fmt::format("{}", b.report.kernels)},
            {a.report.kernels == b.report.kernels ? "" : fmt::format("{:+}", b.report.kernels - a.report.kernels)}});
  out += sums.text(style);

  const auto why = reasons(a.report, b.report);
  if (why.empty()) return out + '\n' + wrapped("", fmt::format("{} and {} take the same time.", name_a, name_b));
  out += '\n' + style(Ink::bold, wrapped("", fmt::format("{} takes {} {} than {}; the largest reasons:", name_b,
                                                         to_text(Seconds{std::abs((b.report.step - a.report.step).value)}),
                                                         b.report.step < a.report.step ? "less" : "more", name_a)));
  for (std::size_t i = 0; i < why.size() && i < 3; ++i) out += wrapped(fmt::format("  {}. ", i + 1), why[i].text + made_of(all, why[i]));
  return out;
}

Json diff_json(const Inspected& a, const Inspected& b) {
  auto side_json = [](const Side& side) -> Json {
    if (side.count == 0) return nullptr;
    return {{"dtype", side.dtype}, {"why", side.why}, {"s", side.own.value}, {"casts", side.casts.count}, {"casts_s", side.casts.time.value}};
  };
  Json rows = Json::array(), why = Json::array(), rules = Json::array(), parts = Json::object();
  const std::vector<Group> all = groups(a, b, false);
  for (const Group& group : all) {
    if (!group.differs() && group.difference().value == 0) continue;
    rows.push_back({{"operator", group.name}, {"module", group.module}, {"count", group.count}, {"a", side_json(group.a)}, {"b", side_json(group.b)},
                    {"difference_s", group.difference().value}});
  }
  for (const Reason& reason : reasons(a.report, b.report)) {
    Json operators = Json::array();
    for (const auto& [name, time] : by_operator(all, reason)) operators.push_back({{"operator", name}, {"difference_s", time.value}});
    why.push_back({{"part", reason.part}, {"difference_s", reason.difference.value}, {"text", reason.text + made_of(all, reason)}, {"operators", std::move(operators)}});
  }
  for (const auto& [name, rule] : rules_that_differ(all)) rules.push_back({{"operator", name}, {"a", rule.a}, {"b", rule.b}});
  auto both = [](auto x, auto y) { return Json{{"a", x}, {"b", y}}; };
  const auto parts_a = time_parts(a.report.breakdown), parts_b = time_parts(b.report.breakdown);
  for (std::size_t i = 0; i < parts_a.size() && i < parts_b.size(); ++i) parts[parts_a[i].key] = both(parts_a[i].time.value, parts_b[i].time.value);
  auto saved_by_type = [](const Inspected& x) {
    Json out = Json::object();
    for (const auto& [type, bytes] : x.inspection.saved) out[type] = bytes.value;
    return out;
  };
  return {{"schema", 1},
          {"model", a.report.model},
          {"a", a.report.precision},
          {"b", b.report.precision},
          {"step_s", both(a.report.step.value, b.report.step.value)},
          {"difference_s", (b.report.step - a.report.step).value},
          {"parts_s", std::move(parts)},
          {"casts", both(a.inspection.all_casts().count, b.inspection.all_casts().count)},
          {"casts_s", both(a.inspection.all_casts().time.value, b.inspection.all_casts().time.value)},
          {"peak_bytes", both(a.report.memory.peak.value, b.report.memory.peak.value)},
          {"saved_bytes", both(total(a.inspection.saved).value, total(b.inspection.saved).value)},
          {"saved_bytes_by_type", both(saved_by_type(a), saved_by_type(b))},
          {"kernels", both(a.report.kernels, b.report.kernels)},
          {"rules", std::move(rules)},
          {"reasons", std::move(why)},
          {"differences", std::move(rows)}};
}

}  // namespace precog
