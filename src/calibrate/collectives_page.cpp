// docs/collectives.md and the file of coefficients, as text.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "calibrate/reference_collectives.h"

namespace precog {
namespace {

constexpr double kLong = 1e6;  // bytes: the two targets meet here

struct Errors {
  std::vector<double> below, above;  // absolute, in per cent
  std::vector<double> signed_all;
};

void add(Errors& errors, const MeasuredCollective& one, double seconds) {
  const double error = 100 * (seconds / one.seconds - 1);
  (static_cast<double>(one.shape.bytes.value) < kLong ? errors.below : errors.above).push_back(std::abs(error));
  errors.signed_all.push_back(error);
}

std::string median_text(std::vector<double> values) {
  if (values.empty()) return "";
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return fmt::format("{:.1f}", values.size() % 2 ? values[middle] : (values[middle - 1] + values[middle]) / 2);
}

double predicted_by(const MeasuredCollective& one, const CollectiveCatalog& catalog) {
  return predicted(one, catalog.find(one.cluster.intra_kind, one.gpu->architecture));
}

struct PageRow {
  Errors shipped, without_count, without_sizes;
};

void write(std::string& out, const std::string& label, const PageRow& row) {
  out += fmt::format("| {} | {} | {} | {} | {} | {} | {} | {} | {} |\n", label, row.shipped.below.size() + row.shipped.above.size(), median_text(row.shipped.below), median_text(row.shipped.above),
                     median_text(row.without_count.below), median_text(row.without_count.above), median_text(row.without_sizes.below), median_text(row.without_sizes.above), median_text(row.shipped.signed_all));
}

}  // namespace

std::string collectives_page(const ReferenceCollectives& rows, const CollectiveCatalog& shipped, const std::map<std::string, CollectiveCatalog>& held_out) {
  std::string out =
      "# How well collectives are predicted\n\n"
      "Made by `tools/collectives`, which needs the reference data (docs of the figures: [model notes](model_notes/collectives.md)). Median absolute errors in\n"
      "per cent, of messages below 1 MB and from there on. Asked: at most 20 below, at most 10 above.\n"
      "*Held-out GPUs*: the coefficients were fitted without any timing of four GPUs, and these are those timings. *Held-out sizes*: fitted on every\n"
      "other power of two, and judged on the rest. *Bias* is the median_text signed error of the shipped coefficients.\n\n"
      "## Inside a node\n\n"
      "NVIDIA aiconfigurator's timings (Apache-2.0): NCCL 2.23 to 2.29, fp16 and int8, 512 B to 512 MiB.\n\n";
  const std::string head = "| | timings | below 1 MB | above | held-out GPUs, below | above | held-out sizes, below | above | bias |\n|---|---|---|---|---|---|---|---|---|\n";
  std::map<std::string, PageRow> by_gpu, by_collective, by_ranks, cells;
  PageRow all;
  for (const MeasuredCollective& one : rows.measured) {
    const double now = predicted_by(one, shipped);
    const std::string kind(to_text(one.shape.kind)), ranks = fmt::format("{} GPUs", one.shape.participants);
    for (PageRow* row : {&all, &by_gpu[one.group], &by_collective[kind], &by_ranks[ranks], &cells[fmt::format("{}, {}, {}", kind, one.group, ranks)]}) {
      add(row->shipped, one, now);
      if (one.shape.participants == kHeldOutRanks) add(row->without_count, one, predicted_by(one, held_out.at("4 GPUs")));
      if (is_held_out_size(one.shape.bytes.value)) add(row->without_sizes, one, predicted_by(one, held_out.at("sizes")));
    }
  }
  out += head;
  write(out, "**all**", all);
  for (const auto* table : {&by_collective, &by_gpu, &by_ranks})
    for (const auto& [label, row] : *table) write(out, label, row);
  out += "\nThe L40S machine's cards hang on two sockets and share paths: from two to four to eight cards its bus bandwidth falls from 20 to 5 to 1.5 GB/s. How it falls is that\n"
         "machine's (`pcie-two-sockets` of data/clusters), read off these very timings; no other PCIe machine is assumed to.\n\n"
         "### Every collective, GPU and count\n\n" + head;
  for (const auto& [label, row] : cells) write(out, label, row);
  out += "\n## Published nccl-tests\n\n"
         "Points that others published, one node and several. Inside a node none was fitted to. Between nodes there are few: one source with whole curves (16 B200 on two\n"
         "nodes), to which the part between nodes was fitted, and single points that were not. Sources that time whole calls from a host (marked) have its launches, 45 to 75 us,\n"
         "in every short message.\n\n"
         "| what | points | below 1 MB | above | bias |\n|---|---|---|---|---|\n";
  std::map<std::string, Errors> published;
  for (const MeasuredCollective& one : rows.published) add(published[fmt::format("{}, {}", to_text(one.shape.kind), one.group)], one, predicted_by(one, shipped));
  for (const auto& [label, errors] : published)
    out += fmt::format("| {} | {} | {} | {} | {} |\n", label, errors.signed_all.size(), median_text(errors.below), median_text(errors.above), median_text(errors.signed_all));
  Errors one_node, nodes;
  for (const MeasuredCollective& one : rows.published)
    if (one.group.find("host's") == std::string::npos || static_cast<double>(one.shape.bytes.value) > 16 * kLong)
      add(one.cluster.gpus > one.cluster.gpus_per_node ? nodes : one_node, one, predicted_by(one, shipped));
  out += fmt::format("| **one node, but for the host's launches** | {} | {} | {} | {} |\n", one_node.signed_all.size(), median_text(one_node.below), median_text(one_node.above), median_text(one_node.signed_all));
  out += fmt::format("| **several nodes** | {} | {} | {} | {} |\n", nodes.signed_all.size(), median_text(nodes.below), median_text(nodes.above), median_text(nodes.signed_all));
  out += "\nLeft out: ";
  for (std::size_t i = 0; i < rows.left_out.size(); ++i) out += (i ? "; " : "") + rows.left_out[i];
  out += ".\n";
  return out;
}

std::string to_json_text(const CollectiveCatalog& catalog) {
  Json links = Json::object(), sources = Json::object();
  sources["choice"] = "NCCL source, src/graph/tuning.cc, 2.28: llMaxBws, perChMaxTreeBws and perChMaxTreeLL128Bws times channels, nvlsEfficiency; channels: what NCCL prints at start on such nodes";
  for (const auto& [name, entry] : catalog.links) {
    const std::string key = "fit_" + name;
    sources[key] = fmt::format("fitted: NVIDIA aiconfigurator timings of NCCL 2.23 to 2.29 in one node (Apache-2.0), by tools/collectives; errors in docs/collectives.md; architectures: {}",
                               fmt::join(entry.architectures, ", "));
    Json one = {{"architectures", entry.architectures}, {"relatives", entry.relatives}};
    one.update(to_json(entry.link, key, "choice"));
    if (entry.link.contention > 0) {
      one["contention"] = {{"value", entry.link.contention}, {"source", "contention"}};
      sources["contention"] = "derived: eight RTX 5090 on two sockets reach 35 GB/s bus bandwidth with 4 cards and 28 with 8 (NVIDIA/nccl issue 1639). One machine; "
                              "a machine that shares paths worse says so in its own file";
    }
    links[name] = std::move(one);
  }
  sources["fit_network"] = "fitted: nccl-tests on 16 B200, two nodes with eight NDR ports each (published, Vultr 2026), by tools/collectives; errors, also of points not fitted to, in docs/collectives.md";
  const Json file = {{"schema", 1}, {"links", links}, {"network", to_json(catalog.network, "fit_network")}, {"sources", sources}};
  return file.dump(1) + "\n";
}

}  // namespace precog
