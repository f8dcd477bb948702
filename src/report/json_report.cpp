// The contract's report. Every field is always there; null says that it does not apply.
#include <cmath>

#include "base/ensure.h"
#include "report/parts.h"
#include "report/report.h"

namespace precog {
namespace {

double finite(double value) {
  ensure(std::isfinite(value), "every number of a report is finite");
  return value;
}
double finite(Seconds value) { return finite(value.value); }

Json count_or_null(const std::optional<double>& value) { return value ? count_json(finite(*value)) : Json(nullptr); }
Json or_null(const std::optional<double>& value) { return value ? Json(finite(*value)) : Json(nullptr); }
Json or_null(const std::optional<Seconds>& value) { return value ? Json(finite(*value)) : Json(nullptr); }

Json seconds_by_name(const std::map<std::string, Seconds>& parts) {
  Json out = Json::object();
  for (const auto& [name, time] : parts) out[name] = finite(time);
  return out;
}

Json bytes_by_category(const BytesByCategory& bytes) {
  Json out = Json::object();
  for (std::size_t i = 0; i < kMemoryCategories; ++i) out[std::string(to_text(static_cast<MemoryCategory>(i)))] = bytes[i].value;
  return out;
}

constexpr const char* kCurrentSoftware = "pytorch-2";  // what is modelled where a request says nothing (data/software)
constexpr std::size_t kMostModules = 64;  // with repeated layers folded, models have fewer

Json memory_json(const Report& report) {
  const MemoryUse& memory = report.memory;
  // Copies of weights are part of `activations`, which with the others has always been all that there is at the peak.
  Json out = {{"parameters", memory.parameters.value}, {"gradients", memory.gradients.value},
              {"optimizer", memory.optimizer.value},   {"weight_copies", memory.weight_copies.value},
              {"activations", (memory.weight_copies + memory.activations).value},
              {"workspace", memory.workspace.value},   {"fragmentation", memory.fragmentation.value}};
  const AroundPeak around = around_peak(memory);
  out["gaps"] = around.gaps.value;
  out["outside"] = around.outside.value;
  if (memory.graph_pool.value > 0) out["graph_pool"] = memory.graph_pool.value;
  out["by_category"] = bytes_by_category(memory.by_category);
  Json types = Json::object(), modules = Json::array(), timeline = Json::array();
  for (const auto& [type, bytes] : memory.activations_by_dtype) types[type] = bytes.value;
  out["activations_by_dtype"] = std::move(types);
  std::vector<ModuleMemory> shown = memory.by_module;
  if (shown.size() > kMostModules) {  // together they are the peak
    ModuleMemory rest{.module = "(other modules)"};
    for (std::size_t i = kMostModules - 1; i < shown.size(); ++i)
      rest = {rest.module, rest.parameters + shown[i].parameters, rest.gradients + shown[i].gradients, rest.optimizer + shown[i].optimizer,
              rest.weight_copies + shown[i].weight_copies, rest.activations + shown[i].activations, rest.workspace + shown[i].workspace};
    shown.resize(kMostModules - 1);
    shown.push_back(std::move(rest));
  }
  for (const ModuleMemory& module : shown) {
    modules.push_back({{"module", module.module}, {"bytes", module.total().value}, {"parameters", module.parameters.value},
                       {"gradients", module.gradients.value}, {"optimizer", module.optimizer.value},
                       {"weight_copies", module.weight_copies.value}, {"activations", (module.weight_copies + module.activations).value}, {"workspace", module.workspace.value}});
  }
  out["by_module"] = std::move(modules);
  out["peak_at"] = report.peak_at;
  for (const MemoryPoint& point : report.memory_points) {
    Json entry = {{"s", finite(point.at)}};
    std::int64_t total = 0;
    for (std::size_t i = 0; i < kMemoryCategories; ++i) {
      total += point.bytes[i].value;
      if (point.bytes[i].value > 0) entry[std::string(to_text(static_cast<MemoryCategory>(i)))] = point.bytes[i].value;
    }
    entry["bytes"] = total;
    timeline.push_back(std::move(entry));
  }
  out["timeline"] = std::move(timeline);
  return out;
}

Json to_json(const Breakdown& breakdown) {
  return {{"forward", finite(breakdown.forward)},
          {"backward", finite(breakdown.backward)},
          {"optimizer", finite(breakdown.optimizer)},
          {"casts", finite(breakdown.casts)},
          {"loss_scaling", finite(breakdown.loss_scaling)},
          {"exposed_communication", seconds_by_name(breakdown.exposed_communication)},
          {"pipeline_bubble", finite(breakdown.pipeline_bubble)},
          {"between_kernels", finite(breakdown.between_kernels)},
          {"host", finite(breakdown.host)},
          {"input", finite(breakdown.input)}};
}

Json to_json(const std::vector<ProvenanceEntry>& provenance) {
  Json out = Json::array();
  for (const ProvenanceEntry& entry : provenance) {
    Json item = {{"what", entry.what}, {"kind", entry.kind}, {"source", entry.source}, {"share", finite(entry.share)}};
    if (!entry.on.empty()) item["on"] = entry.on;
    out.push_back(std::move(item));
  }
  return out;
}

}  // namespace

Json count_json(double value) {
  constexpr double kExact = 9007199254740992;  // 2^53: beyond it a double skips whole numbers
  return std::abs(value) <= kExact && value == std::floor(value) ? Json(static_cast<std::int64_t>(value)) : Json(value);
}

Json to_json(const Report& report) {
  Json out = Json::object();
  out["schema"] = 1;
  out["request"] = report.request;
  out["model"] = report.model;
  out["parameters"] = report.parameters;
  out["gpu"] = report.gpu;
  out["gpus"] = report.gpus;
  out["precision"] = report.precision;
  out["software"] = report.request.is_object() ? report.request.value("software", Json(kCurrentSoftware)) : Json(kCurrentSoftware);
  out["batch"] = report.batch;
  out["global_batch"] = report.global_batch;
  out["micro_batches"] = report.micro_batches;
  out["seq"] = report.seq > 0 ? Json(report.seq) : Json(nullptr);
  out["step_s"] = finite(report.step);
  out["step_s_low"] = finite(report.step_low);
  out["step_s_high"] = finite(report.step_high);
  out["samples_per_s"] = finite(report.samples_per_s);
  out["tokens_per_s"] = or_null(report.tokens_per_s);
  out["tokens_per_s_per_gpu"] = or_null(report.tokens_per_s_per_gpu);
  out["mfu"] = finite(report.mfu);
  out["mfu_bf16"] = finite(report.mfu_bf16);
  out["tflops_per_gpu"] = finite(report.tflops_per_gpu);
  out["peak_bytes"] = report.memory.peak.value;
  out["peak_at"] = report.peak_at;
  out["reserved_bytes"] = report.memory.reserved.value;
  out["device_bytes"] = report.memory.device.value;
  out["device_bytes_low"] = report.memory.device_low.value;
  out["device_bytes_high"] = report.memory.device_high.value;
  out["capacity_bytes"] = report.memory.capacity.value;
  out["fits"] = report.memory.fits;
  out["fits_verdict"] = report.memory.verdict == Certainty::certain ? "certain" : "likely";
  if (report.memory.host.value > 0) {
    out["host_bytes"] = report.memory.host.value;
    out["host_bytes_per_node"] = report.memory.host_of_node.value;
    if (report.memory.host_capacity.value > 0) out["host_capacity_bytes"] = report.memory.host_capacity.value;
  }
  out["memory"] = memory_json(report);
  if (report.largest_batch) out["max_batch"] = to_json(*report.largest_batch);
  if (!report.memory.fits) {
    Json fixes = Json::array();
    for (const Fix& fix : report.fixes) fixes.push_back(to_json(fix));
    out["fixes"] = std::move(fixes);
  }
  out["steps"] = count_or_null(report.steps);
  out["total_s"] = or_null(report.total);
  if (report.skipped_steps) out["skipped_steps"] = count_json(finite(*report.skipped_steps));
  if (report.losses) {
    const RunLosses& l = *report.losses;
    out["run_losses"] = {{"between_failures_s", finite(l.between_failures)}, {"failures", finite(l.failures)}, {"checkpoint_bytes", count_json(finite(l.checkpoint_bytes))},
                         {"checkpoint_s", finite(l.checkpoint)}, {"checkpoint_source", l.checkpoint_estimated ? "estimate" : "request"},
                         {"checkpoint_interval_s", finite(l.interval)}, {"restart_s", finite(l.restart)}, {"restart_source", l.restart_estimated ? "estimate" : "request"},
                         {"useful_share", finite(l.useful_share)}};
  }
  out["price_usd_per_gpu_hour"] = or_null(report.price_usd_per_gpu_hour);
  out["cost_usd"] = or_null(report.cost_usd);
  out["breakdown"] = to_json(report.breakdown);
  out["by_dtype"] = seconds_by_name(report.by_dtype);
  out["by_op_class"] = seconds_by_name(report.by_op_class);
  out["kernels"] = report.kernels;
  out["cast_kernels"] = static_cast<std::int64_t>(std::llround(finite(report.cast_kernels)));
  out["gpu_busy_s"] = finite(report.gpu_busy);
  out["host_s"] = finite(report.host);
  out["sustained_clock"] = finite(report.sustained_clock);
  out["bound"] = report.bound;
  out["provenance"] = to_json(report.provenance);
  out["unknown_operators"] = {{"share", finite(report.unknown_share)}, {"names", report.unknown_names}};
  out["warnings"] = report.warnings;
  return out;
}

}  // namespace precog
