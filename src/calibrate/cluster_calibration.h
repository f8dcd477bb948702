// A user's own nccl-tests runs make a cluster's collectives theirs: takes the cluster as its file has it and what nccl-tests
// printed there, fits what those timings speak of on top of what is shipped, and returns the cluster's file with it.
#pragma once

#include <string>
#include <vector>

#include "calibrate/collective_fit.h"
#include "calibrate/nccl_tests.h"

namespace precog {

struct ClusterCalibration {
  CollectiveProfile profile;
  struct Line {  // median absolute errors in per cent
    std::string what;
    std::size_t timings = 0;
    double before = 0, after = 0;
    double held_out = 0;  // of every third size, fitted without them; negative: too few
  };
  std::vector<Line> lines;
  Json cluster;  // the file
};

struct CalibratedCluster {
  const SystemSpec& system;
  const GpuSpec& gpu;
  const NetworkSpec& network;
  CollectiveProfile start;
  Json file;  // as written, to be added to
};

Result<ClusterCalibration> calibrate_cluster(const std::vector<NcclTest>& tests, const CalibratedCluster& cluster, const std::string& name);

std::string to_text(const ClusterCalibration& calibration, const std::string& cluster);
Json to_json(const ClusterCalibration& calibration);

}  // namespace precog
