// Hugging Face Accelerate's YAML, as `accelerate config` writes it: who starts the processes and which engine wraps the model.
#include <fmt/format.h>

#include "base/text.h"
#include "import/formats.h"

namespace precog {
namespace {

// torch's ShardingStrategy by name or number; Accelerate writes either.
void read_fsdp(Settings& s, std::int64_t node, Json& plan) {
  const std::string named = normalised_name(s.text("fsdp_config.fsdp_sharding_strategy").value_or(""));
  const bool second = s.whole("fsdp_config.fsdp_version").value_or(1) == 2;
  const std::string reshard = normalised_name(s.text("fsdp_config.fsdp_reshard_after_forward").value_or("true"));
  std::string strategy = named.empty() ? (reshard == "true" ? "full-shard" : reshard == "false" ? "shard-grad-op" : reshard) : named;
  constexpr const char* kNumbers[] = {"", "full-shard", "shard-grad-op", "no-shard", "hybrid-shard", "hybrid-shard-zero2"};
  if (strategy.size() == 1 && strategy[0] >= '1' && strategy[0] <= '5') strategy = kNumbers[strategy[0] - '0'];
  if (strategy == "full-shard") plan["fsdp"] = "full";
  else if (strategy == "shard-grad-op") plan["fsdp"] = "zero2";
  else if (strategy == "no-shard") plan["fsdp"] = "none";
  else if (strategy == "hybrid-shard") plan["fsdp"] = "hybrid";
  else if (strategy == "hybrid-shard-zero2" && node > 1) plan["fsdp"] = "zero2", plan["shard_size"] = node;
  else if (strategy == "hybrid-shard-zero2") s.problem("fsdp_config.fsdp_sharding_strategy", "HYBRID_SHARD_ZERO2 needs num_machines and num_processes, to know the GPUs of a node");
  else s.problem(second ? "fsdp_config.fsdp_reshard_after_forward" : "fsdp_config.fsdp_sharding_strategy", fmt::format("is '{}'; modelled: FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD", strategy.substr(0, 40)));
  const std::string prefetch = normalised_name(s.text("fsdp_config.fsdp_backward_prefetch").value_or("BACKWARD_PRE")), wrap = normalised_name(s.text("fsdp_config.fsdp_auto_wrap_policy").value_or("TRANSFORMER_BASED_WRAP"));
  if (const std::string sharded = sharding_said(plan); sharded == "full" || sharded == "hybrid") {
    if (prefetch == "no-prefetch" || prefetch == "backward-post") plan["backward_prefetch"] = prefetch == "no-prefetch" ? "none" : "post";
    if (s.on("fsdp_config.fsdp_forward_prefetch")) plan["forward_prefetch"] = true;
    if (wrap == "no-wrap") plan["wrap"] = "model";
    if (wrap == "size-based-wrap") s.note("fsdp_auto_wrap_policy is SIZE_BASED_WRAP: each repeated layer is modelled as one unit; plan.wrap says otherwise");
  }
  if (s.on("fsdp_config.fsdp_offload_params")) plan["offload"] = "optimizer+parameters";  // gradients go down too, and the host updates
}

void read_megatron(Settings& s, Json& request) {
  Json& plan = request["plan"];
  plan["tp"] = s.whole("megatron_lm_config.megatron_lm_tp_degree").value_or(1);
  plan["pp"] = s.whole("megatron_lm_config.megatron_lm_pp_degree").value_or(1);
  if (plan["tp"] > 1 && s.on("megatron_lm_config.megatron_lm_sequence_parallelism")) plan["sp"] = true;
  plan["fsdp"] = s.on("megatron_lm_config.megatron_lm_use_distributed_optimizer") ? "zero1" : "none";
  s.give(request, "micro_batches", "megatron_lm_config.megatron_lm_num_micro_batches");
  if (s.on("megatron_lm_config.megatron_lm_recompute_activations")) request["recompute"] = "selective";
  if (auto norm = s.number("megatron_lm_config.megatron_lm_gradient_clipping"); norm && *norm > 0) request["clip_grad_norm"] = *norm;
}

void read_deepspeed(Settings& s, const ImportContext& context, Json& request) {
  const Json linked = linked_deepspeed(s, "deepspeed_config.deepspeed_config_file", context);
  if (!linked.empty()) {
    constexpr const char* kOfFile[] = {"none", "zero1", "zero2", "zero3"};
    const auto own = s.whole("deepspeed_config.zero_stage");
    const std::string said = linked.contains("plan") ? sharding_said(linked["plan"]) : "none";
    if (own && *own >= 0 && *own <= 3 && said != kOfFile[*own] && !(*own == 3 && said == "hybrid"))
      s.problem("deepspeed_config.zero_stage", fmt::format("is {}, and its DeepSpeed file says {}: Accelerate takes neither then; leave one out", *own, said == "none" ? "no ZeRO" : said));
    return fill_in(request, linked);
  }
  const std::int64_t stage = s.whole("deepspeed_config.zero_stage").value_or(2);
  constexpr const char* kStages[] = {"none", "zero1", "zero2", "zero3"};
  if (stage < 0 || stage > 3) s.problem("deepspeed_config.zero_stage", fmt::format("is {}; ZeRO has stages 0 to 3", stage));
  else request["plan"]["fsdp"] = kStages[stage];
  s.give(request, "micro_batches", "deepspeed_config.gradient_accumulation_steps");
  if (auto norm = s.number("deepspeed_config.gradient_clipping"); norm && *norm > 0) request["clip_grad_norm"] = *norm;
  const std::string optimizer = s.text("deepspeed_config.offload_optimizer_device").value_or("none");
  if (optimizer == "cpu") request["plan"]["offload"] = "optimizer";
  else if (optimizer != "none") s.problem("deepspeed_config.offload_optimizer_device", fmt::format("is '{}'; only the host's memory (cpu) is modelled", optimizer.substr(0, 40)));
  const std::string parameters = s.text("deepspeed_config.offload_param_device").value_or("none");
  if (parameters == "cpu") request["plan"]["offload"] = optimizer == "cpu" ? "optimizer+parameters" : "parameters";
  else if (parameters != "none") s.problem("deepspeed_config.offload_param_device", fmt::format("is '{}'; only the host's memory (cpu) is modelled", parameters.substr(0, 40)));
}

}  // namespace

Json from_accelerate(Settings& s, const ImportContext& context) {
  Json request = Json::object();
  const std::string engine = normalised_name(s.text("distributed_type").value_or("no"));
  const std::string precision = normalised_name(s.text("mixed_precision").value_or("no"));
  const bool fsdp = engine == "fsdp", deepspeed = engine == "deepspeed", megatron = engine == "megatron-lm";
  if (!fsdp && !deepspeed && !megatron && engine != "no" && engine != "multi-gpu" && engine != "false")
    s.problem("distributed_type", fmt::format("is '{}'; modelled: NO, MULTI_GPU, FSDP, DEEPSPEED, MEGATRON_LM", engine.substr(0, 40)));
  const auto machines = s.whole("num_machines"), processes = s.whole("num_processes");
  if (processes) request["cluster"]["gpus"] = *processes;
  if (processes && *processes > 1 && (engine == "no" || engine == "false"))
    s.problem("distributed_type", fmt::format("is NO, with which `accelerate launch` starts one process, and num_processes is {}: say MULTI_GPU (or FSDP, DEEPSPEED, MEGATRON_LM), or 1 process", *processes));
  if (machines && *machines < 1) s.problem("num_machines", fmt::format("is {}; there is at least one", *machines));
  else if (processes && machines && *processes % *machines != 0)
    s.problem("num_processes", fmt::format("is {}, of all machines together; it must be a multiple of num_machines = {}", *processes, *machines));
  else if (processes && machines) request["cluster"]["gpus_per_node"] = *processes / *machines;
  s.give(request, "micro_batches", "gradient_accumulation_steps");
  const std::int64_t node = request.contains("cluster") ? request["cluster"].value("gpus_per_node", std::int64_t{0}) : 0;
  if (fsdp) read_fsdp(s, node, request["plan"]);
  if (fsdp && s.on("fsdp_config.fsdp_activation_checkpointing")) request["recompute"] = "full";
  if (megatron) read_megatron(s, request);
  if (deepspeed) read_deepspeed(s, context, request);
  // A DeepSpeed file that says fp16 or bf16 itself is what runs, and Accelerate stops where its own setting says the other.
  if (deepspeed && request.contains("precision") && (precision == "bf16" || precision == "fp16" || precision == "fp8")) {
    const std::string engine_says = request["precision"].get<std::string>();
    if (engine_says.find(precision) == std::string::npos)
      s.problem("mixed_precision", fmt::format("is {}, and its DeepSpeed file says {}: make them agree, or leave \"auto\" there", precision, engine_says == "fp32-default" ? "that neither fp16 nor bf16 is enabled" : engine_says));
  }
  if (!request.contains("precision")) {
    // Whole parameters under FSDP's own casts and reductions, unit by unit: groups of one.
    if (fsdp && (precision == "bf16" || precision == "fp16") && sharding_said(request["plan"]) == "none") request["plan"]["fsdp"] = "hybrid", request["plan"]["shard_size"] = 1;
    if (precision == "no" || precision == "false") request["precision"] = "fp32-default";
    else if (precision == "bf16") request["precision"] = fsdp ? "fsdp-bf16" : deepspeed ? "deepspeed-bf16" : megatron ? "bf16-master" : "amp-bf16";
    else if (precision == "fp16") request["precision"] = fsdp ? "fsdp-fp16" : deepspeed ? "deepspeed-fp16" : megatron ? "fp16-master" : "amp-fp16";
    else if (precision == "fp8") {
      const std::string backend = normalised_name(s.text("fp8_config.backend").value_or("TE"));
      if (backend == "te") request["precision"] = "amp-bf16+te-fp8-delayed";
      else if (backend == "ao") request["precision"] = "fp8";
      else s.problem("fp8_config.backend", fmt::format("is '{}'; modelled: TE, AO", backend.substr(0, 40)));
      if (fsdp || deepspeed) s.problem("mixed_precision", "is fp8 together with FSDP or DeepSpeed, which is not read; say --precision");
    } else {
      s.problem("mixed_precision", fmt::format("is '{}'; known: no, fp16, bf16, fp8", precision.substr(0, 40)));
    }
  }
  const std::string backend = normalised_name(s.text("dynamo_config.dynamo_backend").value_or("no"));
  if (backend == "inductor") request["mode"] = "compile";
  else if (backend != "no" && backend != "eager" && backend != "false") s.problem("dynamo_config.dynamo_backend", fmt::format("is '{}'; modelled: INDUCTOR", backend.substr(0, 40)));
  s.refuse("use_cpu", "training on a CPU is not modelled");
  s.refuse("parallelism_config.parallelism_config_tp_size", "is not read; say --tp");
  s.harmless({"compute_environment", "debug", "downcast_bf16", "enable_cpu_affinity", "machine_rank", "main_process_ip", "main_process_port", "main_training_function", "num_machines", "rdzv_backend",
              "same_network", "tpu_*", "gpu_ids", "deepspeed_config.zero3_*", "deepspeed_config.deepspeed_hostfile", "deepspeed_config.deepspeed_multinode_launcher", "deepspeed_config.deepspeed_moe_*",
              "deepspeed_config.offload_*", "fsdp_config.fsdp_auto_wrap_policy", "fsdp_config.fsdp_transformer_layer_cls_to_wrap", "fsdp_config.fsdp_backward_prefetch_policy", "fsdp_config.fsdp_forward_prefetch",
              "fsdp_config.fsdp_state_dict_type", "fsdp_config.fsdp_sync_module_states", "fsdp_config.fsdp_use_orig_params", "fsdp_config.fsdp_cpu_ram_efficient_loading", "fsdp_config.fsdp_min_num_params",
              "fsdp_config.fsdp_version", "fsdp_config.fsdp_reshard_after_forward", "dynamo_config.*", "fp8_config.*", "mpirun_config.*"});
  return request;
}

}  // namespace precog
