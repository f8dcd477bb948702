// Coefficients of collectives from timings (nccl-tests, or anything like it). NCCL's choice of algorithm and protocol does not
// depend on what is fitted, so the timings fall into groups, one per way of moving a message, and each is a small fit of its
// own: least squares on logarithms, soft on outliers, every coefficient held to where it starts by a spring. With few timings
// the start decides what they say nothing about.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cost/collective_choice.h"
#include "cost/cost.h"

namespace precog {

struct MeasuredCollective {
  CollectiveShape shape;
  ClusterSpec cluster;  // its own `collectives` are not read
  const GpuSpec* gpu = nullptr;
  double seconds = 0;
  std::string group;    // whose timing it is, for tables
};

struct CollectiveFitOptions {
  bool contention = false;  // fit how a shared bus divides, too
  double pull = 1;          // of the springs: timings that one weighs as much as
  bool one_network = false; // all timings between nodes are of one network: its ports are as fast for algorithms that none of them used
};

// The start with the coefficients that these timings have something to say about replaced. All are of one kind of link.
CollectiveProfile fit_collectives(std::span<const MeasuredCollective> timings, const CollectiveProfile& start, const CollectiveFitOptions& options = {});

// Seconds, as the program would cost it with these coefficients.
double predicted(const MeasuredCollective& timing, const CollectiveProfile& profile);

}  // namespace precog
