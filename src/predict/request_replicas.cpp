// How data-parallel ranks share parameters, gradients and states, and what they leave to the host.
#include <algorithm>

#include "predict/request_reader.h"

namespace precog {

// How data-parallel ranks share gradients and states: groups that each hold all shards (hybrid), buckets, the optimizer on the host.
void RequestReader::read_replicas(JsonReader& plan, std::int64_t dp) {
  Replicas& out = request_.replicas;
  const bool hybrid = plan.text("fsdp").value_or("") == "hybrid", shards = request_.plan.fsdp != Sharding::none;
  auto size = plan.integer("shard_size", 1, kMaxGpus), copies = plan.integer("replicate", 1, kMaxGpus);
  if (size && copies && *size * *copies != dp)
    plan.problem("replicate", fmt::format("is {} and shard_size {}; together they must make dp = {}: leave one out", *copies, *size, dp));
  for (auto [key, value] : {std::pair{"shard_size", size}, {"replicate", copies}}) {
    if (!value) continue;
    if (!shards) plan.problem(key, "says how many ranks share one copy: it needs fsdp hybrid (or zero1, zero2, full)");
    else if (dp % *value != 0) plan.problem(key, fmt::format("is {}; it must divide dp = {}", *value, dp));
  }
  if (hybrid && !size && !copies) {  // FSDP's own default: shards inside a node, replicas across
    const std::int64_t inside = request_.cluster.gpus_per_node / std::max(1, request_.plan.tp * request_.plan.cp);
    size = dp <= inside ? dp : inside;
    if (inside < 1 || dp % *size != 0)
      plan.problem("fsdp", fmt::format("is 'hybrid', and a node has {} GPUs for {} x {} ranks of one replica: say shard_size, how many of dp = {} share one copy",
                                       request_.cluster.gpus_per_node, request_.plan.tp, request_.plan.cp, dp));
  }
  if (!size && copies) size = std::max<std::int64_t>(1, dp / *copies);
  if (size && *size < dp) out.shard_size = static_cast<int>(std::max<std::int64_t>(1, *size));
  // torchtitan's experts borrow ranks of one group only (parallel_dims.py); Megatron's optimizer instances divide the experts' own replicas.
  const Plan& p = request_.plan;
  if (out.shard_size > 0 && p.experts_own_replicas() && static_cast<std::int64_t>(out.shard_size) * p.cp * p.tp % p.ranks_of_experts() != 0)
    plan.problem(plan.has("replicate") && !plan.has("shard_size") ? "replicate" : plan.has("shard_size") ? "shard_size" : "fsdp",
                 fmt::format("makes groups of {} x cp x tp = {} ranks, of which ep x etp = {} share the experts out: a group must have whole sets of them", out.shard_size, static_cast<std::int64_t>(out.shard_size) * p.cp * p.tp, p.ranks_of_experts()));
  read_offload(plan, shards, dp);
  out.share_checkpoints = plan.boolean("share_checkpoints").value_or(false);
  if (out.share_checkpoints && (request_.plan.tp == 1 || request_.plan.sp))
    plan.problem("share_checkpoints", request_.plan.tp == 1 ? "is about ranks that split layers: it needs a tp of at least 2" : "and sp exclude each other: with sequence parallelism each rank has its part already (Megatron refuses both)");
  read_module_gathers(plan);
  read_unit_gathers(plan);
  out.overlap_gather = plan.boolean("overlap_gather").value_or(false);
  if (out.overlap_gather && request_.plan.fsdp != Sharding::zero1 && request_.plan.fsdp != Sharding::zero2)
    plan.problem("overlap_gather", "is a distributed optimizer's: it needs fsdp zero1 or zero2 (fully sharded parameters are always gathered beside compute)");
  out.overlap_reduce = plan.boolean("overlap_reduce").value_or(true);
  if (!out.overlap_reduce && request_.plan.fsdp == Sharding::full)
    plan.problem("overlap_reduce", "is false, but fully sharded gradients are reduced beside backward, block by block: it needs fsdp none, zero1 or zero2");
  if (!out.overlap_reduce && out.overlap_gather) plan.problem("overlap_gather", "needs overlap_reduce (Megatron refuses --overlap-param-gather without --overlap-grad-reduce, too)");
  // Who says a size of buckets says the first one's, too (torch/nn/parallel/distributed.py, bucket_bytes_cap_default).
  if (auto bucket = plan.integer("bucket_mb", 1, 65536)) out.bucket = out.first_bucket = {*bucket << 20};
  if (auto first = plan.integer("first_bucket_mb", 1, 65536)) out.first_bucket = {*first << 20};
  out.bucket_views = plan.boolean("bucket_views").value_or(false);
  out.find_unused = plan.boolean("find_unused").value_or(false);
  for (const char* key : {"comm_hook", "ddp_comm_hook"})
    if (plan.text(key)) plan.problem(key, "is part of the precision here: +gradients-bf16 or +gradients-fp16 (as amp-bf16+gradients-bf16)");
  for (const char* key : {"bucket_mb", "first_bucket_mb", "bucket_views", "find_unused"})
    if (plan.has(key) && shards) plan.problem(key, "is DistributedDataParallel's: it needs fsdp none");
}

// FSDP's own settings; what DeepSpeed calls otherwise is read_module_gathers'.
void RequestReader::read_unit_gathers(JsonReader& plan) {
  UnitGathers& out = request_.replicas.gathers;
  if (const Json* wrap = plan.raw("wrap")) {
    using Unit = UnitGathers::Unit;
    if (*wrap == "module" || *wrap == "model") out.unit = *wrap == "module" ? Unit::module : Unit::model;
    else if (wrap->is_number_integer() && *wrap >= 1 && *wrap <= 4096) out.layers = wrap->get<int>();
    else if (*wrap != "layer") plan.problem("wrap", fmt::format("is {}; known: layer (or a number of layers from 1 to 4096), module, model: what is gathered together", wrap->dump().substr(0, 40)));
    check_layers(plan, "wrap", out.layers);
  }
  using Backward = UnitGathers::Backward;
  out.backward = choice<Backward>(plan, "backward_prefetch", {{"pre", Backward::before}, {"post", Backward::after}, {"none", Backward::none}}, Backward::before);
  // Where the host waits for experts' counts in every layer it cannot run ahead: torchtitan then asks for the next layer's parameters itself.
  out.forward_ahead = plan.boolean("forward_prefetch").value_or(request_.plan.ep > 1);
  out.limited = plan.boolean("limit_all_gathers").value_or(true);
  if (!out.limited) request_.warnings.push_back("limit_all_gathers false: how many gathered layers are in memory at once then depends on how far the host runs ahead; two are counted");
  for (const char* key : {"wrap", "backward_prefetch", "forward_prefetch", "limit_all_gathers"}) {
    if (!plan.has(key)) continue;
    if (request_.plan.fsdp != Sharding::full) plan.problem(key, "is FSDP's: it needs fsdp full or hybrid");
    else if (plan.has("zero3")) plan.problem(key, "is FSDP's, and zero3 DeepSpeed's: leave one out");
  }
}

void RequestReader::read_module_gathers(JsonReader& plan) {
  auto given = plan.object("zero3");
  if (!given) return;
  ModuleGathers out;
  for (auto [key, field] : {std::pair{"prefetch_elements", &out.prefetch}, {"live_elements", &out.live}, {"reuse_elements", &out.reuse}, {"persistent_elements", &out.persistent}, {"reduce_elements", &out.reduced}})
    *field = given->integer(key, 0, std::int64_t{1} << 50).value_or(*field);
  out.lists = given->boolean("lists").value_or(false);
  read_zero_plus_plus(*given, out);
  given->reject_unknown_keys();
  if (request_.plan.ep > 1) plan.problem("zero3", "is DeepSpeed's, which refuses experts of their own ranks (ep) at stage 3; its stages 1 and 2 and FSDP (leave zero3 out) take them");
  if (request_.plan.fsdp != Sharding::full) plan.problem("zero3", "says how parameters are gathered module by module: it needs fsdp zero3 (or full, hybrid)");
  request_.replicas.by_module = out;
}

// ZeRO++: a second copy for backward, and messages of fewer bits. DeepSpeed lays its groups over all ranks of the job.
void RequestReader::read_zero_plus_plus(JsonReader& zero3, ModuleGathers& out) {
  const Plan& plan = request_.plan;
  const std::int64_t ranks = request_.cluster.gpus, node = request_.replicas.node_ranks;
  const auto second = zero3.integer("secondary_ranks", 1, kMaxGpus);
  if (second && *second > 1) out.secondary = static_cast<int>(*second);
  if (out.secondary > 1 && ranks % out.secondary != 0) zero3.problem("secondary_ranks", fmt::format("is {}; groups that share a second copy of the weights must divide {} ranks", out.secondary, ranks));
  out.quantised_weights = zero3.boolean("quantised_weights").value_or(false);
  out.quantised_gradients = zero3.boolean("quantised_gradients").value_or(false);
  if (out.quantised_gradients && ranks % node != 0) zero3.problem("quantised_gradients", fmt::format("are exchanged inside nodes first: {} ranks are no whole number of nodes of {}", ranks, node));
  else if (out.quantised_gradients && ranks <= node) request_.warnings.push_back("quantised_gradients: on one node DeepSpeed reduces gradients as without it");
  if (out.secondary == 0 && !out.quantised_weights && !out.quantised_gradients) return;
  const char* first = out.secondary > 0 ? "secondary_ranks" : out.quantised_weights ? "quantised_weights" : "quantised_gradients";
  if (plan.tp * plan.cp * plan.pp > 1) zero3.problem(first, "is ZeRO++, which groups all ranks of the job: it needs tp, cp and pp of 1");
  if (request_.replicas.shard_size > 0) zero3.problem(first, "is ZeRO++, and a shard_size MiCS: leave one out");
  if (request_.replicas.offload_parameters) zero3.problem(first, "together with parameters on the host (offload) is not modelled");
  if (request_.replicas.offload_optimizer && out.quantised_gradients) zero3.problem("quantised_gradients", "together with an optimizer on the host (offload) is not modelled");
}

void RequestReader::read_offload(JsonReader& plan, bool shards, std::int64_t dp) {
  Replicas& out = request_.replicas;
  const int node = std::max(1, std::min(request_.cluster.gpus_per_node, request_.cluster.gpus));
  out.node_ranks = node;
  const std::string given = plan.text("offload").value_or("none");
  bool activations = false;
  const std::vector<std::string> parts = joined_parts(given);
  for (const std::string& part : parts) {
    if (std::count(parts.begin(), parts.end(), part) > 1 && &part == &*std::find(parts.begin(), parts.end(), part))
      plan.problem("offload", fmt::format("is '{}', which names {} twice: once is enough", given.substr(0, 80), part.empty() ? "nothing" : part.substr(0, 40)));
    if (part == "optimizer" || part == "offload_optimizer") out.offload_optimizer = true;
    else if (part == "states") out.offload_states = true;
    else if (part == "master") out.offload_master = true;
    else if (part == "parameters" || part == "offload_param") out.offload_parameters = true;
    else if (part == "activations") activations = true;
    else if (part != "none" || given != "none")
      plan.problem("offload", fmt::format("is '{}'; known: none, or of optimizer (updated on the host, DeepSpeed's offload_optimizer), states (kept there, updated on the GPU: llm.q's), master, parameters (DeepSpeed's offload_param), activations one or several joined by +", given.substr(0, 80)));
  }
  const auto layers = plan.integer("offload_layers", 1, 4096);
  if (layers && !activations) plan.problem("offload_layers", "says of how many layers activations are on the host: it needs offload activations");
  check_layers(plan, "offload_layers", layers.value_or(0));
  if (activations) out.offload_layers = static_cast<int>(layers.value_or(4096));
  if (out.offload_optimizer && out.offload_states) plan.problem("offload", "is optimizer, which the host updates, and states, which the GPU updates: choose one");
  out.offload_fraction = plan.number("offload_fraction", 0, 1).value_or(1);
  if (plan.has("offload_fraction") && !out.offload_optimizer) plan.problem("offload_fraction", "says how much of the optimizer is on the host: it needs offload optimizer");
  if (out.offload_fraction == 0) out.offload_fraction = 1, out.offload_optimizer = false;
  if (out.offload_fraction < 1 && out.offload_parameters) plan.problem("offload_fraction", "leaves a part of the optimizer on the GPU, and offload has parameters on the host: not modelled together");
  if (!out.offloads()) return;
  const Plan& p = request_.plan;
  const bool copies_of_experts = p.experts_own_replicas() && dp * p.tp * p.cp > p.ranks_of_experts();
  if (!shards && (dp > 1 || copies_of_experts) && (out.offload_optimizer || out.offload_states || out.offload_master))
    plan.problem("offload", "of the optimizer needs its states to be shared out: fsdp zero1, zero2 or full (DeepSpeed refuses it without, too)");
  if (out.offload_parameters && dp > 1 && request_.plan.fsdp != Sharding::full)
    plan.problem("offload", "of parameters needs them to be shared out: fsdp full (DeepSpeed's offload_param is of stage 3 only)");
  if (request_.plan.pp > 1 && layers)
    plan.problem("offload_layers", "together with a pipeline (pp): Megatron's cpu_offloading_num_layers refuses it, too; leave it out for all layers (its fine-grained offloading, DeepSpeed's cpu_checkpointing)");
}

// Recipes of fully_shard's own (fp32 shards that are cast as they are gathered, weights that travel in fp8) are nothing without
// it: on several GPUs they imply it.
void RequestReader::settle_sharding() {
  if (sharding_given_ && request_.plan.fsdp != Sharding::none && request_.plan.replicas() == 1 && !request_.replicas.offloads())
    request_.warnings.push_back(fmt::format("fsdp {}: one rank has nothing to share out{}; leave it out, or add GPUs", to_text(request_.plan.fsdp),
                                            request_.plan.fsdp == Sharding::full ? ", and gathers its parameters from itself" : ""));
  if (!request_.precision) return;
  const PrecisionRecipe& recipe = *request_.precision;
  const bool by_optimizer = recipe.fp8 && recipe.fp8->fused;  // converted where the optimizer is shared out, with any sharding
  if (!((recipe.gathers_fp8 && !by_optimizer) || (recipe.master_weights && recipe.master_weights->copied == MasterWeights::Copied::on_gather))) return;
  Sharding& sharding = request_.plan.fsdp;
  if (request_.plan.dp > 1 && !sharding_given_) sharding = Sharding::full;
  if (request_.plan.dp > 1 && (sharding == Sharding::none || sharding == Sharding::zero1))
    root_.problem("plan.fsdp", fmt::format("is {}; precision '{}' casts parameters as they are gathered, so it must be full or zero2 (or left out); FSDP's NO_SHARD is hybrid with shard_size 1",
                                           to_text(sharding), recipe.name));
}

// The host has the gradients that it reads: none are kept in another type on the GPU.
void RequestReader::settle_offload() {
  if (!request_.precision || !request_.replicas.offload_optimizer || !request_.precision->main_gradients) return;
  auto recipe = std::make_shared<PrecisionRecipe>(*request_.precision);
  if (recipe->main_gradients->made == MainGradients::Made::after_reduce) return;
  recipe->main_gradients->made = MainGradients::Made::at_step;
  if (!request_.own_precision) request_.inline_precision = recipe->name;
  request_.own_precision = recipe;
  request_.precision = request_.own_precision.get();
}

}  // namespace precog
