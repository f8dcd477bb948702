// The JSON request, read into types that cannot be wrong. All problems are reported at once, each with its field.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "base/json.h"
#include "frontend/source.h"
#include "kernel/megatron_softmax.h"
#include "parallel/parallel.h"
#include "parallel/tensor_parallel.h"
#include "predict/catalog.h"
#include "spec/input_spec.h"
#include "spec/plan.h"
#include "training/checkpoints.h"

namespace precog {

struct RunLength {  // how much to train; at most one is given
  std::optional<double> tokens, samples, epochs, steps;
  std::optional<double> dataset_samples;  // what an epoch is
  // Losses of the whole run (whole_run.h): hours between failures of one GPU and what it needs around it; seconds that a
  // checkpoint stops training, and that a restart takes.
  std::optional<double> mtbf_hours, checkpoint_s, restart_s;
};

// Whose kernels run an eager step: PyTorch's own, one per operator, or those of Megatron-LM and Transformer Engine, which do
// several operators each (bias, activation and dropout; scale, mask and softmax; norms; rotary positions).
enum class Stack { pytorch, megatron, te };
enum class Attention { sdpa, flash, eager, flash1, sdpa_causal };  // what the framework picks, the flash kernel, the model's own products and softmax, flash-attention 1's kernel, the framework's again by a model that never builds a mask

struct Request {
  std::shared_ptr<const ModelSource> model;
  ModelInputs inputs;
  std::vector<std::string> frozen;  // patterns of parameter names that are not trained
  std::int64_t pad_vocabulary = 1;  // the vocabulary is made a multiple of this
  std::int64_t global_batch = 1;
  const PrecisionRecipe* precision = nullptr;
  std::shared_ptr<const PrecisionRecipe> own_precision;  // an inline recipe's; `precision` then points to it
  Json inline_precision;                                 // and as it was given
  std::size_t own_rules = 0;                             // its last rules, which came from the request itself
  const GpuSpec* gpu = nullptr;
  ClusterSpec cluster;
  double jitter = 0;  // relative standard deviation of the ranks' own times for a step
  const HostSpec* host = nullptr;
  const SoftwareSpec* software = nullptr;  // an older framework's; nullptr: the current one
  std::shared_ptr<const HostSpec> own_host;  // one from a file of the user's; `host` then points to it
  std::string own_host_path;                 // and where that is, as it was given
  std::shared_ptr<const SystemSpec> own_system;  // a cluster from a file of the user's
  std::optional<InputSpec> input;            // the data loader, where the request says anything of it
  const FittedProfile* fitted = nullptr;  // corrections to kernel costs: of this GPU or of a relative; nullptr: physics alone
  std::shared_ptr<const FittedProfile> own_fitted;  // a file's that the request names; `fitted` then points to it
  std::string fitted_from;                          // where it comes from, for the report
  Plan plan;
  Replicas replicas;  // how those that have the same parameters share gradients and states
  TrainingOptions training;
  Checkpoints checkpoints;  // which layers are recomputed, where any are
  MemoryFormat memory_format = MemoryFormat::contiguous;
  Seconds exchange_cycle;   // between two looks for gradients to exchange, where a thread of its own does so (Horovod); 0: at once
  bool reads_loss = false;  // the loop reads the loss back in every step (loss.item()): the host waits for the GPU
  bool reads_each_loss = false;  // that of every micro-batch, before its backward
  std::optional<double> clip_grad_norm;  // the limit; only that there is one changes anything
  Mode mode = Mode::eager;
  Stack stack = Stack::pytorch;
  FusedSoftmaxRule fused_softmax;  // of the stack megatron
  Attention attention = Attention::sdpa;
  ExpertCapacity expert_capacity;
  bool tp_overlap = false;  // exchanges of tensor-parallel layers overlap with the products beside them
  bool tp_scatter_fp8 = false;  // summands of products in fp8 travel in fp8
  bool allow_emulated = false;
  RunLength run;
  std::optional<double> price_usd_per_gpu_hour;
  std::vector<std::string> warnings;  // about what it asks for; they join the report's
  std::string where;  // what the request is called in messages
  Json echo;          // the request as understood, defaults filled in; what was imported from configurations (import/import.h)
};

// A request may name configurations of frameworks ("from"): they are read first, and what it says itself wins.
// `where` names the request in messages: a file's name, or "request"; paths in it are relative to `folder`. A batch that
// neither the request nor the model says is `default_batch`, an error where that is 0. `model`: the request's own, where it has been read
// before. The catalog outlives the request.
Result<Request> parse_request(const Json& json, const Catalog& catalog, const std::string& where, const std::filesystem::path& folder = {},
                              std::int64_t default_batch = 0, std::shared_ptr<const ModelSource> model = nullptr);

// Of one rank: those that share a sequence have a part of its tokens each.
ModelInputs inputs_of_rank(const Request& request);

// The model's forward graph at the request's sizes, frozen parameters marked; without the layers that are left out.
Result<Graph> build_forward(const Request& request, std::vector<char> left_out = {});

// The whole recipes this GPU has hardware for, in the catalog's order.
std::vector<const PrecisionRecipe*> supported_precisions(const Catalog& catalog, const GpuSpec& gpu);

}  // namespace precog
