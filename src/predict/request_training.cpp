// The step itself: batch, mode, optimizer, recomputation, attention, framework version.
#include <algorithm>
#include <cstdlib>

#include "predict/request_reader.h"
#include "training/optimizer.h"

namespace precog {

void RequestReader::read_batch() {
  const std::int64_t dp = std::max(1, request_.plan.dp);
  auto batch = root_.integer("batch", 1, kMaxBatch);
  auto global = root_.integer("global_batch", 1, kMaxGlobalBatch);
  const auto micro_batches = root_.integer("micro_batches", 1, kMaxMicroBatches);
  if (!batch && !root_.has("batch")) {
    if (request_.model && request_.model->default_batch > 0) batch = request_.model->default_batch;
    else if (global && *global % (dp * micro_batches.value_or(1)) == 0 && *global / (dp * micro_batches.value_or(1)) <= kMaxBatch) batch = *global / (dp * micro_batches.value_or(1));
    else if (default_batch_ > 0) batch = default_batch_;
    else root_.problem("batch", "is missing: samples per GPU and micro-batch");
  }
  if (!batch) return;
  if (const double all = static_cast<double>(*batch) * static_cast<double>(dp) * static_cast<double>(micro_batches.value_or(1)); all > static_cast<double>(kMaxGlobalBatch)) {
    root_.problem("batch", fmt::format("is {}; batch x dp x micro_batches = {} x {} x {} is more than the {} samples that a step may have", *batch, *batch, dp, micro_batches.value_or(1), kMaxGlobalBatch));
    return;
  }
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

// LAMB's steps go by norms of whole tensors. apex's DistributedFusedLAMB shares states out and sums the squares of every rank's part of the updates; nobody does so
// with parameters that are gathered. Split layers' norms are of each rank's part, as DeepSpeed's FusedLamb takes them.
void RequestReader::check_lamb() {
  if (request_.training.optimizer_impl != OptimizerImpl::fused) root_.problem("optimizer_impl", "of lamb is apex's FusedLAMB here: 'fused'");
  if (request_.plan.fsdp == Sharding::full) root_.problem("optimizer", "is lamb, whose norms are of whole tensors; with states shared out it is apex's DistributedFusedLAMB (fsdp zero1 or zero2), with parameters shared out nobody has it");
}

namespace {

// torch.compile refuses older GPUs of NVIDIA's: "too old to be supported by the triton GPU compiler".
bool runs_triton(const GpuSpec& gpu) { return gpu.vendor != "nvidia" || std::strtod(gpu.compute_capability.c_str(), nullptr) >= 7; }

}  // namespace

void RequestReader::read_training() {
  request_.mode = choice<Mode>(root_, "mode",
      {{"eager", Mode::eager}, {"compile", Mode::compile}, {"compile-cudagraphs", Mode::compile_cudagraphs}}, Mode::eager);
  if (request_.mode != Mode::eager && request_.gpu && !runs_triton(*request_.gpu))
    root_.problem("mode", fmt::format("'{}' writes kernels in Triton, which wants compute capability 7.0 or more; {} has {}", request_.mode == Mode::compile ? "compile" : "compile-cudagraphs",
                                      request_.gpu->name, request_.gpu->compute_capability));
  request_.training.optimizer = choice<OptimizerKind>(root_, "optimizer",
      {{"adamw", OptimizerKind::adamw}, {"adam", OptimizerKind::adam}, {"sgd", OptimizerKind::sgd},
       {"sgd-momentum", OptimizerKind::sgd_momentum}, {"lamb", OptimizerKind::lamb}}, OptimizerKind::adamw);
  read_software();
  request_.reads_loss = root_.boolean("reads_loss").value_or(false);
  request_.reads_each_loss = root_.boolean("reads_each_loss").value_or(false);
  request_.exchange_cycle = {1e-3 * root_.number("exchange_cycle_ms", 0, 1000).value_or(0)};
  request_.training.optimizer_impl = choice<OptimizerImpl>(root_, "optimizer_impl",
      {{"foreach", OptimizerImpl::foreach_}, {"fused", OptimizerImpl::fused}, {"for-loop", OptimizerImpl::for_loop}},
      request_.training.optimizer == OptimizerKind::lamb || (request_.precision && request_.precision->fused_optimizer) ? OptimizerImpl::fused
      : request_.training.tensor_by_tensor                     ? OptimizerImpl::for_loop
                                                               : OptimizerImpl::foreach_);
  if (request_.training.optimizer == OptimizerKind::lamb) check_lamb();
  request_.replicas.state_tensors = static_cast<int>(state_tensors(request_.training.optimizer));
  if (request_.replicas.offload_layers > 0 && request_.mode != Mode::eager) root_.problem("plan.offload", "of activations in a compiled mode is not modelled: the compiler chooses itself what backward keeps and what it computes again, and offloads of that what code has marked (PyTorch's partitioners.py, enable_activation_offloading); take mode eager");
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
  request_.attention = choice<Attention>(root_, "attention", {{"sdpa", Attention::sdpa}, {"flash", Attention::flash}, {"eager", Attention::eager}, {"flash1", Attention::flash1}, {"sdpa-causal", Attention::sdpa_causal}}, Attention::sdpa);
  request_.inputs.eager_attention = request_.attention == Attention::eager;
  if (request_.inputs.eager_attention && request_.model && !request_.model->eager_attention)
    root_.problem("attention", fmt::format("is 'eager'; {} is taken as it was captured: capture it with eager attention", request_.model->name));
  request_.stack = choice<Stack>(root_, "stack", {{"pytorch", Stack::pytorch}, {"megatron", Stack::megatron}, {"te", Stack::te}}, Stack::pytorch);
  if (request_.stack != Stack::pytorch && request_.mode != Mode::eager)
    root_.problem("stack", "and a compiled mode exclude each other: the compiler writes the kernels");
  request_.fused_softmax.heads_for_lengths = root_.boolean("softmax_by_heads").value_or(false);
  if (request_.fused_softmax.heads_for_lengths && request_.stack != Stack::megatron) root_.problem("softmax_by_heads", "is about the fused softmax of Megatron-LM's forks: it needs stack megatron");
}

// What is recomputed, and of which layers.
void RequestReader::read_recompute() {
  const std::string recompute = root_.text("recompute").value_or("none");
  Checkpoints& which = request_.checkpoints;
  which.per_operator = recompute == "per-op";
  if (recompute == "full" || which.per_operator) request_.training.recompute = Recompute::full;
  else if (recompute == "selective") request_.training.recompute = Recompute::selective;
  else if (recompute == "up-projections") request_.training.recompute = Recompute::up_projections;
  else if (recompute != "none" && read_parts(recompute, which.parts)) request_.training.recompute = Recompute::parts;
  else if (recompute != "none")
    root_.problem("recompute", fmt::format("is '{}'; known: none, selective, full, per-op, up-projections, or parts of a layer, each once, joined by +: norm, activation, mlp, qkv, core, attention, up-projections", recompute.substr(0, 80)));
  which.converts_weights_again = (request_.plan.fsdp == Sharding::full || request_.replicas.offload_parameters) && request_.precision && !(request_.precision->gathers_fp8 && request_.precision->fp8 && !request_.precision->fp8->fused);
  if (request_.replicas.share_checkpoints && recompute != "full") root_.problem("plan.share_checkpoints", "is about what recomputed layers begin with: it needs recompute full");
  which.first = static_cast<int>(root_.integer("recompute_layers", 1, 4096).value_or(0));
  which.every = static_cast<int>(root_.integer("recompute_every", 1, 4096).value_or(1));
  for (const char* key : {"recompute_layers", "recompute_every"})
    if (root_.has(key) && request_.training.recompute == Recompute::none) root_.problem(key, "says which layers are recomputed: it needs another recompute than none");
  check_layers(root_, "recompute_layers", which.first);
  check_layers(root_, "recompute_every", which.every);
}

// More layers than the model has, where that is known before it is built.
void RequestReader::check_layers(JsonReader& reader, std::string_view key, std::int64_t count) {
  if (!request_.model || request_.model->layers == 0) return;
  const std::int64_t layers = request_.inputs.layers.value_or(request_.model->layers) * (request_.model->encoder_decoder ? 2 : 1);
  if (count > layers) reader.problem(key, fmt::format("is {}; {} has {} layers", count, request_.model->name, layers));
}

std::vector<std::string> RequestReader::joined_parts(std::string_view text) {
  std::vector<std::string> out;
  for (;;) {
    const std::size_t end = text.find('+');
    out.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return out;
    text.remove_prefix(end + 1);
  }
}

// "norm+mlp": all of them known?
bool RequestReader::read_parts(std::string_view text, RecomputedParts& out) {
  for (const std::string& given : joined_parts(text)) {
    bool* part = nullptr;
    for (auto& [name, field] : {std::pair<std::string_view, bool*>{"norm", &out.norms}, {"activation", &out.activation}, {"mlp", &out.mlp}, {"qkv", &out.qkv},
                                {"core", &out.core}, {"attention", &out.attention}, {"up-projections", &out.up_projections}})
      if (given == name) part = field;
    if (!part || *part) return false;  // nothing twice
    *part = true;
  }
  return true;
}

std::string RequestReader::parts_text(const RecomputedParts& parts) {
  std::vector<std::string> names;
  for (auto& [name, chosen] : {std::pair{"norm", parts.norms}, {"activation", parts.activation}, {"mlp", parts.mlp}, {"qkv", parts.qkv}, {"core", parts.core},
                               {"attention", parts.attention}, {"up-projections", parts.up_projections}})
    if (chosen) names.push_back(name);
  return join(names, "+");
}

void RequestReader::read_software() {
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

}  // namespace precog
