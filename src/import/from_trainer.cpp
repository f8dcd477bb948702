// Hugging Face TrainingArguments, as JSON or YAML (also the recipes that hold a model and data beside them, as TRL's and
// LLaMA-Factory's scripts take).
#include <fmt/format.h>

#include "base/text.h"
#include "import/formats.h"

namespace precog {
namespace {

void read_optimizer(Settings& s, Json& request) {
  const std::string name = normalised_name(s.text("optim").value_or("adamw_torch_fused"));
  if (name == "adamw-torch" || name == "adamw-hf") request["optimizer"] = "adamw", request["optimizer_impl"] = "foreach";
  else if (name == "adamw-torch-fused" || name == "adamw-apex-fused") request["optimizer"] = "adamw", request["optimizer_impl"] = "fused";
  else if (name == "adamw-bnb-8bit" || name == "adamw-8bit" || name == "paged-adamw-8bit") request["optimizer"] = "adamw", request["eight_bit"] = true;
  else if (name == "sgd") request["optimizer"] = "sgd";
  else s.problem("optim", fmt::format("is '{}'; modelled: adamw_torch, adamw_torch_fused, adamw_bnb_8bit, sgd", name.substr(0, 40)));
}

// Whether anything is said.
bool read_fsdp_words(Settings& s, Json& request) {
  std::string said;
  if (const Json* value = s.raw("fsdp")) {
    if (value->is_array())
      for (const Json& one : *value) said += (one.is_string() ? one.get<std::string>() : "") + " ";
    else if (value->is_boolean()) said = value->get<bool>() ? "full_shard" : "";
    else if (value->is_string()) said = value->get<std::string>();
  }
  if (said.empty()) return false;
  const auto says = [&](const char* word) { return said.find(word) != std::string::npos; };
  if (says("hybrid_shard_zero2")) s.problem("fsdp", "hybrid_shard_zero2: the node's GPUs are not in the file; say hybrid_shard here and --fsdp zero2 --shard-size N");
  else if (says("hybrid_shard")) request["plan"]["fsdp"] = "hybrid";
  else if (says("full_shard")) request["plan"]["fsdp"] = "full";
  else if (says("shard_grad_op")) request["plan"]["fsdp"] = "zero2";
  else if (says("no_shard")) request["plan"]["fsdp"] = "none";
  else s.problem("fsdp", fmt::format("is '{}'; modelled: full_shard, shard_grad_op, hybrid_shard, no_shard", said.substr(0, 60)));
  if (says("offload")) request["plan"]["offload"] = "optimizer+parameters";
  if (s.on("fsdp_config.activation_checkpointing")) request["recompute"] = "full";
  return true;
}

}  // namespace

Json from_trainer(Settings& s, const ImportContext& context) {
  Json request = linked_deepspeed(s, "deepspeed", context);
  const bool deepspeed = !request.empty();
  if (!s.give(request, "batch", "per_device_train_batch_size") && !request.contains("batch")) s.note("per_device_train_batch_size is not said: 8, the Trainer's default"), request["batch"] = 8;
  s.give(request, "micro_batches", "gradient_accumulation_steps");
  const double norm = s.number("max_grad_norm").value_or(1);
  if (norm > 0) request["clip_grad_norm"] = norm;
  if (auto steps = s.whole("max_steps"); steps && *steps > 0) request["run"]["steps"] = *steps;
  else if (auto epochs = s.number("num_train_epochs"); epochs && *epochs > 0) s.note("num_train_epochs: an epoch's samples are not in the file; say --epochs and --dataset-samples for the time of the whole run");
  const bool sharded = read_fsdp_words(s, request);
  if (sharded && deepspeed) s.problem("fsdp", "together with deepspeed: the Trainer takes one of them; leave the other out");
  if (!request.contains("optimizer")) read_optimizer(s, request);
  else s.raw("optim");

  if (auto bucket = s.whole("ddp_bucket_cap_mb"); bucket && *bucket > 0) request["plan"]["bucket_mb"] = *bucket;
  if (s.on("ddp_find_unused_parameters")) request["plan"]["find_unused"] = true;
  s.harmless({"ddp_broadcast_buffers"});

  const bool fp16 = s.on("fp16"), bf16 = s.on("bf16"), tf32 = s.on("tf32");
  const std::string loaded = normalised_name(s.text(s.has("torch_dtype") ? "torch_dtype" : "dtype").value_or("float32"));
  if (fp16 && bf16) s.problem("bf16", "and fp16 exclude each other");
  const bool fsdp = request.contains("plan") && sharding_said(request["plan"]) != "none" && !deepspeed;
  if (!deepspeed) {
    std::string name = tf32 ? "tf32" : "fp32-default";
    if (loaded == "bfloat16") name = "bf16";
    else if (bf16) name = fsdp ? "fsdp-bf16" : "amp-bf16";
    else if (fp16) name = fsdp ? "fsdp-fp16" : "amp-fp16";
    if (request.contains("eight_bit")) name += "+optimizer-8bit";
    request["precision"] = name;
  } else if ((fp16 || bf16) && !request.contains("precision")) {
    request["precision"] = bf16 ? "deepspeed-bf16" : "deepspeed-fp16";
  } else if (fp16 || bf16) {  // its DeepSpeed file says so itself: the Trainer stops where the two differ
    if (request["precision"].get<std::string>().find(bf16 ? "bf16" : "fp16") == std::string::npos)
      s.problem(bf16 ? "bf16" : "fp16", fmt::format("is true, and its DeepSpeed file says {}: make them agree, or leave \"auto\" there", request["precision"] == "fp32-default" ? std::string("that neither is enabled") : request["precision"].get<std::string>()));
  } else if (!request.contains("precision")) {
    request["precision"] = "fp32-default";
  }
  request.erase("eight_bit");

  if (s.on("gradient_checkpointing")) request["recompute"] = "full";
  if (s.on("torch_compile")) request["mode"] = "compile";
  for (const char* key : {"max_seq_length", "max_length", "cutoff_len", "block_size", "sequence_len", "model_max_length"})
    if (auto seq = s.whole(key); seq && !request.contains("seq")) request["seq"] = *seq;
  const auto attention = s.text("attn_implementation");
  if (attention && *attention == "flash_attention_2") request["attention"] = "flash";
  else if (attention && (*attention == "eager" || *attention == "sdpa")) request["attention"] = *attention;
  const auto model = s.text("model_name_or_path");
  if (model && context.model_wanted) request["model"] = *model;
  for (const char* key : {"use_peft", "use_lora", "load_in_4bit", "load_in_8bit", "lora_r"}) s.refuse(key, "adapters and quantised weights are not read from these settings; capture the model with them (docs/how_to/capture_a_model.md)");
  s.refuse("auto_find_batch_size", "the batch is found by trying; say the one you want predicted (or predict --max-batch)");
  s.refuse("use_cpu", "training on a CPU is not modelled");
  s.refuse("packing", "several samples packed into one sequence: say a batch and a --seq that hold what a step holds, and set it to false");
  s.harmless({"output_dir", "overwrite_output_dir", "do_*", "eval_*", "evaluation_*", "per_device_eval_batch_size", "logging_*", "save_*", "learning_rate", "lr_*", "warmup_*", "weight_decay", "adam_*",
              "report_to", "run_name", "seed", "data_seed", "dataset*", "dataloader_*", "push_to_hub", "hub_*", "load_best_model_at_end", "metric_for_best_model", "greater_is_better", "remove_unused_columns",
              "label_*", "group_by_length", "length_column_name", "ddp_timeout", "ddp_backend", "disable_tqdm", "log_level*", "resume_from_checkpoint", "trust_remote_code", "tokenizer_*", "config_name", "cache_dir",
              "gradient_checkpointing_kwargs.*", "fsdp_config.*", "fsdp_min_num_params", "fsdp_transformer_layer_cls_to_wrap", "accelerator_config.*", "torch_compile_*", "local_rank", "half_precision_backend",
              "fp16_*", "bf16_full_eval", "tf32", "include_*", "preprocessing_*", "prediction_loss_only", "past_index", "no_cuda", "use_mps_device", "jit_mode_eval", "optim_args", "skip_memory_metrics",
              "num_train_epochs", "max_train_samples", "max_eval_samples", "average_tokens_across_devices", "chat_template", "stage", "template", "finetuning_type"});
  return request;
}

}  // namespace precog
