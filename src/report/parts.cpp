#include "report/parts.h"

#include <algorithm>
#include <array>
#include <set>

#include <fmt/format.h>

#include "base/text.h"

namespace precog {
namespace {

// "data/profiles/x.json on hopper" is fitted on Hopper's timings; elsewhere the kind says it all.
std::string kernel_source(const std::string& kind, const std::string& source) {
  std::size_t on = source.rfind(" on ");
  std::string architecture = on == std::string::npos ? "" : source.substr(on + 4);
  if (kind == "fitted") return fmt::format("fitted on {}operator timings", architecture.empty() ? "" : architecture + " ");
  if (kind == "scaled") return "scaled from other GPUs' timings";
  return kind;
}

}  // namespace

Seconds exposed_total(const Breakdown& breakdown) {
  Seconds total;
  for (const auto& [collective, time] : breakdown.exposed_communication) total += time;
  return total;
}

std::vector<TimePart> time_parts(const Breakdown& b) {
  std::string communication = "communication";
  if (b.exposed_communication.size() == 1) communication = "exposed " + b.exposed_communication.begin()->first;
  else if (b.exposed_communication.size() > 1) communication = "exposed comm.";
  return {{"forward", "forward", b.forward, kColourForward, Ink::blue},
          {"backward", "backward", b.backward, kColourBackward, Ink::cyan},
          {"optimizer", "optimizer", b.optimizer, kColourOptimizer, Ink::yellow},
          {"casts", "casts", b.casts, kColourCasts, Ink::magenta},
          {"loss_scaling", "loss scaling", b.loss_scaling, kColourLossScaling, Ink::yellow},
          {"exposed_communication", communication, exposed_total(b), kColourCommunication, Ink::green},
          {"pipeline_bubble", "pipeline bubble", b.pipeline_bubble, kColourBubble, Ink::dim},
          {"host", "waiting for host", b.host, kColourHost, Ink::red}};
}

std::vector<MemoryPart> memory_parts(const MemoryUse& m) {
  Bytes outside = m.device - m.reserved;  // the CUDA context, NCCL's buffers
  return {{"parameters", m.parameters, kColourForward},
          {"gradients", m.gradients, kColourBackward},
          {"optimizer", m.optimizer, kColourOptimizer},
          {"activations", m.activations, kColourCommunication},
          {"workspace", m.workspace, kColourCasts},
          {"fragmentation", m.fragmentation, kColourBubble},
          {"context", Bytes{std::max<std::int64_t>(outside.value, 0)}, kColourLossScaling}};
}

bool negligible(const TimePart& part, Seconds step) { return !(part.time.value > 0.0005 * step.value); }

std::string part_text(const TimePart& part, Seconds step) { return negligible(part, step) ? "-" : to_text(part.time); }

std::vector<std::string> provenance_lines(const Report& report) {
  struct Line {
    std::map<std::string, double> shares;       // by kind
    std::map<std::string, std::string> source;  // the first of each kind
  };
  static const std::array<std::string, 5> kNames = {"kernels", "communication", "host", "hardware", "memory"};
  std::map<std::string, Line> lines;
  for (const ProvenanceEntry& entry : report.provenance) {
    // Kernels come from a profile, whatever their family is called ("host" copies among them).
    bool own = std::find(kNames.begin(), kNames.end(), entry.what) != kNames.end() && entry.source.rfind("data/profiles/", 0) != 0;
    Line& line = lines[own ? entry.what : entry.what == "collective" ? "communication" : "kernels"];
    line.shares[entry.kind] += entry.share;
    line.source.try_emplace(entry.kind, entry.source);
  }
  std::vector<std::string> out;
  for (const std::string& name : kNames) {
    auto found = lines.find(name);
    if (found == lines.end()) continue;
    std::vector<std::pair<double, std::string>> kinds;
    for (const auto& [kind, share] : found->second.shares) kinds.emplace_back(share, kind);
    std::sort(kinds.rbegin(), kinds.rend());
    std::vector<std::string> said;
    for (const auto& [share, kind] : kinds) {
      const std::string& source = found->second.source[kind];
      if (name == "kernels") {
        if (share < 0.005 && !said.empty()) continue;
        const char* of = said.empty() ? " of GPU time" : "";
        said.push_back(fmt::format("{} ({}{})", kernel_source(kind, source), percent_text(share), of));
        continue;
      }
      // Of a source in two halves the second says what is uncertain; one that names its kind needs it no second time.
      std::size_t half = source.find("; ");
      std::string text = half == std::string::npos ? source : source.substr(half + 2);
      if (name == "communication") text = "";
      bool says_kind = text.find(kind) != std::string::npos;
      said.push_back(says_kind ? text : text.empty() ? kind : fmt::format("{} ({})", kind, text));
    }
    out.push_back(fmt::format("{}: {}", name, join(said, ", ")));
  }
  return out;
}

std::string job_line(const Report& report) {
  std::string out = fmt::format("batch {}", report.batch);
  if (report.micro_batches > 1) out += fmt::format(" x {} micro-batches", report.micro_batches);
  if (report.gpus > 1) out += fmt::format(" x {} GPUs", report.gpus);
  if (report.seq > 0) out += fmt::format(", sequence {}", report.seq);
  auto add = [&](const char* key) {
    if (!report.request.is_object()) return;
    auto it = report.request.find(key);
    if (it != report.request.end() && it->is_string()) out += ", " + it->get<std::string>();
  };
  add("optimizer");
  add("mode");
  return out;
}

}  // namespace precog
