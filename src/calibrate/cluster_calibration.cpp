#include "calibrate/cluster_calibration.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>

namespace precog {
namespace {

constexpr std::size_t kHeldOutEvery = 3, kLeastForHeldOut = 6;

double median(std::vector<double> values) {
  if (values.empty()) return -1;
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double error(const MeasuredCollective& timing, const CollectiveProfile& profile) { return 100 * std::abs(predicted(timing, profile) / timing.seconds - 1); }

}  // namespace

Result<ClusterCalibration> calibrate_cluster(const std::vector<NcclTest>& tests, const CalibratedCluster& cluster, const std::string& name) {
  std::vector<MeasuredCollective> timings, kept;
  std::vector<char> held;
  const int node = cluster.system.gpus_per_node;
  for (const NcclTest& test : tests) {
    const int hosts = test.hosts > 0 ? test.hosts : (test.ranks + node - 1) / node;
    if (test.ranks % hosts != 0) return fail(test.where, fmt::format("has {} GPUs on {} hosts; as many on each are wanted", test.ranks, hosts));
    if (test.ranks / hosts > node)
      return fail(test.where, fmt::format("has {} GPUs on a host; {} has {} (--cluster names another)", test.ranks / hosts, cluster.system.name, node));
    for (std::size_t i = 0; i < test.timings.size(); ++i) {
      MeasuredCollective& one = timings.emplace_back();
      one.shape = {{test.timings[i].bytes}, test.ranks, test.kind};
      one.seconds = test.timings[i].seconds;
      one.gpu = &cluster.gpu;
      one.group = fmt::format("{}, {} GPUs on {} {}", to_text(test.kind), test.ranks, hosts, hosts == 1 ? "node" : "nodes");
      ClusterSpec& spec = one.cluster;
      spec.gpus = test.ranks;
      spec.gpus_per_node = hosts == 1 ? node : test.ranks / hosts;
      spec.intra_kind = cluster.system.intra_kind;
      spec.intra_bandwidth = cluster.system.intra_bandwidth.value > 0 ? cluster.system.intra_bandwidth : cluster.gpu.link_bandwidth;
      spec.intra_latency = cluster.system.intra_latency;
      spec.nics_per_node = cluster.system.nics_per_node;
      spec.network = cluster.network;
      held.push_back(test.timings.size() >= kLeastForHeldOut && i % kHeldOutEvery == 1);
      if (!held.back()) kept.push_back(one);
    }
  }
  const bool shared = cluster.system.intra_kind == "pcie" && std::any_of(tests.begin(), tests.end(), [](const NcclTest& test) { return test.ranks > 2; });
  CollectiveProfile start = cluster.start;
  if (cluster.system.contention) start.link.contention = *cluster.system.contention;
  const CollectiveFitOptions options{.contention = shared, .pull = 0.5, .one_network = true};
  ClusterCalibration out;
  out.profile = fit_collectives(timings, start, options);
  const CollectiveProfile without = fit_collectives(kept, start, options);

  struct Errors {
    std::vector<double> before, after, held_out;
  };
  std::map<std::string, Errors> by_test;
  for (std::size_t i = 0; i < timings.size(); ++i) {
    Errors& errors = by_test[timings[i].group];
    errors.before.push_back(error(timings[i], start));
    errors.after.push_back(error(timings[i], out.profile));
    if (held[i]) errors.held_out.push_back(error(timings[i], without));
  }
  for (const auto& [what, errors] : by_test) out.lines.push_back({what, errors.before.size(), median(errors.before), median(errors.after), median(errors.held_out)});

  out.cluster = cluster.file;
  out.cluster["name"] = name;
  out.cluster["title"] = cluster.system.title + ", calibrated";
  out.cluster["aliases"] = Json::array();
  if (cluster.system.gpu.empty()) out.cluster["gpu"] = cluster.gpu.name;
  if (out.cluster["intra"].contains("contention")) out.cluster["intra"].erase("contention");
  Json link = to_json(out.profile.link, "calibration", "nccl_choice");
  if (out.profile.link.contention > 0) link["contention"] = {{"value", std::stod(fmt::format("{:.4g}", out.profile.link.contention))}, {"source", "calibration"}};
  out.cluster["collectives"] = {{"link", link}, {"network", to_json(out.profile.network, "calibration")}};
  std::vector<std::string> said;
  for (const ClusterCalibration::Line& line : out.lines) said.push_back(fmt::format("{} ({} timings, median error {:.1f}%)", line.what, line.timings, line.after));
  out.cluster["sources"]["calibration"] = fmt::format("fitted: own nccl-tests runs by precog calibrate, on top of data/collectives/nccl.json, which holds where they say nothing: {}", fmt::join(said, "; "));
  out.cluster["sources"]["nccl_choice"] = "NCCL source, src/graph/tuning.cc, as in data/collectives/nccl.json";
  return out;
}

std::string to_text(const ClusterCalibration& calibration, const std::string& cluster) {
  std::size_t all = 0, width = 0;
  for (const ClusterCalibration::Line& line : calibration.lines) all += line.timings, width = std::max(width, line.what.size());
  std::string out = fmt::format("{}: {} timings of collectives fitted\n\n{:{}}  timings  error before  after  held out\n", cluster, all, "", width);
  for (const ClusterCalibration::Line& line : calibration.lines)
    out += fmt::format("{:{}}  {:7}  {:11.1f}% {:5.1f}%  {}\n", line.what, width, line.timings, line.before, line.after,
                       line.held_out < 0 ? std::string("too few") : fmt::format("{:7.1f}%", line.held_out));
  out += "\nMedian errors; held out: every third size, fitted without them.\n";
  return out;
}

Json to_json(const ClusterCalibration& calibration) {
  Json lines = Json::array();
  for (const ClusterCalibration::Line& line : calibration.lines) {
    Json one = {{"what", line.what}, {"timings", line.timings}, {"error_before", line.before}, {"error_after", line.after}};
    if (line.held_out >= 0) one["error_held_out"] = line.held_out;
    lines.push_back(std::move(one));
  }
  return {{"lines", lines}, {"cluster", calibration.cluster}};
}

}  // namespace precog
