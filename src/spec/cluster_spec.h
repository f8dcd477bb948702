// How GPUs are joined: links inside a node, a network between nodes.
// Read from data/clusters/<name>.json and data/networks/<name>.json.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/units.h"
#include "spec/collective_spec.h"

namespace precog {

struct NetworkSpec {
  std::string name, title;
  std::vector<std::string> aliases;
  BytesPerSecond port_bandwidth;  // one port, one direction
  Seconds latency;                // GPU to GPU across nodes, as a collective sees one hop
  double efficiency = 1;          // share of the port that collectives reach on long messages
  double direct_efficiency = 0;   // and messages from one GPU to another, where rings leave ports idle; 0: the same
  double oversubscription = 1;    // how many times more bandwidth enters the first switches than leaves them; 1: a full fat tree
  int nodes_per_switch = 0;       // nodes below one first switch, which share no oversubscribed link; 0: every hop leaves it
  std::vector<std::string> sources;
};

struct SystemSpec {  // one kind of node and the network it usually hangs on
  std::string name, title;
  std::vector<std::string> aliases;
  std::string gpu;  // empty: takes any GPU
  int gpus_per_node = 1;
  std::string intra_kind;          // nvlink, nvswitch, pcie, xgmi
  BytesPerSecond intra_bandwidth;  // per GPU, one direction; 0: the GPU's own
  std::vector<std::pair<int, BytesPerSecond>> intra_among;  // where GPUs are wired to each other: what up to so many of them have; fewest first
  Seconds intra_latency;
  std::optional<double> contention;  // of a shared path, where this machine's is known (LinkCoefficients)
  int nics_per_node = 1;
  Bytes host_memory;  // of a node; 0: not known
  std::string network;
  std::optional<CollectiveProfile> collectives;  // its owner's calibration; else by kind of link and GPU
  std::vector<std::string> sources;
};

// A concrete cluster: what the request resolves to.
struct ClusterSpec {
  std::string system;
  int gpus = 1;
  int gpus_per_node = 1;
  std::string intra_kind;
  BytesPerSecond intra_bandwidth;
  std::vector<std::pair<int, BytesPerSecond>> intra_among;
  Seconds intra_latency;
  int nics_per_node = 1;
  Bytes host_memory;
  NetworkSpec network;
  CollectiveProfile collectives;

  int nodes() const { return (gpus + gpus_per_node - 1) / gpus_per_node; }
};

Result<NetworkSpec> parse_network(const Json& json, const std::string& where);
Result<SystemSpec> parse_system(const Json& json, const std::string& where);

}  // namespace precog
