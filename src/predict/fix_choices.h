// What may be changed of a job that does not fit, setting by setting, and several such changes as one. Nothing is predicted here: a
// choice that its job cannot have is found out when the changed request is read.
#pragma once

#include <string>
#include <vector>

#include "predict/request.h"
#include "report/report.h"

namespace precog {

// Settings; of each at most one choice is taken.
enum class FixAxis : std::uint8_t { precision, states, gradients, sharding, ep, tp, cp, pp, exchange, stages, offload, mode, attention, optimizer, format, loss, allocator, recompute, batch, kCount };
inline constexpr std::size_t kFixAxes = static_cast<std::size_t>(FixAxis::kCount);

// How far results are from those of the job as asked for: the same; weights and what is sensitive stay as exact as they were; weights do,
// and every operator computes in 16 bits; weights themselves are rounded.
enum class FixResult : std::uint8_t { same, close, narrow, other, kCount };
inline constexpr std::size_t kFixResults = static_cast<std::size_t>(FixResult::kCount);

// Times: what estimates are off by; what a change must save that is not needed otherwise; what one change less may cost; how much
// faster is worth a word.
inline constexpr double kFixAlike = 1.04, kFixEarned = 1.02, kFixHardly = 1.01, kFixFaster = 0.97;
inline constexpr const char* kFixCompiled = "--mode compile";

struct FixChoice {
  FixAxis axis = FixAxis::batch;
  std::string change;    // in words
  std::string flags;     // of the command line; without --precision and --global-batch, which several choices may want
  std::string note;
  std::string numerics;  // what training computes differently; empty: the same result
  FixResult result = FixResult::same;
  Json patch = Json::object();     // the same as fields of the request
  std::string recipe, part;        // of the precision: another recipe, or something added to it
  const char* by_layers = nullptr; // the field that says of how many layers, where that can be said
  bool moves = false;              // what layers keep to the host as well, of as many
  bool needs_full = false;         // only with parameters sharded
  bool shards = false;             // and this shards them itself
  std::int64_t value = 0;          // of a degree, or a batch
  std::int16_t steps = 0;          // and how many times the job's own, as a logarithm
};

// GPUs that share something: layers, sequences, experts, or a row of stages.
inline bool is_degree(FixAxis axis) { return axis >= FixAxis::ep && axis <= FixAxis::pp; }
// Replicas share something out; their weights.
inline bool spreads(const FixChoice& choice) { return choice.axis == FixAxis::sharding || choice.shards; }
inline bool shards_weights(const FixChoice& choice) { return spreads(choice) && (choice.flags == "--fsdp full" || choice.flags == "--fsdp hybrid"); }

// How many GPUs share what, as a job is or as choices leave it.
struct FixDegrees {
  int ep = 1, tp = 1, cp = 1, pp = 1, dp = 1;
  bool valid = true;  // the GPUs can be shared out so
  FixDegrees(const Plan& plan, const std::vector<const FixChoice*>& choices);
  bool alone() const { return dp * cp == 1; }  // nobody to share weights with
};

// What the job asks for already and could do without: what it recomputes and what it keeps on the host. Changes are then told against
// the job, and are sought from the job without.
struct FixUndone {
  std::string recompute, offload;  // as the job says it; empty: nothing to take back
  bool by_layers = false;          // of layers that it names: others are named again
  bool every = false;
  explicit operator bool() const { return !recompute.empty() || !offload.empty(); }
};
FixUndone undone(const Json& request);
Json without(const FixUndone& undone, const Json& request);

// `request`: with configurations read in, and without what is undone. `base`: its report; `parsed`: what it is read as.
std::vector<FixChoice> fix_choices(const Json& request, const Report& base, const Request& parsed, const Catalog& catalog);

// The same number of steps with a smaller batch, where the batch has no divisor near to what fits: another training, and said so.
Fix smaller_batch(std::int64_t batch, const Json& request, const Report& base);

// Several choices, at most one of an axis, in the order of axes; `layers`: of how many, where one of them can be had by layers; 0: all.
// Its flags are empty where none say so. `request`: the job itself, and `plan` what it says of its GPUs; `all`: how many layers there are.
Fix fix_of_choices(const std::vector<const FixChoice*>& choices, int layers, const Json& request, const Plan& plan, const Report& base, const FixUndone& undone, int all);

}  // namespace precog
