// How the model is spread over GPUs: degrees, pipeline, experts. What the degrees must divide.
#include <algorithm>

#include "predict/request_reader.h"

namespace precog {

void RequestReader::read_plan() {
  const std::int64_t gpus = request_.cluster.gpus;
  std::int64_t dp = gpus;
  if (auto plan = root_.object("plan")) {
    const std::size_t before = problems_.size();
    std::int64_t product = read_split_layers(*plan) * read_pipeline(*plan);
    if (problems_.size() == before && gpus % product != 0)
      plan->problem(request_.plan.tp > 1 ? "tp" : request_.plan.cp > 1 ? "cp" : "pp",
                    fmt::format("makes one replica of tp x cp x pp = {} GPUs; of {} GPUs that is no whole number of replicas", product, gpus));
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
    if (problems_.size() == before) check_experts(*plan, dp);
  }
  request_.plan.dp = static_cast<int>(dp);
}

void RequestReader::check_experts(JsonReader& plan, std::int64_t dp) {
  const Plan& p = request_.plan;
  if (p.ep == 1)
    for (const char* key : {"expert_dispatch", "expert_overlap"})
      if (plan.has(key)) plan.problem(key, "is about tokens that travel to their experts: it needs an ep of at least 2");
  // Their own grid over the stage's ranks (Megatron-Core's parallel_state.py asks no more than this).
  const std::int64_t ranks = dp * p.tp * p.cp, each = p.ranks_per_expert();
  if (ranks % each != 0)
    plan.problem("etp", fmt::format("is {}; each expert is shared by so many of a stage's tp x cp x dp = {} ranks, so it must divide {}", each, ranks, ranks));
  else if (ranks / each % p.ep != 0)
    plan.problem("ep", fmt::format("is {}; experts are shared out among a stage's tp x cp x dp = {} ranks, {} for each expert (etp), so it must divide {}", p.ep, ranks, each, ranks / each));
}

// Returns how many stages there are: a factor of the GPU count.
std::int64_t RequestReader::read_pipeline(JsonReader& reader) {
  Plan& plan = request_.plan;
  plan.pp = static_cast<int>(reader.integer("pp", 1, kMaxStages).value_or(1));
  plan.vpp = static_cast<int>(reader.integer("vpp", 1, kMaxStages).value_or(1));
  plan.schedule = choice<PipelineSchedule>(reader, "schedule",
      {{"gpipe", PipelineSchedule::gpipe}, {"1f1b", PipelineSchedule::one_f_one_b}, {"interleaved", PipelineSchedule::interleaved},
       {"zb", PipelineSchedule::zero_bubble}, {"zbv", PipelineSchedule::zero_bubble_v}, {"dualpipe", PipelineSchedule::dualpipe}},
      plan.vpp > 1 ? PipelineSchedule::interleaved : PipelineSchedule::one_f_one_b);
  if (const Json* layers = reader.raw("stage_layers")) {
    const auto allowed = [&](const Json& one) { return one.is_number_integer() && one >= (&one == &layers->front() || &one == &layers->back() ? 0 : 1) && one <= 4096; };
    if (layers->is_array() && !layers->empty() && std::all_of(layers->begin(), layers->end(), allowed)) plan.stage_layers = layers->get<std::vector<int>>();
    else reader.problem("stage_layers", "wants a list of whole numbers from 1 to 4096: the layers of each chunk, first to last; 0 for a first one that only embeds, or a last one that is the head alone");
  }
  if (plan.pp == 1) {
    for (const char* key : {"vpp", "schedule", "stage_layers"})
      if (reader.has(key) && !(std::string_view(key) == "vpp" && plan.vpp == 1)) reader.problem(key, "needs pipeline parallelism: pp of at least 2");
    return 1;
  }
  if (plan.schedule == PipelineSchedule::interleaved && plan.vpp == 1) reader.problem("vpp", "is 1; an interleaved schedule has at least 2 chunks of layers per stage");
  if (plan.schedule == PipelineSchedule::zero_bubble_v) {
    if (reader.has("vpp") && plan.vpp != 2) reader.problem("vpp", fmt::format("is {}; the V of zbv is two chunks of layers per stage: say 2, or leave it out", plan.vpp));
    plan.vpp = 2;
  } else if (plan.schedule != PipelineSchedule::interleaved && plan.vpp > 1)
    reader.problem("vpp", fmt::format("is {}; only an interleaved schedule has several chunks per stage, not {}", plan.vpp, to_text(plan.schedule)));
  if (plan.schedule == PipelineSchedule::dualpipe && plan.pp % 2 != 0) reader.problem("pp", fmt::format("is {}; dualpipe feeds both ends of an even number of stages", plan.pp));
  return plan.pp;
}

// What schedules ask of the number of micro-batches.
void RequestReader::check_micro_batches() {
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
std::int64_t RequestReader::read_split_layers(JsonReader& plan) {
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
  if (out.ep > 1 && out.expert_imbalance > out.ep)
    plan.problem("expert_imbalance", fmt::format("is {:g}; the busiest of ep = {} ranks has at most all of the tokens, {} times the mean", out.expert_imbalance, out.ep, out.ep));
  ExpertCapacity& capacity = request_.expert_capacity;
  capacity.factor = plan.number("expert_capacity", 0.01, 1000).value_or(0);
  if (const double dropped = dropped_share(capacity, out.expert_imbalance); dropped > 0)
    request_.warnings.push_back(fmt::format("expert_capacity {:g}: about {:.2g}% of the tokens' choices find no room and are dropped{}; MFU and TFLOP/s leave their products out", capacity.factor, 100 * dropped,
                                            out.expert_imbalance > 1 ? fmt::format(" (loads spread up to {:g} times the mean)", out.expert_imbalance) : ""));
  capacity.padded = plan.boolean("expert_padding").value_or(false);
  if (capacity.padded && capacity.factor == 0) plan.problem("expert_padding", "fills experts up to their capacity: it needs expert_capacity");
  if (capacity.padded && out.expert_imbalance > 1) plan.problem("expert_imbalance", "says how much the busiest expert has, and with expert_padding all have their capacity: leave one out");
  if (auto etp = plan.integer("etp", 1, 4096)) {
    out.etp = static_cast<int>(*etp);
    // DeepSpeed's whole experts on other ranks get tokens of which each rank drops the others' share.
    if (out.experts_apart() && !(*etp == 1 && out.ep > 1) && out.tp > 1 && !out.sp)
      plan.problem("etp", fmt::format("is {} with tp = {}: each rank sends its own tokens to experts that are split otherwise than their layers, so that sequences must be shared out: sp (Megatron-Core refuses to train experts with tensor parallelism without it)", *etp, out.tp));
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

}  // namespace precog
