// Which algorithm and protocol NCCL takes for a collective: the one that its own tuning model gives the least time, with that
// model's latencies and bandwidths (NCCL source, src/graph/tuning.cc, 2.19 to 2.28). Those figures are NCCL's belief, not the
// truth: at several message sizes it leaves a faster protocol, and steps with it. What the choice then costs is
// collective_cost's business.
#pragma once

#include "kernel/kernel.h"
#include "spec/cluster_spec.h"
#include "spec/gpu_spec.h"

namespace precog {

enum class CollectiveAlgorithm : std::uint8_t { ring, tree, in_switch, in_switch_tree, direct };

struct CollectiveChoice {
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::ring;
  Protocol protocol = Protocol::simple;
  friend bool operator==(const CollectiveChoice&, const CollectiveChoice&) = default;
};

struct CollectiveSetting {  // where it runs
  double local = 1, nodes = 1;  // ranks of the group on a node; nodes that it spans
  double groups = 1;            // that cross the same node's ports at once
  BytesPerSecond link, ports;   // of one GPU inside a node, from the datasheet; of a node, as much as the group has of it
  bool pcie = false, switched = false;
};
CollectiveSetting collective_setting(const CollectiveShape& collective, const ClusterSpec& cluster, const GpuSpec& gpu);

CollectiveChoice nccl_choice(const CollectiveShape& collective, const CollectiveSetting& setting, const ChoiceFigures& figures);

std::string_view to_text(CollectiveAlgorithm algorithm);
std::string_view to_text(Protocol protocol);

}  // namespace precog
