// What collectives cost on each kind of link: the coefficients behind collective_cost, by the way a message is moved.
// Read from data/collectives/nccl.json, or from a cluster file that its owner calibrated; written by the fits of src/calibrate.
// Ratios to what the cluster's own files say (bandwidth, latency), a fixed time per call, and the figures of NCCL's tuning
// model by which it chooses; not a table of timings.
#pragma once

#include <array>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/units.h"

namespace precog {

// NCCL's protocols: flags with every 8 bytes, with every 128 bytes, or one per chunk.
enum class Protocol : std::uint8_t { ll, ll128, simple };
constexpr std::size_t kProtocols = 3;

// One way of moving a message: time = (latency^join + wire^join)^(1/join). join 1 adds them; above 1 the longer hides the shorter;
// below 1 there is more than both: filling a pipeline, whose best chunk costs the geometric mean (join 1/2 adds twice that).
struct TransferCoefficients {
  Seconds base;           // of a call, whatever its ranks; too high: short messages too slow
  double step = 1;        // of the link's latency (the cluster's), paid per step inside a node
  double efficiency = 1;  // of the link's bandwidth, on long messages
  double join = 1;
};

// What NCCL believes of this generation when it chooses (its source, src/graph/tuning.cc), for one, two, and more nodes.
struct ChoiceFigures {
  std::array<double, 3> ll_bandwidth = {1e18, 1e18, 1e18};          // bytes per second
  std::array<double, 3> tree_bandwidth = {1e18, 1e18, 1e18};        // Simple, all channels
  std::array<double, 3> tree_ll128_bandwidth = {1e18, 1e18, 1e18};
  double in_switch_efficiency = 0;  // 0: no switch of this generation reduces
  bool has_ll128 = true;
  int channels = 16;  // blocks of the kernel, each on an SM of its own
};

struct LinkCoefficients {
  std::array<TransferCoefficients, kProtocols> ring;
  TransferCoefficients in_switch;                 // the reduction done by the switch (NVLS)
  std::array<TransferCoefficients, 2> direct;     // all_to_all and send_recv: short parts (LL), long ones
  double ring_own_share = 0, direct_own_share = 0;  // what a rank's own part, copied on the spot, costs against a part on the wire
  double contention = 0;                          // efficiency falls by (ranks/2)^-this where ranks share a path (PCIe)
  ChoiceFigures choice;
  bool fitted = false;  // on this very generation; else taken over from a relative
};

struct NetworkCoefficients {  // between nodes, one set for all networks; latency and efficiency of the port are the network's
  std::array<double, kProtocols> hop = {1, 1, 1};  // of the network's latency, per step
  double direct_hop = 1;
  double ring = 1, tree = 1, direct = 1;  // of the network's efficiency
  double ring_join = 1, tree_join = 1, direct_join = 1;
};

struct CollectiveProfile {  // of one cluster
  LinkCoefficients link;
  NetworkCoefficients network;
  std::string from;         // the file
  bool calibrated = false;  // on this very cluster, by its owner
};

class CollectiveCatalog {  // data/collectives/nccl.json: every kind of link
 public:
  static Result<CollectiveCatalog> parse(const Json& json, const std::string& where);
  // Links of this kind ("pcie" whatever the GPU) between GPUs of this architecture.
  CollectiveProfile find(const std::string& intra_kind, const std::string& architecture) const;

  struct Entry {
    LinkCoefficients link;
    std::vector<std::string> architectures, relatives;  // fitted on; taken over for
  };
  std::map<std::string, Entry> links;
  NetworkCoefficients network;
};

// The parts of such a file; a reader's sources must be set.
LinkCoefficients read_link(JsonReader& reader);  // the caller rejects unknown keys
NetworkCoefficients read_network_coefficients(JsonReader reader);
Json to_json(const LinkCoefficients& link, const std::string& source, const std::string& choice_source);
Json to_json(const NetworkCoefficients& network, const std::string& source);

}  // namespace precog
