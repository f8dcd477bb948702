#include <doctest/doctest.h>

#include "calibrate/cluster_calibration.h"
#include "calibrate/nccl_tests.h"

using namespace precog;

namespace {

const std::string kHead =
    "# Using devices\n"
    "#  Rank  0 Group  0 Pid  1 on  alpha device  0 [0x1b] NVIDIA H100 80GB HBM3\n"
    "#  Rank  1 Group  0 Pid  1 on  alpha device  1 [0x43] NVIDIA H100 80GB HBM3\n"
    "#  Rank  2 Group  0 Pid  1 on  beta device  0 [0x1b] NVIDIA H100 80GB HBM3\n"
    "#  Rank  3 Group  0 Pid  1 on  beta device  1 [0x43] NVIDIA H100 80GB HBM3\n";
const std::string kTable =
    "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n"
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)\n";

std::string line(int bytes, double us, const char* operation = "sum", int wrong = 0, double ratio = 1.5) {
  const double algorithm = bytes / us * 1e-3;
  char out[200];
  std::snprintf(out, sizeof out, "%12d %12d float %s -1 %.2f %.2f %.2f %d %.2f %.2f %.2f 0\n", bytes, bytes / 4, operation, us, algorithm, algorithm * ratio, wrong, us, algorithm, algorithm * ratio);
  return out;
}

}  // namespace

TEST_CASE("NcclTestsOutputSaysWhatWhereAndHowLong") {
  auto tests = parse_nccl_tests(kHead + kTable + line(1048576, 50) + line(16777216, 200) + "# Avg bus bandwidth : 1\n", "log.txt");
  REQUIRE(tests);
  REQUIRE(tests->size() == 1);
  const NcclTest& one = tests->front();
  CHECK(one.kind == Collective::all_reduce);  // bus over algorithm bandwidth: 1.5 of four ranks
  CHECK(one.ranks == 4);
  CHECK(one.hosts == 2);
  CHECK(one.device == "NVIDIA H100 80GB HBM3");
  REQUIRE(one.timings.size() == 2);
  CHECK(one.timings[1].bytes == 16777216);
  CHECK(one.timings[1].seconds == doctest::Approx(200e-6));
}

TEST_CASE("NcclTestsCollectiveComesFromProgramNameFileNameOrRatio") {
  const std::string none = line(1048576, 50, "none", 0, 0.75) + line(16777216, 200, "none", 0, 0.75);
  CHECK(parse_nccl_tests("# Collective test starting: all_gather_perf\n" + kHead + kTable + none, "log.txt")->front().kind == Collective::all_gather);
  CHECK(parse_nccl_tests(kHead + kTable + none, "logs/alltoall-4.txt")->front().kind == Collective::all_to_all);
  CHECK(parse_nccl_tests(kHead + kTable + line(16777216, 200, "sum", 0, 0.75), "log.txt")->front().kind == Collective::reduce_scatter);
  auto unknown = parse_nccl_tests(kHead + kTable + none, "log.txt");
  REQUIRE_FALSE(unknown);
  CHECK(unknown.error().text().find("which collective") != std::string::npos);
  // Without its devices' lines the number of GPUs is in the ratio.
  CHECK(parse_nccl_tests(kTable + line(1 << 30, 5000, "sum", 0, 1.75), "all_reduce.txt")->front().ranks == 8);
}

TEST_CASE("SeveralNcclTestsInOneFile") {
  auto tests = parse_nccl_tests("# nThread 1 nGpus 4\n" + kHead + kTable + line(1048576, 50) + "# nThread 1 nGpus 4\n" + kHead + kTable + line(2097152, 60), "all_reduce.txt");
  REQUIRE(tests);
  REQUIRE(tests->size() == 2);
  CHECK((*tests)[1].ranks == 4);
}

TEST_CASE("NcclTestsThatWentWrongAreRefused") {
  auto wrong = parse_nccl_tests(kHead + kTable + line(1048576, 50, "sum", 12), "log.txt");
  REQUIRE_FALSE(wrong);
  CHECK(wrong.error().text().find("came out wrong") != std::string::npos);
  CHECK_FALSE(parse_nccl_tests("", "log.txt"));
  CHECK_FALSE(parse_nccl_tests(kHead + kTable, "all_reduce.txt"));                  // a table without lines
  CHECK_FALSE(parse_nccl_tests(kHead + kTable + "1048576 nonsense x sum -1 a b c 0 1 2 3 0\n", "all_reduce.txt"));
  CHECK_FALSE(parse_nccl_tests(kTable + line(1048576, 50, "sum", 0, 1.0), "sendrecv.txt"));  // how many GPUs?
}

TEST_CASE("CalibrationFollowsTheClustersOwnTimings") {
  // A machine whose links give half of what was expected.
  SystemSpec system;
  system.name = "box";
  system.title = "Box";
  system.gpus_per_node = 8;
  system.intra_kind = "nvlink";
  system.intra_bandwidth = {100e9};
  system.intra_latency = {1e-6};
  GpuSpec gpu;
  NetworkSpec network;
  CollectiveProfile start;
  for (TransferCoefficients& one : start.link.ring) one = {{5e-6}, 1, 0.8, 1};
  NcclTest test;
  test.kind = Collective::all_gather;
  test.ranks = 4;
  test.hosts = 1;
  test.where = "log";
  for (std::int64_t bytes = 1024; bytes <= (1 << 30); bytes *= 2) test.timings.push_back({bytes, 8e-6 + 0.75 * static_cast<double>(bytes) / 40e9});
  auto calibrated = calibrate_cluster({test}, {system, gpu, network, start, Json{{"sources", Json::object()}, {"intra", Json::object()}}}, "mine");
  REQUIRE(calibrated);
  REQUIRE(calibrated->lines.size() == 1);
  CHECK(calibrated->lines[0].before > 20);
  CHECK(calibrated->lines[0].after < 5);
  CHECK(calibrated->lines[0].held_out < 6);
  CHECK(calibrated->profile.link.ring[2].efficiency == doctest::Approx(0.4).epsilon(0.1));
  CHECK(calibrated->cluster.at("name") == "mine");
  test.ranks = 16;
  CHECK_FALSE(calibrate_cluster({test}, {system, gpu, network, start, Json::object()}, "mine"));  // more than a host has
}

TEST_CASE("SlowPortsAreSlowForAlgorithmsThatNoTimingUsed") {
  // Two nodes whose ports give half of what was expected: long messages go around a ring there, and up a tree among more nodes.
  SystemSpec system;
  system.name = "pod";
  system.title = "Pod";
  system.gpus_per_node = 8;
  system.nics_per_node = 8;
  system.intra_kind = "nvlink";
  system.intra_bandwidth = {400e9};
  system.intra_latency = {1e-6};
  GpuSpec gpu;
  NetworkSpec network;
  network.port_bandwidth = {25e9};
  network.latency = {5e-6};
  CollectiveProfile start;
  NcclTest test;
  test.kind = Collective::all_gather;  // rings only
  test.ranks = 16;
  test.hosts = 2;
  test.where = "log";
  for (std::int64_t bytes = 1 << 26; bytes <= (1LL << 33); bytes *= 2) test.timings.push_back({bytes, 0.9375 * static_cast<double>(bytes) / 100e9});
  auto calibrated = calibrate_cluster({test}, {system, gpu, network, start, Json{{"sources", Json::object()}, {"intra", Json::object()}}}, "mine");
  REQUIRE(calibrated);
  const NetworkCoefficients& after = calibrated->profile.network;
  CHECK(after.ring < 0.7);
  CHECK(after.tree == doctest::Approx(after.ring).epsilon(0.01));
  CHECK(after.direct == doctest::Approx(after.ring).epsilon(0.01));
}
