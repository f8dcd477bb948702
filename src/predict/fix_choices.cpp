#include "predict/fix_choices.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/text.h"

namespace precog {
namespace {

constexpr int kLossPieces[] = {8, 64};
constexpr std::int64_t kTokensOfPiece = 1024;  // at least
constexpr int kMostWays = 8;       // a layer is split, inside a node
constexpr int kMostTimes = 16;     // more stages than now
constexpr int kLayersOfStage = 2;  // at least
constexpr int kMostExperts = 64;   // more GPUs that share them than now
constexpr int kMostLarger = 8;     // times the job's batch, where fewer replicas leave each as much
constexpr int kMostShared = 16;               // GPUs that share a sequence
constexpr double kFractions[] = {0.25, 0.5, 0.75, 1};  // of the optimizer, on the host

class FixChoices {
 public:
  FixChoices(const Json& request, const Report& base, const Request& parsed, const Catalog& catalog)
      : request_(request), base_(base), parsed_(parsed), catalog_(catalog) {}

  std::vector<FixChoice> run() {
    precisions();
    shardings();
    splits();
    offloads();
    kernels();
    recomputations();
    batches();
    return std::move(out_);
  }

 private:
  void add(FixAxis axis, std::string change, std::string flags, std::string note, Json patch) {
    out_.push_back({.axis = axis, .change = std::move(change), .flags = std::move(flags), .note = std::move(note), .patch = std::move(patch)});
  }
  bool is(const char* key, const char* value) const { return base_.request.value(key, "") == value; }

  void precisions() {
    if (!request_.contains("precision") || !request_["precision"].is_string()) return;
    const std::string given = request_["precision"].get<std::string>();
    if (given.ends_with(".json")) return;
    const std::string name = given.substr(0, given.find('+'));
    auto recipe = [&](const char* other, FixResult result, const char* numerics, bool full = false) {
      const auto known = catalog_.precision(other);
      if (!known || (*known)->name == name || (*known)->name == parsed_.precision->name) return;
      FixChoice one{.axis = FixAxis::precision, .change = fmt::format("precision {}", other), .numerics = numerics, .result = result, .recipe = other};
      if (!full || parsed_.plan.fsdp == Sharding::full) return out_.push_back(std::move(one));
      one.shards = true;
      for (const auto& [kind, said] : {std::pair{"full", "fully sharded"}, {"zero2", "gradients and states sharded"}, {"hybrid", "fully sharded inside nodes"}}) {
        if (kind == std::string_view("hybrid") && base_.gpus <= parsed_.cluster.gpus_per_node) continue;
        out_.push_back(one);
        out_.back().change += fmt::format(", {}", said);
        out_.back().flags = fmt::format("--fsdp {}", kind);
        out_.back().patch = {{"plan", {{"fsdp", kind}}}};
      }
    };
    const PrecisionRecipe& now = *parsed_.precision;
    const bool bf16 = base_.peak_16bit == "bf16";  // else the GPU has fp16 only
    const bool plain = !now.autocast && !now.master_weights && now.parameters == DType::fp32;
    if (plain) recipe(bf16 ? "amp-bf16" : "amp-fp16", FixResult::close, bf16 ? "products and what is saved of them in bf16; weights stay in fp32" : "products and what is saved of them in fp16, with loss scaling; weights stay in fp32");
    if ((plain || now.autocast) && !now.fp8 && bf16 && base_.gpus > 1) {
      recipe("fsdp-bf16", FixResult::narrow, "every operator in bf16, also those that autocast keeps in fp32 (norms, softmax, loss), and gradients are summed in bf16; weights are updated in fp32", true);
      recipe("fsdp-bf16-fp32reduce", FixResult::narrow, "every operator in bf16, also those that autocast keeps in fp32 (norms, softmax, loss); weights are updated in fp32", true);
    }
    if ((plain || now.autocast) && !now.fp8 && bf16)
      recipe("bf16-master", FixResult::narrow, "every operator in bf16, also those that autocast keeps in fp32 (norms, softmax, loss); the optimizer updates weights of its own in fp32");
    if (now.parameters == DType::fp32 || now.master_weights)
      recipe(bf16 ? "bf16" : "fp16", FixResult::other, bf16 ? "weights themselves are rounded to 16 bits; small updates are lost" : "weights in fp16 without loss scaling; training often diverges");
    auto part = [&](const char* extra, const char* change, const char* numerics) {
      if (given.find("optimizer-") != std::string::npos || base_.request.value("optimizer", "") == "sgd") return;
      added(FixAxis::states, extra, change, numerics);
    };
    if (now.optimizer_state == DType::fp32) part("optimizer-bf16", "optimizer states in bf16", "moments rounded to 8 bits of mantissa");
    part("optimizer-8bit", "optimizer states in 8 bits", "states quantised by blocks (bitsandbytes)");
    if (now.main_gradients && now.main_gradients->dtype == DType::fp32 && now.parameters == DType::bf16)
      added(FixAxis::gradients, "main-gradients-bf16", "gradients added up in bf16", "gradients are added up, and summed over replicas, in bf16");
    if (now.fp8 && !now.gathers_fp8) added(FixAxis::precision, "fp8-all-gather", "weights of fp8 layers kept and gathered in fp8", "fp8 weights come from the optimizer's, not from rounded ones");
  }
  void added(FixAxis axis, const char* part, const char* change, const char* numerics) {
    out_.push_back({.axis = axis, .change = change, .numerics = numerics, .result = FixResult::close, .part = part});
  }

  // Replicas share out what they have in common, not the GPUs that a model is split over.
  void shardings() {
    if (base_.gpus < 2) return;
    const Json given = request_.value("plan", Json::object());
    const bool settled = parsed_.replicas.by_module.has_value();  // ZeRO 3 by modules: as full as it gets
    const bool shards = parsed_.plan.fsdp != Sharding::none, sized = given.contains("shard_size") || given.contains("replicate");  // no flag takes those back
    const auto put = [&](const char* kind, std::string change, const char* note) {
      if (given.value("fsdp", shards ? "full" : "none") != kind) add(FixAxis::sharding, std::move(change), fmt::format("--fsdp {}", kind), note, {{"plan", {{"fsdp", kind}}}});
    };
    if (!settled && !sized) {
      put("none", "nothing shared out", "every replica with all of it");
      put("zero1", "shard over replicas: zero1", "shares out optimizer states");
      put("zero2", "shard over replicas: zero2", "and gradients");
      put("full", "shard over replicas: full", "and the weights, gathered when needed");
      if (base_.gpus > parsed_.cluster.gpus_per_node) put("hybrid", "shard over a node's replicas: hybrid", "all of it inside a node, replicas across nodes");
    }
    if (!shards && !parsed_.replicas.bucket_views)
      add(FixAxis::sharding, "gradients in their buckets", "--bucket-views", "DistributedDataParallel's gradient_as_bucket_view: kept once, not twice", {{"plan", {{"bucket_views", true}}}});
    if (settled && parsed_.replicas.by_module->secondary > 1)
      add(FixAxis::sharding, "no second copy of the weights", "--secondary-ranks 1", "ZeRO++'s, for backward", {{"plan", {{"zero3", {{"secondary_ranks", 1}}}}}});
  }

  // Fewer replicas, each over more GPUs, or more of them over fewer than the job says; the global batch stays.
  void splits() {
    const Plan& plan = parsed_.plan;
    if (plan.tp > 1 && !plan.sp && parsed_.model->language)
      add(FixAxis::stages, "sequences split between layers", "--sp", "sequence parallelism: norms and dropouts over the GPUs that share a layer", {{"plan", {{"sp", true}}}});
    if (plan.pp > 1 && (plan.schedule == PipelineSchedule::gpipe || plan.schedule == PipelineSchedule::dualpipe || plan.schedule == PipelineSchedule::zero_bubble))
      add(FixAxis::stages, "stages alternate between forward and backward", "--schedule 1f1b",
          plan.schedule == PipelineSchedule::gpipe ? "as many micro-batches at once as stages, not all of them" : plan.schedule == PipelineSchedule::dualpipe ? "one chunk of the model on each stage, not two" : "weights' gradients at once, a longer bubble", {{"plan", {{"schedule", "1f1b"}}}});
    if (plan.vpp > 1)
      add(FixAxis::stages, "one chunk of layers per stage", "--vpp 1 --schedule 1f1b", "fewer micro-batches in flight, a longer bubble", {{"plan", {{"vpp", 1}, {"schedule", "1f1b"}}}});
    if (!parsed_.model->language || base_.gpus < 2 || parsed_.replicas.shard_size > 0) return;
    const int node = parsed_.cluster.gpus_per_node;
    for (int tp = 1; tp <= std::max(plan.tp, std::min(kMostWays, node)); tp *= 2)
      degree(FixAxis::tp, "tp", tp, plan.tp, tp == 1 ? "layers not split" : fmt::format("layers split over {} GPUs", tp), "tensor and sequence parallelism: exchanges in every layer");
    for (int cp = 1; cp <= std::max(plan.cp, kMostShared); cp *= 2)
      degree(FixAxis::cp, "cp", cp, plan.cp, cp == 1 ? "sequences not shared" : fmt::format("sequences shared by {} GPUs", cp), "context parallelism: keys and values travel");
    if (plan.exchange == ContextExchange::ring)
      add(FixAxis::exchange, "heads exchanged for tokens", "--cp-exchange all_to_all", "Ulysses: no keys and values of others beside one's own", {{"plan", {{"cp_exchange", "all_to_all"}}}});
    const std::int64_t layers = parsed_.inputs.layers.value_or(parsed_.model->layers);
    for (int pp = 1; pp <= kMostTimes * plan.pp && plan.stage_layers.empty(); pp *= 2) {
      const bool named = request_.contains("plan") && request_["plan"].is_object() && request_["plan"].contains("schedule");
      if (pp > plan.pp && (layers <= kLayersOfStage * pp || parsed_.model->encoder_decoder)) break;
      if (pp == 1 ? named : plan.vpp > 1) continue;  // a schedule asks for stages
      degree(FixAxis::pp, "pp", pp, plan.pp, pp == 1 ? "no pipeline" : fmt::format("a pipeline of {} stages", pp), "fewer replicas, each of several stages");
    }
    for (int ep = 1; ep <= kMostExperts * plan.ep && ep <= base_.gpus; ep *= 2)  // a model without experts refuses theirs
      degree(FixAxis::ep, "ep", ep, plan.ep, ep == 1 ? "every GPU with all experts" : fmt::format("experts shared by {} GPUs", ep), "tokens travel to their experts");
  }
  void degree(FixAxis axis, const char* name, int value, int now, std::string said, const char* note) {
    if (value == now) return;
    std::string flags = fmt::format("--{} {}", name, value);
    Json patch = {{"plan", {{name, value}}}};
    if (axis == FixAxis::tp && value > 1 && !parsed_.plan.sp) flags += " --sp", patch["plan"]["sp"] = true;
    if (axis == FixAxis::tp && value == 1 && parsed_.plan.sp) patch["plan"]["sp"] = false, flags += " --sp=false";
    if (axis == FixAxis::pp && value == 1 && parsed_.plan.vpp > 1) flags += " --vpp 1", patch["plan"]["vpp"] = 1;
    add(axis, std::move(said), std::move(flags), value > now ? note : "each over fewer GPUs", std::move(patch));
    set_value(value, now);
  }

  void offloads() {
    const std::string given = request_.contains("plan") && request_["plan"].is_object() && request_["plan"].contains("offload") && request_["plan"]["offload"].is_string()
                                  ? request_["plan"]["offload"].get<std::string>() : "none";
    const bool moves = parsed_.replicas.offload_layers > 0;
    auto put = [&](const char* change, const char* what, const char* note) {
      if (given == what || moves) return false;
      add(FixAxis::offload, change, fmt::format("--offload {}", what), note, {{"plan", {{"offload", what}}}});
      return true;
    };
    const std::string optimizer = base_.request.value("optimizer", "");
    const bool adam = optimizer == "adam" || optimizer == "adamw", whole = base_.gpus > 1 && parsed_.plan.fsdp != Sharding::full;
    if (adam) {
      put("optimizer on the host", "optimizer", "states and master weights in the host's memory, updated there");
      const bool partly = parsed_.replicas.offload_optimizer && parsed_.replicas.offload_fraction < 1;
      for (double part : kFractions)
        if (given == "none" ? part < 1 : partly && given == "optimizer" && part > parsed_.replicas.offload_fraction)
          add(FixAxis::offload, fmt::format("{:g}% of the optimizer on the host", 100 * part), fmt::format("--offload optimizer --offload-fraction {:g}", part),
              "its states and master weights in the host's memory, updated there beside the GPU's", {{"plan", {{"offload", "optimizer"}, {"offload_fraction", part}}}});
      // ZeRO 1 and 2 send new weights up in fp32, all at once; ZeRO 3 does not, also on one GPU.
      if (parsed_.plan.replicas() == 1 && parsed_.plan.fsdp != Sharding::full && !moves)
        add(FixAxis::offload, "optimizer on the host by ZeRO 3", "--fsdp full --offload optimizer", "states and master weights in the host's memory, updated there; new weights come up in their own type",
            {{"plan", {{"offload", "optimizer"}, {"fsdp", "full"}}}});
      if (put("optimizer and parameters on the host", "optimizer+parameters", "each layer's weights come up when it is their turn")) out_.back().needs_full = whole;
    }
    if (base_.memory.optimizer.value > 0 || parsed_.replicas.offload_optimizer) {
      // As the optimizer is, and with one that makes no lists of what passes.
      const auto updated = [&](const char* change, const char* what, const char* note, bool shards) {
        if (!put(change, what, note)) return;
        out_.back().needs_full = shards;
        if (!is("optimizer_impl", "foreach")) return;
        FixChoice fused = out_.back();
        fused.change += " in one kernel";
        fused.flags += " --optimizer-impl fused";
        fused.patch["optimizer_impl"] = "fused";
        out_.push_back(std::move(fused));
      };
      updated("optimizer states on the host, updated by the GPU", "states", "they pass through it once a step (llm.q)", false);
      updated("optimizer states and parameters on the host, updated by the GPU", "states+parameters", "weights come up layer by layer, states once a step (llm.q)", whole);
    }
    if (put("parameters on the host", "parameters", "each layer's weights come up when it is their turn (llm.q)")) out_.back().needs_full = whole;
    if (is("mode", "eager") && is("recompute", "none") && given == "none" && put("activations on the host", "activations", "what layers keep for backward goes down and comes back"))
      out_.back().by_layers = "offload_layers";
  }

  void kernels() {
    if (is("mode", "eager") && parsed_.stack == Stack::pytorch && !parsed_.software)
      add(FixAxis::mode, "torch.compile", "--mode compile", "recomputes cheap operators instead of keeping their results", {{"mode", "compile"}});
    if (is("mode", "compile-cudagraphs"))
      add(FixAxis::mode, "no CUDA graphs", "--mode compile", "what a graph holds is held between steps", {{"mode", "compile"}});
    if (parsed_.attention == Attention::eager)
      add(FixAxis::attention, "attention as one operator", "--attention sdpa", "scores are never written out", {{"attention", "sdpa"}});
    if (is("optimizer_impl", "foreach"))
      add(FixAxis::optimizer, "fused optimizer", "--optimizer-impl fused", "no copies of the second moments", {{"optimizer_impl", "fused"}});
    if (is("memory_format", "contiguous") && base_.by_op_class.count("convolution"))
      add(FixAxis::format, "channels_last memory format", "--memory-format channels_last", "no layout copies around convolutions", {{"memory_format", "channels_last"}});
    const std::int64_t tokens = base_.batch * base_.seq / std::max(1, parsed_.plan.cp);
    for (int pieces : kLossPieces)
      if (parsed_.model->language && parsed_.training.loss_chunks < pieces && (pieces == kLossPieces[0] || tokens / pieces >= kTokensOfPiece))
        add(FixAxis::loss, fmt::format("head and loss in {} pieces", pieces), fmt::format("--loss-chunks {}", pieces),
            "the scores never all at once (Liger's fused linear cross-entropy)", {{"loss_chunks", pieces}});
    if (parsed_.training.allocator == Allocator::caching)
      add(FixAxis::allocator, "expandable segments", "--allocator expandable", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", {{"allocator", "expandable"}});
  }

  // From little to everything; of as few layers as are enough. Layers that the job names itself are named again, all of them at most.
  void recomputations() {
    const bool moves = parsed_.replicas.offload_layers > 0, every = parsed_.checkpoints.every > 1;
    if (moves && request_["plan"].contains("offload_layers")) return;  // no flag takes them back
    if (is("recompute", "full") && !every && parsed_.checkpoints.first == 0) return;
    const auto put = [&](const char* change, const char* what, const char* note) {
      if (is("recompute", what) && !every && parsed_.checkpoints.first == 0) return;
      Json patch = {{"recompute", what}};
      std::string flags = fmt::format("--recompute {}", what);
      if (every) flags += " --recompute-every 1", patch["recompute_every"] = 1;
      if (moves) flags += " --offload none", patch["plan"]["offload"] = "none";
      add(FixAxis::recompute, change, flags, note, patch);
      if (!every) out_.back().by_layers = "recompute_layers";
    };
    const auto put_moved = [&](const char* change, const char* what, const char* note) {
      if (every || moves || parsed_.checkpoints.first > 0 || parsed_.replicas.offload_optimizer || request_.value("plan", Json::object()).contains("offload") || !is("mode", "eager")) return;
      add(FixAxis::recompute, change, fmt::format("--recompute {} --offload activations", what), note, {{"recompute", what}, {"plan", {{"offload", "activations"}}}});
      out_.back().by_layers = "recompute_layers";
      out_.back().moves = true;
    };
    // Only what is more than the job recomputes already; what is less is sought from the job without (FixUndone).
    const bool nothing = is("recompute", "none"), attention = is("recompute", "selective");
    const bool convolutions = base_.by_op_class.count("convolution") && !base_.by_op_class.count("attention");
    if (nothing && !convolutions) put("recompute attention only", "selective", "what lies between queries, keys, values and their result");
    if (nothing && !convolutions) {
      put("recompute norms", "norm", "no product is run twice");
      put("recompute norms and activation functions", "norm+activation", "no product is run twice");
      put("recompute norms and MLPs", "norm+mlp", "attention is kept");
    }
    if ((nothing || attention) && !convolutions) {
      put("recompute norms, activation functions and attention", "norm+activation+core", "no product with weights is run twice");
      if (nothing) put_moved("recompute norms and MLPs, the rest on the host", "norm+mlp", "attention is not run twice; what layers keep goes down and comes back");
      if (nothing) put_moved("recompute norms and activation functions, the rest on the host", "norm+activation", "no product is run twice; what layers keep goes down and comes back");
      put_moved("recompute norms, activation functions and attention, the rest on the host", "norm+activation+core", "no product with weights is run twice; what layers keep goes down and comes back");
      put("recompute all but products and attention", "per-op", "torchtitan's op-wise choice: every other product is kept, too");
    }
    put_moved("recompute activations, what layers begin with on the host", "full", "a second forward pass per layer; checkpoints go down and come back");
    put("recompute activations", "full", "a second forward pass per layer");
  }

  // The same step in smaller pieces, about half as many each time, down to one sample.
  void batches() {
    if (parsed_.model->fixed_batch || base_.largest_batch) return;  // the batch is what is sought
    const std::int64_t each = base_.batch * base_.micro_batches;
    std::int64_t last = base_.batch;
    std::vector<std::int64_t> found;
    for (std::int64_t batch = base_.batch - 1; batch >= 1; --batch) {
      if (each % batch != 0 || (batch > 1 && batch * 4 > last * 3)) continue;
      found.push_back(last = batch);
    }
    for (std::int64_t batch : found) batch_of(batch, "batch {} and accumulation", "the same step in smaller pieces");
    const bool larger = base_.micro_batches > 1 || (base_.gpus > 1 && parsed_.model->language);
    for (int times = 2; larger && times <= kMostLarger; times *= 2) batch_of(times * base_.batch, "batch {}", "the same step in larger pieces");
  }
  void batch_of(std::int64_t batch, const char* said, const char* note) {
    add(FixAxis::batch, fmt::format(fmt::runtime(said), batch), fmt::format("--batch {}", batch), note, {{"batch", batch}});
    set_value(batch, base_.batch);
  }
  void set_value(std::int64_t value, std::int64_t now) {
    out_.back().value = value;
    out_.back().steps = static_cast<std::int16_t>(std::lround(std::log2(static_cast<double>(value) / static_cast<double>(now))));
  }

  const Json& request_;
  const Report& base_;
  const Request& parsed_;
  const Catalog& catalog_;
  std::vector<FixChoice> out_;
};

}  // namespace

std::vector<FixChoice> fix_choices(const Json& request, const Report& base, const Request& parsed, const Catalog& catalog) {
  return FixChoices(request, base, parsed, catalog).run();
}

}  // namespace precog
