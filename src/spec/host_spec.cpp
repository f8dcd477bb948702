#include "spec/host_spec.h"

namespace precog {

namespace {

// A host that was described without compiled steps gets what the others show: a launch from the generated program costs
// about two bare ones, a library call less than half of the same call under autograd, a graph about as much as fifty launches.
void read_compiled(JsonReader& file, HostSpec& host) {
  HostSpec::Compiled& out = host.compiled;
  const auto gemm = host.backward.find("gemm");
  out.kernel = host.kernel_launch * 2.0;
  out.library_call = (gemm == host.backward.end() ? host.kernel_launch * 4.0 : gemm->second) * 0.5;
  out.graph = host.kernel_launch * 50.0;
  out.replay = host.kernel_launch * 10.0;
  auto given = file.object("compiled");
  if (!given) return;
  for (auto [key, target] : {std::pair{"kernel", &out.kernel}, {"library_call", &out.library_call}, {"graph", &out.graph}, {"replay", &out.replay}})
    if (auto value = given->quantity<Seconds>(key)) *target = *value;
  given->reject_unknown_keys();
}

}  // namespace

Result<HostSpec> parse_host(const Json& json, const std::string& where) {
  std::vector<Problem> problems;
  JsonReader file(json, where, problems);
  HostSpec host;
  if (const Json* sources = file.raw("sources"); sources && sources->is_object()) {
    for (const auto& [key, source] : sources->items())
      if (source.is_string()) {
        host.sources.push_back(source.get<std::string>());
        const bool estimate = host.sources.back().starts_with("estimate");
        if (key == "compiled") host.compiled_estimated = estimate;
        else host.estimated = host.estimated || estimate;
      }
    file.set_sources(sources);
  } else {
    file.problem("sources", "is missing: every figure needs a source");
  }
  file.required_integer("schema", 1, 1);
  host.name = file.required_text("name");
  host.title = file.required_text("title");
  host.aliases = file.texts("aliases");
  file.text("notes");
  auto required = [&](std::string_view key, Seconds& target) {
    if (auto value = file.quantity<Seconds>(key)) target = *value;
    else if (!file.has(key)) file.problem(key, "is missing");
  };
  auto by_family = [&](std::string_view key, std::map<std::string, Seconds>& target) {
    JsonReader table = file.required_object(key);
    for (const std::string& family : table.keys())
      if (auto value = table.quantity<Seconds>(family)) target[family] = *value;
    if (!target.contains("default")) table.problem("default", "is missing: what families not listed cost");
  };
  by_family("forward", host.forward);
  by_family("backward", host.backward);
  required("autocast_cast", host.autocast_cast);
  required("parameter_gradient", host.parameter_gradient);
  required("optimizer_op", host.optimizer_op);
  required("optimizer_tensor", host.optimizer_tensor);
  required("loss_scaler", host.loss_scaler);
  required("kernel_launch", host.kernel_launch);
  required("synchronise", host.synchronise);
  required("step", host.step);
  read_compiled(file, host);
  file.reject_unknown_keys();
  if (!problems.empty()) return fail(std::move(problems));
  return host;
}

}  // namespace precog
