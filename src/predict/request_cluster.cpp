// Where it is trained: GPUs, nodes, the network between them.
#include <algorithm>
#include <charconv>

#include "predict/request_reader.h"

namespace precog {

// "dgx-h100:8" is eight such nodes.
const SystemSpec* RequestReader::named_system(JsonReader& reader, std::string_view key, std::string name, std::optional<std::int64_t>& nodes) {
  if (auto colon = name.find(':'); colon != std::string::npos) {
    std::int64_t count = 0;
    const char *begin = name.data() + colon + 1, *end = name.data() + name.size();
    auto [rest, status] = std::from_chars(begin, end, count);
    if (status != std::errc{} || rest != end || count < 1 || count > kMaxGpus)
      reader.problem(key, fmt::format("'{}': after the colon comes a number of nodes, as in dgx-h100:8", name.substr(0, 80)));
    else
      nodes = count;
    name.resize(colon);
  }
  auto known = catalog_.system(name);
  if (known || !looks_like_path(name)) return look_up(reader, key, std::move(known));
  auto json = read_json_file(folder_ / name);
  auto parsed = json ? parse_system(*json, name) : Result<SystemSpec>(tl::unexpected(json.error()));
  if (parsed && !catalog_.network(parsed->network)) parsed = fail(name + ": network", "names no network of `precog networks`");
  else if (parsed && !parsed->gpu.empty() && !catalog_.gpu(parsed->gpu)) parsed = fail(name + ": gpu", "names no GPU of `precog gpus`");
  if (!parsed) {
    problems_.insert(problems_.end(), parsed.error().problems.begin(), parsed.error().problems.end());
    return nullptr;
  }
  parsed->name = name;  // what it can be asked for by again
  request_.own_system = std::make_shared<const SystemSpec>(std::move(*parsed));
  return request_.own_system.get();
}

void RequestReader::read_cluster() {
  const Json* cluster = root_.raw("cluster");
  if (!cluster) return root_.problem("cluster", R"(is missing: {"gpu": "h100-sxm", "gpus": 8} or a name such as "dgx-h100:8")");
  const SystemSpec* system = nullptr;
  std::optional<std::int64_t> nodes, gpus, gpus_per_node, nics_per_node;
  std::optional<double> jitter;
  const NetworkSpec* network = nullptr;
  if (cluster->is_string()) {
    system = named_system(root_, "cluster", cluster->get<std::string>(), nodes);
  } else if (cluster->is_object()) {
    JsonReader reader(*cluster, root_.path("cluster"), problems_);
    if (auto name = reader.text("name")) system = named_system(reader, "name", *name, nodes);
    if (auto gpu = reader.text("gpu")) request_.gpu = look_up(reader, "gpu", catalog_.gpu(*gpu));
    gpus = reader.integer("gpus", 1, kMaxGpus);
    gpus_per_node = reader.integer("gpus_per_node", 1, 4096);
    nics_per_node = reader.integer("nics_per_node", 1, 4096);
    nics_given_ = nics_per_node.has_value();
    jitter = reader.number("jitter", 0, 1);
    if (auto name = reader.text("network")) network = look_up(reader, "network", catalog_.network(*name));
    reader.reject_unknown_keys();
  } else {
    return root_.problem("cluster", "wants a name or an object");
  }
  if (!request_.gpu && system && !system->gpu.empty()) request_.gpu = *catalog_.gpu(system->gpu);
  if (!request_.gpu) {
    const bool named = cluster->is_object() && (cluster->contains("gpu") || cluster->contains("name"));
    if (!named && !(cluster->is_string() && !system)) root_.problem("cluster", "names no GPU: add \"gpu\" (see `precog gpus`)");
    return;
  }
  // A system that was built with either of two GPUs is the usual one of both.
  if (system && !system->gpu.empty() && catalog_.gpu(system->gpu) != request_.gpu && catalog_.system(request_.gpu->usual_system) != system)
    root_.problem("cluster", fmt::format("{} has {} GPUs, not {}; leave one of the two out", system->name, system->gpu, request_.gpu->name));
  const bool by_name = system != nullptr;
  if (!system) system = *catalog_.system(request_.gpu->usual_system);
  ClusterSpec& out = request_.cluster;
  out.system = system->name;
  out.gpus_per_node = static_cast<int>(gpus_per_node.value_or(system->gpus_per_node));
  if (nodes && gpus && *gpus != *nodes * out.gpus_per_node)
    root_.problem("cluster", fmt::format("says {} GPUs and {} nodes of {}", *gpus, *nodes, out.gpus_per_node));
  // A cluster by name alone is one whole node of it; a GPU by name alone is one GPU.
  const std::int64_t total = gpus.value_or(nodes ? *nodes * out.gpus_per_node : by_name ? out.gpus_per_node : 1);
  if (total > kMaxGpus) root_.problem("cluster", fmt::format("has {} GPUs; at most {} can be modelled", total, kMaxGpus));
  out.gpus = static_cast<int>(std::min(total, kMaxGpus));
  request_.jitter = jitter.value_or(out.gpus > 1 ? kGpuVariation : 0);
  jitter_given_ = jitter.has_value();
  out.intra_kind = system->intra_kind;
  out.intra_bandwidth = system->intra_bandwidth.value > 0 ? system->intra_bandwidth : request_.gpu->link_bandwidth;
  out.intra_among = system->intra_among;
  out.intra_latency = system->intra_latency;
  out.nics_per_node = nics_per_node ? static_cast<int>(*nics_per_node) : system->nics_per_node;
  out.host_memory = system->host_memory;
  if (!network) network = *catalog_.network(system->network);
  out.network = *network;
  out.collectives = system->collectives ? *system->collectives : catalog_.collectives.find(out.intra_kind, request_.gpu->architecture);
  if (system->contention) out.collectives.link.contention = *system->contention;
  if (out.gpus > out.gpus_per_node && out.gpus % out.gpus_per_node != 0)
    root_.problem("cluster", fmt::format("has {} GPUs in nodes of {}: more than one node must be whole nodes", out.gpus, out.gpus_per_node));
}

}  // namespace precog
