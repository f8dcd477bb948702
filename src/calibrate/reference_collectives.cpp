#include "calibrate/reference_collectives.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include <fmt/format.h>

#include "base/compression.h"
#include "base/json.h"

namespace precog {
namespace {

constexpr std::size_t kMostTimingsBytes = 64u << 20;

// A file of comma-separated values, some in quotes: of each line its cells by the header's names.
using TimingLine = std::map<std::string, std::string, std::less<>>;
Result<std::vector<TimingLine>> read_lines(const std::filesystem::path& file) {
  PRECOG_TRY(raw, read_text_file(file, kMostTimingsBytes));
  PRECOG_TRY(text, opened(std::move(raw), kMostTimingsBytes, file.string()));
  std::vector<TimingLine> out;
  std::vector<std::string> header, cells(1);
  bool quoted = false;
  const auto end_line = [&] {
    if (header.empty()) header = std::move(cells);
    else if (cells.size() == header.size()) {
      TimingLine& line = out.emplace_back();
      for (std::size_t i = 0; i < header.size(); ++i) line[header[i]] = std::move(cells[i]);
    }
    cells.assign(1, "");
  };
  for (char c : text) {
    if (c == '"') quoted = !quoted;
    else if (c == ',' && !quoted) cells.emplace_back();
    else if (c == '\n' && !quoted) end_line();
    else if (c != '\r') cells.back() += c;
  }
  if (cells.size() > 1) end_line();
  return out;
}

double number(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? value : 0;
}

const std::map<std::string, Collective, std::less<>> kCollectives = {
    {"all_reduce", Collective::all_reduce}, {"all_gather", Collective::all_gather}, {"reduce_scatter", Collective::reduce_scatter},
    {"alltoall", Collective::all_to_all},   {"sendrecv", Collective::send_recv}};

// The switch does not reduce 8-bit integers: without one, as far as this timing goes.
MeasuredCollective timing(const ReferenceCluster& place, Collective kind, int ranks, double bytes, double seconds, bool reduces_in_switch) {
  MeasuredCollective out{{{static_cast<std::int64_t>(bytes)}, ranks, kind}, place.spec, place.chip, seconds, {}};
  out.cluster.gpus = ranks;
  if (!reduces_in_switch && out.cluster.intra_kind == "nvswitch") out.cluster.intra_kind = "nvlink";
  return out;
}

// Where every fit starts, so that fitting again changes nothing: what is fitted anew, from one place; the rest as it is.
LinkCoefficients fresh(LinkCoefficients link) {
  link.ring = {{{{5e-6}, 1, 0.35, 1}, {{12e-6}, 0.4, 0.7, 0.8}, {{15e-6}, 0.3, 0.75, 0.7}}};
  link.in_switch = {{6e-6}, 0.6, 0.8, 0.5};
  link.direct = {{{{8e-6}, 0.2, 0.4, 0.7}, {{11e-6}, 0.1, 0.7, 0.8}}};
  link.ring_own_share = link.direct_own_share = 0.3;
  return link;
}
NetworkCoefficients fresh() {
  NetworkCoefficients out;
  out.hop = {1, 1.5, 3};
  out.direct_hop = 2;
  out.ring_join = out.tree_join = out.direct_join = 0.6;
  return out;
}

}  // namespace

std::vector<ReferencePlace> reference_places() {
  return {{"a100_sxm", "a100-sxm-80gb", "dgx-a100-80gb"}, {"h100_sxm", "h100-sxm", "dgx-h100"}, {"h200_sxm", "h200-sxm", "dgx-h200"},
          {"b200_sxm", "b200-sxm", "dgx-b200"},           {"gb200", "gb200", "gb200-nvl72"},    {"l40s", "l40s", "pcie-two-sockets"},
          {"H100-SXM", "h100-sxm", "dgx-h100"},           {"H200-SXM", "h200-sxm", "dgx-h200"}, {"B200", "b200-sxm", "dgx-b200"},
          {"H200-SXM (p5en)", "h200-sxm", "aws-p5en"},    {"V100-SXM2 32GB", "v100-sxm2-32gb", "dgx-1-v100"}};
}

ReferenceCluster reference_cluster(const GpuSpec& gpu, const SystemSpec& system, const NetworkSpec& network) {
  ReferenceCluster out;
  out.chip = &gpu;
  out.spec.gpus_per_node = system.gpus_per_node;
  out.spec.intra_kind = system.intra_kind;
  out.spec.intra_latency = system.intra_latency;
  out.spec.intra_bandwidth = system.intra_bandwidth.value > 0 ? system.intra_bandwidth : gpu.link_bandwidth;
  out.spec.nics_per_node = system.nics_per_node;
  out.spec.network = network;
  if (system.contention) out.spec.collectives.link.contention = *system.contention;
  return out;
}

Result<ReferenceCollectives> read_reference_collectives(const std::filesystem::path& folder, const ReferenceClusters& clusters) {
  ReferenceCollectives out;
  PRECOG_TRY(measured, read_lines(folder / "measured_ops" / "nccl.csv.gz"));
  for (const TimingLine& line : measured) {
    const auto place = clusters.find(line.at("gpu"));
    const auto kind = kCollectives.find(line.at("collective"));
    const double elements = number(line.at("message_elements")), ms = number(line.at("latency_ms"));
    if (place == clusters.end() || kind == kCollectives.end() || elements <= 0 || ms <= 0) return fail((folder / "measured_ops" / "nccl.csv.gz").string(), "has a line that is not understood");
    const bool half = line.at("dtype") == "half";
    MeasuredCollective& one = out.measured.emplace_back(timing(place->second, kind->second, static_cast<int>(number(line.at("num_gpus"))), elements * (half ? 2 : 1), ms * 1e-3, half));
    one.group = line.at("gpu");
  }
  PRECOG_TRY(published, read_lines(folder / "published" / "published_nccl.csv.gz"));
  std::map<std::string, int> why;
  for (const TimingLine& line : published) {
    const std::string &gpu = line.at("gpu"), &notes = line.at("notes"), &network = line.at("network");
    const auto place = clusters.find(gpu);
    const auto kind = kCollectives.find(line.at("collective"));
    const int ranks = static_cast<int>(number(line.at("num_gpus"))), nodes = static_cast<int>(number(line.at("nodes")));
    const double bytes = number(line.at("message_bytes")), bus = number(line.at("busbw_GBps")) * 1e9;
    if (network.find("Omni-Path") != std::string::npos) { ++why["Omni-Path known to be misconfigured"]; continue; }
    if (gpu.starts_with("not stated")) { ++why["hardware not stated"]; continue; }
    if (bytes <= 0) { ++why["no message size"]; continue; }
    if (place == clusters.end() || kind == kCollectives.end() || ranks < 2 || nodes < 1) { ++why["GPU, collective or nodes not known"]; continue; }
    double seconds = number(line.at("time_us")) * 1e-6;
    const double share = kind->second == Collective::all_reduce ? 2.0 * (ranks - 1) / ranks : kind->second == Collective::send_recv ? 1.0 : (ranks - 1.0) / ranks;
    if (seconds <= 0 && bus > 0) seconds = share * bytes / bus;
    if (seconds <= 0) { ++why["no time"]; continue; }
    MeasuredCollective one = timing(place->second, kind->second, ranks, bytes, seconds, notes.find("NVLS_ENABLE=0") == std::string::npos);
    one.cluster.gpus_per_node = ranks / nodes;
    one.group = nodes == 1 ? gpu : fmt::format("{}, {} nodes", gpu, nodes);
    if (line.at("source").starts_with("stas00") || line.at("source").starts_with("MooreThreads")) one.group += ", timed with the host's launches";
    out.published.push_back(std::move(one));
  }
  for (const auto& [reason, count] : why) out.left_out.push_back(fmt::format("{} ({} rows)", reason, count));
  return out;
}

bool is_held_out_size(std::int64_t bytes) { return static_cast<int>(std::lround(std::log2(static_cast<double>(bytes)))) % 2 != 0; }

CollectiveFits fit_reference(const ReferenceCollectives& rows, const CollectiveCatalog& start) {
  const auto fit = [&](auto keep) {
    CollectiveCatalog out = start;
    for (auto& [name, entry] : out.links) {
      std::vector<MeasuredCollective> chosen;
      for (const MeasuredCollective& one : rows.measured) {
        const bool here = name == "pcie" ? one.cluster.intra_kind == "pcie"
                                         : one.cluster.intra_kind != "pcie" && std::find(entry.architectures.begin(), entry.architectures.end(), one.gpu->architecture) != entry.architectures.end();
        if (here && keep(one)) chosen.push_back(one);
      }
      CollectiveProfile profile;
      profile.link = fresh(entry.link);
      entry.link = fit_collectives(chosen, profile).link;
    }
    // Between nodes: the one source with whole curves; the others are few, and stay to be judged on.
    std::vector<MeasuredCollective> across;
    for (const MeasuredCollective& one : rows.published)
      if (one.group == "B200, 2 nodes" && keep(one)) across.push_back(one);
    if (!across.empty() && out.links.contains("blackwell")) {
      CollectiveProfile profile;
      profile.link = out.links.at("blackwell").link;
      profile.network = fresh();
      out.network = fit_collectives(across, profile).network;
    }
    return out;
  };
  CollectiveFits out;
  out.all = fit([](const MeasuredCollective&) { return true; });
  out.held_out["4 GPUs"] = fit([](const MeasuredCollective& one) { return one.shape.participants != kHeldOutRanks; });
  out.held_out["sizes"] = fit([](const MeasuredCollective& one) { return !is_held_out_size(one.shape.bytes.value); });
  return out;
}

}  // namespace precog
