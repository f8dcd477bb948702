// DeepSpeed's JSON (deepspeed.ai/docs/config-json). What is "auto" there is filled in by whoever starts the job, so it says nothing.
#include <algorithm>

#include <fmt/format.h>

#include "base/text.h"
#include "import/formats.h"

namespace precog {
namespace {

void read_batch(Settings& s, Json& request) {
  s.give(request, "batch", "train_micro_batch_size_per_gpu");
  s.give(request, "micro_batches", "gradient_accumulation_steps");
  s.give(request, "global_batch", "train_batch_size");
  if (auto norm = s.number("gradient_clipping"); norm && *norm > 0) request["clip_grad_norm"] = *norm;
}

void read_precision(Settings& s, bool linked, Json& request) {
  const bool fp16 = s.on("fp16.enabled"), bf16 = s.on("bf16.enabled") || s.on("bfloat16.enabled"), apex = s.on("amp.enabled"), autocast = s.on("torch_autocast.enabled");
  if (fp16 + bf16 + apex + autocast > 1) s.problem(bf16 ? "bf16.enabled" : "fp16.enabled", "and fp16, bf16, amp, torch_autocast exclude each other: enable one");
  if (s.on("fp16.auto_cast")) s.note("fp16.auto_cast casts the model's inputs only: as many bytes as they have, not counted");
  std::string name = fp16 ? "deepspeed-fp16" : bf16 ? "deepspeed-bf16" : "fp32-default";
  if (apex) name = s.text("amp.opt_level").value_or("O1") == "O2" ? "apex-o2" : "apex-o1";
  if (autocast) name = s.text("torch_autocast.dtype").value_or("bfloat16") == "float16" ? "amp-fp16" : "amp-bf16";
  const auto said = [&](const char* key) { return s.has(key); };
  if (!fp16 && !bf16 && !apex && !autocast) {
    if (said("fp16.enabled") || said("bf16.enabled")) request["precision"] = name;  // "auto" says nothing; silence is fp32 as PyTorch has it
    else if (!linked) s.note("no precision is switched on: fp32 as PyTorch runs it by default (or give --precision)"), request["precision"] = name;
  } else {
    request["precision"] = name;
  }
  // Gradients travel in the type of the model unless it is said (engine.py, communication_data_type), bf16's too, which are added up in fp32.
  if (auto type = s.text("communication_data_type")) {
    const std::string wire = normalised_name(*type), own = fp16 ? "fp16" : bf16 ? "bf16" : "fp32";
    if ((wire == "fp16" || wire == "bf16" || wire == "fp32") && wire != own && request.contains("precision")) request["precision"] = fmt::format("{}+gradients-{}", name, wire);
    else if (wire != "fp32" && wire != "fp16" && wire != "bf16") s.problem("communication_data_type", fmt::format("is '{}'; known: fp32, fp16, bf16", type->substr(0, 40)));
  }
}

// Module by module, with DeepSpeed's own defaults where nothing is said.
void read_gathers(Settings& s, Json& plan) {
  constexpr double kMost = 1e15;  // "without a limit" is written as the largest integer there is
  Json& out = plan["zero3"];
  out = Json::object();
  for (auto [field, key] : {std::pair{"prefetch_elements", "stage3_prefetch_bucket_size"}, {"live_elements", "stage3_max_live_parameters"}, {"reuse_elements", "stage3_max_reuse_distance"},
                            {"persistent_elements", "stage3_param_persistence_threshold"}, {"reduce_elements", "reduce_bucket_size"}}) {
    const std::string name = std::string("zero_optimization.") + key;
    const auto elements = s.number(name);
    if (elements && *elements < 0) s.problem(name, fmt::format("is {:g}; it is a number of elements", *elements));
    else if (elements) out[field] = static_cast<std::int64_t>(std::min(*elements, kMost));
    else if (const auto keys = s.keys(); std::find(keys.begin(), keys.end(), name) != keys.end()) s.note(fmt::format("{} is left to whoever starts the job (the Trainer goes by the hidden size): modelled with DeepSpeed's default", name));
  }
}

void read_zero_plus_plus(Settings& s, std::int64_t stage, Json& plan) {
  const std::string section = "zero_optimization.";
  const auto group = s.whole(section + "zero_hpz_partition_size");
  for (auto [key, field, said] : {std::tuple{"zero_hpz_partition_size", "secondary_ranks", group && *group > 1}, {"zero_quantized_weights", "quantised_weights", s.on(section + "zero_quantized_weights")},
                                  {"zero_quantized_gradients", "quantised_gradients", s.on(section + "zero_quantized_gradients")}}) {
    if (!said) continue;
    if (stage != 3) s.problem(section + key, fmt::format("is ZeRO++'s: it needs stage 3, not {}", stage));
    else if (std::string_view(field) == "secondary_ranks") plan["zero3"][field] = *group;
    else plan["zero3"][field] = true;
  }
  s.refuse(section + "zero_quantized_nontrainable_weights", "frozen weights that are kept in 8 bits are not modelled");
}

void read_zero(Settings& s, Json& request) {
  const std::int64_t stage = s.whole("zero_optimization.stage").value_or(0);
  constexpr const char* kNames[] = {"none", "zero1", "zero2", "zero3"};
  if (stage < 0 || stage > 3) return s.problem("zero_optimization.stage", fmt::format("is {}; ZeRO has stages 0 to 3", stage));
  request["plan"]["fsdp"] = kNames[stage];
  if (stage == 3) read_gathers(s, request["plan"]);
  if (auto group = s.whole("zero_optimization.mics_shard_size"); group && *group > 0) {
    if (stage != 3) s.problem("zero_optimization.mics_shard_size", fmt::format("shares parameters out inside groups: it needs stage 3, not {}", stage));
    request["plan"]["fsdp"] = "hybrid";
    request["plan"]["shard_size"] = *group;
  }
  read_zero_plus_plus(s, stage, request["plan"]);
  auto device = [&](const std::string& section) {
    const std::string named = normalised_name(s.text(section + ".device").value_or("none"));
    if (named != "none" && named != "cpu") s.problem(section + ".device", fmt::format("is '{}'; only the host's memory (cpu) is modelled", named.substr(0, 40)));
    s.harmless({(section + ".*").c_str()});
    return named == "cpu";
  };
  const bool optimizer = device("zero_optimization.offload_optimizer") || s.on("zero_optimization.cpu_offload");
  const bool parameters = device("zero_optimization.offload_param") || s.on("zero_optimization.cpu_offload_params");
  // ZeRO-Offload++; stage_1_and_2.py does not look at it.
  if (auto ratio = s.number("zero_optimization.offload_optimizer.ratio"); ratio && optimizer && *ratio != 1) {
    if (stage == 3) request["plan"]["offload_fraction"] = *ratio, s.note("zero_optimization.offload_optimizer.ratio goes by whole sub-groups (sub_group_size) in DeepSpeed; modelled as the ratio itself");
    else s.note(fmt::format("zero_optimization.offload_optimizer.ratio is stage 3's: stage {} has all of the optimizer on the host", stage));
  }
  if (optimizer) {
    if (stage == 0) s.problem("zero_optimization.offload_optimizer", "needs stage 1, 2 or 3");
    request["plan"]["offload"] = "optimizer";
  }
  if (parameters && stage != 3) s.problem("zero_optimization.offload_param", fmt::format("needs stage 3, not {}", stage));
  if (parameters) request["plan"]["offload"] = optimizer ? "optimizer+parameters" : "parameters";
  if ((stage == 1 || stage == 2) && !s.on("zero_optimization.overlap_comm")) request["plan"]["overlap_reduce"] = false;  // its default there
}

}  // namespace

Json from_deepspeed(Settings& s, const ImportContext& context) {
  Json request = Json::object();
  for (const char* key : {"zero_optimization", "zero_optimization.offload_optimizer", "zero_optimization.offload_param", "fp16", "bf16", "bfloat16", "amp", "torch_autocast", "optimizer", "optimizer.params",
                          "scheduler", "activation_checkpointing", "tensor_parallel", "compile", "elasticity", "curriculum_learning", "sparse_attention", "progressive_layer_drop"})
    s.section(key);
  read_batch(s, request);
  read_precision(s, context.linked, request);
  read_zero(s, request);
  if (s.has("optimizer.type")) set_optimizer(s, "optimizer.type", request);
  if (request.contains("optimizer") && request["optimizer"] == "adam" && s.truth("optimizer.params.adam_w_mode").value_or(true)) request["optimizer"] = "adamw";
  if (request.contains("optimizer")) request["optimizer_impl"] = s.on("optimizer.params.torch_adam") ? "foreach" : "fused";  // FusedAdam by default
  if (auto momentum = s.number("optimizer.params.momentum"); momentum && *momentum > 0 && request.value("optimizer", "") == "sgd") request["optimizer"] = "sgd-momentum", request["optimizer_impl"] = "foreach";
  if (auto degree = s.whole("tensor_parallel.autotp_size"); degree && *degree > 1) request["plan"]["tp"] = *degree;
  if (auto degree = s.whole("sequence_parallel_size"); degree && *degree > 1) request["plan"]["cp"] = *degree, request["plan"]["cp_exchange"] = "all_to_all";
  if (s.on("compile.enabled")) request["mode"] = "compile";
  s.refuse("compile.deepcompile", "DeepCompile's own schedule is not modelled");
  // Both are about checkpoints: whoever says so has them.
  const bool to_host = s.on("activation_checkpointing.cpu_checkpointing"), shared = s.on("activation_checkpointing.partition_activations");
  if (to_host || shared) request["recompute"] = "full";
  if (to_host) request["plan"]["offload"] = request["plan"].contains("offload") ? request["plan"]["offload"].get<std::string>() + "+activations" : "activations";
  if (shared && request["plan"].value("tp", 1) > 1) request["plan"]["share_checkpoints"] = true;
  else if (shared) s.note("activation_checkpointing.partition_activations shares checkpoints out among ranks that split layers, of which the file says nothing: say plan.share_checkpoints with --tp");
  s.refuse("quantize_training.enabled", "quantised training is not modelled");
  s.refuse("elasticity.enabled", "the batch of an elastic job changes with its GPUs; set the batch you have");
  s.refuse("curriculum_learning.enabled", "the sequence length changes as training goes; set the one you want predicted");
  s.refuse("sparse_gradients", "gradients sent as indices and rows are not modelled");
  s.refuse("sparse_attention.mode", "sparse attention is not modelled");
  s.refuse("progressive_layer_drop.enabled", "layers that are dropped by chance are not modelled");
  bool checkpoints = false;
  for (const std::string& key : s.keys()) checkpoints = checkpoints || key.starts_with("activation_checkpointing.");
  if (checkpoints && !to_host && !shared) s.note("activation_checkpointing says how, not whether: say --recompute full where the model checkpoints its layers");
  s.harmless({"optimizer.params.*", "scheduler.*", "steps_per_print", "wall_clock_breakdown", "dump_state", "fp16.*", "bf16.*", "bfloat16.*", "amp.*", "torch_autocast.*",
              "activation_checkpointing.*", "tensorboard.*", "wandb.*", "csv_monitor.*", "comet.*", "monitor_config.*", "comms_logger.*", "flops_profiler.*", "autotuning.*",
              "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "prescale_gradients", "gradient_predivide_factor", "checkpoint.*", "data_types.grad_accum_dtype", "aio.*",
              "logging.*", "memory_breakdown", "communication_data_type", "seed", "disable_allgather", "zero_optimization.overlap_comm",
              "zero_optimization.contiguous_gradients", "zero_optimization.reduce_scatter", "zero_optimization.*bucket_size", "zero_optimization.allgather_partitions",
              "zero_optimization.sub_group_size", "zero_optimization.stage3_*", "zero_optimization.round_robin_gradients", "zero_optimization.ignore_unused_parameters",
              "zero_optimization.mics_hierarchical_params_gather", "zero_optimization.elastic_checkpoint", "zero_optimization.load_from_fp32_weights",
              "zero_optimization.cpu_offload*", "zero_optimization.legacy_stage1", "zero_optimization.memory_efficient_linear", "zero_optimization.zero_hpz_partition_size",
              "compile.*", "data_efficiency.enabled", "gradient_accumulation_dtype", "graph_harvesting", "use_data_before_expert_parallel_"});
  return request;
}

}  // namespace precog
