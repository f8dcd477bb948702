#include "report/parts.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/text.h"

namespace precog {

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

std::vector<std::string> provenance_lines(const Report& report) {
  // The same kind from the same source is one line, however many costs came from it.
  struct Group {
    std::string kind, source;
    std::vector<std::string> what;
    double share = 0;
  };
  std::vector<Group> groups;
  for (const ProvenanceEntry& entry : report.provenance) {
    auto same = [&](const Group& g) { return g.kind == entry.kind && g.source == entry.source; };
    auto it = std::find_if(groups.begin(), groups.end(), same);
    if (it == groups.end()) {
      groups.push_back({entry.kind, entry.source, {}, 0});
      it = groups.end() - 1;
    }
    if (std::find(it->what.begin(), it->what.end(), entry.what) == it->what.end()) it->what.push_back(entry.what);
    it->share += entry.share;
  }
  std::stable_sort(groups.begin(), groups.end(), [](const Group& a, const Group& b) { return a.share > b.share; });
  std::vector<std::string> lines;
  for (const Group& group : groups) {
    // Many kinds of kernel from one source: the first few stand for all.
    std::vector<std::string> what = group.what;
    constexpr std::size_t kNamed = 4;
    if (what.size() > kNamed + 1) {
      what.resize(kNamed);
      what.push_back(fmt::format("{} more", group.what.size() - kNamed));
    }
    std::string share = group.share > 0 ? fmt::format(" ({} of {})", percent_text(group.share),
                                                      group.what.front() == "host" ? "the step" : "GPU time")
                                        : std::string();
    bool says_kind = group.source.rfind(group.kind, 0) == 0;  // "estimate: eager PyTorch on ..."
    std::string source = group.source.empty() ? group.kind : says_kind ? group.source : group.kind + ": " + group.source;
    lines.push_back(fmt::format("{}{}: {}", join(what, ", "), share, source));
  }
  return lines;
}

std::string provenance_summary(const Report& report) {
  std::map<std::string, double> shares;
  std::vector<std::string> parts;
  for (const ProvenanceEntry& entry : report.provenance) {
    if (entry.share > 0 && entry.what != "host") shares[entry.kind] += entry.share;
    else parts.push_back(entry.what + " " + entry.kind);
  }
  std::vector<std::pair<double, std::string>> sorted;
  for (const auto& [kind, share] : shares) sorted.emplace_back(-share, kind);
  std::sort(sorted.begin(), sorted.end());
  std::vector<std::string> times;
  for (const auto& [share, kind] : sorted) times.push_back(fmt::format("{} {}", percent_text(-share), kind));
  if (!times.empty()) parts.insert(parts.begin(), "GPU time " + join(times, ", "));
  return "What this rests on: " + join(parts, "; ") + ".";
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
