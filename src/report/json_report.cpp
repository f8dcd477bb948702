// The contract's report. Every field is always there; null says that it does not apply.
#include <cmath>

#include "base/ensure.h"
#include "report/report.h"

namespace precog {
namespace {

double finite(double value) {
  ensure(std::isfinite(value), "every number of a report is finite");
  return value;
}
double finite(Seconds value) { return finite(value.value); }

Json or_null(const std::optional<double>& value) { return value ? Json(finite(*value)) : Json(nullptr); }
Json or_null(const std::optional<Seconds>& value) { return value ? Json(finite(*value)) : Json(nullptr); }

Json seconds_by_name(const std::map<std::string, Seconds>& parts) {
  Json out = Json::object();
  for (const auto& [name, time] : parts) out[name] = finite(time);
  return out;
}

Json to_json(const MemoryUse& memory) {
  return {{"parameters", memory.parameters.value}, {"gradients", memory.gradients.value},
          {"optimizer", memory.optimizer.value},   {"activations", memory.activations.value},
          {"workspace", memory.workspace.value},   {"fragmentation", memory.fragmentation.value}};
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

Json to_json(const Report& report) {
  Json out = Json::object();
  out["schema"] = 1;
  out["request"] = report.request;
  out["model"] = report.model;
  out["parameters"] = report.parameters;
  out["gpu"] = report.gpu;
  out["gpus"] = report.gpus;
  out["precision"] = report.precision;
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
  out["capacity_bytes"] = report.memory.capacity.value;
  out["fits"] = report.memory.fits;
  out["memory"] = to_json(report.memory);
  out["steps"] = or_null(report.steps);
  out["total_s"] = or_null(report.total);
  if (report.skipped_steps) out["skipped_steps"] = *report.skipped_steps;
  out["price_usd_per_gpu_hour"] = or_null(report.price_usd_per_gpu_hour);
  out["cost_usd"] = or_null(report.cost_usd);
  out["breakdown"] = to_json(report.breakdown);
  out["by_dtype"] = seconds_by_name(report.by_dtype);
  out["by_op_class"] = seconds_by_name(report.by_op_class);
  out["kernels"] = report.kernels;
  out["cast_kernels"] = static_cast<std::int64_t>(std::llround(finite(report.cast_kernels)));
  out["gpu_busy_s"] = finite(report.gpu_busy);
  out["host_s"] = finite(report.host);
  out["bound"] = report.bound;
  out["provenance"] = to_json(report.provenance);
  out["unknown_operators"] = {{"share", finite(report.unknown_share)}, {"names", report.unknown_names}};
  out["warnings"] = report.warnings;
  return out;
}

}  // namespace precog
