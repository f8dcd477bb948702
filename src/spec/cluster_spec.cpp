#include "spec/cluster_spec.h"

#include <array>
#include <algorithm>

namespace precog {
namespace {

std::vector<std::string> read_sources(JsonReader& file) {
  std::vector<std::string> out;
  const Json* sources = file.raw("sources");
  if (!sources || !sources->is_object()) {
    file.problem("sources", "is missing: every figure needs a source");
    return out;
  }
  for (const Json& source : *sources)
    if (source.is_string()) out.push_back(source.get<std::string>());
  file.set_sources(sources);
  return out;
}

template <class Q>
void required(JsonReader& reader, std::string_view key, Q& target) {
  if (auto value = reader.quantity<Q>(key)) target = *value;
  else if (!reader.has(key)) reader.problem(key, "is missing");
}

void required_count(JsonReader& reader, std::string_view key, int& target) {
  if (auto value = reader.sourced_number(key, 1, 4096)) target = static_cast<int>(*value);
  else if (!reader.has(key)) reader.problem(key, "is missing");
}

}  // namespace

Result<NetworkSpec> parse_network(const Json& json, const std::string& where) {
  std::vector<Problem> problems;
  JsonReader file(json, where, problems);
  NetworkSpec network;
  network.sources = read_sources(file);
  file.required_integer("schema", 1, 1);
  network.name = file.required_text("name");
  network.title = file.required_text("title");
  network.aliases = file.texts("aliases");
  file.text("notes");
  required(file, "port_bandwidth", network.port_bandwidth);
  required(file, "latency", network.latency);
  if (auto efficiency = file.sourced_number("efficiency", 0.01, 1)) network.efficiency = *efficiency;
  if (auto efficiency = file.sourced_number("direct_efficiency", 0.01, 1)) network.direct_efficiency = *efficiency;
  if (auto ratio = file.sourced_number("oversubscription", 1, 100)) network.oversubscription = *ratio;
  if (auto nodes = file.sourced_number("nodes_per_switch", 1, 65536)) network.nodes_per_switch = static_cast<int>(*nodes);
  file.reject_unknown_keys();
  if (!problems.empty()) return fail(std::move(problems));
  return network;
}

Result<SystemSpec> parse_system(const Json& json, const std::string& where) {
  std::vector<Problem> problems;
  JsonReader file(json, where, problems);
  SystemSpec system;
  system.sources = read_sources(file);
  file.required_integer("schema", 1, 1);
  system.name = file.required_text("name");
  system.title = file.required_text("title");
  system.aliases = file.texts("aliases");
  system.gpu = file.text("gpu").value_or("");
  file.text("notes");
  required_count(file, "gpus_per_node", system.gpus_per_node);
  required_count(file, "nics_per_node", system.nics_per_node);
  if (auto memory = file.quantity<Bytes>("host_memory")) system.host_memory = *memory;
  JsonReader intra = file.required_object("intra");
  system.intra_kind = intra.required_text("kind");
  constexpr std::array<std::string_view, 4> kKinds = {"nvlink", "nvswitch", "pcie", "xgmi"};
  if (std::find(kKinds.begin(), kKinds.end(), system.intra_kind) == kKinds.end())
    intra.problem("kind", "is '" + system.intra_kind + "'; known: nvlink, nvswitch, pcie, xgmi");
  if (auto bandwidth = intra.quantity<BytesPerSecond>("bandwidth")) system.intra_bandwidth = *bandwidth;
  if (auto among = intra.object("among")) {
    for (const std::string& key : among->keys()) {
      const bool count = !key.empty() && key.size() < 4 && std::all_of(key.begin(), key.end(), [](char c) { return c >= '0' && c <= '9'; });
      auto bandwidth = among->quantity<BytesPerSecond>(key);
      if (!count || std::stoi(key) < 2) among->problem(key, "is no number of GPUs; it must be from 2 to 999");
      else if (bandwidth) system.intra_among.emplace_back(std::stoi(key), *bandwidth);
    }
    std::sort(system.intra_among.begin(), system.intra_among.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  }
  required(intra, "latency", system.intra_latency);
  system.contention = intra.sourced_number("contention", 0, 4);
  intra.reject_unknown_keys();
  system.network = file.required_text("network");
  if (file.has("collectives")) {
    JsonReader own = file.required_object("collectives");
    JsonReader link = own.required_object("link");
    system.collectives.emplace();
    system.collectives->link = read_link(link);
    link.reject_unknown_keys();
    system.collectives->network = read_network_coefficients(own.required_object("network"));
    system.collectives->link.fitted = system.collectives->calibrated = true;
    system.collectives->from = where;
    own.reject_unknown_keys();
  }
  file.reject_unknown_keys();
  if (!problems.empty()) return fail(std::move(problems));
  return system;
}

}  // namespace precog
