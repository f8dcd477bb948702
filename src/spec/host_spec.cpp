#include "spec/host_spec.h"

namespace precog {

Result<HostSpec> parse_host(const Json& json, const std::string& where) {
  std::vector<Problem> problems;
  JsonReader file(json, where, problems);
  HostSpec host;
  if (const Json* sources = file.raw("sources"); sources && sources->is_object()) {
    for (const Json& source : *sources)
      if (source.is_string()) host.sources.push_back(source.get<std::string>());
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
  required("forward_op", host.forward_op);
  required("view_op", host.view_op);
  required("autocast_op", host.autocast_op);
  required("backward_op", host.backward_op);
  required("optimizer_op", host.optimizer_op);
  required("optimizer_tensor", host.optimizer_tensor);
  required("kernel_launch", host.kernel_launch);
  required("synchronise", host.synchronise);
  required("step", host.step);
  file.reject_unknown_keys();
  if (!problems.empty()) return fail(std::move(problems));
  return host;
}

}  // namespace precog
