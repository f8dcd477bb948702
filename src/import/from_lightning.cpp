// PyTorch Lightning's configuration, as LightningCLI writes it: the trainer's section, and of data and optimizer what is usual.
#include <fmt/format.h>

#include "base/text.h"
#include "import/formats.h"

namespace precog {
namespace {

// "trainer.strategy" is a name, or a class with its arguments.
void read_strategy(Settings& s, Json& request) {
  std::string name = normalised_name(s.text("trainer.strategy").value_or(""));
  const std::string of_class = s.text("trainer.strategy.class_path").value_or("");
  const std::string given = "trainer.strategy.init_args.";
  if (of_class.ends_with("FSDPStrategy") || of_class.ends_with("ModelParallelStrategy")) name = of_class.ends_with("FSDPStrategy") ? "fsdp" : "model-parallel";
  else if (of_class.ends_with("DDPStrategy")) name = "ddp";
  else if (of_class.ends_with("DeepSpeedStrategy")) name = fmt::format("deepspeed-stage-{}", s.whole(given + "stage").value_or(2));
  else if (!of_class.empty()) return s.problem("trainer.strategy.class_path", fmt::format("is '{}'; modelled: DDPStrategy, FSDPStrategy, DeepSpeedStrategy", of_class.substr(0, 80)));
  Json plan = Json::object();  // not a reference into the request, whose other fields are written meanwhile
  const bool by_name = name.ends_with("-offload"), optimizer = by_name || s.on(given + "offload_optimizer");
  if (by_name) name.resize(name.size() - 8);
  if (s.on(given + "gradient_as_bucket_view")) plan["bucket_views"] = true;
  if (s.on(given + "find_unused_parameters") || name == "ddp-find-unused-parameters-true") plan["find_unused"] = true;
  if (auto bucket = s.whole(given + "bucket_cap_mb"); bucket && *bucket > 0) plan["bucket_mb"] = *bucket;
  if (name.empty() || name == "auto" || name == "ddp" || name == "ddp-find-unused-parameters-true" || name == "ddp-find-unused-parameters-false" || name == "single-device" || name == "ddp-spawn") plan["fsdp"] = "none";
  else if (name == "fsdp") {
    const std::string strategy = normalised_name(s.text(given + "sharding_strategy").value_or("FULL_SHARD"));
    if (strategy == "full-shard") plan["fsdp"] = "full";
    else if (strategy == "shard-grad-op") plan["fsdp"] = "zero2";
    else if (strategy == "no-shard") plan["fsdp"] = "none";
    else if (strategy == "hybrid-shard") plan["fsdp"] = "hybrid";
    else s.problem(given + "sharding_strategy", fmt::format("is '{}'; modelled: FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD", strategy.substr(0, 40)));
    if (s.raw(given + "activation_checkpointing_policy") || s.raw(given + "activation_checkpointing")) request["recompute"] = "full";
    if (s.on(given + "cpu_offload")) plan["offload"] = "optimizer+parameters";
    if (const std::string sharded = sharding_said(plan); sharded == "full" || sharded == "hybrid") {
      const std::string prefetch = normalised_name(s.text(given + "backward_prefetch").value_or("BACKWARD_PRE"));
      if (prefetch == "backward-post") plan["backward_prefetch"] = "post";
      if (s.on(given + "forward_prefetch")) plan["forward_prefetch"] = true;
      if (!s.truth(given + "limit_all_gathers").value_or(true)) plan["limit_all_gathers"] = false;
    }
  } else if (name.starts_with("deepspeed")) {
    const std::string stage = name.size() > 16 ? name.substr(16) : "2";
    if (stage == "1" || stage == "2" || stage == "3") plan["fsdp"] = "zero" + stage;
    else s.problem("trainer.strategy", fmt::format("is '{}'; modelled: deepspeed_stage_1, _2, _3, with _offload or without", name.substr(0, 40)));
    if (optimizer) plan["offload"] = "optimizer";
    if ((by_name && stage == "3") || s.on(given + "offload_parameters")) plan["offload"] = optimizer ? "optimizer+parameters" : "parameters";
    if (s.on(given + "cpu_checkpointing")) {  // of models that checkpoint their layers with DeepSpeed's function
      request["recompute"] = "full";
      plan["offload"] = plan.contains("offload") ? plan["offload"].get<std::string>() + "+activations" : "activations";
    }
  } else if (name == "model-parallel") {
    if (auto tp = s.whole(given + "tensor_parallel_size")) plan["tp"] = *tp;
    plan["fsdp"] = "full";
    if (auto dp = s.whole(given + "data_parallel_size")) plan["dp"] = *dp;
  } else {
    s.problem("trainer.strategy", fmt::format("is '{}'; modelled: ddp, fsdp, deepspeed_stage_1 to 3", name.substr(0, 40)));
  }
  request["plan"] = std::move(plan);
  s.harmless({"trainer.strategy.init_args.static_graph", "trainer.strategy.init_args.auto_wrap_policy*",
              "trainer.strategy.init_args.state_dict_type", "trainer.strategy.init_args.use_orig_params", "trainer.strategy.init_args.process_group_backend", "trainer.strategy.init_args.timeout",
              "trainer.strategy.init_args.limit_all_gathers", "trainer.strategy.init_args.*bucket_size", "trainer.strategy.init_args.overlap_comm", "trainer.strategy.init_args.contiguous_gradients",
              "trainer.strategy.init_args.activation_checkpointing*", "trainer.strategy.init_args.offload_optimizer"});
}

void read_plugin(Settings& s, Json& request) {
  const std::string said = normalised_name(s.text("trainer.precision").value_or("32-true"));
  const std::string sharded = request.contains("plan") ? sharding_said(request["plan"]) : "none";
  const bool fsdp = sharded == "full" || sharded == "hybrid", deepspeed = sharded.starts_with("zero") && s.text("trainer.strategy").value_or(s.text("trainer.strategy.class_path").value_or("")).find("eep") != std::string::npos;
  std::string name;
  if (said == "32-true" || said == "32") name = "fp32-default";
  else if (said == "bf16-mixed" || said == "bf16") name = fsdp ? "amp-bf16+gradients-bf16" : deepspeed ? "deepspeed-bf16" : "amp-bf16";
  // Autocast over parameters that are gathered in fp32, gradients reduced in fp16 (fabric/plugins/precision/fsdp.py, mixed_precision_config).
  else if ((said == "16-mixed" || said == "16") && fsdp) name = "amp-fp16+gradients-fp16";
  else if (said == "16-mixed" || said == "16") name = deepspeed ? "deepspeed-fp16" : "amp-fp16";
  else if (said == "bf16-true") name = "bf16";
  else if (said == "16-true") name = "fp16";
  else if (said == "transformer-engine") name = "bf16+te-fp8-delayed";
  else return s.problem("trainer.precision", fmt::format("is '{}'; modelled: 32-true, 16-mixed, bf16-mixed, 16-true, bf16-true, transformer-engine", said.substr(0, 40)));
  request["precision"] = name;
}

}  // namespace

Json from_lightning(Settings& s, const ImportContext& context) {
  Json request = Json::object();
  read_strategy(s, request);
  read_plugin(s, request);
  const std::string accelerator = normalised_name(s.text("trainer.accelerator").value_or("auto"));
  if (accelerator != "auto" && accelerator != "gpu" && accelerator != "cuda") s.problem("trainer.accelerator", fmt::format("is '{}'; GPUs are modelled", accelerator.substr(0, 40)));
  const std::int64_t nodes = s.whole("trainer.num_nodes").value_or(1);
  if (const Json* devices = s.raw("trainer.devices")) {
    const std::int64_t each = devices->is_array() ? static_cast<std::int64_t>(devices->size()) : s.whole("trainer.devices").value_or(-1);
    if (each > 0) request["cluster"]["gpus"] = each * nodes, request["cluster"]["gpus_per_node"] = each;
  }
  if (!request.contains("cluster") && !context.gpus_said()) {  // "auto", -1 or silence: all that a node has, which the file does not say
    if (nodes > 1) s.problem("trainer.devices", fmt::format("does not say how many GPUs each of the {} nodes has: say --gpus, of all nodes together", nodes));
    else s.note("trainer.devices leaves the number of GPUs to the machine: one, or say --gpus");
  }
  s.give(request, "micro_batches", "trainer.accumulate_grad_batches");
  if (auto norm = s.number("trainer.gradient_clip_val"); norm && *norm > 0) {
    if (s.text("trainer.gradient_clip_algorithm").value_or("norm") == "norm") request["clip_grad_norm"] = *norm;
    else s.problem("trainer.gradient_clip_algorithm", "clips values, which is not modelled; norm is");
  }
  if (auto steps = s.whole("trainer.max_steps"); steps && *steps > 0) request["run"]["steps"] = *steps;
  for (const char* key : {"data.init_args.batch_size", "data.batch_size", "data.init_args.train_batch_size", "data.init_args.micro_batch_size"})
    if (!request.contains("batch")) s.give(request, "batch", key);
    else s.whole(key);
  for (const char* key : {"data.init_args.max_length", "data.init_args.seq_length", "data.init_args.block_size", "data.init_args.max_seq_length"})
    if (auto seq = s.whole(key); seq && !request.contains("seq")) request["seq"] = *seq;
  if (s.has("optimizer.class_path")) set_optimizer(s, "optimizer.class_path", request);
  if (s.on("optimizer.init_args.fused")) request["optimizer_impl"] = "fused";
  if (auto momentum = s.number("optimizer.init_args.momentum"); momentum && *momentum > 0 && request.value("optimizer", "") == "sgd") request["optimizer"] = "sgd-momentum";
  s.harmless({"seed_everything", "trainer.logger*", "trainer.callbacks*", "trainer.fast_dev_run", "trainer.max_*", "trainer.min_*", "trainer.limit_*", "trainer.overfit_batches", "trainer.val_check_interval",
              "trainer.check_val_every_n_epoch", "trainer.num_sanity_val_steps", "trainer.log_every_n_steps", "trainer.enable_*", "trainer.deterministic", "trainer.inference_mode", "trainer.use_distributed_sampler",
              "trainer.profiler", "trainer.detect_anomaly", "trainer.barebones", "trainer.plugins", "trainer.sync_batchnorm", "trainer.reload_dataloaders_every_n_epochs", "trainer.default_root_dir",
              "trainer.benchmark", "trainer.gradient_clip_algorithm", "ckpt_path", "lr_scheduler*", "optimizer.init_args.*", "data.class_path", "data.init_args.num_workers", "data.init_args.data_dir", "data.init_args.root",
              "data.init_args.pin_memory"});
  return request;
}

}  // namespace precog
