#include "report/parts.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "base/text.h"

namespace precog {
namespace {

std::string kernel_source(const ProvenanceEntry& entry) {
  if (entry.kind == "fitted") return fmt::format("fitted on {}operator timings", entry.on.empty() ? "" : entry.on + " ");
  if (entry.kind == "scaled") return "scaled from other GPUs' timings";
  return entry.kind;
}

// "fitted (data/profiles/x.json, for dgx-h100)", "estimate (data/hosts/default.json)". Not "fitted on": `on` is what the
// figure is used for, which need not be where it was measured.
std::string other_source(const ProvenanceEntry& entry) {
  std::vector<std::string> details;
  if (!entry.source.empty()) details.push_back(entry.source);
  if (!entry.on.empty()) details.push_back("for " + entry.on);
  return details.empty() ? entry.kind : fmt::format("{} ({})", entry.kind, join(details, ", "));
}

// The line an entry belongs to; whatever has no line of its own is a family of kernels.
const char* line_of(const ProvenanceEntry& entry) {
  for (const char* own : {"host", "hardware", "memory"})
    if (entry.what == own) return own;
  return entry.what == "collective" || entry.what == "communication" ? "communication" : "kernels";
}

// What is waited for alone, as a row of the table has it.
std::string in_words(const std::string& exchange) {
  if (exchange == "from_host") return "copies from host";
  if (exchange == "to_host") return "copies to host";
  if (exchange == "cpu_adam") return "optimizer on host";
  if (exchange == "rank_parts") return "copies of parts";
  if (exchange == "stragglers") return "slowest rank";
  return "exposed " + exchange;
}

}  // namespace

Seconds exposed_total(const Breakdown& breakdown) {
  Seconds total;
  for (const auto& [collective, time] : breakdown.exposed_communication) total += time;
  return total;
}

std::vector<TimePart> time_parts(const Breakdown& b) {
  std::string communication = "communication";
  if (b.exposed_communication.size() == 1) communication = in_words(b.exposed_communication.begin()->first);
  else if (b.exposed_communication.size() > 1) communication = "exposed comm.";
  std::vector<TimePart> out = {{"forward", "forward", b.forward, kColourForward, Ink::blue},
          {"backward", "backward", b.backward, kColourBackward, Ink::cyan},
          {"optimizer", "optimizer", b.optimizer, kColourOptimizer, Ink::yellow},
          {"casts", "casts", b.casts, kColourCasts, Ink::magenta},
          {"loss_scaling", "loss scaling", b.loss_scaling, kColourLossScaling, Ink::yellow},
          {"exposed_communication", communication, exposed_total(b), kColourCommunication, Ink::green},
          {"pipeline_bubble", "pipeline bubble", b.pipeline_bubble, kColourBubble, Ink::dim},
          {"between_kernels", "between kernels", b.between_kernels, kColourBetween, Ink::dim},
          {"host", "waiting for host", b.host, kColourHost, Ink::red}};
  if (b.input.value > 0) out.push_back({"input", "waiting for input", b.input, kColourInput, Ink::red});  // most requests say nothing of it
  return out;
}

AroundPeak around_peak(const MemoryUse& m) {
  const Bytes gaps = std::clamp(m.device_pinned - m.peak, Bytes{}, Bytes{std::max<std::int64_t>(0, (m.device - m.peak).value)});
  return {gaps, m.device - m.peak - gaps};
}

std::vector<MemoryPart> memory_parts(const MemoryUse& m) {
  const auto [gaps, outside] = around_peak(m);
  return {{"parameters", m.parameters, kColourForward},
          {"gradients", m.gradients, kColourBackward},
          {"optimizer", m.optimizer, kColourOptimizer},
          {"weight copies", m.weight_copies, kColourHost},
          {"activations", m.activations, kColourCommunication},
          {"workspace", m.workspace, kColourCasts},
          {"gaps in segments", gaps, kColourBubble},
          {"context", Bytes{std::max<std::int64_t>(outside.value, 0)}, kColourLossScaling}};
}

const std::vector<MemoryLayer>& memory_layers() {
  using enum MemoryCategory;
  static const std::vector<MemoryLayer> kLayers = {
      {"parameters", kColourForward, {parameters}},
      {"optimizer", kColourOptimizer, {optimizer_states, master_weights}},
      {"inputs", kColourInput, {inputs}},
      {"libraries", kColourBetween, {libraries}},
      {"gradients", kColourBackward, {gradients, gradient_buckets}},
      {"gathered parameters", kColourLossScaling, {gathered_parameters}},
      {"weight casts", kColourWeightCasts, {weight_casts}},
      {"saved activations", kColourCommunication, {activations}},
      {"recomputed", kColourBubble, {recomputed}},
      {"temporaries", kColourCasts, {temporaries, optimizer_temporaries}},
      {"workspaces", kColourHost, {workspaces}}};
  return kLayers;
}

Bytes layer_bytes(const MemoryLayer& layer, const BytesByCategory& bytes) {
  Bytes out;
  for (MemoryCategory category : layer.categories) out += bytes[static_cast<std::size_t>(category)];
  return out;
}

bool negligible(const TimePart& part, Seconds step) { return !(part.time.value > 0.0005 * step.value); }

std::string part_text(const TimePart& part) { return part.time.value >= 1e-9 ? to_text(part.time) : "-"; }

std::vector<std::string> provenance_lines(const Report& report) {
  struct Source {
    double share = 0;
    const ProvenanceEntry* first = nullptr;  // stands for all of its kind
  };
  static const std::array<std::string, 5> kNames = {"kernels", "communication", "host", "hardware", "memory"};
  std::map<std::string, std::map<std::string, Source>> lines;  // by line, then by kind
  for (const ProvenanceEntry& entry : report.provenance) {
    Source& source = lines[line_of(entry)][entry.kind];
    source.share += entry.share;
    if (!source.first) source.first = &entry;
  }
  std::vector<std::string> out;
  for (const std::string& name : kNames) {
    auto found = lines.find(name);
    if (found == lines.end()) continue;
    std::vector<Source> sources;
    for (const auto& [kind, source] : found->second) sources.push_back(source);
    std::stable_sort(sources.begin(), sources.end(), [](const Source& a, const Source& b) { return a.share > b.share; });
    std::vector<std::string> said;
    for (const Source& source : sources) {
      if (name != "kernels") {
        said.push_back(other_source(*source.first));
        continue;
      }
      if (source.share < 0.005 && !said.empty()) continue;
      const char* of = said.empty() ? " of GPU time" : "";
      said.push_back(fmt::format("{} ({}{})", kernel_source(*source.first), percent_text(source.share), of));
    }
    out.push_back(fmt::format("{}: {}", name, join(said, ", ")));
  }
  return out;
}

std::string job_line(const Report& report) {
  std::string out = fmt::format("batch {}", report.batch);
  if (report.micro_batches > 1) out += fmt::format(" x {} micro-batches", report.micro_batches);
  // Replicas of a model that is split are fewer than GPUs.
  const std::int64_t replicas = report.global_batch / std::max<std::int64_t>(1, report.batch * report.micro_batches);
  if (report.gpus > 1 && replicas == report.gpus) out += fmt::format(" x {} GPUs", report.gpus);
  else if (report.gpus > 1) out += fmt::format(" x {} replica{} of {} GPUs", replicas, replicas == 1 ? "" : "s", report.gpus / std::max<std::int64_t>(1, replicas));
  if (report.seq > 0) out += fmt::format(", sequence {}", report.seq);
  auto add = [&](const char* key) {
    if (!report.request.is_object()) return;
    auto it = report.request.find(key);
    if (it != report.request.end() && it->is_string()) out += ", " + it->get<std::string>();
  };
  add("optimizer");
  add("mode");
  add("software");  // where the request names one: else it is the current framework
  return out;
}

std::string cluster_line(const Report& report) {
  if (report.gpus < 2 || !report.request.is_object()) return "";
  auto cluster = report.request.find("cluster");
  if (cluster == report.request.end() || !cluster->is_object()) return "";
  auto text = [&](const char* key) {
    auto it = cluster->find(key);
    return it != cluster->end() && it->is_string() ? it->get<std::string>() : std::string();
  };
  auto per_node = cluster->find("gpus_per_node");
  if (per_node == cluster->end() || !per_node->is_number_integer() || per_node->get<int>() < 1) return "";
  const int size = per_node->get<int>(), nodes = (report.gpus + size - 1) / size;
  const std::string system = text("name").empty() ? "" : fmt::format(" ({})", text("name"));
  if (nodes == 1) return fmt::format("{} GPUs: one node{}", report.gpus, system);
  return fmt::format("{} GPUs: {} nodes of {}{}, {} between", report.gpus, nodes, size, system, text("network"));
}

}  // namespace precog
