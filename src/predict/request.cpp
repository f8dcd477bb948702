#include "predict/request.h"

#include <algorithm>
#include <charconv>
#include <map>

#include <fmt/format.h>

#include "base/text.h"
#include "frontend/frozen.h"
#include "frontend/pad_vocabulary.h"
#include "import/import.h"
#include "precision/precision.h"
#include "report/report.h"
#include "training/optimizer.h"

namespace precog {
namespace {

constexpr std::int64_t kMaxGpus = 1'000'000;
constexpr std::int64_t kMaxBatch = 1'000'000;
constexpr std::int64_t kMaxStages = 4096;
// Identical GPUs do not run at one speed, and a synchronous step ends with the slowest. Their standard deviation, unless the request
// says its own: Sinha et al. (SC 2022) found 8% between the ends of the boxplots' whiskers on five large systems, most of V100;
// of a normal distribution that is 5.4 of them (8% is from memory of the paper; four values had been tried on published rows). 0: all alike. Too high: large jobs too slow, by 0.015 x 3.2 at a thousand GPUs.
constexpr double kGpuVariation = 0.015;

class RequestReader {
 public:
  RequestReader(const Json& json, const Catalog& catalog, const std::string& where, const std::filesystem::path& folder,
                std::int64_t default_batch)
      : catalog_(catalog), folder_(folder), default_batch_(default_batch), root_(json, where, problems_) {
    request_.where = where;
  }

  Result<Request> read() {
    root_.integer("schema", 1, 1);
    const Json* imported = root_.raw("imported");  // kept for the reader
    read_model();
    read_cluster();
    read_plan();
    read_batch();
    read_precision();
    settle_sharding();
    settle_offload();
    read_training();
    read_host();
    read_profile();
    read_input();
    read_run();
    if (request_.input && request_.plan.pp > 1) root_.problem("input", "is not modelled together with a pipeline (pp); leave one out");
    root_.reject_unknown_keys();
    // Who imported a configuration knows batches by its names.
    if (const std::string names = imported ? batches_said_by(*imported) : std::string(); !names.empty())
      for (Problem& problem : problems_)
        if (problem.where.ends_with("batch") || problem.where.ends_with("micro_batches")) problem.message += fmt::format(" ({})", names);
    if (!problems_.empty()) return fail(std::move(problems_));
    echo();
    return std::move(request_);
  }

 private:
  // Looks a name up and reports under the field it came from.
  template <class T>
  const T* look_up(JsonReader& reader, std::string_view key, const Result<const T*>& found) {
    if (found) return *found;
    reader.problem(key, found.error().text());
    return nullptr;
  }

  // "PATTERN=TYPE" for modules, "op:PATTERN=TYPE" for operators.
  static Result<Json> rule_of(const std::string& text) {
    const std::size_t equals = text.rfind('=');
    if (equals == std::string::npos || equals == 0) return fail("", fmt::format("'{}': wants PATTERN=TYPE, as in lm_head=fp32 or op:layer_norm=bf16", text.substr(0, 80)));
    std::string pattern = text.substr(0, equals);
    const std::string what = text.substr(equals + 1);
    Json rule = Json::object();
    if (pattern.starts_with("op:")) rule["operators"] = pattern.substr(3);
    else rule["modules"] = pattern.starts_with("module:") ? pattern.substr(7) : pattern;
    if (what == "fp32" || what == "fp16" || what == "bf16") rule["run_in"] = what;
    else if (what == "off") rule["autocast"] = "off";
    else if (what == "fp8" || what == "no-fp8") rule["fp8"] = what == "fp8";
    else return fail("", fmt::format("'{}': '{}' is not known; known: fp32, fp16, bf16, off (no autocast), fp8, no-fp8", text.substr(0, 80), what.substr(0, 40)));
    return rule;
  }

  template <class T>
  T choice(JsonReader& reader, std::string_view key, std::initializer_list<std::pair<const char*, T>> known, T fallback) {
    auto text = reader.text(key);
    if (!text) return fallback;
    std::vector<std::string> names;
    for (const auto& [name, value] : known) {
      if (*text == name) return value;
      names.emplace_back(name);
    }
    reader.problem(key, fmt::format("is '{}'; known: {}", text->substr(0, 80), join(names, ", ")));
    return fallback;
  }

  void read_model() {
    read_source();
    ModelInputs& inputs = request_.inputs;
    inputs.seq = root_.integer("seq", 1, 1 << 24).value_or(0);
    inputs.src_seq = root_.integer("src_seq", 1, 1 << 24).value_or(0);
    request_.frozen = root_.texts("frozen");
    request_.pad_vocabulary = root_.integer("pad_vocabulary", 1, 65536).value_or(1);
    if (!request_.model) return;
    const ModelSource& model = *request_.model;
    if (!model.language && (inputs.seq || inputs.src_seq))
      root_.problem("seq", fmt::format("does not apply: {} takes {}", model.name, model.unit));
    if (inputs.src_seq && !model.encoder_decoder)
      root_.problem("src_seq", fmt::format("does not apply: {} has no encoder of its own", model.name));
    if (model.language) accept("seq", inputs.seq, model.default_seq, model.fixed_seq);
    if (model.encoder_decoder)
      accept("src_seq", inputs.src_seq, model.default_src_seq != 0 ? model.default_src_seq : inputs.seq, model.fixed_src_seq);
    // The frontend checks this too, but knows no file to name.
    for (auto [key, tokens] : {std::pair{"seq", inputs.seq}, std::pair{"src_seq", inputs.src_seq}})
      if (model.language && tokens > model.max_seq)
        root_.problem(key, fmt::format("is {}; {} takes 1 to {} tokens", tokens, model.name, model.max_seq));
  }

  // A size the request may leave out (0), and one that a graph captured without symbols cannot change.
  void accept(std::string_view key, std::int64_t& size, std::int64_t own, bool fixed) {
    if (size == 0) size = own;
    if (!fixed || size == own) return;
    const auto reason = request_.model->fixed_because.find(std::string(key));
    root_.problem(key, fmt::format("is {}; {} was captured at {} and not symbolically, so it takes no other (capture it again, or leave it out{})", size,
                                   request_.model->name, own, reason == request_.model->fixed_because.end() ? "" : "; why: " + reason->second));
  }

  void take(JsonReader& reader, std::string_view key, Result<ModelSource> source) {
    if (source) request_.model = std::make_shared<const ModelSource>(std::move(*source));
    else
      for (const Problem& problem : source.error().problems)
        reader.problem(key, problem.where.empty() ? problem.message : problem.where + ": " + problem.message);
  }

  // A zoo name, which always wins, or a path that says by its name what it is.
  void read_named(JsonReader& reader, std::string_view key, const std::string& name) {
    auto known = catalog_.model(name);
    if (known) return take(reader, key, zoo_source(**known));
    if (looks_like_path(name) || std::filesystem::is_directory(folder_ / name, ignored_)) return take(reader, key, file_source(folder_ / name, name));
    reader.problem(key, known.error().text());
  }

  void read_source() {
    const Json* model = root_.raw("model");
    if (!model) return root_.problem("model", "is missing: a name from `precog models`");
    if (model->is_string()) return read_named(root_, "model", model->get<std::string>());
    if (!model->is_object())
      return root_.problem("model", R"(wants a name, {"name": ..., "layers": ...}, an architecture: {"family": ..., "architecture": {...}}, or a file: {"graph": ...}, {"hf_config": ...}, {"onnx": ...})");
    JsonReader reader(*model, root_.path("model"), problems_);
    int ways = 0;
    for (const char* way : {"name", "family", "graph", "hf_config", "onnx"}) ways += reader.has(way) ? 1 : 0;
    if (ways > 1) reader.problem("name", "and family, graph, hf_config, onnx exclude each other: give one");
    const Json* config = reader.raw("hf_config");
    if (config && config->is_object()) {
      take(reader, "hf_config", hf_source(*config, ""));
    } else if (auto path = reader.text("hf_config")) {
      take(reader, "hf_config", hf_source(folder_ / *path, *path));
    } else if (auto graph = reader.text("graph")) {
      take(reader, "graph", graph_source(folder_ / *graph, *graph));
    } else if (auto onnx = reader.text("onnx")) {
      take(reader, "onnx", onnx_source(folder_ / *onnx, *onnx));
    } else if (reader.has("family")) {
      for (const char* key : {"family", "architecture", "title"}) reader.raw(key);
      Json given = *model;
      given.erase("layers");
      take(reader, "family", family_source(given, ""));
    } else if (ways == 0 || reader.has("name")) {
      read_named(reader, "name", reader.required_text("name"));
    }
    request_.inputs.layers = reader.integer("layers", 1, 4096);
    if (request_.inputs.layers && request_.model && request_.model->layers == 0)
      reader.problem("layers", fmt::format("does not apply: {} has no single number of layers to change", request_.model->name));
    reader.reject_unknown_keys();
  }

  // "dgx-h100:8" is eight such nodes.
  const SystemSpec* named_system(JsonReader& reader, std::string_view key, std::string name, std::optional<std::int64_t>& nodes) {
    if (auto colon = name.find(':'); colon != std::string::npos) {
      std::int64_t count = 0;
      const char *begin = name.data() + colon + 1, *end = name.data() + name.size();
      auto [rest, status] = std::from_chars(begin, end, count);
      if (status != std::errc{} || rest != end || count < 1 || count > kMaxGpus)
        reader.problem(key, fmt::format("'{}': after the colon comes a number of nodes, as in dgx-h100:8", name.substr(0, 80)));
      else
        nodes = count;
      name.resize(colon);
    }
    auto known = catalog_.system(name);
    if (known || !looks_like_path(name)) return look_up(reader, key, std::move(known));
    auto json = read_json_file(folder_ / name);
    auto parsed = json ? parse_system(*json, name) : Result<SystemSpec>(tl::unexpected(json.error()));
    if (parsed && !catalog_.network(parsed->network)) parsed = fail(name + ": network", "names no network of `precog networks`");
    else if (parsed && !parsed->gpu.empty() && !catalog_.gpu(parsed->gpu)) parsed = fail(name + ": gpu", "names no GPU of `precog gpus`");
    if (!parsed) {
      problems_.insert(problems_.end(), parsed.error().problems.begin(), parsed.error().problems.end());
      return nullptr;
    }
    parsed->name = name;  // what it can be asked for by again
    request_.own_system = std::make_shared<const SystemSpec>(std::move(*parsed));
    return request_.own_system.get();
  }

  void read_cluster() {
    const Json* cluster = root_.raw("cluster");
    if (!cluster) return root_.problem("cluster", R"(is missing: {"gpu": "h100-sxm", "gpus": 8} or a name such as "dgx-h100:8")");
    const SystemSpec* system = nullptr;
    std::optional<std::int64_t> nodes, gpus, gpus_per_node, nics_per_node;
    std::optional<double> jitter;
    const NetworkSpec* network = nullptr;
    if (cluster->is_string()) {
      system = named_system(root_, "cluster", cluster->get<std::string>(), nodes);
    } else if (cluster->is_object()) {
      JsonReader reader(*cluster, root_.path("cluster"), problems_);
      if (auto name = reader.text("name")) system = named_system(reader, "name", *name, nodes);
      if (auto gpu = reader.text("gpu")) request_.gpu = look_up(reader, "gpu", catalog_.gpu(*gpu));
      gpus = reader.integer("gpus", 1, kMaxGpus);
      gpus_per_node = reader.integer("gpus_per_node", 1, 4096);
      nics_per_node = reader.integer("nics_per_node", 1, 4096);
      nics_given_ = nics_per_node.has_value();
      jitter = reader.number("jitter", 0, 1);
      if (auto name = reader.text("network")) network = look_up(reader, "network", catalog_.network(*name));
      reader.reject_unknown_keys();
    } else {
      return root_.problem("cluster", "wants a name or an object");
    }
    if (!request_.gpu && system && !system->gpu.empty()) request_.gpu = *catalog_.gpu(system->gpu);
    if (!request_.gpu) {
      const bool named = cluster->is_object() && (cluster->contains("gpu") || cluster->contains("name"));
      if (!named && !(cluster->is_string() && !system)) root_.problem("cluster", "names no GPU: add \"gpu\" (see `precog gpus`)");
      return;
    }
    if (system && !system->gpu.empty() && catalog_.gpu(system->gpu) != request_.gpu)
      root_.problem("cluster", fmt::format("{} has {} GPUs, not {}; leave one of the two out", system->name, system->gpu, request_.gpu->name));
    const bool by_name = system != nullptr;
    if (!system) system = *catalog_.system(request_.gpu->usual_system);
    ClusterSpec& out = request_.cluster;
    out.system = system->name;
    out.gpus_per_node = static_cast<int>(gpus_per_node.value_or(system->gpus_per_node));
    if (nodes && gpus && *gpus != *nodes * out.gpus_per_node)
      root_.problem("cluster", fmt::format("says {} GPUs and {} nodes of {}", *gpus, *nodes, out.gpus_per_node));
    // A cluster by name alone is one whole node of it; a GPU by name alone is one GPU.
    const std::int64_t total = gpus.value_or(nodes ? *nodes * out.gpus_per_node : by_name ? out.gpus_per_node : 1);
    if (total > kMaxGpus) root_.problem("cluster", fmt::format("has {} GPUs; at most {} can be modelled", total, kMaxGpus));
    out.gpus = static_cast<int>(std::min(total, kMaxGpus));
    request_.jitter = jitter.value_or(out.gpus > 1 ? kGpuVariation : 0);
    jitter_given_ = jitter.has_value();
    out.intra_kind = system->intra_kind;
    out.intra_bandwidth = system->intra_bandwidth.value > 0 ? system->intra_bandwidth : request_.gpu->link_bandwidth;
    out.intra_among = system->intra_among;
    out.intra_latency = system->intra_latency;
    out.nics_per_node = nics_per_node ? static_cast<int>(*nics_per_node) : system->nics_per_node;
    if (!network) network = *catalog_.network(system->network);
    out.network = *network;
    out.collectives = system->collectives ? *system->collectives : catalog_.collectives.find(out.intra_kind, request_.gpu->architecture);
    if (system->contention) out.collectives.link.contention = *system->contention;
    if (out.gpus > out.gpus_per_node && out.gpus % out.gpus_per_node != 0)
      root_.problem("cluster", fmt::format("has {} GPUs in nodes of {}: more than one node must be whole nodes", out.gpus, out.gpus_per_node));
  }

  void read_plan() {
    const std::int64_t gpus = request_.cluster.gpus;
    std::int64_t dp = gpus;
    if (auto plan = root_.object("plan")) {
      const std::size_t before = problems_.size();
      std::int64_t product = read_split_layers(*plan) * read_pipeline(*plan);
      if (problems_.size() == before && gpus % product != 0)
        plan->problem(request_.plan.tp > 1 ? "tp" : request_.plan.cp > 1 ? "cp" : "pp",
                      fmt::format("is part of tp x cp x pp = {} GPUs for one replica, of which {} make no whole number", product, gpus));
      dp = std::max<std::int64_t>(1, gpus / product);
      if (auto given = plan->integer("dp", 1, kMaxGpus)) dp = *given;
      product *= dp;
      request_.plan.fsdp = choice<Sharding>(*plan, "fsdp", {{"none", Sharding::none}, {"zero1", Sharding::zero1}, {"zero2", Sharding::zero2}, {"zero3", Sharding::full}, {"full", Sharding::full}, {"hybrid", Sharding::full}}, Sharding::none);
      sharding_given_ = plan->has("fsdp");
      read_replicas(*plan, dp);
      plan->reject_unknown_keys();
      if (problems_.size() == before && product != gpus)
        plan->problem("dp", fmt::format("is {}, but the cluster has {} GPUs; the plan's degrees must multiply to the GPU count{}", dp, gpus,
                                        product != dp ? fmt::format(", and they make {}", product) : ""));
      if (request_.plan.ep > 1 && request_.plan.fsdp == Sharding::full) plan->problem("ep", "together with fully sharded parameters is not modelled by this version; use fsdp none, zero1 or zero2");
      if (problems_.size() == before) check_experts(*plan, dp);
    }
    request_.plan.dp = static_cast<int>(dp);
  }

  void check_experts(JsonReader& plan, std::int64_t dp) {
    const Plan& p = request_.plan;
    if (p.ep == 1) {
      for (const char* key : {"expert_dispatch", "expert_overlap"})
        if (plan.has(key)) plan.problem(key, "is about tokens that travel to their experts: it needs an ep of at least 2");
      return;
    }
    const std::int64_t ranks = dp * p.tp * p.cp, each = p.ranks_per_expert();
    if (ranks % (p.ep * each) != 0)
      plan.problem("ep", fmt::format("is {}; experts are shared out among a stage's tp x cp x dp = {} ranks, {} for each expert (etp), so it must divide {}", p.ep, ranks, each, ranks / each));
    else if (p.ep * each % p.tp != 0)
      plan.problem("ep", fmt::format("is {}; with whole experts (etp 1) it must be a multiple of tp = {}: whole experts with more copies than their layers are not modelled", p.ep, p.tp));
  }

  // How data-parallel ranks share gradients and states: groups that each hold all shards (hybrid), buckets, the optimizer on the host.
  void read_replicas(JsonReader& plan, std::int64_t dp) {
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
    if (out.shard_size > 0 && request_.plan.ep > 1) plan.problem(size ? "shard_size" : "replicate", "together with expert parallelism (ep) is not modelled");
    read_offload(plan, shards, dp);
    read_module_gathers(plan);
    out.overlap_gather = plan.boolean("overlap_gather").value_or(false);
    if (out.overlap_gather && request_.plan.fsdp != Sharding::zero1 && request_.plan.fsdp != Sharding::zero2)
      plan.problem("overlap_gather", "is a distributed optimizer's: it needs fsdp zero1 or zero2 (fully sharded parameters are always gathered beside compute)");
    if (auto bucket = plan.integer("bucket_mb", 1, 65536)) out.bucket = {*bucket << 20};
    out.bucket_views = plan.boolean("bucket_views").value_or(false);
    out.find_unused = plan.boolean("find_unused").value_or(false);
    for (const char* key : {"bucket_mb", "bucket_views", "find_unused"})
      if (plan.has(key) && shards) plan.problem(key, "is DistributedDataParallel's: it needs fsdp none");
  }

  void read_module_gathers(JsonReader& plan) {
    auto given = plan.object("zero3");
    if (!given) return;
    ModuleGathers out;
    for (auto [key, field] : {std::pair{"prefetch_elements", &out.prefetch}, {"live_elements", &out.live}, {"reuse_elements", &out.reuse}, {"persistent_elements", &out.persistent}, {"reduce_elements", &out.reduced}})
      *field = given->integer(key, 0, std::int64_t{1} << 50).value_or(*field);
    given->reject_unknown_keys();
    if (request_.plan.fsdp != Sharding::full) plan.problem("zero3", "says how parameters are gathered module by module: it needs fsdp zero3 (or full, hybrid)");
    request_.replicas.by_module = out;
  }

  void read_offload(JsonReader& plan, bool shards, std::int64_t dp) {
    Replicas& out = request_.replicas;
    const int node = std::max(1, std::min(request_.cluster.gpus_per_node, request_.cluster.gpus));
    out.node_ranks = node;
    const std::string given = plan.text("offload").value_or("none");
    bool activations = false;
    for (const std::string& part : joined_parts(given)) {
      if (part == "optimizer") out.offload_optimizer = true;
      else if (part == "states") out.offload_states = true;
      else if (part == "master") out.offload_master = true;
      else if (part == "parameters") out.offload_parameters = true;
      else if (part == "activations") activations = true;
      else if (part != "none" || given != "none")
        plan.problem("offload", fmt::format("is '{}'; known: none, or of optimizer, states, master, parameters, activations one or several joined by +", given.substr(0, 80)));
    }
    const auto layers = plan.integer("offload_layers", 1, 4096);
    if (layers && !activations) plan.problem("offload_layers", "says of how many layers activations are on the host: it needs offload activations");
    check_layers(plan, "offload_layers", layers.value_or(0));
    if (activations) out.offload_layers = static_cast<int>(layers.value_or(4096));
    if (out.offload_optimizer && out.offload_states) plan.problem("offload", "is optimizer, which the host updates, and states, which the GPU updates: choose one");
    if (!out.offloads()) return;
    if (!shards && dp > 1 && (out.offload_optimizer || out.offload_states || out.offload_master))
      plan.problem("offload", "of the optimizer needs its states to be shared out: fsdp zero1, zero2 or full (DeepSpeed refuses it without, too)");
    if (out.offload_parameters && dp > 1 && request_.plan.fsdp != Sharding::full)
      plan.problem("offload", "of parameters needs them to be shared out: fsdp full (DeepSpeed's offload_param is of stage 3 only)");
    if (request_.plan.pp > 1) plan.problem("offload", "together with a pipeline (pp) is not modelled");
    if (request_.plan.ep > 1) plan.problem("offload", "together with expert parallelism (ep) is not modelled");
  }

  // Returns how many stages there are: a factor of the GPU count.
  std::int64_t read_pipeline(JsonReader& reader) {
    Plan& plan = request_.plan;
    plan.pp = static_cast<int>(reader.integer("pp", 1, kMaxStages).value_or(1));
    plan.vpp = static_cast<int>(reader.integer("vpp", 1, kMaxStages).value_or(1));
    plan.schedule = choice<PipelineSchedule>(reader, "schedule",
        {{"gpipe", PipelineSchedule::gpipe}, {"1f1b", PipelineSchedule::one_f_one_b}, {"interleaved", PipelineSchedule::interleaved},
         {"zb", PipelineSchedule::zero_bubble}, {"dualpipe", PipelineSchedule::dualpipe}},
        plan.vpp > 1 ? PipelineSchedule::interleaved : PipelineSchedule::one_f_one_b);
    if (const Json* layers = reader.raw("stage_layers")) {
      const bool whole = layers->is_array() && std::all_of(layers->begin(), layers->end(), [](const Json& one) { return one.is_number_integer() && one >= 1 && one <= 4096; });
      if (whole) plan.stage_layers = layers->get<std::vector<int>>();
      else reader.problem("stage_layers", "wants a list of whole numbers from 1 to 4096: the layers of each chunk, first to last");
    }
    if (plan.pp == 1) {
      for (const char* key : {"vpp", "schedule", "stage_layers"})
        if (reader.has(key) && !(std::string_view(key) == "vpp" && plan.vpp == 1)) reader.problem(key, "needs pipeline parallelism: pp of at least 2");
      return 1;
    }
    if (plan.schedule == PipelineSchedule::interleaved && plan.vpp == 1) reader.problem("vpp", "is 1; an interleaved schedule has at least 2 chunks of layers per stage");
    if (plan.schedule != PipelineSchedule::interleaved && plan.vpp > 1)
      reader.problem("vpp", fmt::format("is {}; only an interleaved schedule has several chunks per stage, not {}", plan.vpp, to_text(plan.schedule)));
    if (plan.schedule == PipelineSchedule::dualpipe && plan.pp % 2 != 0) reader.problem("pp", fmt::format("is {}; dualpipe feeds both ends of an even number of stages", plan.pp));
    return plan.pp;
  }

  // What schedules ask of the number of micro-batches.
  void check_micro_batches() {
    const Plan& plan = request_.plan;
    const std::int64_t m = request_.training.micro_batches;
    // Under the name that the request has for it.
    const bool own = root_.has("micro_batches");
    const char* key = own ? "micro_batches" : "global_batch";
    const auto says = [&] { return own ? fmt::format("is {}", m) : fmt::format("is {}: {} micro-batches of {} x dp {}", request_.global_batch, m, request_.inputs.batch, plan.dp); };
    if (plan.pp == 1) return;
    if (plan.schedule == PipelineSchedule::interleaved && m % plan.pp != 0)
      root_.problem(key, fmt::format("{}; an interleaved schedule needs a multiple of pp = {} micro-batches", says(), plan.pp));
    if (plan.schedule == PipelineSchedule::dualpipe && (m % 2 != 0 || m < 2 * plan.pp))
      root_.problem(key, fmt::format("{}; dualpipe needs an even number, at least 2 x pp = {}", says(), 2 * plan.pp));
  }

  // The degrees that change the forward graph; returns how many GPUs one replica takes because of them.
  std::int64_t read_split_layers(JsonReader& plan) {
    Plan& out = request_.plan;
    out.tp = static_cast<int>(plan.integer("tp", 1, 4096).value_or(1));
    out.sp = plan.boolean("sp").value_or(false);
    if (out.sp && out.tp == 1) plan.problem("sp", "shares the sequence out among tensor-parallel ranks: it needs a tp of at least 2");
    request_.tp_overlap = plan.boolean("tp_overlap").value_or(false);
    if (request_.tp_overlap && !out.sp) plan.problem("tp_overlap", "splits the exchanges of sequence parallelism into pieces: it needs sp");
    request_.tp_scatter_fp8 = plan.boolean("tp_scatter_fp8").value_or(false);
    if (request_.tp_scatter_fp8 && !request_.tp_overlap) plan.problem("tp_scatter_fp8", "is what Transformer Engine's overlapping products write: it needs tp_overlap");
    out.cp = static_cast<int>(plan.integer("cp", 1, 4096).value_or(1));
    out.exchange = choice<ContextExchange>(plan, "cp_exchange", {{"ring", ContextExchange::ring}, {"all_to_all", ContextExchange::all_to_all}, {"ulysses", ContextExchange::all_to_all}},
                                           ContextExchange::ring);
    out.ep = static_cast<int>(plan.integer("ep", 1, kMaxGpus).value_or(1));
    out.expert_imbalance = plan.number("expert_imbalance", 1, 1000).value_or(1);
    ExpertCapacity& capacity = request_.expert_capacity;
    capacity.factor = plan.number("expert_capacity", 0.01, 1000).value_or(0);
    capacity.padded = plan.boolean("expert_padding").value_or(false);
    if (capacity.padded && capacity.factor == 0) plan.problem("expert_padding", "fills experts up to their capacity: it needs expert_capacity");
    if (capacity.padded && out.expert_imbalance > 1) plan.problem("expert_imbalance", "says how much the busiest expert has, and with expert_padding all have their capacity: leave one out");
    if (auto etp = plan.integer("etp", 1, 4096); etp) {
      out.etp = static_cast<int>(*etp);
      if (*etp != out.tp && *etp != 1)
        plan.problem("etp", out.tp == 1 ? fmt::format("is {}; an expert is split as its layer is, and tp is 1: say 1, or a larger tp", *etp)
                                        : fmt::format("is {}; an expert is split as its layer is, tp = {} ways, or not at all: say {} or 1", *etp, out.tp, out.tp));
      else if (*etp < out.tp && out.ep == 1)
        plan.problem("etp", fmt::format("is 1 with tp = {}: whole experts on ranks that share a layer need expert parallelism, an ep that is a multiple of tp", out.tp));
      else if (*etp < out.tp && !out.sp)
        plan.problem("etp", fmt::format("is 1 with tp = {}: each rank sends its own tokens to whole experts, so that sequences must be shared out: sp", out.tp));
    }
    out.dispatch = choice<ExpertDispatch>(plan, "expert_dispatch", {{"all_to_all", ExpertDispatch::all_to_all}, {"deepep", ExpertDispatch::per_node}, {"hybridep", ExpertDispatch::per_node}},
                                          ExpertDispatch::all_to_all);
    out.expert_overlap = plan.boolean("expert_overlap").value_or(false);
    if (const Json* given = plan.raw("tp_plan")) {
      const std::map<std::string, TensorSplit> known = {{"column", TensorSplit::column}, {"row", TensorSplit::row}, {"whole", TensorSplit::whole}};
      if (!given->is_object()) plan.problem("tp_plan", R"(wants an object of module patterns, as in {"*.fc1": "column", "*.fc2": "row"})");
      else
        for (const auto& [pattern, how] : given->items()) {
          const auto split = known.find(how.is_string() ? how.get<std::string>() : std::string());
          if (split == known.end()) plan.problem("tp_plan", fmt::format("says '{}' of '{}'; known: column, row, whole", how.dump().substr(0, 40), pattern.substr(0, 80)));
          else out.tp_plan.emplace_back(pattern, split->second);
        }
    }
    if (out.cp > 1 && request_.model) {
      const ModelSource& model = *request_.model;
      if (!model.language) plan.problem("cp", fmt::format("shares sequences out; {} takes {}", model.name, model.unit));
      else if (model.fixed_seq || model.fixed_src_seq) plan.problem("cp", fmt::format("needs another sequence length on each rank, and {} was captured at one only", model.name));
      else if (request_.inputs.seq % out.cp != 0 || request_.inputs.src_seq % out.cp != 0)
        plan.problem("cp", fmt::format("is {}; it must divide the sequence of {} tokens", out.cp, request_.inputs.seq % out.cp != 0 ? request_.inputs.seq : request_.inputs.src_seq));
    }
    return static_cast<std::int64_t>(out.tp) * out.cp;
  }

  // Recipes of fully_shard's own (fp32 shards that are cast as they are gathered, weights that travel in fp8) are nothing without
  // it: on several GPUs they imply it.
  void settle_sharding() {
    if (!request_.precision) return;
    const PrecisionRecipe& recipe = *request_.precision;
    const bool by_optimizer = recipe.fp8 && recipe.fp8->fused;  // converted where the optimizer is shared out, with any sharding
    if (!((recipe.gathers_fp8 && !by_optimizer) || (recipe.master_weights && recipe.master_weights->copied == MasterWeights::Copied::on_gather))) return;
    Sharding& sharding = request_.plan.fsdp;
    if (request_.plan.dp > 1 && !sharding_given_) sharding = Sharding::full;
    if (request_.plan.dp > 1 && (sharding == Sharding::none || sharding == Sharding::zero1))
      root_.problem("plan.fsdp", fmt::format("is {}; precision '{}' casts parameters as they are gathered, so it must be full or zero2 (or left out)",
                                             to_text(sharding), recipe.name));
  }

  // The host has the gradients that it reads: none are kept in another type on the GPU.
  void settle_offload() {
    if (!request_.precision || !request_.replicas.offload_optimizer || !request_.precision->main_gradients) return;
    auto recipe = std::make_shared<PrecisionRecipe>(*request_.precision);
    if (recipe->main_gradients->made == MainGradients::Made::after_reduce) return;
    recipe->main_gradients->made = MainGradients::Made::at_step;
    if (!request_.own_precision) request_.inline_precision = recipe->name;
    request_.own_precision = recipe;
    request_.precision = request_.own_precision.get();
  }

  void read_batch() {
    const std::int64_t dp = std::max(1, request_.plan.dp);
    auto batch = root_.integer("batch", 1, kMaxBatch);
    auto global = root_.integer("global_batch", 1, kMaxBatch * kMaxGpus);
    const auto micro_batches = root_.integer("micro_batches", 1, kMaxBatch);
    if (!batch && !root_.has("batch")) {
      if (request_.model && request_.model->default_batch > 0) batch = request_.model->default_batch;
      else if (global && *global % (dp * micro_batches.value_or(1)) == 0 && *global / (dp * micro_batches.value_or(1)) <= kMaxBatch) batch = *global / (dp * micro_batches.value_or(1));
      else if (default_batch_ > 0) batch = default_batch_;
      else root_.problem("batch", "is missing: samples per GPU and micro-batch");
    }
    if (!batch) return;
    request_.inputs.batch = *batch;
    if (request_.model) accept("batch", request_.inputs.batch, request_.model->default_batch, request_.model->fixed_batch);
    request_.global_batch = global.value_or(*batch * dp * micro_batches.value_or(1));
    if (global && micro_batches && *global != *batch * dp * *micro_batches)
      root_.problem("micro_batches", fmt::format("is {}; batch x dp x micro_batches = {} x {} x {} is not the global batch of {}: leave one out", *micro_batches, *batch, dp, *micro_batches, *global));
    if (request_.global_batch % (*batch * dp) != 0) {
      root_.problem("global_batch", fmt::format("is {}; it must be a multiple of batch x dp = {} x {} = {}", request_.global_batch, *batch,
                                                dp, *batch * dp));
      return;
    }
    request_.training.micro_batches = request_.global_batch / (*batch * dp);
    check_micro_batches();
  }

  // A name from the catalog, several names to be put together ("fp8+optimizer-8bit"), a recipe's file, or the recipe itself.
  void read_precision() {
    request_.allow_emulated = root_.boolean("allow_emulated").value_or(false);
    const Json* given = root_.raw("precision");
    const Json* overrides = root_.raw("overrides");
    if (!given) return root_.problem("precision", "is missing: a name from `precog precisions`");
    if (given->is_string() && !overrides && catalog_.precision(given->get<std::string>())) {
      request_.precision = *catalog_.precision(given->get<std::string>());
      if (request_.precision->is_part)
        root_.problem("precision", fmt::format("'{0}' is only a part of a recipe: add it to another, as in amp-bf16+{0}", request_.precision->name));
    } else if (auto recipe = recipe_of(*given)) {
      if (overrides) add_overrides(*recipe, *overrides);
      own_recipe(*recipe, given->is_string() && !overrides ? *given : *recipe);
    }
    if (!request_.precision || !request_.gpu || request_.allow_emulated) return;
    for (DType dtype : request_.precision->required_types())
      if (!request_.gpu->computes(dtype))
        root_.problem("precision", fmt::format("'{}' needs {} arithmetic, which {} has no hardware for; supported: {} (or --allow-emulated)",
                                               request_.precision->name, to_text(dtype), request_.gpu->name, supported_names()));
  }

  std::optional<Json> recipe_of(const Json& given) {
    if (given.is_object()) {
      if (!given.contains("parameters") && !given.contains("extends")) {
        root_.problem("precision.parameters", "is missing: the type a recipe keeps its parameters in (fp32, fp16, bf16), or the name that it extends");
        return std::nullopt;
      }
      return given;
    }
    if (!given.is_string()) {
      root_.problem("precision", "wants a name from `precog precisions`, or a recipe as an object");
      return std::nullopt;
    }
    const std::string text = given.get<std::string>();
    if (text.ends_with(".json")) {
      auto file = read_json_file(folder_ / text);
      if (file && file->is_object()) return *file;
      root_.problem("precision", file ? fmt::format("'{}' holds no recipe: wants an object with the fields of data/precisions", text.substr(0, 200)) : file.error().text());
      return std::nullopt;
    }
    Json names = Json::array(), sources = Json::array();
    std::string title;
    for (std::size_t begin = 0; begin <= text.size();) {
      const std::size_t end = std::min(text.find('+', begin), text.size());
      const PrecisionRecipe* part = look_up(root_, "precision", catalog_.precision(text.substr(begin, end - begin)));
      if (!part) return std::nullopt;
      if (names.empty() && part->is_part) root_.problem("precision", fmt::format("begins with '{}', which is only a part of a recipe", part->name));
      names.push_back(part->name);
      title += (title.empty() ? "" : "; ") + part->title;
      begin = end + 1;
    }
    std::string name;
    for (const Json& one : names) name += (name.empty() ? "" : "+") + one.get<std::string>();
    return Json{{"extends", names}, {"name", name}, {"title", title}};
  }

  // Rules of the request: objects as in a recipe, or texts such as "lm_head=fp32" and "op:layer_norm=bf16".
  void add_overrides(Json& recipe, const Json& overrides) {
    if (!overrides.is_array()) return root_.problem("overrides", R"(wants a list such as ["lm_head=fp32", "op:layer_norm=bf16"])");
    Json rules = recipe.contains("rules") ? recipe["rules"] : Json::array();
    for (const Json& one : overrides) {
      if (one.is_object()) {
        rules.push_back(one);
        continue;
      }
      auto rule = one.is_string() ? rule_of(one.get<std::string>()) : Result<Json>(fail("", "wants a text or a rule as an object"));
      if (rule) rules.push_back(*rule);
      else root_.problem("overrides", rule.error().text());
    }
    request_.own_rules = overrides.size();
    recipe["rules"] = rules;
  }

  void own_recipe(Json recipe, Json as_given) {
    const Json name = recipe.contains("name") ? recipe["name"] : Json("inline");
    recipe.erase("name");  // it may be the very name of what it extends: amp-bf16 with overrides is still called so
    auto whole = extended(recipe, catalog_.recipe_files, root_.path("precision"));
    if (whole) (*whole)["name"] = name;
    Result<PrecisionRecipe> parsed = whole ? Result<PrecisionRecipe>(PrecisionRecipe{}) : Result<PrecisionRecipe>(tl::unexpected(whole.error()));
    if (whole) {  // what a data file must say of itself, an inline recipe need not
      for (auto [key, value] : {std::pair<const char*, Json>{"schema", 1}, {"title", "inline recipe"}, {"source", "the request"}})
        if (!whole->contains(key)) (*whole)[key] = value;
      parsed = parse_precision(*whole, root_.path("precision"));
    }
    if (!parsed) {
      problems_.insert(problems_.end(), parsed.error().problems.begin(), parsed.error().problems.end());
      return;
    }
    for (const PrecisionRule& rule : parsed->rules)
      if (rule.fp8.value_or(false) && !parsed->fp8)
        root_.problem("overrides", fmt::format("'{}' is to run in fp8, but the recipe has no fp8 layers to say how: add some, as in {}+fp8-layers", rule.text, parsed->name));
    request_.inline_precision = std::move(as_given);
    request_.own_precision = std::make_shared<const PrecisionRecipe>(std::move(*parsed));
    request_.precision = request_.own_precision.get();
  }

  std::string supported_names() const {
    std::vector<std::string> names;
    for (const PrecisionRecipe* recipe : supported_precisions(catalog_, *request_.gpu)) names.push_back(recipe->name);
    return join(names, ", ");
  }

  void read_training() {
    request_.mode = choice<Mode>(root_, "mode",
        {{"eager", Mode::eager}, {"compile", Mode::compile}, {"compile-cudagraphs", Mode::compile_cudagraphs}}, Mode::eager);
    request_.training.optimizer = choice<OptimizerKind>(root_, "optimizer",
        {{"adamw", OptimizerKind::adamw}, {"adam", OptimizerKind::adam}, {"sgd", OptimizerKind::sgd},
         {"sgd-momentum", OptimizerKind::sgd_momentum}}, OptimizerKind::adamw);
    read_software();
    request_.reads_loss = root_.boolean("reads_loss").value_or(false);
    request_.training.optimizer_impl = choice<OptimizerImpl>(root_, "optimizer_impl",
        {{"foreach", OptimizerImpl::foreach_}, {"fused", OptimizerImpl::fused}, {"for-loop", OptimizerImpl::for_loop}},
        request_.precision && request_.precision->fused_optimizer ? OptimizerImpl::fused
        : request_.training.tensor_by_tensor                     ? OptimizerImpl::for_loop
                                                                 : OptimizerImpl::foreach_);
    request_.replicas.state_tensors = static_cast<int>(state_tensors(request_.training.optimizer));
    if (request_.replicas.offload_layers > 0 && request_.mode != Mode::eager) root_.problem("plan.offload", "of activations in a compiled mode is not modelled");
    // Beside weights that products read in fp8 the 16-bit ones are the masters.
    if (request_.replicas.offload_master && request_.precision && !request_.precision->master_weights && !request_.precision->fp8)
      root_.problem("plan.offload", fmt::format("of master weights: precision '{}' has none (deepspeed-bf16, bf16-master and apex-o2 have)", request_.precision->name));
    if (request_.replicas.offload_optimizer && request_.training.optimizer != OptimizerKind::adam && request_.training.optimizer != OptimizerKind::adamw)
      root_.problem("optimizer", fmt::format("is {}; on the host (plan.offload) adam and adamw are modelled", to_text(request_.training.optimizer)));
    request_.clip_grad_norm = root_.number("clip_grad_norm", 1e-12, 1e12);
    request_.training.clip_grad_norm = request_.clip_grad_norm.has_value();
    read_recompute();
    request_.training.allocator = choice<Allocator>(root_, "allocator", {{"caching", Allocator::caching}, {"expandable", Allocator::expandable}, {"planned", Allocator::planned}}, Allocator::caching);
    request_.training.loss_chunks = static_cast<int>(root_.integer("loss_chunks", 1, 65536).value_or(0));
    if (request_.training.loss_chunks > 0 && request_.model && !request_.model->language)
      root_.problem("loss_chunks", fmt::format("is a language model's, whose scores are many; {} takes {}", request_.model->name, request_.model->unit));
    else if (const std::int64_t tokens = request_.inputs.batch * std::max<std::int64_t>(1, request_.inputs.seq / std::max(1, request_.plan.cp)); request_.training.loss_chunks > tokens)
      root_.problem("loss_chunks", fmt::format("is {}; there are {} tokens in a micro-batch to cut", request_.training.loss_chunks, tokens));
    request_.memory_format = choice<MemoryFormat>(root_, "memory_format",
        {{"contiguous", MemoryFormat::contiguous}, {"channels_last", MemoryFormat::channels_last}},
        request_.model && request_.model->channels_last ? MemoryFormat::channels_last : MemoryFormat::contiguous);
    request_.attention = choice<Attention>(root_, "attention", {{"sdpa", Attention::sdpa}, {"flash", Attention::flash}, {"eager", Attention::eager}, {"flash1", Attention::flash1}}, Attention::sdpa);
    request_.inputs.eager_attention = request_.attention == Attention::eager;
    if (request_.inputs.eager_attention && request_.model && !request_.model->eager_attention)
      root_.problem("attention", fmt::format("is 'eager'; {} is taken as it was captured: capture it with eager attention", request_.model->name));
    request_.stack = choice<Stack>(root_, "stack", {{"pytorch", Stack::pytorch}, {"megatron", Stack::megatron}, {"te", Stack::te}}, Stack::pytorch);
    if (request_.stack != Stack::pytorch && request_.mode != Mode::eager)
      root_.problem("stack", "and a compiled mode exclude each other: the compiler writes the kernels");
  }

  // What is recomputed, and of which layers.
  void read_recompute() {
    const std::string recompute = root_.text("recompute").value_or("none");
    Checkpoints& which = request_.checkpoints;
    which.per_operator = recompute == "per-op";
    if (recompute == "full" || which.per_operator) request_.training.recompute = Recompute::full;
    else if (recompute == "selective") request_.training.recompute = Recompute::selective;
    else if (recompute == "up-projections") request_.training.recompute = Recompute::up_projections;
    else if (recompute != "none" && read_parts(recompute, which.parts)) request_.training.recompute = Recompute::parts;
    else if (recompute != "none")
      root_.problem("recompute", fmt::format("is '{}'; known: none, selective, full, per-op, up-projections, or parts of a layer joined by +: norm, activation, mlp, qkv, core, attention, up-projections", recompute.substr(0, 80)));
    which.converts_weights_again = (request_.plan.fsdp == Sharding::full || request_.replicas.offload_parameters) && request_.precision && !(request_.precision->gathers_fp8 && request_.precision->fp8 && !request_.precision->fp8->fused);
    which.first = static_cast<int>(root_.integer("recompute_layers", 1, 4096).value_or(0));
    which.every = static_cast<int>(root_.integer("recompute_every", 1, 4096).value_or(1));
    for (const char* key : {"recompute_layers", "recompute_every"})
      if (root_.has(key) && request_.training.recompute == Recompute::none) root_.problem(key, "says which layers are recomputed: it needs another recompute than none");
    check_layers(root_, "recompute_layers", which.first);
    check_layers(root_, "recompute_every", which.every);
  }

  // More layers than the model has, where that is known before it is built.
  void check_layers(JsonReader& reader, std::string_view key, std::int64_t count) {
    if (!request_.model || request_.model->layers == 0) return;
    const std::int64_t layers = request_.inputs.layers.value_or(request_.model->layers) * (request_.model->encoder_decoder ? 2 : 1);
    if (count > layers) reader.problem(key, fmt::format("is {}; {} has {} layers", count, request_.model->name, layers));
  }

  static std::vector<std::string> joined_parts(std::string_view text) {
    std::vector<std::string> out;
    for (;;) {
      const std::size_t end = text.find('+');
      out.emplace_back(text.substr(0, end));
      if (end == std::string_view::npos) return out;
      text.remove_prefix(end + 1);
    }
  }
  // "norm+mlp": all of them known?
  static bool read_parts(std::string_view text, RecomputedParts& out) {
    for (const std::string& given : joined_parts(text)) {
      bool* part = nullptr;
      for (auto& [name, field] : {std::pair<std::string_view, bool*>{"norm", &out.norms}, {"activation", &out.activation}, {"mlp", &out.mlp}, {"qkv", &out.qkv},
                                  {"core", &out.core}, {"attention", &out.attention}, {"up-projections", &out.up_projections}})
        if (given == name) part = field;
      if (!part) return false;
      *part = true;
    }
    return true;
  }
  static std::string parts_text(const RecomputedParts& parts) {
    std::vector<std::string> names;
    for (auto& [name, chosen] : {std::pair{"norm", parts.norms}, {"activation", parts.activation}, {"mlp", parts.mlp}, {"qkv", parts.qkv}, {"core", parts.core},
                                 {"attention", parts.attention}, {"up-projections", parts.up_projections}})
      if (chosen) names.push_back(name);
    return join(names, "+");
  }

  void read_software() {
    const auto name = root_.text("software");
    if (!name) return;
    request_.software = look_up(root_, "software", catalog_.software_named(*name));
    if (!request_.software) return;
    if (request_.mode != Mode::eager && request_.software->tensor_by_tensor)
      root_.problem("software", fmt::format("is '{}', which has no compiler; leave out the mode", request_.software->name));
    request_.training.tensor_by_tensor = request_.software->tensor_by_tensor;
    request_.training.zeroes_gradients = request_.software->zeroes_gradients;
    request_.training.clip_reads = request_.software->clip_reads;
  }

  // A name of data/hosts, or the file that `precog host` wrote.
  void read_host() {
    const std::string name = root_.text("host").value_or("default");
    if (!name.ends_with(".json")) {
      request_.host = look_up(root_, "host", catalog_.host(name));
      return;
    }
    auto json = read_json_file(folder_ / name);
    if (!json) return root_.problem("host", json.error().text());
    auto parsed = parse_host(*json, name, catalog_.host_files);
    if (!parsed) {
      for (const Problem& problem : parsed.error().problems) root_.problem("host", problem.where + ": " + problem.message);
      return;
    }
    request_.own_host = std::make_shared<const HostSpec>(std::move(*parsed));
    request_.host = request_.own_host.get();
    request_.own_host_path = name;
  }

  void read_input() {
    auto input = root_.object("input");
    if (!input) return;
    InputSpec out;
    if (auto seconds = input->number("seconds_per_batch", 0, 1e5)) out.per_batch = {*seconds};
    else if (!input->has("seconds_per_batch")) input->problem("seconds_per_batch", "is missing: what one worker needs for one batch, in seconds");
    if (auto workers = input->integer("workers", 0, 4096)) out.workers = static_cast<int>(*workers);
    else if (!input->has("workers")) input->problem("workers", "is missing: processes that prepare batches; 0 where the training loop does it itself");
    if (auto prefetch = input->integer("prefetch", 1, 1024)) out.prefetch = static_cast<int>(*prefetch);
    if (auto bytes = input->number("bytes_per_batch", 0, 1e13)) out.copied = Bytes{static_cast<std::int64_t>(*bytes)};
    input->reject_unknown_keys();
    if (request_.plan.pp > 1) root_.problem("input", "is modelled without pipeline stages only; leave it out, or pp at 1");
    request_.input = out;
  }

  // A file that precog calibrate wrote, or "none": physics alone. Without one, what data/profiles has for this GPU.
  void read_profile() {
    const auto path = root_.text("profile");
    if (!request_.gpu || (path && *path == "none")) return;
    if (!path) {
      auto found = catalog_.fitted_for(*request_.gpu);
      if (!found) {
        problems_.insert(problems_.end(), found.error().problems.begin(), found.error().problems.end());
        return;
      }
      request_.fitted = *found;
      if (request_.fitted) request_.fitted_from = fmt::format("data/profiles/{}.json", request_.fitted->gpu);
      return;
    }
    auto json = read_json_file(folder_ / *path);
    auto parsed = json ? parse_fitted_profile(*json, *path) : Result<FittedProfile>(tl::unexpected(json.error()));
    if (!parsed) {
      problems_.insert(problems_.end(), parsed.error().problems.begin(), parsed.error().problems.end());
      return;
    }
    if (parsed->architecture != request_.gpu->architecture)
      return root_.problem("profile", fmt::format("was fitted on {} ({}); {} is {}, and corrections carry over inside one architecture only", parsed->gpu,
                                                  parsed->architecture, request_.gpu->name, request_.gpu->architecture));
    if (const auto fitted_on = catalog_.gpu(parsed->gpu); !fitted_on || *fitted_on != request_.gpu)
      request_.warnings.push_back(fmt::format("{} was fitted on {}: its corrections are carried over to {}, by its datasheet", *path, parsed->gpu, request_.gpu->name));
    request_.own_fitted = std::make_shared<const FittedProfile>(std::move(*parsed));
    request_.fitted = request_.own_fitted.get();
    request_.fitted_from = *path;
  }

  void read_run() {
    request_.price_usd_per_gpu_hour = root_.number("price_usd_per_gpu_hour", 0, 1e6);
    auto run = root_.object("run");
    if (!run) return;
    RunLength& length = request_.run;
    length.tokens = run->number("tokens", 1, 1e18);
    length.samples = run->number("samples", 1, 1e18);
    length.epochs = run->number("epochs", 1e-6, 1e9);
    length.steps = run->number("steps", 1, 1e15);
    length.dataset_samples = run->number("dataset_samples", 1, 1e18);
    length.mtbf_hours = run->number("mtbf_hours", 1e-3, 1e12);
    length.checkpoint_s = run->number("checkpoint_s", 0, 1e9);
    length.restart_s = run->number("restart_s", 0, 1e9);
    const int given = length.tokens.has_value() + length.samples.has_value() + length.epochs.has_value() + length.steps.has_value();
    if (given > 1) run->problem("tokens", "and samples, epochs, steps exclude each other: give one");
    if (length.mtbf_hours && given == 0) run->problem("mtbf_hours", "needs the length of the run: tokens, samples, epochs or steps");
    for (const auto& [key, value] : {std::pair{"checkpoint_s", length.checkpoint_s}, {"restart_s", length.restart_s}})
      if (value && !length.mtbf_hours) run->problem(key, "needs mtbf_hours: without failures there are no checkpoints to take");
    if (length.epochs && !length.dataset_samples) run->problem("dataset_samples", "is missing: how many samples an epoch has");
    if (length.tokens && request_.model && !request_.model->language)
      run->problem("tokens", fmt::format("does not apply: {} takes {}; give samples or epochs", request_.model->name, request_.model->unit));
    run->reject_unknown_keys();
  }

  void echo() {
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
    constexpr const char* kRecompute[] = {"none", "selective", "full", "up-projections"};
    if (r.training.recompute == Recompute::parts) out["recompute"] = parts_text(r.checkpoints.parts);
    else out["recompute"] = r.checkpoints.per_operator ? "per-op" : kRecompute[static_cast<int>(r.training.recompute)];
    if (r.checkpoints.first > 0) out["recompute_layers"] = r.checkpoints.first;
    if (r.checkpoints.every > 1) out["recompute_every"] = r.checkpoints.every;
    if (r.training.loss_chunks > 0) out["loss_chunks"] = r.training.loss_chunks;
    if (r.training.allocator != Allocator::caching) out["allocator"] = r.training.allocator == Allocator::expandable ? "expandable" : "planned";
    out["memory_format"] = r.memory_format == MemoryFormat::channels_last ? "channels_last" : "contiguous";
    constexpr const char* kAttention[] = {"sdpa", "flash", "eager", "flash1"};
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
      if (r.replicas.offload_layers > 0 && r.replicas.offload_layers < 4096) out["plan"]["offload_layers"] = r.replicas.offload_layers;
    }
    if (r.replicas.bucket != Replicas{}.bucket) out["plan"]["bucket_mb"] = r.replicas.bucket.value >> 20;
    if (r.replicas.overlap_gather) out["plan"]["overlap_gather"] = true;
    if (r.replicas.bucket_views) out["plan"]["bucket_views"] = true;
    if (r.replicas.find_unused) out["plan"]["find_unused"] = true;
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
    constexpr const char* kSplits[] = {"column", "row", "whole"};
    for (const auto& [pattern, split] : r.plan.tp_plan) out["plan"]["tp_plan"][pattern] = kSplits[static_cast<int>(split)];
    if (r.plan.pp > 1) out["plan"]["vpp"] = r.plan.vpp, out["plan"]["schedule"] = to_text(r.plan.schedule);
    if (!r.plan.stage_layers.empty()) out["plan"]["stage_layers"] = r.plan.stage_layers;
    if (const auto given = root_.text("profile")) out["profile"] = *given;
    out["host"] = r.own_host ? r.own_host_path : r.host->name;
    if (r.input) {
      out["input"] = {{"seconds_per_batch", r.input->per_batch.value}, {"workers", r.input->workers}, {"prefetch", r.input->prefetch}};
      if (r.input->copied.value > 0) out["input"]["bytes_per_batch"] = r.input->copied.value;
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

  const Catalog& catalog_;
  std::filesystem::path folder_;
  std::int64_t default_batch_ = 0;
  bool sharding_given_ = false, nics_given_ = false, jitter_given_ = false;
  std::error_code ignored_;
  std::vector<Problem> problems_;
  JsonReader root_;
  Request request_;
};

}  // namespace

Result<Request> parse_request(const Json& json, const Catalog& catalog, const std::string& where, const std::filesystem::path& folder,
                              std::int64_t default_batch) {
  if (!json.is_object() || !(json.contains("from") || json.contains("from_kind"))) return RequestReader(json, catalog, where, folder, default_batch).read();
  PRECOG_TRY(whole, with_imports(json, where, folder));
  return RequestReader(whole, catalog, where, folder, default_batch).read();
}

ModelInputs inputs_of_rank(const Request& request) {
  ModelInputs inputs = request.inputs;
  inputs.seq /= request.plan.cp;
  inputs.src_seq /= request.plan.cp;
  return inputs;
}

Result<Graph> build_forward(const Request& request, std::vector<char> left_out) {
  ModelInputs inputs = inputs_of_rank(request);
  inputs.left_out = std::move(left_out);
  PRECOG_TRY(built, request.model->build(inputs));
  if (request.pad_vocabulary > 1) {
    if (vocabulary_of(built) == 0) return fail("pad_vocabulary", fmt::format("does not apply: {} has no table of tokens with a linear layer of that many scores", request.model->name));
    built = pad_vocabulary(std::move(built), request.pad_vocabulary);
  }
  if (request.attention == Attention::flash || request.attention == Attention::flash1)
    for (std::size_t i = 0; i < built.ops.size(); ++i)
      if (auto* attention = std::get_if<AttentionAttributes>(&built.ops[built.ops.id_at(i)].attributes)) attention->backend = AttentionBackend::flash;
  PRECOG_TRY(graph, freeze(std::move(built), request.frozen));
  const std::span<const PrecisionRule> rules(request.precision->rules);
  std::vector<Problem> problems;
  for (std::string& message : unmatched_rules(graph, rules.last(std::min(request.own_rules, rules.size())))) problems.push_back({"overrides", std::move(message)});
  if (!problems.empty()) return fail(std::move(problems));
  return graph;
}

std::vector<const PrecisionRecipe*> supported_precisions(const Catalog& catalog, const GpuSpec& gpu) {
  std::vector<const PrecisionRecipe*> out;
  for (const PrecisionRecipe& recipe : catalog.precisions) {
    if (recipe.is_part) continue;
    const auto types = recipe.required_types();
    if (std::all_of(types.begin(), types.end(), [&](DType dtype) { return gpu.computes(dtype); })) out.push_back(&recipe);
  }
  return out;
}

}  // namespace precog
