#include "spec/collective_spec.h"

#include <algorithm>

#include <fmt/format.h>

namespace precog {
namespace {

constexpr std::array<std::string_view, kProtocols> kProtocolKeys = {"ll", "ll128", "simple"};
constexpr std::array<std::string_view, 2> kDirectKeys = {"ll", "simple"};
constexpr std::array<std::string_view, 3> kNodeKeys = {"one_node", "two_nodes", "more_nodes"};

void read(JsonReader& reader, std::string_view key, double& target, double min, double max) {
  if (auto value = reader.sourced_number(key, min, max)) target = *value;
  else if (!reader.has(key)) reader.problem(key, "is missing");
}

TransferCoefficients read_transfer(JsonReader reader) {
  TransferCoefficients out;
  if (auto base = reader.quantity<Seconds>("base")) out.base = *base;
  else if (!reader.has("base")) reader.problem("base", "is missing");
  read(reader, "step", out.step, 0, 1e3);
  read(reader, "efficiency", out.efficiency, 1e-4, 10);
  read(reader, "join", out.join, 0.1, 10);
  reader.reject_unknown_keys();
  return out;
}

void read_bandwidths(JsonReader reader, std::array<double, 3>& target) {
  for (std::size_t i = 0; i < 3; ++i) {
    if (auto value = reader.quantity<BytesPerSecond>(kNodeKeys[i])) target[i] = value->value;
    else if (!reader.has(kNodeKeys[i])) reader.problem(kNodeKeys[i], "is missing");
  }
  reader.reject_unknown_keys();
}

double rounded(double value) { return std::stod(fmt::format("{:.4g}", value)); }
Json figure(double value, const std::string& source) { return {{"value", rounded(value)}, {"source", source}}; }

Json to_json(const TransferCoefficients& one, const std::string& source) {
  return {{"base", {{"value", fmt::format("{:.4g} us", one.base.value * 1e6)}, {"source", source}}},
          {"step", figure(one.step, source)}, {"efficiency", figure(one.efficiency, source)}, {"join", figure(one.join, source)}};
}

Json bandwidths(const std::array<double, 3>& values, const std::string& source) {
  Json out = Json::object();
  for (std::size_t i = 0; i < 3; ++i) out[std::string(kNodeKeys[i])] = {{"value", fmt::format("{:.4g} GB/s", values[i] * 1e-9)}, {"source", source}};
  return out;
}

}  // namespace

LinkCoefficients read_link(JsonReader& reader) {
  LinkCoefficients out;
  JsonReader ring = reader.required_object("ring"), direct = reader.required_object("direct"), choice = reader.required_object("choice");
  read(ring, "own_share", out.ring_own_share, 0, 10);
  read(direct, "own_share", out.direct_own_share, 0, 10);
  if (choice.has("ll_bandwidth")) read_bandwidths(choice.required_object("ll_bandwidth"), out.choice.ll_bandwidth);
  if (choice.has("tree_bandwidth")) read_bandwidths(choice.required_object("tree_bandwidth"), out.choice.tree_bandwidth);
  if (choice.has("tree_ll128_bandwidth")) read_bandwidths(choice.required_object("tree_ll128_bandwidth"), out.choice.tree_ll128_bandwidth);
  out.choice.has_ll128 = ring.has("ll128");
  for (std::size_t p = 0; p < kProtocols; ++p)
    if (out.choice.has_ll128 || p != static_cast<std::size_t>(Protocol::ll128)) out.ring[p] = read_transfer(ring.required_object(kProtocolKeys[p]));
  for (std::size_t p = 0; p < 2; ++p) out.direct[p] = read_transfer(direct.required_object(kDirectKeys[p]));
  if (reader.has("in_switch")) {
    out.in_switch = read_transfer(reader.required_object("in_switch"));
    read(choice, "in_switch_efficiency", out.choice.in_switch_efficiency, 0.01, 1);
  }
  double channels = out.choice.channels;
  read(choice, "channels", channels, 1, 64);
  out.choice.channels = static_cast<int>(channels);
  if (reader.has("contention")) read(reader, "contention", out.contention, 0, 4);
  for (JsonReader* one : {&ring, &direct, &choice}) one->reject_unknown_keys();
  return out;
}

NetworkCoefficients read_network_coefficients(JsonReader reader) {
  NetworkCoefficients out;
  JsonReader hop = reader.required_object("hop");
  for (std::size_t p = 0; p < kProtocols; ++p) read(hop, kProtocolKeys[p], out.hop[p], 0, 1e3);
  read(hop, "direct", out.direct_hop, 0, 1e3);
  hop.reject_unknown_keys();
  for (const auto& [key, efficiency, join] : {std::tuple{"ring", &out.ring, &out.ring_join}, {"tree", &out.tree, &out.tree_join}, {"direct", &out.direct, &out.direct_join}}) {
    JsonReader one = reader.required_object(key);
    read(one, "efficiency", *efficiency, 1e-3, 10);
    read(one, "join", *join, 0.1, 10);
    one.reject_unknown_keys();
  }
  reader.reject_unknown_keys();
  return out;
}

Json to_json(const LinkCoefficients& link, const std::string& source, const std::string& choice_source) {
  Json out = Json::object();
  for (std::size_t p = 0; p < kProtocols; ++p)
    if (link.choice.has_ll128 || p != static_cast<std::size_t>(Protocol::ll128)) out["ring"][std::string(kProtocolKeys[p])] = to_json(link.ring[p], source);
  out["ring"]["own_share"] = figure(link.ring_own_share, source);
  if (link.choice.in_switch_efficiency > 0) out["in_switch"] = to_json(link.in_switch, source);
  for (std::size_t p = 0; p < 2; ++p) out["direct"][std::string(kDirectKeys[p])] = to_json(link.direct[p], source);
  out["direct"]["own_share"] = figure(link.direct_own_share, source);
  Json choice = Json::object();
  if (link.choice.ll_bandwidth[0] < 1e15) choice["ll_bandwidth"] = bandwidths(link.choice.ll_bandwidth, choice_source);
  if (link.choice.tree_bandwidth[0] < 1e15) choice["tree_bandwidth"] = bandwidths(link.choice.tree_bandwidth, choice_source);
  if (link.choice.tree_ll128_bandwidth[0] < 1e15) choice["tree_ll128_bandwidth"] = bandwidths(link.choice.tree_ll128_bandwidth, choice_source);
  if (link.choice.in_switch_efficiency > 0) choice["in_switch_efficiency"] = figure(link.choice.in_switch_efficiency, choice_source);
  choice["channels"] = figure(link.choice.channels, choice_source);
  out["choice"] = std::move(choice);
  return out;
}

Json to_json(const NetworkCoefficients& network, const std::string& source) {
  Json hop = Json::object();
  for (std::size_t p = 0; p < kProtocols; ++p) hop[std::string(kProtocolKeys[p])] = figure(network.hop[p], source);
  hop["direct"] = figure(network.direct_hop, source);
  const auto leg = [&](double efficiency, double join) -> Json { return {{"efficiency", figure(efficiency, source)}, {"join", figure(join, source)}}; };
  return {{"hop", hop}, {"ring", leg(network.ring, network.ring_join)}, {"tree", leg(network.tree, network.tree_join)},
          {"direct", leg(network.direct, network.direct_join)}};
}

Result<CollectiveCatalog> CollectiveCatalog::parse(const Json& json, const std::string& where) {
  std::vector<Problem> problems;
  JsonReader file(json, where, problems);
  file.set_sources(file.raw("sources"));
  if (!file.has("sources")) file.problem("sources", "is missing: every coefficient needs a source");
  file.required_integer("schema", 1, 1);
  CollectiveCatalog out;
  JsonReader links = file.required_object("links");
  for (const std::string& key : links.keys()) {
    Entry& entry = out.links[key];
    JsonReader one = links.required_object(key);
    entry.architectures = one.texts("architectures");
    entry.relatives = one.texts("relatives");
    entry.link = read_link(one);
    one.reject_unknown_keys();
  }
  for (const char* needed : {"hopper", "pcie"})
    if (!out.links.contains(needed)) links.problem(needed, "is missing");
  out.network = read_network_coefficients(file.required_object("network"));
  file.reject_unknown_keys();
  if (!problems.empty()) return fail(std::move(problems));
  return out;
}

CollectiveProfile CollectiveCatalog::find(const std::string& intra_kind, const std::string& architecture) const {
  const auto has = [&](const std::vector<std::string>& names) { return std::find(names.begin(), names.end(), architecture) != names.end(); };
  CollectiveProfile out;
  out.network = network;
  out.from = "data/collectives/nccl.json";
  if (intra_kind == "pcie") {
    const Entry& entry = links.at("pcie");
    out.link = entry.link;
    out.link.fitted = has(entry.architectures);
    return out;
  }
  const Entry* found = &links.at("hopper");
  for (const auto& [key, entry] : links) {
    if (key == "pcie") continue;
    if (has(entry.architectures)) {
      out.link = entry.link;
      out.link.fitted = true;
      return out;
    }
    if (has(entry.relatives)) found = &entry;
  }
  out.link = found->link;
  return out;
}

}  // namespace precog
