// Megatron-LM's arguments (megatron/training/arguments.py), from a command line, a script or YAML. What an argument's absence means
// there it means here.
#include <algorithm>

#include <fmt/format.h>

#include "base/text.h"
#include "import/formats.h"

namespace precog {
namespace {

class Megatron {
 public:
  Megatron(Settings& s, const ImportContext& context) : s_(s), context_(context) {}

  Json run() {
    read_ranks();
    read_plan();
    read_batch();
    read_model();
    read_precision();
    read_recompute();
    read_rest();
    if (!plan_.empty()) request_["plan"] = plan_;
    mark_harmless();
    return std::move(request_);
  }

 private:
  bool program(std::string_view part) const {
    return std::any_of(context_.programs.begin(), context_.programs.end(), [&](const std::string& one) { return one.find(part) != std::string::npos; });
  }
  // A value that is a variable the script does not set, or has a command compute: an error, unless it is said beside the file or
  // changes nothing but the length of the run. A default in its place would be another job.
  bool unset(const char* key) {
    const Json* value = s_.raw(key);
    if (!value || !value->is_string() || value->get_ref<const std::string&>().find('$') == std::string::npos) return false;
    const std::string shown = value->get<std::string>().substr(0, 60);
    struct Said {
      std::string_view key, field, flag;
    };
    constexpr Said kFields[] = {{"tensor-model-parallel-size", "plan.tp", "--tp"}, {"pipeline-model-parallel-size", "plan.pp", "--pp"}, {"context-parallel-size", "plan.cp", "--cp"},
                                {"expert-model-parallel-size", "plan.ep", "--ep"}, {"micro-batch-size", "batch", "--batch"}, {"global-batch-size", "global_batch", "--global-batch"},
                                {"seq-length", "seq", "--seq"}, {"nproc-per-node", "", ""}, {"nnodes", "", ""}, {"world-size", "", ""}, {"train-iters", "", ""}, {"train-samples", "", ""}};
    constexpr std::string_view kOfTheModel[] = {"num-layers", "hidden-size", "ffn-hidden-size", "num-attention-heads", "num-query-groups", "kv-channels", "max-position-embeddings", "vocab-size",
                                                "padded-vocab-size", "make-vocab-size-divisible-by", "num-experts", "moe-router-topk", "moe-ffn-hidden-size", "moe-shared-expert-intermediate-size"};
    const auto* field = std::find_if(std::begin(kFields), std::end(kFields), [&](const Said& one) { return one.key == key; });
    const bool of_the_model = std::find(std::begin(kOfTheModel), std::end(kOfTheModel), key) != std::end(kOfTheModel);
    const bool listed = field != std::end(kFields), concerns_nothing = listed && field->field.empty();
    if ((listed && !concerns_nothing && context_.said(field->field)) || (of_the_model && !context_.model_wanted)) return true;
    if (concerns_nothing) {
      s_.note(fmt::format("--{} is '{}', which the file does not set: not taken over", key, shown));
    } else if (std::find(reported_.begin(), reported_.end(), key) == reported_.end()) {
      reported_.emplace_back(key);
      s_.problem(key, fmt::format("is '{}', which the file does not set: set it there{}", shown,
                                  listed ? fmt::format(", or say {}", field->flag) : of_the_model ? ", or say the model: --model NAME" : ""));
    }
    return true;
  }
  std::optional<std::int64_t> whole(const char* key) { return unset(key) ? std::nullopt : s_.whole(key); }

  // The launcher's: torchrun, or srun in front of it.
  void read_ranks() {
    const auto each = whole("nproc-per-node"), nodes = whole("nnodes"), world = whole("world-size");
    if (each) request_["cluster"]["gpus_per_node"] = *each;
    if (each && nodes) request_["cluster"]["gpus"] = *each * *nodes;
    else if (world) request_["cluster"]["gpus"] = *world;
    s_.harmless({"node-rank", "rdzv-*", "master-*", "rank", "local-rank", "max-restarts", "standalone", "log-dir", "redirects", "tee", "ntasks*", "gres", "partition", "account", "time", "job-name",
                 "output", "error", "exclusive", "mem", "cpus-per-task", "gpus-per-node", "nodes", "dependency", "container-*", "mpi", "no-python", "module"});
  }

  void read_plan() {
    tp_ = whole("tensor-model-parallel-size").value_or(1);
    pp_ = whole("pipeline-model-parallel-size").value_or(1);
    const std::int64_t cp = whole("context-parallel-size").value_or(1), ep = whole("expert-model-parallel-size").value_or(1);
    plan_["tp"] = tp_, plan_["pp"] = pp_, plan_["cp"] = cp;
    if (tp_ > 1 && s_.on("sequence-parallel")) plan_["sp"] = true;
    if (tp_ > 1 && s_.on("tp-comm-overlap")) plan_["tp_overlap"] = true;
    if (cp > 1) {
      const std::string exchange = s_.text("cp-comm-type").value_or("p2p");
      if (exchange == "p2p" || exchange == "a2a") plan_["cp_exchange"] = exchange == "p2p" ? "ring" : "all_to_all";
      else s_.problem("cp-comm-type", fmt::format("is '{}'; modelled: p2p, a2a", exchange.substr(0, 40)));
    }
    const std::int64_t etp = whole("expert-tensor-parallel-size").value_or(tp_);
    if (ep > 1 || (etp != tp_ && s_.has("num-experts"))) {
      plan_["ep"] = ep;
      if (etp != tp_) plan_["etp"] = etp;
      const std::string dispatcher = s_.text("moe-token-dispatcher-type").value_or("alltoall");
      const bool flex = dispatcher == "flex" || s_.on("moe-enable-deepep");
      if (ep > 1 && flex) plan_["expert_dispatch"] = s_.text("moe-flex-dispatcher-backend").value_or("deepep");
      if (ep > 1 && !flex && dispatcher != "alltoall") s_.problem("moe-token-dispatcher-type", fmt::format("is '{}'; modelled: alltoall, flex", dispatcher.substr(0, 40)));
      if (ep > 1 && s_.on("overlap-moe-expert-parallel-comm")) plan_["expert_overlap"] = true;
    }
    read_pipeline();
    const bool fsdp = s_.on("use-megatron-fsdp") || s_.on("use-custom-fsdp"), torch_fsdp = s_.on("use-torch-fsdp2");
    const std::string strategy = s_.text("data-parallel-sharding-strategy").value_or("no_shard");
    plan_["fsdp"] = s_.on("use-distributed-optimizer") ? "zero1" : "none";
    if (plan_["fsdp"] == "zero1" && s_.on("overlap-param-gather")) plan_["overlap_gather"] = true;
    if (!fsdp && !torch_fsdp && !s_.on("overlap-grad-reduce")) plan_["overlap_reduce"] = false;  // Megatron's default: one exchange when backward is done
    if (torch_fsdp) plan_["fsdp"] = "full";
    if (fsdp) plan_["fsdp"] = strategy == "optim_grads_params" ? "full" : strategy == "optim_grads" ? "zero2" : strategy == "optim" ? "zero1" : "none";
    if (auto instances = whole("num-distributed-optimizer-instances"); instances && *instances > 1) plan_["replicate"] = *instances;
    if (s_.on("optimizer-cpu-offload")) {
      plan_["offload"] = "optimizer";
      if (const double fraction = s_.number("optimizer-offload-fraction").value_or(1); fraction < 1) plan_["offload_fraction"] = fraction;
    }
  }

  // "Et*3|(tt|)*14,t|L": what each chunk has, in the model's order; E embeds, t is a layer, L the loss (pipeline_parallel_layer_layout.py).
  void read_layout(std::string_view text) {
    const std::string plain = written_out(text);
    Json layers = Json::array({0});
    for (const char c : plain) {
      if (c == '|') layers.push_back(0);
      else if (c == 't') layers.back() = layers.back().get<int>() + 1;
      else if (c != 'E' && c != 'L') return s_.problem("pipeline-model-parallel-layout", fmt::format("is '{}'; read are E, t, L, |, (...) and *N", text.substr(0, 80)));
    }
    const auto chunks = static_cast<std::int64_t>(layers.size());
    if (plain.find('E') == std::string::npos || plain.find('E') > plain.find('|') || (plain.rfind('|') != std::string::npos && plain.find('L') < plain.rfind('|')) || plain.find('L') == std::string::npos)
      return s_.problem("pipeline-model-parallel-layout", fmt::format("is '{}'; modelled with the embedding (E) in the first chunk and the loss (L) in the last", text.substr(0, 80)));
    if (chunks % pp_ != 0 || chunks > 4096) return s_.problem("pipeline-model-parallel-layout", fmt::format("has {} chunks, which {} stages cannot share", chunks, pp_));
    if (chunks > pp_) plan_["vpp"] = chunks / pp_;
    plan_["stage_layers"] = layers;
  }

  // Without commas, brackets and numbers of times. What is unheard of stays as it is, for others to refuse.
  static std::string written_out(std::string_view text) {
    constexpr std::size_t kLongest = 100'000;
    std::string out;
    std::vector<std::size_t> opened;
    std::size_t last = 0;  // where what a number repeats begins
    for (std::size_t i = 0; i < text.size() && out.size() < kLongest; ++i) {
      const char c = text[i];
      if (c == '(') opened.push_back(out.size());
      else if (c == ')' && !opened.empty()) last = opened.back(), opened.pop_back();
      else if (c == '*' && !out.empty()) {
        int times = 0;
        for (; i + 1 < text.size() && text[i + 1] >= '0' && text[i + 1] <= '9' && times < 100'000; ++i) times = 10 * times + (text[i + 1] - '0');
        const std::string once = out.substr(last);
        out.resize(last);
        for (int k = 0; k < times && out.size() < kLongest; ++k) out += once;
      } else if (c != ',' && c != ' ') last = out.size(), out += c;
    }
    return out;
  }

  void read_pipeline() {
    const std::int64_t layers = whole("num-layers").value_or(0);
    const auto per_chunk = whole("num-layers-per-virtual-pipeline-stage"), chunks = whole("num-virtual-stages-per-pipeline-rank");
    const auto first = whole("decoder-first-pipeline-num-layers"), last = whole("decoder-last-pipeline-num-layers");
    const auto layout = s_.text("pipeline-model-parallel-layout");
    if (pp_ == 1) return;
    if (layout) return read_layout(*layout);
    std::int64_t vpp = chunks.value_or(1);
    if (per_chunk && *per_chunk > 0 && layers > 0) {
      if (layers % (pp_ * *per_chunk) != 0) s_.problem("num-layers-per-virtual-pipeline-stage", fmt::format("is {}; {} layers on {} stages do not divide so", *per_chunk, layers, pp_));
      else vpp = layers / (pp_ * *per_chunk);
    }
    if (vpp > 1) plan_["vpp"] = vpp;
    if ((first || last) && layers > 0 && vpp == 1) {
      const std::int64_t middle = pp_ - (first ? 1 : 0) - (last ? 1 : 0), rest = layers - first.value_or(0) - last.value_or(0);
      if (middle < 1 || rest < middle || rest % middle != 0 || pp_ > 4096) {
        s_.problem(first ? "decoder-first-pipeline-num-layers" : "decoder-last-pipeline-num-layers", fmt::format("leaves {} of {} layers for {} stages, which do not divide so", rest, layers, middle));
        return;
      }
      Json stages = Json::array();
      for (std::int64_t stage = 0; stage < pp_; ++stage) stages.push_back(first && stage == 0 ? *first : last && stage + 1 == pp_ ? *last : rest / middle);
      plan_["stage_layers"] = stages;
    } else if (first || last) {
      s_.problem("num-virtual-stages-per-pipeline-rank", "together with first and last stages of their own sizes is not read; say plan.stage_layers");
    }
  }

  void read_batch() {
    if (!unset("micro-batch-size")) s_.give(request_, "batch", "micro-batch-size");
    if (!unset("global-batch-size")) s_.give(request_, "global_batch", "global-batch-size");
    if (s_.has("rampup-batch-size")) s_.note("--rampup-batch-size: predicted at the full global batch"), s_.raw("rampup-batch-size");
    if (auto seq = whole("seq-length")) request_["seq"] = *seq;
    if (auto steps = whole("train-iters")) request_["run"]["steps"] = *steps;
    else if (auto samples = whole("train-samples")) request_["run"]["samples"] = *samples;
  }

  std::int64_t vocabulary() {
    if (auto said = whole("padded-vocab-size")) return *said;
    if (auto said = whole("vocab-size")) return *said;
    const std::string tokenizer = s_.text("tokenizer-type").value_or("GPT2BPETokenizer");
    if (tokenizer == "GPT2BPETokenizer") return 50257;
    if (tokenizer == "BertWordPieceLowerCase") return 30522;
    if (context_.model_wanted)
      s_.problem("vocab-size", fmt::format("is not said, and {} takes it from a file; add --vocab-size N to the file, or say the model: --model NAME", tokenizer.substr(0, 60)));
    return 0;
  }

  void read_model() {
    const auto layers = whole("num-layers"), hidden = whole("hidden-size"), heads = whole("num-attention-heads");
    const bool gated = s_.on("swiglu"), relu2 = s_.on("squared-relu"), bias = !s_.on("disable-bias-linear"), qkv_bias = s_.on("add-qkv-bias"), qk_norm = s_.on("qk-layernorm");
    const bool rms = s_.text("normalization").value_or("LayerNorm") == "RMSNorm", tied = !s_.on("untie-embeddings-and-output-weights");
    const std::string positions = s_.text("position-embedding-type").value_or("learned_absolute");
    const bool rope = positions == "rope" || s_.on("use-rotary-position-embeddings");
    const double dropout = s_.number("hidden-dropout").value_or(0.1), attention_dropout = s_.number("attention-dropout").value_or(0.1);
    const auto groups = whole("num-query-groups"), channels = whole("kv-channels"), longest = whole("max-position-embeddings");
    auto ffn = whole("ffn-hidden-size");
    const double rotary = s_.number("rotary-percent").value_or(1);
    const std::int64_t vocab = vocabulary(), multiple = whole("make-vocab-size-divisible-by").value_or(128);
    if (!context_.model_wanted) return read_experts(hidden.value_or(0), false);
    for (const char* key : {"num-layers", "hidden-size", "num-attention-heads"})
      if (!s_.has(key)) s_.problem(key, "is missing: the file describes no whole model; add it, or say the model: --model NAME");
    if (!layers || !hidden || !heads || *layers < 1 || *hidden < 1 || *heads < 1) return;
    if (!ffn) ffn = gated ? *hidden * 4 * 2 / 3 / 64 * 64 : 4 * *hidden;
    if (program("pretrain_t5") || s_.has("decoder-num-layers")) return s_.problem("num-layers", "of an encoder and a decoder: T5 is not read from arguments; say the model: --model t5-base, or its config.json");
    Json sizes = {{"hidden", *hidden}, {"layers", *layers}, {"heads", *heads}, {"vocab", vocab}, {"max_positions", std::max(longest.value_or(0), request_.value("seq", std::int64_t{1}))}, {"intermediate", *ffn}};
    if (multiple * tp_ > 1 && multiple * tp_ <= 65536 && vocab > 0 && !s_.has("padded-vocab-size")) request_["pad_vocabulary"] = multiple * tp_;
    std::string family;
    if (program("pretrain_bert")) {
      family = "bert";
      sizes["token_types"] = 2, sizes["dropout"] = dropout, sizes["next_sentence"] = true;
    } else if (!rope && positions == "learned_absolute" && !rms && !gated && !s_.has("num-experts") && (!groups || !s_.on("group-query-attention"))) {
      family = "gpt2";
      if (!bias) s_.note("--disable-bias-linear: this model is modelled with its biases, whose time is part of the products'");
      sizes["activation"] = relu2 ? "relu2" : "gelu", sizes["dropout"] = dropout, sizes["attention_dropout"] = attention_dropout, sizes["tie_embeddings"] = tied;
    } else if (positions == "learned_absolute" && !rope) {
      return s_.problem("position-embedding-type", "learned_absolute together with gated layers, RMSNorm, grouped queries or experts is no model that is known here; say the model: --model");
    } else if (!rope && positions != "none") {
      return s_.problem("position-embedding-type", fmt::format("is '{}'; modelled: learned_absolute, rope, none", positions.substr(0, 40)));
    } else {
      family = "llama";
      sizes["kv_heads"] = s_.on("group-query-attention") || groups ? groups.value_or(1) : *heads;
      sizes["head_dim"] = channels.value_or(*hidden / *heads);
      sizes["gated"] = gated, sizes["layer_norm"] = !rms, sizes["activation"] = gated ? "silu" : relu2 ? "relu2" : "gelu";
      sizes["mlp_bias"] = bias, sizes["out_bias"] = bias, sizes["qkv_bias"] = bias || qkv_bias, sizes["qk_norm"] = qk_norm, sizes["tie_embeddings"] = tied;
      sizes["attention_dropout"] = attention_dropout, sizes["dropout"] = dropout, sizes["fused_projections"] = true;
      if (rotary < 1) sizes["rotary_dim"] = static_cast<std::int64_t>(static_cast<double>(sizes["head_dim"].get<std::int64_t>()) * rotary) / 2 * 2;
      sizes_ = &sizes;
      read_experts(*ffn, true);
      if (sizes.contains("experts")) {
        family = "mixtral";
        for (const char* key : {"gated", "layer_norm"}) sizes.erase(key);
        if (!gated || !rms) s_.problem("num-experts", "of layers that are not gated, or between LayerNorms, are no model that is known here; say the model: --model");
      }
      if (s_.on("multi-latent-attention")) return s_.problem("multi-latent-attention", "is not read from arguments; say the model: --model deepseek-v3, or its config.json");
    }
    request_["model"] = {{"family", family}, {"architecture", sizes}, {"title", fmt::format("{} layers of {} ({})", *layers, *hidden, s_.file())}};
  }

  void read_experts(std::int64_t ffn, bool wanted) {
    const auto experts = whole("num-experts"), top = whole("moe-router-topk"), width = whole("moe-ffn-hidden-size"), shared = whole("moe-shared-expert-intermediate-size");
    const Json* frequency = s_.raw("moe-layer-freq");
    read_capacity();
    if (!wanted || !experts) return;
    (*sizes_)["experts"] = *experts, (*sizes_)["experts_per_token"] = top.value_or(2), (*sizes_)["expert_intermediate"] = width.value_or(ffn);
    if (shared && *shared > 0) (*sizes_)["shared_intermediate"] = *shared;
    if (!frequency) return;
    const std::string text = frequency->is_string() ? frequency->get<std::string>() : frequency->dump();
    std::int64_t every = 0;
    for (char c : text) every = std::isdigit(static_cast<unsigned char>(c)) && every < 100'000 ? every * 10 + (c - '0') : -1;
    if (every > 0) (*sizes_)["sparse_step"] = every;
    else s_.problem("moe-layer-freq", fmt::format("is '{}'; only a whole number is read: every so many layers have experts", text.substr(0, 60)));
  }

  // Which tokens are dropped beyond it (--moe-token-drop-policy) costs the same.
  void read_capacity() {
    const auto factor = s_.number("moe-expert-capacity-factor");
    const bool padded = s_.on("moe-pad-expert-input-to-capacity");
    if (padded && (!factor || *factor <= 0)) s_.problem("moe-pad-expert-input-to-capacity", "needs --moe-expert-capacity-factor (Megatron stops without it, too)");
    if (!factor || *factor <= 0) return;
    plan_["expert_capacity"] = *factor;
    if (padded) plan_["expert_padding"] = true;
  }

  void read_precision() {
    const bool fp16 = s_.on("fp16"), bf16 = s_.on("bf16");
    if (fp16 && bf16) s_.problem("bf16", "and fp16 exclude each other");
    std::string name = fp16 ? "fp16-master" : bf16 ? "bf16-master" : "fp32-default";
    if (bf16 && s_.on("grad-reduce-in-bf16")) name += "+gradients-bf16";
    if (fp16 && !s_.on("accumulate-allreduce-grads-in-fp32")) name += "+gradients-fp16";
    const auto fp8 = s_.text(s_.has("fp8-format") ? "fp8-format" : "fp8");
    const std::string recipe = s_.text("fp8-recipe").value_or("delayed");
    if (fp8 || s_.has("fp4-format")) {
      const std::string part = s_.has("fp4-format") ? "te-nvfp4" : recipe == "delayed" ? "te-fp8-delayed" : recipe == "tensorwise" ? "te-fp8-current" : recipe == "mxfp8" ? "te-mxfp8" : recipe == "blockwise" ? "te-fp8-blockwise" : "";
      if (part.empty()) s_.problem("fp8-recipe", fmt::format("is '{}'; modelled: delayed, tensorwise, mxfp8, blockwise", recipe.substr(0, 40)));
      else name += "+" + part;
      if (!fp16 && !bf16) s_.problem("bf16", "is missing: fp8 layers sit in a model of bf16");
      s_.raw("fp4-format");
    }
    // Weights are kept in fp8 and gathered so by the optimizer that is shared out (megatron/training/arguments.py asks for one of these); MXFP8's are gathered in bf16.
    if (s_.on("fp8-param-gather")) {
      if (!fp8) s_.problem("fp8-param-gather", "needs --fp8-format (Megatron stops without it, too)");
      else if (recipe == "mxfp8") s_.problem("fp8-param-gather", "with fp8-recipe mxfp8 gathers in bf16 and converts then, which is not modelled; delayed, tensorwise and blockwise are");
      else if (!s_.on("use-distributed-optimizer") && !s_.on("use-megatron-fsdp") && !s_.on("use-custom-fsdp") && !s_.on("use-torch-fsdp2")) s_.problem("fp8-param-gather", "needs --use-distributed-optimizer (Megatron stops without it, too)");
      else name += "+fp8-all-gather";
    }
    request_["precision"] = name;
    const bool local = s_.text("transformer-impl").value_or("transformer_engine") == "local" || s_.on("use-legacy-models");
    request_["stack"] = local ? "megatron" : "te";
    const std::string backend = s_.text("attention-backend").value_or("auto");
    request_["attention"] = s_.on("use-flash-attn") || backend == "flash" ? "flash" : backend == "unfused" || backend == "local" || (local && backend == "auto") ? "eager" : "sdpa";
  }

  void read_recompute() {
    const std::string granularity = s_.text("recompute-granularity").value_or(s_.on("recompute-activations") ? "selective" : s_.on("checkpoint-activations") ? "full" : "none");
    const std::string method = s_.text("recompute-method").value_or("uniform");
    const auto count = whole("recompute-num-layers");
    if (s_.on("distribute-saved-activations")) plan_["share_checkpoints"] = true;
    if (granularity != "none" && granularity != "full" && granularity != "selective") return s_.problem("recompute-granularity", fmt::format("is '{}'; known: full, selective", granularity.substr(0, 40)));
    request_["recompute"] = granularity;
    if (granularity == "selective") {
      if (const Json* modules = s_.raw("recompute-modules")) read_modules(*modules);
    }
    if (granularity != "full" || !count) return;
    if (method == "block") request_["recompute_layers"] = *count;
    else if (*count > 1) s_.note(fmt::format("--recompute-num-layers {} with the uniform method: modelled as one checkpoint per layer (more memory between them, less while one is recomputed)", *count));
  }

  // --recompute-modules, one or several. "mlp" is that of dense layers, "moe" a layer's experts: one part here.
  void read_modules(const Json& given) {
    std::string parts;
    for (const Json& module : given.is_array() ? given : Json::array({given})) {
      const std::string name = module.is_string() ? module.get<std::string>() : module.dump();
      const char* part = nullptr;
      for (auto& [megatrons, ours] : {std::pair{"core_attn", "core"}, {"layernorm", "norm"}, {"moe_act", "activation"}, {"mlp", "mlp"}, {"moe", "mlp"}, {"mla_up_proj", "up-projections"}})
        if (name == megatrons) part = ours;
      if (!part) return s_.problem("recompute-modules", fmt::format("has '{}'; modelled: core_attn, layernorm, moe_act, mlp, moe, mla_up_proj", name.substr(0, 40)));
      if (parts.find(part) == std::string::npos) parts += (parts.empty() ? "" : "+") + std::string(part);
    }
    if (!parts.empty() && parts != "core") request_["recompute"] = parts;
  }

  void read_rest() {
    const std::string optimizer = s_.text("optimizer").value_or("adam");
    if (optimizer == "adam" || optimizer == "adamw") request_["optimizer"] = "adamw", request_["optimizer_impl"] = "fused";  // FusedAdam with adam_w_mode
    else if (optimizer == "sgd") request_["optimizer"] = "sgd-momentum";
    else s_.problem("optimizer", fmt::format("is '{}'; modelled: adam, sgd", optimizer.substr(0, 40)));
    const double norm = s_.number("clip-grad").value_or(1);
    if (norm > 0) request_["clip_grad_norm"] = norm;
    s_.refuse("mtp-num-layers", "multi-token prediction is not modelled");
    s_.refuse("num-experts-per-virtual-stage", "is not modelled");
    s_.refuse("lora-*", "adapters are not read from arguments");
    if (const auto layers = whole("cpu-offloading-num-layers"); layers && *layers > 0)
      plan_["offload"] = plan_.contains("offload") ? "optimizer+activations" : "activations", plan_["offload_layers"] = *layers;
  }

  void mark_harmless() {
    s_.harmless({"lr*", "min-lr*", "decoupled-*", "weight-decay*", "start-weight-decay", "end-weight-decay", "adam-*", "sgd-*", "warmup*", "override-opt*", "use-checkpoint-opt*", "loss-scale*",
                 "initial-loss-scale", "min-loss-scale", "hysteresis", "save*", "load*", "no-save-*", "no-load-*", "ckpt-*", "use-dist-ckpt*", "dist-ckpt*", "async-save", "log-*", "eval-*",
                 "tensorboard-*", "wandb-*", "no-log-*", "timing-log-*", "data-*", "train-data*", "valid-data*", "test-data*", "split", "vocab-file", "merge-file", "merges-file", "tokenizer-*", "mock-data",
                 "num-workers", "seed", "init-method-std", "exit-*", "distributed-backend", "distributed-timeout*", "norm-epsilon", "layernorm-epsilon", "rotary-base", "use-rope-scaling",
                 "rotary-scaling-factor", "rope-scaling-factor", "rotary-seq-len-interpolation-factor", "use-mcore-models", "use-legacy-models", "overlap-grad-reduce", "overlap-param-gather*", "overlap-p2p*",
                 "no-overlap-p2p*", "no-check-for-nan*", "check-for-nan*", "attention-softmax-in-fp32", "no-masked-softmax-fusion", "no-position-embedding", "no-create-attention-mask*",
                 "reset-*", "eod-*", "manual-gc*", "no-async-tensor-model-parallel-allreduce", "moe-router-load-balancing-type", "moe-aux-loss-coeff", "moe-z-loss-coeff", "moe-token-dispatcher-type", "moe-flex-dispatcher-backend", "moe-deepep-num-sms", "moe-shared-expert-overlap",
                 "moe-grouped-gemm", "moe-permute-fusion", "moe-router-*", "moe-token-drop-policy", "moe-per-layer-logging", "moe-pad-expert-input*", "moe-enable-deepep", "disable-*", "accumulate-allreduce-grads-in-fp32",
                 "grad-reduce-in-bf16", "fp8-*", "cross-entropy-*", "no-gradient-accumulation-fusion", "no-bias-*-fusion", "no-rope-fusion", "no-persist-layer-norm", "apply-layernorm-1p", "no-initialization",
                 "tp-comm-*", "profile*", "use-cpu-initialization", "empty-unused-memory-level", "transformer-impl", "dataloader-type", "no-mmap*", "ddp-*", "recompute-*", "te-rng-tracker", "inference-*",
                 "enable-*-straggler*", "calculate-per-token-loss", "data-parallel-sharding-strategy", "group-query-attention", "num-query-groups", "rotary-percent", "bert-*", "short-seq-prob", "mask-prob",
                 "classes-fraction", "encoder-*", "microbatch-group-size-per-vp-stage", "gradient-accumulation-fusion", "attention-backend", "config-*",
                 "use-pytorch-profiler"});
  }

  Settings& s_;
  const ImportContext& context_;
  Json request_ = Json::object(), plan_ = Json::object();
  Json* sizes_ = nullptr;
  std::int64_t tp_ = 1, pp_ = 1;
  std::vector<std::string> reported_;  // variables that are not set
};

}  // namespace

Json from_megatron(Settings& s, const ImportContext& context) { return Megatron(s, context).run(); }

}  // namespace precog
