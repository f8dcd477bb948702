// torchtitan's TOML (torchtitan/config: JobConfig). Data parallelism is FSDP2's fully_shard; without shards it is DDP with autocast.
#include <map>

#include <fmt/format.h>

#include "base/text.h"
#include "import/formats.h"

namespace precog {
namespace {

// torchtitan/models/*/__init__.py: flavors whose sizes are those of a model of ours.
const std::map<std::string, std::string>& flavors() {
  static const std::map<std::string, std::string> kKnown = {
      {"llama3/8b", "llama3-8b"}, {"llama3/70b", "llama3-70b"}, {"llama3/405b", "llama3-405b"}, {"llama3.1/8b", "llama3-8b"}, {"llama2/7b", "llama2-7b"},
      {"llama2/13b", "llama2-13b"}, {"llama2/70b", "llama2-70b"}, {"deepseek-v3/671b", "deepseek-v3"}};
  return kKnown;
}

void read_model(Settings& s, const ImportContext& context, Json& request) {
  const std::string name = s.text("model.name").value_or(""), flavor = s.text("model.flavor").value_or("");
  if (!context.model_wanted) return;
  const auto known = flavors().find(normalised_name(name) + "/" + normalised_name(flavor));
  if (known != flavors().end()) request["model"] = known->second;
  else if (!name.empty() || !flavor.empty())
    s.problem("model.flavor", fmt::format("'{}' of '{}' is no model that is known here; say which it is: --model NAME, a config.json, or a captured graph", flavor.substr(0, 40), name.substr(0, 40)));
}

struct Degrees {
  std::int64_t replicate = 1, shard = -1, tp = 1, pp = 1, cp = 1;
};

Degrees read_degrees(Settings& s, Json& plan) {
  Degrees d;
  auto degree = [&](const char* name, std::int64_t fallback) {
    for (const char* section : {"parallelism.", "training.", "experimental."})  // where older versions had them
      if (auto found = s.whole(std::string(section) + name)) {
        if (*found == 0 || *found < -1) s.problem(std::string(section) + name, fmt::format("is {}; a degree is at least 1 (data_parallel_shard_degree: or -1, all that are left)", *found));
        return *found;
      }
    return fallback;
  };
  d.replicate = degree("data_parallel_replicate_degree", 1);
  d.shard = degree("data_parallel_shard_degree", -1);
  d.tp = degree("tensor_parallel_degree", 1);
  d.pp = degree("pipeline_parallel_degree", 1);
  d.cp = degree("context_parallel_degree", 1);
  const std::int64_t ep = degree("expert_parallel_degree", 1), etp = degree("expert_tensor_parallel_degree", 1);  // its default: experts are whole
  plan["tp"] = d.tp, plan["pp"] = d.pp, plan["cp"] = d.cp;
  if (d.tp > 1) plan["sp"] = true;  // its plans for TP always share the sequence out between split layers
  if (d.tp > 1 && (s.on("parallelism.enable_async_tensor_parallel") || s.on("experimental.enable_async_tensor_parallel"))) plan["tp_overlap"] = true;
  if (ep > 1) plan["ep"] = ep;
  if (ep > 1 && etp != d.tp) plan["etp"] = etp;
  const bool shards = d.shard != 1;
  const std::string reshard = s.text("parallelism.fsdp_reshard_after_forward").value_or("default");
  const bool keeps = reshard == "never" || (reshard == "default" && d.pp > 1);  // with a pipeline parameters stay, or every micro-batch would gather them
  if (reshard != "default" && reshard != "always" && reshard != "never")
    s.problem("parallelism.fsdp_reshard_after_forward", fmt::format("is '{}'; known: default, always, never", reshard.substr(0, 40)));
  plan["fsdp"] = !shards ? "none" : keeps ? "zero2" : d.replicate > 1 ? "hybrid" : "full";
  if (shards && d.replicate > 1) plan["replicate"] = d.replicate;
  if (d.shard > 0) plan["dp"] = d.replicate * d.shard;
  return d;
}

void read_schedule(Settings& s, const Degrees& d, Json& plan) {
  const std::string name = normalised_name(s.text("parallelism.pipeline_parallel_schedule").value_or(s.text("experimental.pipeline_parallel_schedule").value_or("1F1B")));
  if (d.pp == 1) return;
  if (name == "1f1b" || name == "gpipe") plan["schedule"] = name;
  else if (name == "interleaved1f1b") plan["schedule"] = "interleaved", plan["vpp"] = 2;  // two stages per rank unless layers say otherwise
  else if (name == "zbvzerobubble") plan["schedule"] = "zbv";
  else s.problem("parallelism.pipeline_parallel_schedule", fmt::format("is '{}'; modelled: 1F1B, GPipe, Interleaved1F1B, ZBVZeroBubble (--schedule zb or dualpipe come nearest to others)", name.substr(0, 40)));
}

void read_batch(Settings& s, const Degrees& d, Json& request) {
  auto local = s.whole("training.local_batch_size");
  if (!local) local = s.whole("training.batch_size");
  const auto global = s.has("training.global_batch_size") && s.whole("training.global_batch_size").value_or(0) > 0 ? s.give(request, "global_batch", "training.global_batch_size") : std::nullopt;
  if (auto seq = s.whole("training.seq_len")) request["seq"] = *seq;
  if (d.pp > 1) {  // a rank's batch is cut into micro-batches
    const std::int64_t micro = s.whole("parallelism.pipeline_parallel_microbatch_size").value_or(1);
    if (!local) return;
    request["batch"] = micro;
    if (micro < 1 || *local % micro != 0) s.problem("parallelism.pipeline_parallel_microbatch_size", fmt::format("is {}; it must divide the local batch of {}", micro, *local));
    else if (!(global && *global > 0)) request["micro_batches"] = *local / micro;
  } else if (local) {
    s.give(request, "batch", s.has("training.local_batch_size") ? "training.local_batch_size" : "training.batch_size");
  }
}

void read_precision(Settings& s, const Json& plan, Json& request) {
  const std::string own = s.text("training.dtype").value_or("float32");
  const std::string wide = s.text("training.mixed_precision_param").value_or("bfloat16"), reduced = s.text("training.mixed_precision_reduce").value_or("float32");
  const bool shards = sharding_said(plan) != "none";
  std::string name = "fp32-default";
  if (own == "bfloat16") name = "bf16";
  else if (wide == "bfloat16" && shards) name = reduced == "float32" ? "fsdp-bf16-fp32reduce" : "fsdp-bf16";
  else if (wide == "bfloat16") name = "amp-bf16";
  else if (wide != "float32") s.problem("training.mixed_precision_param", fmt::format("is '{}'; modelled: bfloat16, float32", wide.substr(0, 40)));
  bool fp8 = false, mx = false;
  if (const Json* converters = s.raw("model.converters"); converters && converters->is_array())
    for (const Json& one : *converters) {
      const std::string converter = one.is_string() ? one.get<std::string>() : "";
      if (converter == "float8" || converter == "quantize.linear.float8") fp8 = true;
      else if (converter == "mx" || converter == "quantize.linear.mx") mx = true;
      else s.problem("model.converters", fmt::format("has '{}'; modelled: float8, mx", converter.substr(0, 40)));
    }
  fp8 = fp8 || s.on("float8.enable_float8_linear");
  auto of_float8 = [&](const char* key) { return s.has(std::string("quantize.linear.float8.") + key) ? std::string("quantize.linear.float8.") + key : std::string("float8.") + key; };
  const std::string recipe = s.text(of_float8("recipe_name")).value_or("tensorwise");
  const bool gathers = s.on(of_float8("enable_fsdp_float8_all_gather"));
  if (fp8) {
    if (recipe != "tensorwise" && recipe != "rowwise") s.problem(of_float8("recipe_name"), fmt::format("is '{}'; modelled: tensorwise, rowwise", recipe.substr(0, 40)));
    name += recipe == "rowwise" ? "+fp8-rowwise-layers" : "+fp8-layers";
    if (gathers && shards) name += "+fp8-all-gather";
  }
  if (mx) name += "+te-mxfp8", s.note("MX layers are modelled as Transformer Engine's MXFP8, one quantising kernel per operand");
  request["precision"] = name;
}

void read_recompute(Settings& s, Json& request) {
  const std::string mode = s.text("activation_checkpoint.mode").value_or("none"), option = s.text("activation_checkpoint.selective_ac_option").value_or("2");
  if (mode == "none" || mode == "full") request["recompute"] = mode;
  else if (mode == "selective" && option == "op") request["recompute"] = "per-op";
  else if (mode == "selective") {
    request["recompute"] = "full";
    if (auto every = s.whole("activation_checkpoint.selective_ac_option"); every && *every > 1) request["recompute_every"] = *every;
  } else {
    s.problem("activation_checkpoint.mode", fmt::format("is '{}'; modelled: none, selective, full", mode.substr(0, 40)));
  }
}

}  // namespace

Json from_torchtitan(Settings& s, const ImportContext& context) {
  Json request = Json::object();
  read_model(s, context, request);
  Json plan = Json::object();
  const Degrees degrees = read_degrees(s, plan);
  read_schedule(s, degrees, plan);
  read_batch(s, degrees, request);
  read_precision(s, plan, request);
  read_recompute(s, request);
  request["plan"] = plan;
  if (s.has("optimizer.name")) set_optimizer(s, "optimizer.name", request);
  const std::string impl = s.text("optimizer.implementation").value_or(s.truth("optimizer.fused").value_or(true) ? "fused" : "foreach");
  if (impl == "fused" || impl == "foreach" || impl == "for-loop") request["optimizer_impl"] = impl;
  else s.problem("optimizer.implementation", fmt::format("is '{}'; modelled: fused, foreach, for-loop", impl.substr(0, 40)));
  const double norm = s.number("training.max_norm").value_or(1);
  if (norm > 0) request["clip_grad_norm"] = norm;
  if (auto steps = s.whole("training.steps")) request["run"]["steps"] = *steps;
  if (s.on("compile.enable") || s.on("training.compile")) request["mode"] = "compile";
  request["attention"] = "sdpa-causal";  // torchtitan/models/attention.py: is_causal, compiled too
  if (s.on("training.enable_cpu_offload")) request["plan"]["offload"] = "optimizer+parameters";  // CPUOffloadPolicy: gradients go down, the host updates
  s.harmless({"job.*", "profiling.*", "metrics.*", "checkpoint.*", "comm.*", "lr_scheduler.*", "optimizer.*", "validation.*", "debug.*", "fault_tolerance.*", "memory_estimation.*",
              "model.tokenizer_path", "model.hf_assets_path", "model.norm_type", "model.print_after_conversion", "training.dataset*", "training.warmup_steps", "training.seed",
              "training.deterministic", "training.gc_freq", "training.gc_debug", "compile.*", "float8.*", "quantize.*", "mx.*", "activation_checkpoint.*",
              "parallelism.disable_loss_parallel", "parallelism.context_parallel_rotate_method", "parallelism.enable_compiled_autograd"});
  return request;
}

}  // namespace precog
