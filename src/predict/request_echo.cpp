// The request as understood, defaults filled in: what reports repeat, and what asks for the same prediction again.
#include "predict/request_reader.h"
#include "report/report.h"

namespace precog {

void RequestReader::echo() {
  const Request& r = request_;
  Json& out = request_.echo;
  out["schema"] = 1;
  out["model"] = r.model->request;
  if (r.inputs.layers) {
    if (out["model"].is_string()) out["model"] = {{"name", r.model->name}};
    out["model"]["layers"] = *r.inputs.layers;
  }
  out["batch"] = r.inputs.batch;
  if (r.model->language) out["seq"] = r.inputs.seq;
  if (r.model->encoder_decoder) out["src_seq"] = r.inputs.src_seq;
  if (!r.frozen.empty()) out["frozen"] = r.frozen;
  if (r.pad_vocabulary > 1) out["pad_vocabulary"] = r.pad_vocabulary;
  out["global_batch"] = r.global_batch;
  if (r.own_precision) out["precision"] = r.inline_precision;
  else out["precision"] = r.precision->name;
  out["mode"] = to_text(r.mode);
  out["optimizer"] = to_text(r.training.optimizer);
  constexpr const char* kImpl[] = {"foreach", "fused", "for-loop"};
  out["optimizer_impl"] = kImpl[static_cast<int>(r.training.optimizer_impl)];
  if (r.clip_grad_norm) out["clip_grad_norm"] = *r.clip_grad_norm;
  if (r.software) out["software"] = r.software->name;
  if (r.reads_loss) out["reads_loss"] = true;
  if (r.fused_softmax.heads_for_lengths) out["softmax_by_heads"] = true;
  if (r.reads_each_loss) out["reads_each_loss"] = true;
  if (r.exchange_cycle.value > 0) out["exchange_cycle_ms"] = 1e3 * r.exchange_cycle.value;
  constexpr const char* kRecompute[] = {"none", "selective", "full", "up-projections"};
  if (r.training.recompute == Recompute::parts) out["recompute"] = parts_text(r.checkpoints.parts);
  else out["recompute"] = r.checkpoints.per_operator ? "per-op" : kRecompute[static_cast<int>(r.training.recompute)];
  if (r.checkpoints.first > 0) out["recompute_layers"] = r.checkpoints.first;
  if (r.checkpoints.every > 1) out["recompute_every"] = r.checkpoints.every;
  if (r.training.loss_chunks > 0) out["loss_chunks"] = r.training.loss_chunks;
  if (r.training.allocator != Allocator::caching) out["allocator"] = r.training.allocator == Allocator::expandable ? "expandable" : "planned";
  out["memory_format"] = r.memory_format == MemoryFormat::channels_last ? "channels_last" : "contiguous";
  constexpr const char* kAttention[] = {"sdpa", "flash", "eager", "flash1", "sdpa-causal"};
  out["attention"] = kAttention[static_cast<int>(r.attention)];
  constexpr const char* kStack[] = {"pytorch", "megatron", "te"};
  if (r.stack != Stack::pytorch) out["stack"] = kStack[static_cast<int>(r.stack)];
  out["cluster"] = {{"name", r.cluster.system}, {"gpu", r.gpu->name}, {"gpus", r.cluster.gpus},
                    {"gpus_per_node", r.cluster.gpus_per_node}, {"network", r.cluster.network.name}};
  if (nics_given_) out["cluster"]["nics_per_node"] = r.cluster.nics_per_node;
  out["plan"] = {{"dp", r.plan.dp}, {"fsdp", to_text(r.plan.fsdp)}, {"tp", r.plan.tp}, {"pp", r.plan.pp}, {"cp", r.plan.cp}, {"ep", r.plan.ep}};
  if (r.replicas.shard_size > 0) {
    if (r.plan.fsdp == Sharding::full) out["plan"]["fsdp"] = "hybrid";
    out["plan"]["shard_size"] = r.replicas.shard_size;
  }
  if (r.replicas.offloads()) {
    std::vector<std::string> parts;
    for (auto& [name, chosen] : {std::pair{"optimizer", r.replicas.offload_optimizer}, {"states", r.replicas.offload_states}, {"master", r.replicas.offload_master},
                                 {"parameters", r.replicas.offload_parameters}, {"activations", r.replicas.offload_layers > 0}})
      if (chosen) parts.push_back(name);
    out["plan"]["offload"] = join(parts, "+");
    if (r.replicas.offload_fraction < 1) out["plan"]["offload_fraction"] = r.replicas.offload_fraction;
    if (r.replicas.offload_layers > 0 && r.replicas.offload_layers < 4096) out["plan"]["offload_layers"] = r.replicas.offload_layers;
  }
  if (r.replicas.bucket != Replicas{}.bucket || r.replicas.first_bucket != Replicas{}.first_bucket)
    out["plan"]["bucket_mb"] = r.replicas.bucket.value >> 20, out["plan"]["first_bucket_mb"] = r.replicas.first_bucket.value >> 20;
  if (!r.replicas.overlap_reduce) out["plan"]["overlap_reduce"] = false;
  if (r.replicas.overlap_gather) out["plan"]["overlap_gather"] = true;
  if (r.replicas.share_checkpoints) out["plan"]["share_checkpoints"] = true;
  if (r.replicas.bucket_views) out["plan"]["bucket_views"] = true;
  if (r.replicas.find_unused) out["plan"]["find_unused"] = true;
  const UnitGathers& gathers = r.replicas.gathers;
  if (gathers.unit != UnitGathers::Unit::block) out["plan"]["wrap"] = gathers.unit == UnitGathers::Unit::module ? "module" : "model";
  else if (gathers.layers > 1) out["plan"]["wrap"] = gathers.layers;
  if (gathers.backward != UnitGathers::Backward::before) out["plan"]["backward_prefetch"] = gathers.backward == UnitGathers::Backward::after ? "post" : "none";
  if (r.plan.fsdp == Sharding::full && gathers.forward_ahead != (r.plan.ep > 1)) out["plan"]["forward_prefetch"] = gathers.forward_ahead;
  if (!gathers.limited) out["plan"]["limit_all_gathers"] = false;
  if (r.plan.tp > 1) out["plan"]["sp"] = r.plan.sp;
  if (r.tp_overlap) out["plan"]["tp_overlap"] = true;
  if (r.tp_scatter_fp8) out["plan"]["tp_scatter_fp8"] = true;
  if (r.plan.cp > 1) out["plan"]["cp_exchange"] = r.plan.exchange == ContextExchange::ring ? "ring" : "all_to_all";
  if (r.plan.etp > 0) out["plan"]["etp"] = r.plan.etp;
  if (r.plan.dispatch == ExpertDispatch::per_node) out["plan"]["expert_dispatch"] = "deepep";
  if (r.plan.expert_overlap) out["plan"]["expert_overlap"] = true;
  if (r.plan.expert_imbalance > 1) out["plan"]["expert_imbalance"] = r.plan.expert_imbalance;
  if (r.expert_capacity.factor > 0) out["plan"]["expert_capacity"] = r.expert_capacity.factor;
  if (r.expert_capacity.padded) out["plan"]["expert_padding"] = true;
  if (const auto& z = r.replicas.by_module)
    out["plan"]["zero3"] = {{"prefetch_elements", z->prefetch}, {"live_elements", z->live}, {"reuse_elements", z->reuse}, {"persistent_elements", z->persistent}, {"reduce_elements", z->reduced}};
  if (const auto& z = r.replicas.by_module) {
    if (z->lists) out["plan"]["zero3"]["lists"] = true;
    if (z->secondary > 0) out["plan"]["zero3"]["secondary_ranks"] = z->secondary;
    if (z->quantised_weights) out["plan"]["zero3"]["quantised_weights"] = true;
    if (z->quantised_gradients) out["plan"]["zero3"]["quantised_gradients"] = true;
  }
  constexpr const char* kSplits[] = {"column", "row", "whole"};
  for (const auto& [pattern, split] : r.plan.tp_plan) out["plan"]["tp_plan"][pattern] = kSplits[static_cast<int>(split)];
  if (r.plan.pp > 1) out["plan"]["vpp"] = r.plan.vpp, out["plan"]["schedule"] = to_text(r.plan.schedule);
  if (!r.plan.stage_layers.empty()) out["plan"]["stage_layers"] = r.plan.stage_layers;
  if (const auto given = root_.text("profile")) out["profile"] = *given;
  out["host"] = r.own_host ? r.own_host_path : r.host->name;
  if (r.input) {
    out["input"] = {{"seconds_per_batch", r.input->per_batch.value}, {"workers", r.input->workers}, {"prefetch", r.input->prefetch}};
    if (r.input->copied.value > 0) out["input"]["bytes_per_batch"] = r.input->copied.value;
    if (r.input->on_gpu.value > 0) out["input"]["gpu_bytes_per_batch"] = r.input->on_gpu.value;
  }
  if (r.allow_emulated) out["allow_emulated"] = true;
  Json run = Json::object();
  if (r.run.tokens) run["tokens"] = count_json(*r.run.tokens);
  if (r.run.samples) run["samples"] = count_json(*r.run.samples);
  if (r.run.epochs) run["epochs"] = count_json(*r.run.epochs);
  if (r.run.steps) run["steps"] = count_json(*r.run.steps);
  if (r.run.dataset_samples) run["dataset_samples"] = count_json(*r.run.dataset_samples);
  if (r.run.mtbf_hours) run["mtbf_hours"] = *r.run.mtbf_hours;
  if (r.run.checkpoint_s) run["checkpoint_s"] = *r.run.checkpoint_s;
  if (r.run.restart_s) run["restart_s"] = *r.run.restart_s;
  if (jitter_given_) out["cluster"]["jitter"] = r.jitter;
  if (!run.empty()) out["run"] = run;
  if (r.price_usd_per_gpu_hour) out["price_usd_per_gpu_hour"] = *r.price_usd_per_gpu_hour;
  if (const Json* imported = root_.raw("imported"); imported && imported->is_array()) out["imported"] = *imported;
}

}  // namespace precog
