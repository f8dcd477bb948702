#include "spec/host_spec.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "base/text.h"

namespace precog {
namespace {

// What a description without a figure for its memory gets: two sockets with eight channels of DDR4-3200 or DDR5-4800 each have 410 to
// 614 GB/s on paper, of which long streams reach 60 to 80%; an update is a few such streams. An estimate: too high, and offloaded
// steps come out too fast.
constexpr BytesPerSecond kMemoryBandwidth{300e9};
constexpr int kMaxDepth = 8;  // hosts that stand on each other; deeper is a circle

struct Field {
  const char* name;
  Seconds HostSpec::* field;
};
constexpr Field kFields[] = {{"kernel_launch", &HostSpec::kernel_launch}, {"autocast_cast", &HostSpec::autocast_cast},
                             {"parameter_gradient", &HostSpec::parameter_gradient}, {"optimizer_op", &HostSpec::optimizer_op},
                             {"optimizer_tensor", &HostSpec::optimizer_tensor}, {"loss_scaler", &HostSpec::loss_scaler},
                             {"synchronise", &HostSpec::synchronise}, {"step", &HostSpec::step}};
// What a description may leave out: nothing where the figures around it hold it already, or a share of another.
struct OptionalField {
  const char* name;
  Seconds HostSpec::* field;
  Seconds HostSpec::* like;
  double share;
};
constexpr OptionalField kOptional[] = {{"python_call", &HostSpec::python_call, &HostSpec::python_call, 0},
                                       {"module_call", &HostSpec::module_call, &HostSpec::module_call, 0},
                                       {"autocast_parameter", &HostSpec::autocast_parameter, &HostSpec::autocast_parameter, 0},
                                       {"zero_grad_tensor", &HostSpec::zero_grad_tensor, &HostSpec::zero_grad_tensor, 0},
                                       {"loss_scaler_tensor", &HostSpec::loss_scaler_tensor, &HostSpec::loss_scaler_tensor, 0},
                                       {"recurrent_parameter", &HostSpec::recurrent_parameter, &HostSpec::autocast_cast, 1},
                                       {"library_launch", &HostSpec::library_launch, &HostSpec::kernel_launch, 1},
                                       {"memset", &HostSpec::memset, &HostSpec::kernel_launch, 0.4},
                                       {"optimizer_tensor_fused", &HostSpec::optimizer_tensor_fused, &HostSpec::optimizer_tensor, 0.35},
                                       {"optimizer_tensor_sgd", &HostSpec::optimizer_tensor_sgd, &HostSpec::optimizer_tensor, 0.35}};

void scale(HostSpec& host, double by) {
  for (auto* table : {&host.forward, &host.backward})
    for (auto& [kind, time] : *table) time = time * by;
  for (const Field& field : kFields) host.*field.field = host.*field.field * by;
  for (const OptionalField& field : kOptional) host.*field.field = host.*field.field * by;
  for (Seconds* time : {&host.compiled.kernel, &host.compiled.library_call, &host.compiled.graph, &host.compiled.replay, &host.compiled.parameter}) *time = *time * by;
  for (auto& [kind, time] : host.compiled.library) time = time * by;
}

// A host that was described without compiled steps gets what the others show: a launch from the generated program costs
// about two bare ones, a library call less than half of the same call under autograd, a graph about as much as fifty launches.
void read_compiled(JsonReader& file, HostSpec& host, bool has_base) {
  HostSpec::Compiled& out = host.compiled;
  if (!has_base) {
    const auto gemm = host.backward.find("gemm");
    out.kernel = host.kernel_launch * 2.0;
    out.library_call = (gemm == host.backward.end() ? host.kernel_launch * 4.0 : gemm->second) * 0.5;
    out.graph = host.kernel_launch * 50.0;
    out.replay = host.kernel_launch * 10.0;
  }
  auto given = file.object("compiled");
  if (!given) return;
  for (auto [key, target] : {std::pair{"kernel", &out.kernel}, {"library_call", &out.library_call}, {"graph", &out.graph}, {"replay", &out.replay}, {"parameter", &out.parameter}})
    if (auto value = given->quantity<Seconds>(key)) *target = *value;
  if (auto table = given->object("library"))
    for (const std::string& kind : table->keys())
      if (auto value = table->quantity<Seconds>(kind)) out.library[kind] = *value;
  given->reject_unknown_keys();
}

Result<HostSpec> parse(const Json& json, const std::string& where, const HostFiles& files, int depth);

// What the file starts from, scaled; nothing where it starts from nothing or the name is wrong, which is reported.
std::optional<HostSpec> read_base(JsonReader& file, const HostFiles& files, int depth) {
  const auto name = file.text("extends");
  const auto by = file.sourced_number("scale", 1e-3, 1e3);
  if (!name) {
    if (by) file.problem("scale", "is of the host that this one extends; there is none");
    return std::nullopt;
  }
  auto named = [&](const auto& one) {
    if (normalised_name(one.first) == normalised_name(*name)) return true;
    const auto aliases = one.second.is_object() ? one.second.find("aliases") : one.second.end();
    return aliases != one.second.end() && aliases->is_array() && std::any_of(aliases->begin(), aliases->end(), [&](const Json& alias) {
             return alias.is_string() && normalised_name(alias.get<std::string>()) == normalised_name(*name);
           });
  };
  const auto found = std::find_if(files.begin(), files.end(), named);
  if (found == files.end()) {
    std::vector<std::string> known;
    for (const auto& [one, as_written] : files) known.push_back(one);
    file.problem("extends", unknown_name("host", *name, known, "precog hosts"));
    return std::nullopt;
  }
  if (depth >= kMaxDepth) {
    file.problem("extends", fmt::format("'{}' leads back to itself", *name));
    return std::nullopt;
  }
  auto base = parse(found->second, found->first, files, depth + 1);
  if (!base) {
    file.problem("extends", base.error().text());
    return std::nullopt;
  }
  if (by) scale(*base, *by);
  return std::move(*base);
}

Result<HostSpec> parse(const Json& json, const std::string& where, const HostFiles& files, int depth) {
  std::vector<Problem> problems;
  JsonReader file(json, where, problems);
  const Json* sources = file.raw("sources");
  if (sources && sources->is_object()) file.set_sources(sources);
  else file.problem("sources", "is missing: every figure needs a source");
  std::optional<HostSpec> base = read_base(file, files, depth);
  const bool has_base = base.has_value() || file.has("extends");
  HostSpec host = base ? std::move(*base) : HostSpec{};
  host.sources.clear();
  if (sources && sources->is_object())
    for (const auto& [key, source] : sources->items())
      if (source.is_string()) {
        host.sources.push_back(source.get<std::string>());
        const bool estimate = host.sources.back().starts_with("estimate");
        if (key == "compiled") host.compiled_estimated = estimate;
        else if (key == "all") host.estimated = host.compiled_estimated = estimate;
        else host.estimated = host.estimated || estimate;
      }
  file.required_integer("schema", 1, 1);
  host.name = file.required_text("name");
  host.title = file.required_text("title");
  host.aliases = file.texts("aliases");
  file.text("notes");
  file.raw("reference");  // what a few stacks took there, for comparing other machines with it (python/precog/hosting.py)
  auto by_family = [&](std::string_view key, std::map<std::string, Seconds, std::less<>>& target) {
    if (has_base && !file.has(key)) return;
    JsonReader table = file.required_object(key);
    for (const std::string& family : table.keys())
      if (auto value = table.quantity<Seconds>(family)) target[family] = *value;
    if (!has_base && !target.contains("default")) table.problem("default", "is missing: what families not listed cost");
  };
  by_family("forward", host.forward);
  by_family("backward", host.backward);
  for (const Field& field : kFields) {
    if (auto value = file.quantity<Seconds>(field.name)) host.*field.field = *value;
    else if (!has_base && !file.has(field.name)) file.problem(field.name, "is missing");
  }
  for (const OptionalField& field : kOptional) {
    if (auto value = file.quantity<Seconds>(field.name)) host.*field.field = *value;
    else if (!has_base) host.*field.field = host.*field.like * field.share;
  }
  if (auto memory = file.quantity<Bytes>("memory")) host.memory = *memory;
  if (auto bandwidth = file.quantity<BytesPerSecond>("memory_bandwidth")) host.memory_bandwidth = *bandwidth, host.memory_estimated = false;
  else if (!has_base) host.memory_bandwidth = kMemoryBandwidth;
  if (auto blocking = file.boolean("blocking_launches")) host.blocking_launches = *blocking;
  read_compiled(file, host, has_base);
  file.reject_unknown_keys();
  if (!problems.empty()) return fail(std::move(problems));
  return host;
}

}  // namespace

Result<HostSpec> parse_host(const Json& json, const std::string& where, const HostFiles& files) { return parse(json, where, files, 0); }

}  // namespace precog
