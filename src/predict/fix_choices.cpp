#include "predict/fix_choices.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

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
constexpr std::size_t kFirstBatches = 3;
constexpr std::int64_t kWorthSharing = 4096, kLongSequence = 8192;  // tokens of a sequence that GPUs of a node share; the second: that each GPU has left of one that nodes share
constexpr int kMostShared = 16;               // GPUs that share a sequence

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
      for (const auto& [kind, said] : {std::pair{"full", "fully sharded"}, {"zero2", "gradients and states sharded"}}) {
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
    if ((plain || now.autocast) && !now.fp8 && bf16 && parsed_.plan.dp > 1) {
      recipe("fsdp-bf16", FixResult::narrow, "every operator in bf16, also those that autocast keeps in fp32 (norms, softmax, loss), and gradients are summed in bf16; weights are updated in fp32", true);
      recipe("fsdp-bf16-fp32reduce", FixResult::narrow, "every operator in bf16, also those that autocast keeps in fp32 (norms, softmax, loss); weights are updated in fp32", true);
    }
    if ((plain || now.autocast) && !now.fp8 && bf16 && parsed_.plan.fsdp != Sharding::full)
      recipe("bf16-master", FixResult::narrow, "every operator in bf16, also those that autocast keeps in fp32 (norms, softmax, loss); the optimizer updates weights of its own in fp32");
    if (now.parameters == DType::fp32 || now.master_weights)
      recipe(bf16 ? "bf16" : "fp16", FixResult::other, bf16 ? "weights themselves are rounded to 16 bits; small updates are lost" : "weights in fp16 without loss scaling; training often diverges");
    auto part = [&](const char* extra, const char* change, const char* numerics) {
      if (given.find("optimizer-") != std::string::npos || base_.request.value("optimizer", "") == "sgd") return;
      out_.push_back({.axis = FixAxis::states, .change = change, .numerics = numerics, .result = FixResult::close, .part = extra});
    };
    if (now.optimizer_state == DType::fp32) part("optimizer-bf16", "optimizer states in bf16", "moments rounded to 8 bits of mantissa");
    part("optimizer-8bit", "optimizer states in 8 bits", "states quantised by blocks (bitsandbytes)");
  }

  // Replicas share out what they have in common, not the GPUs that a model is split over.
  void shardings() {
    if (parsed_.plan.dp < 2) return;
    constexpr const char *kKinds[] = {"zero1", "zero2", "full"}, *kNotes[] = {"shares out optimizer states", "and gradients", "and the weights, gathered when needed"};
    const std::string among = fmt::format("shard over the {} {}", parsed_.plan.dp, parsed_.plan.dp == base_.gpus ? "GPUs" : "replicas");
    const int now = parsed_.replicas.shard_size > 0 ? 2 : static_cast<int>(parsed_.plan.fsdp);
    const bool settled = parsed_.replicas.by_module.has_value();  // ZeRO 3 by modules: as full as it gets
    for (int i = now; i < 3 && !settled; ++i) {
      if (i == 2 && parsed_.plan.ep > 1) break;
      Json patch = {{"plan", {{"fsdp", kKinds[i]}}}};
      if (request_.contains("plan") && request_["plan"].is_object())
        for (const char* key : {"shard_size", "replicate"})
          if (request_["plan"].contains(key)) patch["plan"][key] = nullptr;
      if (patch["plan"].size() > 1) continue;  // no flag takes them back
      add(FixAxis::sharding, fmt::format("{}: {}", among, kKinds[i]), fmt::format("--fsdp {}", kKinds[i]), kNotes[i], patch);
    }
    const int inside = parsed_.cluster.gpus_per_node / std::max(1, parsed_.plan.tp * parsed_.plan.cp);
    if (parsed_.plan.fsdp != Sharding::full && inside > 1 && parsed_.plan.dp > inside && parsed_.plan.dp % inside == 0 && parsed_.plan.ep == 1)
      add(FixAxis::sharding, fmt::format("shard over the {} GPUs of a node: hybrid", inside), "--fsdp hybrid", "all of it inside a node, replicas across nodes", {{"plan", {{"fsdp", "hybrid"}}}});
  }

  // Fewer replicas, each over more GPUs, or more of them over fewer than the job says; the global batch stays.
  void splits() {
    const Plan& plan = parsed_.plan;
    if (plan.tp > 1 && !plan.sp && parsed_.model->language)
      add(FixAxis::split, "sequences split between layers", "--sp", "sequence parallelism: norms and dropouts over the GPUs that share a layer", {{"plan", {{"sp", true}}}});
    if (plan.pp > 1 && (plan.schedule == PipelineSchedule::gpipe || plan.schedule == PipelineSchedule::dualpipe))
      add(FixAxis::split, "stages alternate between forward and backward", "--schedule 1f1b",
          plan.schedule == PipelineSchedule::gpipe ? "as many micro-batches at once as stages, not all of them" : "one chunk of the model on each stage, not two", {{"plan", {{"schedule", "1f1b"}}}});
    if (plan.vpp > 1)
      add(FixAxis::split, "one chunk of layers per stage", "--vpp 1 --schedule 1f1b", "fewer micro-batches in flight, a longer bubble", {{"plan", {{"vpp", 1}, {"schedule", "1f1b"}}}});
    if (!parsed_.model->language || base_.gpus < 2 || parsed_.replicas.shard_size > 0) return;
    // Each degree by itself, then all together; a model without experts refuses theirs.
    const int node = parsed_.cluster.gpus_per_node;
    std::vector<int> tps = {plan.tp}, cps = {plan.cp}, pps = {plan.pp}, eps = {plan.ep};
    if (plan.dp > 1) {
      for (int tp = 2 * plan.tp; tp <= std::min(kMostWays, node / std::max(1, plan.cp)); tp *= 2) tps.push_back(tp);
      if (base_.seq >= kWorthSharing && plan.cp == 1)
        for (int cp = 2; cp <= kMostShared && shareable(plan.tp, cp); cp *= 2) cps.push_back(cp);
      if (plan.vpp == 1 && plan.stage_layers.empty())
        for (int times = 2; times <= kMostTimes; times *= 2) pps.push_back(plan.pp * times);
    }
    const auto fewer = [](std::vector<int>& degrees, int now) {
      for (; now % 2 == 0; now /= 2) degrees.push_back(now / 2);
    };
    fewer(tps, plan.tp), fewer(cps, plan.cp);
    if (plan.vpp == 1 && plan.stage_layers.empty()) fewer(pps, plan.pp);
    if (plan.fsdp != Sharding::full)
      for (int ep = 2 * plan.ep; ep <= std::min(kMostExperts * plan.ep, plan.dp * plan.tp * plan.cp); ep *= 2) eps.push_back(ep);
    const int inside = std::min(node / std::max(1, plan.cp * plan.tp), kMostWays), widest = *std::max_element(tps.begin(), tps.end());
    for (int ways = 1; ways <= 4; ++ways)
      for (int ep : eps)
        for (int tp : tps)
          for (int cp : cps)
            for (int pp : pps) {
              if ((ep != plan.ep) + (tp != plan.tp) + (cp != plan.cp) + (pp != plan.pp) != ways || (tp * cp > plan.tp * plan.cp && !shareable(tp, cp))) continue;
              const bool first = ep != plan.ep ? ways == 1 && (plan.ep == 1 ? ep == inside : ep <= 4 * plan.ep) : pp == plan.pp || (cp == plan.cp && (tp == plan.tp || tp == widest));
              put_split(tp, cp, pp, ep, first);
            }
  }
  // Inside a node; across nodes where each GPU has a long sequence left.
  bool shareable(int tp, int cp) const { return tp * cp <= parsed_.cluster.gpus_per_node || (cp > 1 && base_.seq / cp >= kLongSequence); }
  // Experts stay on as many GPUs as now, or as there are in a stage then.
  void put_split(int tp, int cp, int pp, int ep, bool first) {
    const Plan& plan = parsed_.plan;
    const bool given = request_.contains("plan") && request_["plan"].contains("dp");
    const int ways_now = plan.tp * plan.cp * plan.pp, split_ways = tp * cp * pp;
    const std::int64_t layers = parsed_.inputs.layers.value_or(parsed_.model->layers);
    if (plan.dp * ways_now % split_ways != 0 || (pp > plan.pp && (layers <= kLayersOfStage * pp || parsed_.model->encoder_decoder))) return;
    const int dp = plan.dp * ways_now / split_ways, ranks = tp * cp * dp;
    const int asked = ep;
    while (ep > 1 && ep == plan.ep && ranks % ep != 0) ep /= 2;
    if (ep > ranks || ranks % (asked == plan.ep ? ep : ep * tp) != 0) return;  // an expert is split as layers are
    std::vector<std::string> words, flags;
    std::string note = "fewer replicas, each of several stages";
    Json patch = {{"plan", Json::object()}};
    const auto degree = [&](const char* name, int value, int before, std::string said) {
      if (value == before) return;
      words.push_back(std::move(said));
      flags.push_back(fmt::format("--{} {}", name, value));
      patch["plan"][name] = value;
    };
    degree("ep", ep, plan.ep, fmt::format("experts shared by {} GPUs", ep));
    degree("tp", tp, plan.tp, tp == 1 ? "layers not split" : fmt::format("layers split over {} GPUs", tp));
    if (tp > plan.tp && !plan.sp) flags.push_back("--sp"), patch["plan"]["sp"] = true;
    degree("cp", cp, plan.cp, cp == 1 ? "sequences not shared" : fmt::format("sequences shared by {} GPUs", cp));
    degree("pp", pp, plan.pp, pp == 1 ? "no pipeline" : fmt::format("a pipeline of {} stages", pp));
    if (dp > plan.dp) note = "more replicas, each over fewer GPUs";
    else if (ep != plan.ep && dp == plan.dp) note = "tokens travel to their experts";
    else if (tp > plan.tp) note = "tensor and sequence parallelism: exchanges in every layer";
    else if (cp > plan.cp) note = "context parallelism: keys and values travel";
    const bool single = dp * cp == 1;
    if (single && parsed_.plan.fsdp != Sharding::none && !parsed_.replicas.offloads() && request_.contains("plan") && request_["plan"].contains("fsdp")) flags.push_back("--fsdp none"), patch["plan"]["fsdp"] = "none";
    if (given && dp != plan.dp) flags.push_back(fmt::format("--dp {}", dp)), patch["plan"]["dp"] = dp;
    const std::array<std::pair<char, int>, 4> ways = {{{'e', asked == plan.ep ? 0 : asked}, {'t', tp == plan.tp ? 0 : tp}, {'c', cp == plan.cp ? 0 : cp}, {'p', pp == plan.pp ? 0 : pp}}};
    std::vector<std::size_t> parts;
    std::size_t count = 0;
    for (const auto& way : ways) {
      if (way.second == 0) continue;
      ++count;
      if (const auto known = one_way_.find(way); known != one_way_.end()) parts.push_back(known->second);
    }
    if (count > 1 && parts.size() < count) return;  // one of them cannot be had
    add(FixAxis::split, join(words, " in "), join(flags, " "), note, patch);
    out_.back().first = first;
    out_.back().single = single;
    const auto over = [](int now, int before) { return static_cast<std::int16_t>(std::lround(std::log2(static_cast<double>(now) / before))); };
    out_.back().degrees = {over(tp, plan.tp), over(cp, plan.cp), over(pp, plan.pp), over(ep, plan.ep)};
    if (count > 1) out_.back().parts = std::move(parts);
    else
      for (const auto& way : ways)
        if (way.second != 0) one_way_[way] = out_.size() - 1;
  }

  void offloads() {
    const Json plan = base_.request.value("plan", Json::object());
    if (plan.value("pp", 1) > 1 || plan.value("ep", 1) > 1) return;
    const std::string given = request_.contains("plan") && request_["plan"].is_object() && request_["plan"].contains("offload") && request_["plan"]["offload"].is_string()
                                  ? request_["plan"]["offload"].get<std::string>() : "none";
    const bool moves = parsed_.replicas.offload_layers > 0;
    auto put = [&](const char* change, const char* what, const char* note) {
      if (given == what || moves) return false;
      add(FixAxis::offload, change, fmt::format("--offload {}", what), note, {{"plan", {{"offload", what}}}});
      return true;
    };
    const std::string optimizer = base_.request.value("optimizer", "");
    const bool adam = optimizer == "adam" || optimizer == "adamw", whole = parsed_.plan.dp > 1 && parsed_.plan.fsdp != Sharding::full;
    if (adam) {
      put("optimizer on the host", "optimizer", "states and master weights in the host's memory, updated there");
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
      if (every || moves || parsed_.checkpoints.first > 0 || parsed_.plan.pp > 1 || parsed_.plan.ep > 1 || parsed_.replicas.offload_optimizer || request_.value("plan", Json::object()).contains("offload") || !is("mode", "eager")) return;
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
      if (nothing) put_moved("recompute norms and activation functions, the rest on the host", "norm+activation", "no product is run twice; what layers keep goes down and comes back");
      put_moved("recompute norms, activation functions and attention, the rest on the host", "norm+activation+core", "no product with weights is run twice; what layers keep goes down and comes back");
      put("recompute all but products and attention", "per-op", "torchtitan's op-wise choice: every other product is kept, too");
    }
    put("recompute activations", "full", "a second forward pass per layer");
  }

  // The same step in smaller pieces, about half as many each time: the first ones, to go with other changes, those about as large as would fit
  // if what is not weights and states grew with the batch, and one sample at a time.
  void batches() {
    if (parsed_.model->fixed_batch) return;
    const std::int64_t each = base_.batch * base_.micro_batches;
    std::int64_t last = base_.batch;
    std::vector<std::int64_t> found;
    for (std::int64_t batch = base_.batch - 1; batch >= 1; --batch) {
      if (each % batch != 0 || (batch > 1 && batch * 4 > last * 3)) continue;
      found.push_back(last = batch);
    }
    const MemoryUse& use = base_.memory;
    const auto resident = static_cast<double>((use.parameters + use.gradients + use.optimizer).value), all = static_cast<double>(use.device.value);
    const double fitting = all > resident ? static_cast<double>(base_.batch) * (static_cast<double>(use.capacity.value) - resident) / (all - resident) : 0;
    std::size_t likely = 0;
    while (likely < found.size() && static_cast<double>(found[likely]) > fitting) ++likely;
    for (std::size_t i = 0; i < found.size(); ++i) {
      const bool near = likely < found.size() && i + 1 >= likely && i <= likely + 1;
      if (i >= kFirstBatches && !near && i + 1 < found.size()) continue;
      add(FixAxis::batch, fmt::format("batch {} and accumulation", found[i]), fmt::format("--batch {}", found[i]), "the same step in smaller pieces", {{"batch", found[i]}});
    }
  }

  const Json& request_;
  const Report& base_;
  const Request& parsed_;
  const Catalog& catalog_;
  std::vector<FixChoice> out_;
  std::map<std::pair<char, int>, std::size_t> one_way_;  // by degree: splits that change nothing else
};

}  // namespace

std::vector<FixChoice> fix_choices(const Json& request, const Report& base, const Request& parsed, const Catalog& catalog) {
  return FixChoices(request, base, parsed, catalog).run();
}

Fix smaller_batch(std::int64_t batch, const Json& request, const Report& base) {
  Fix out;
  const std::int64_t all = base.global_batch / base.batch * batch;
  out.change = fmt::format("batch {} instead of {}", batch, base.batch);
  out.flags = fmt::format("--batch {}", batch);
  out.request = {{"batch", batch}};
  if (request.contains("global_batch")) {
    out.flags += fmt::format(" --global-batch {}", all);
    out.request["global_batch"] = all;
  }
  out.note = fmt::format("a smaller step: {} samples, not {}", all, base.global_batch);
  out.numerics = "fewer samples make a step: more steps for as many samples, and a learning rate of their own";
  out.axes = {static_cast<std::uint8_t>(FixAxis::batch)};
  out.smaller_step = true;
  out.result = static_cast<std::uint8_t>(FixResult::close);
  return out;
}

FixUndone undone(const Json& request) {
  FixUndone out;
  const auto said = [](const Json& where, const char* key) {
    const std::string value = where.contains(key) && where[key].is_string() ? where[key].get<std::string>() : "none";
    return value == "none" ? std::string() : value;
  };
  out.recompute = said(request, "recompute");
  out.by_layers = request.contains("recompute_layers");
  out.every = request.contains("recompute_every");
  if (!request.contains("plan") || !request["plan"].is_object()) return out;
  if (!request["plan"].contains("offload_layers")) out.offload = said(request["plan"], "offload");  // no flag takes those back
  return out;
}

Json without(const FixUndone& undone, const Json& request) {
  Json out = request;
  if (!undone.recompute.empty())
    for (const char* key : {"recompute", "recompute_layers", "recompute_every"}) out.erase(key);
  if (!undone.offload.empty()) out["plan"].erase("offload");
  return out;
}

Fix fix_of_choices(const std::vector<const FixChoice*>& choices, int layers, const Json& request, const Report& base, const FixUndone& undone, int all) {
  Fix out;
  out.request = Json::object();
  std::vector<std::string> words, flags, notes, numerics;
  std::string precision = request.contains("precision") && request["precision"].is_string() ? request["precision"].get<std::string>() : "";
  const std::string before = precision;
  bool batches = false, sayable = true, recomputes = undone.recompute.empty(), offloads = undone.offload.empty();
  for (const FixChoice* choice : choices) {
    const bool recomputed = choice->axis == FixAxis::recompute, moved = choice->moves || choice->axis == FixAxis::offload;
    // What the job says already is not said again.
    const bool whole = layers == 0 || !choice->by_layers;
    if (recomputed && !choice->moves && whole && !undone.by_layers && !undone.every && !recomputes && choice->patch == Json{{"recompute", undone.recompute}}) {
      recomputes = true;
      continue;
    }
    if (moved && !recomputed && whole && !offloads && choice->patch == Json{{"plan", {{"offload", undone.offload}}}}) {
      offloads = true;
      continue;
    }
    recomputes = recomputes || recomputed;
    offloads = offloads || moved;
    if (!choice->recipe.empty()) precision = choice->recipe + (before.find('+') == std::string::npos ? "" : before.substr(before.find('+')));
    if (!choice->part.empty()) precision += "+" + choice->part;
    std::string change = choice->change, flag = choice->flags;
    out.request.merge_patch(choice->patch);
    const int of = layers == 0 && recomputed && undone.by_layers ? all : layers;
    if (recomputed && undone.by_layers && of == 0) out.request["recompute_layers"] = nullptr, sayable = false;
    if (choice->by_layers && of > 0) {
      if (layers > 0) change += fmt::format(" of {} layer{}", layers, layers == 1 ? "" : "s");
      flag += fmt::format(" --{}-layers {}", recomputed ? "recompute" : "offload", of);
      (recomputed ? out.request : out.request["plan"])[choice->by_layers] = of;
      if (choice->moves) flag += fmt::format(" --offload-layers {}", of), out.request["plan"]["offload_layers"] = of;
    }
    if (recomputed && undone.every) flag += " --recompute-every 1", out.request["recompute_every"] = 1;
    words.push_back(change);
    if (!flag.empty()) flags.push_back(flag);
    if (!choice->note.empty() && choices.size() == 1) notes.push_back(choice->note);
    if (!choice->numerics.empty()) numerics.push_back(choice->numerics);
    batches = batches || choice->axis == FixAxis::batch || choice->axis == FixAxis::split;
    out.result = std::max(out.result, static_cast<std::uint8_t>(choice->result));
    out.axes.push_back(static_cast<std::uint8_t>(choice->axis));
  }
  const auto undo = [&](FixAxis axis, const char* said, const char* flag) {
    words.push_back(said);
    flags.push_back(flag);
    out.axes.push_back(static_cast<std::uint8_t>(axis));
  };
  if (!offloads) undo(FixAxis::offload, "nothing on the host", "--offload none"), out.request["plan"]["offload"] = "none";
  if (!recomputes) undo(FixAxis::recompute, "no recomputation", "--recompute none"), out.request["recompute"] = "none";
  if (!recomputes && undone.by_layers) out.request["recompute_layers"] = nullptr, sayable = false;
  if (!recomputes && undone.every) out.request["recompute_every"] = nullptr, sayable = false;
  std::sort(out.axes.begin(), out.axes.end());
  if (precision != before) {
    flags.insert(flags.begin(), "--precision " + precision);
    out.request["precision"] = precision;
  }
  if (batches) {
    flags.push_back(fmt::format("--global-batch {}", base.global_batch));
    out.request["global_batch"] = base.global_batch;
  }
  // A number of micro-batches that the job gives follows from the others.
  if (batches && request.contains("micro_batches")) {
    const Json plan = base.request.value("plan", Json::object());
    const Json changed = out.request.value("plan", Json::object());
    std::int64_t dp = plan.value("dp", std::int64_t{1});
    for (const char* degree : {"tp", "cp", "pp"}) dp = dp * plan.value(degree, std::int64_t{1}) / changed.value(degree, plan.value(degree, std::int64_t{1}));
    const std::int64_t each = base.global_batch / std::max<std::int64_t>(1, out.request.value("batch", base.batch) * dp);
    flags.push_back(fmt::format("--micro-batches {}", each));
    out.request["micro_batches"] = each;
  }
  out.change = join(words, " + ");
  out.flags = sayable ? join(flags, " ") : "";
  out.note = join(notes, "; ");
  out.numerics = join(numerics, "; ");
  return out;
}

}  // namespace precog
